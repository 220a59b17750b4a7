"""`/agent/openapi.json`: every route, with examples that fit, and responses of the server that fit too."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator

from framework import Runtime
from framework.llm.client import ScriptedModel, calls
from framework.server import router
from framework.types.memory import Note
from tests.support.projects import agent, write
from tests.support.runs_http import RunClient, client_of
from tests.support.server_routes import server_routes
from tests.support.submitted_runs import Gate, project


async def document_of(root: Path) -> dict[str, Any]:
    async with client_of(root, ScriptedModel()) as client:
        found: dict[str, Any] = await client.get("openapi.json")
        return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def validator(document: dict[str, Any], schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": document["components"]})


def check(document: dict[str, Any], operation: dict[str, Any], status: int, body: Any) -> None:
    schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
    validator(document, schema).validate(body)


def test_the_document_has_only_what_its_version_of_openapi_knows(tmp_path: Path) -> None:
    document = asyncio.run(document_of(project(tmp_path)))
    assert document["openapi"].startswith("3.1.")
    assert document["info"]["license"]["name"] == "MIT"
    declared = {tag["name"] for tag in document["tags"]}
    for name, operation in operations(document):
        assert set(operation["tags"]) <= declared, name
        for response in operation["responses"].values():
            for content in response.get("content", {}).values():
                unknown = {key for key in content if not key.startswith("x-")} - {"schema", "example", "examples"}
                assert unknown == set(), name
    for kind in ("TextPart", "MediaPart"):
        assert "type" in document["components"]["schemas"][kind]["required"]


@pytest.mark.parametrize("name", ["GrantEntry", "GrantPreview"])
def test_fields_of_grants_are_always_there(tmp_path: Path, name: str) -> None:
    schema = asyncio.run(document_of(project(tmp_path)))["components"]["schemas"][name]
    assert set(schema["required"]) == set(schema["properties"])


def test_bodies_that_are_refused_whatever_the_project_has_do_not_fit_the_schema(tmp_path: Path) -> None:
    async def main() -> None:
        async with client_of(project(tmp_path), ScriptedModel()) as client:
            document = await client.get("openapi.json")
            for path in ("chat", "runs"):
                body = document["paths"][f"/agent/{path}"]["post"]["requestBody"]["content"]["application/json"]
                fits = validator(document, body["schema"]).is_valid
                assert fits({"message": "hi"})
                assert fits({"messages": [{"role": "user", "content": "hi"}], "conversation_id": None})
                refused_bodies: tuple[dict[str, Any], ...] = (
                    {},
                    {"message": None},
                    {"messages": []},
                    {"messages": [{}], "conversation_id": "c"},
                    {"message": "hi", "max_tokens": 5, "max_total_tokens": 5},
                )
                for refused in refused_bodies:
                    assert not fits(refused), refused
                    assert (await client.http.post(f"/agent/{path}", json=refused)).status_code == 400
            assert (await client.http.post("/agent/config/rollback", json={"generation": 99.0})).status_code == 404

    asyncio.run(main())


def test_values_of_parameters_that_are_refused_do_not_fit_the_schema(tmp_path: Path) -> None:
    async def main() -> None:
        async with client_of(project(tmp_path), ScriptedModel("hi")) as client:
            document = await client.get("openapi.json")
            described = {
                (name, parameter["name"]): parameter["schema"]
                for name, operation in operations(document)
                for parameter in operation.get("parameters", ())
            }
            assert not [key for key, schema in described.items() if "'null'" in str(schema)], "a text is never null"
            for name in ("user", "conversation_id", "q", "digest"):
                fits = validator(document, described["GET /agent/runs", name]).is_valid
                assert fits("ann")
                assert not fits("a\nb")
                assert (await client.http.get("/agent/runs", params={name: "a\nb"})).status_code == 400
            for name in ("since", "until"):
                fits = validator(document, described["GET /agent/usage", name]).is_valid
                for year, is_valid in ((1970, False), (1971, True), (9997, True), (9998, False)):
                    at = f"{year}-06-01T00:00:00Z"
                    assert fits(at) is is_valid, at
                    status = (await client.http.get("/agent/usage", params={name: at})).status_code
                    assert is_valid or status == 400
            run = await client.post("runs", {"message": "m"}, 202)
            events = "GET /agent/runs/{run_id}/events", "Last-Event-ID"
            for last, is_valid in (("1", True), ("x", False), ("1" * 19, False)):
                assert validator(document, described[events]).is_valid(last) is is_valid
                response = await client.http.get(f"/agent/runs/{run['run_id']}/events", headers={"last-event-id": last})
                assert (response.status_code == 400) is not is_valid

    asyncio.run(main())


def test_requests_of_agui_that_its_sdk_refuses_do_not_fit_the_schema(tmp_path: Path) -> None:
    async def main() -> None:
        async with client_of(project(tmp_path), ScriptedModel("hi")) as client:
            document = await client.get("openapi.json")
            body = document["paths"]["/agui/{agent}"]["post"]["requestBody"]["content"]["application/json"]
            fits = validator(document, body["schema"]).is_valid
            message = {"id": "m", "role": "user", "content": "hi"}
            whole: dict[str, Any] = {"threadId": "t", "runId": "r", "messages": [message]}
            assert fits(whole)
            assert fits({**whole, "messages": [], "resume": [{"interruptId": "i", "status": "cancelled"}]})
            refused_fields: tuple[dict[str, Any], ...] = (
                {"messages": []},
                {"messages": [{"role": "user", "content": "hi"}]},
                {"messages": [{**message, "role": "king"}]},
                {"messages": [], "resume": []},
                {"resume": [{}]},
                {"resume": [{"interruptId": "i"}]},
                {"resume": [{"interruptId": "i", "status": "later"}]},
                {"context": [{"value": "v"}]},
            )
            for refused in refused_fields:
                assert not fits({**whole, **refused}), refused
                assert (await client.http.post("/agui/a", json={**whole, **refused})).status_code == 400, refused

    asyncio.run(main())


def test_every_route_is_described_with_its_errors(tmp_path: Path) -> None:
    async def main() -> None:
        root = project(tmp_path)
        document = await document_of(root)
        app = FastAPI(openapi_url=None)
        async with Runtime.open(root, watch=False) as runtime:
            app.router.routes.extend(router(runtime).routes)
            described = {name for name, _ in operations(document)}
            routes = (str(route) for route in server_routes(app.routes) if route.path.startswith("/agent/"))
            existing = {route.replace(":path}", "}") for route in routes}
            assert existing - described == {"GET /agent/openapi.json"}
        for name, operation in operations(document):
            assert operation["description"], name
            assert {"400", "401", "403", "429", "500", "default"} <= operation["responses"].keys(), name
            assert "422" not in operation["responses"], name
            for status, response in operation["responses"].items():
                if status >= "400":
                    reference = {"$ref": "#/components/schemas/ErrorResponse"}
                    assert response["content"]["application/json"]["schema"] == reference, (name, status)

    asyncio.run(main())


def test_every_body_has_an_example_that_fits_its_schema(tmp_path: Path) -> None:
    document = asyncio.run(document_of(project(tmp_path)))
    assert document["openapi"] == "3.1.0"
    for reference in re.findall(r"'\$ref': '#/components/schemas/([^']+)'", str(document)):
        Draft202012Validator.check_schema(document["components"]["schemas"][reference])
    for name, operation in operations(document):
        if "requestBody" in operation:
            content = operation["requestBody"]["content"]["application/json"]
            assert content["examples"], name
            for example in content["examples"].values():
                validator(document, content["schema"]).validate(example["value"])
        success = next(response for status, response in operation["responses"].items() if status[0] == "2")
        for media_type, content in success["content"].items():
            assert content["example"], (name, media_type)
            if media_type == "text/event-stream":
                for event in content["example"].strip().split("\n\n")[1:]:  # the first one is `retry`
                    fields = dict(line.split(": ", 1) for line in event.splitlines())
                    validator(document, content["x-item-schema"]).validate(fields)
            else:
                validator(document, content["schema"]).validate(content["example"])


def test_fields_and_parameters_are_described(tmp_path: Path) -> None:
    document = asyncio.run(document_of(project(tmp_path)))
    fields = document["components"]["schemas"]["ChatBody"]["properties"]
    assert all(field["description"] for field in fields.values())
    for name, operation in operations(document):
        for parameter in operation.get("parameters", ()):
            if parameter["in"] in ("query", "header") and parameter["name"] != "last-event-id":
                assert parameter.get("description"), (name, parameter["name"])


def test_responses_fit_their_schemas(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        model = ScriptedModel(calls(("pay", {})), "thanks")
        write(tmp_path, {"agents.d/b.yaml": agent("b", inputs="{who: {required: true}}")})
        async with client_of(project(tmp_path), model, gate, store=f"sqlite:///{tmp_path}/state.db") as client:
            document = await client.get("openapi.json")
            found = dict(operations(document))
            chat = await client.post("chat", {"message": "go", "agent": "a"}, 202)
            check(document, found["POST /agent/chat"], 202, chat)
            about = {"agent": "b", "run_id": chat["run_id"], "untrusted": True, "created_at": 1.0, "used_at": 1.0}
            note = Note.model_validate({"id": "note_1", "text": "x", "scope": "user", **about})
            await client.serving.runtime.store.notes.save(note, 1)
            await _check_reads(client, document, chat)
            body = {"decisions": {chat["pending"][0]["id"]: {"type": "approve"}}}
            decided = await client.post(f"runs/{chat['run_id']}/decisions", body, 202)
            check(document, found["POST /agent/runs/{run_id}/decisions"], 202, decided)
            await client.events(f"runs/{chat['run_id']}/events", params={"wait": True})
            await _check_reads(client, document, chat)
            refused = await client.http.post("/agent/chat", json={})
            check(document, found["POST /agent/chat"], 400, refused.json())
            failed = await client.http.post("/agent/chat", json={"message": "x", "agent": "a"})
            assert failed.status_code == 502, "the script has ended"
            check(document, found["POST /agent/chat"], 502, failed.json())

    async def _check_reads(client: RunClient, document: dict[str, Any], chat: dict[str, Any]) -> None:
        for name, operation in operations(document):
            method, path = name.split(" ")
            if method != "GET" or path.endswith("/events"):
                continue
            ids = {
                "run_id": chat["run_id"],
                "conversation_id": chat["conversation_id"],
                "name": "b",
                "note_id": "note_1",
            }
            url = path.format(**ids, generation=1, path="agents.d/b.yaml")
            check(document, operation, 200, await client.get(url.removeprefix("/agent/")))

    asyncio.run(main())


def test_the_document_names_the_place_where_the_routes_are_mounted(tmp_path: Path) -> None:
    document = asyncio.run(document_of(project(tmp_path)))
    assert document["servers"] == [{"url": "/"}]


def test_protocols_that_are_not_described_are_named(tmp_path: Path) -> None:
    document = asyncio.run(document_of(project(tmp_path)))
    (protocols,) = (tag["description"] for tag in document["tags"] if tag["name"] == "protocols")
    assert all(f"`{path}`" in protocols for path in ("/v1", "/mcp", "/a2a/{agent}"))
    assert "/agui/{agent}" in document["paths"]
