"""Pages of every list, repetitions with an `Idempotency-Key`, and readable operation ids."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import Response

from framework import tool
from framework.llm.client import ModelRequest
from framework.server.identity import LOCAL, check_access
from framework.server.request_handling import KeyedResponses
from framework.testing import ScriptedModel, Turn, calls
from tests.support.loopback import LOOPBACK
from tests.support.projects import agent, write
from tests.support.serving import Serving, serving

KEY = {"idempotency-key": "one"}
APPROVED = {"decisions": {"c1": {"type": "approve"}}}


@tool(risk="medium", name="mail.send")
async def send() -> str:
    """Send mail."""
    return "sent"


def script(request: ModelRequest) -> Turn:
    return calls(("mail.send", {})) if request.messages[-1].role == "user" else "Sent."


def serve(root: Path, use: Callable[[Serving, httpx2.AsyncClient], Awaitable[Any]]) -> Any:
    policy = '{allow: ["mail.*"], ask: ["mail.*"]}'
    write(root, {f"agents.d/{name}.yaml": agent(name, skill_policy=policy) for name in ("one", "three", "two")})

    async def main() -> Any:
        async with (
            serving(root, models={"scripted": ScriptedModel(script=script)}, tools=[send]) as server,
            httpx2.AsyncClient(base_url=f"{server.url}/agent", **LOOPBACK, timeout=20) as http,
        ):
            return await use(server, http)

    return asyncio.run(main())


async def start(http: httpx2.AsyncClient) -> str:
    return str((await http.post("/chat", json={"message": "hi", "agent": "one"})).json()["run_id"])


async def pages(http: httpx2.AsyncClient, path: str, name: str, parameter: str = "cursor") -> list[list[Any]]:
    """Return the entries of a list, page by page of two."""
    found, cursor = [], ""
    while True:
        body = (await http.get(path, params={"limit": 2, **({parameter: cursor} if cursor else {})})).json()
        found.append(body[name])
        cursor = body["next"] if body.get("next") else ""
        if not cursor:
            return found


def test_every_list_has_pages_with_a_cursor(tmp_path: Path) -> None:
    async def use(server: Serving, http: httpx2.AsyncClient) -> None:
        runs = [await start(http) for _ in range(3)]
        for run_id in runs:
            assert (await http.post(f"/runs/{run_id}/decisions", json=APPROVED)).status_code == 202
            await server.runtime.result(run_id)
        waiting = [await start(http) for _ in range(3)]
        lists = {
            "/runs": "runs", "/approvals": "approvals", "/approvals/decided": "decided", "/agents": "agents",
            "/conversations": "conversations", "/config/files": "files",
        }  # fmt: skip
        for path, name in lists.items():
            whole = (await http.get(path)).json()[name]
            found = await pages(http, path, name)
            assert [entry for page in found for entry in page] == whole, path
            assert [len(page) for page in found[:-1]] == [2] * (len(found) - 1), path
            assert len(found) > 1, path
            assert (await http.get(path, params={"cursor": ""})).json()[name] == whole, path
        for path, name, old in (("/runs", "runs", "before"), ("/approvals", "approvals", "before")):
            assert await pages(http, path, name, old) == await pages(http, path, name)
        assert [entry["run_id"] for page in await pages(http, "/approvals", "approvals") for entry in page] == waiting[
            ::-1
        ]
        wrong = await http.get("/agents", params={"cursor": "nobody"})
        both = await http.get("/runs", params={"cursor": runs[0], "before": runs[1]})
        assert [answer.json()["error"]["param"] for answer in (wrong, both)] == ["cursor", "before"]
        for path, name in {"/config/history": "generations", "/agents/one/history": "versions"}.items():
            assert len((await http.get(path, params={"limit": 1})).json()[name]) == 1

    serve(tmp_path, use)


def test_a_repeated_request_with_a_key_changes_nothing_and_gets_the_same_response(tmp_path: Path) -> None:
    async def use(server: Serving, http: httpx2.AsyncClient) -> None:
        run_id = await start(http)
        decisions = f"/runs/{run_id}/decisions"
        first = await http.post(decisions, json=APPROVED, headers=KEY)
        await server.runtime.result(run_id)
        again = await http.post(decisions, json=APPROVED, headers=KEY)
        keyless = await http.post(decisions, json=APPROVED)
        elsewhere = await http.post(decisions, json=APPROVED, headers={"idempotency-key": "unknown to this process"})
        other = await http.post(decisions, json={"decisions": {"c1": {"type": "reject"}}}, headers=KEY)
        assert (first.status_code, again.status_code, again.json()) == (202, 202, first.json())
        assert again.headers["x-agentsd-run-id"] == run_id
        assert keyless.status_code == 409
        assert elsewhere.status_code == 202
        assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_conflict")

        for path in (f"/runs/{run_id}/cancel", f"/runs/{run_id}/replay"):
            answers = [await http.post(path, headers={"idempotency-key": path}) for _ in range(2)]
            assert answers[0].status_code == 200
            assert answers[0].content == answers[1].content

        refused = [await http.post("/runs/nothing/cancel", headers={"idempotency-key": "x"}) for _ in range(2)]
        assert [answer.status_code for answer in refused] == [404, 404]

    serve(tmp_path, use)


def test_a_repeated_rollback_publishes_one_generation(tmp_path: Path) -> None:
    async def use(server: Serving, http: httpx2.AsyncClient) -> None:
        edit = agent("one", description="Another one.")
        (tmp_path / "agents.d/one.yaml").write_text(edit)
        await server.runtime.catalog.reload()
        answers = [await http.post("/config/rollback", json={"generation": 1}, headers=KEY) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].content == answers[1].content
        assert server.runtime.catalog.current.number == 3

    serve(tmp_path, use)


def request_of(body: bytes) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/x", "headers": [], "query_string": b"", "scheme": "http"}
    request = Request({**scope, "server": ("localhost", 80)}, receive)
    check_access(lambda _: LOCAL, request)
    return request


def test_simultaneous_repetitions_are_handled_once_and_a_failure_is_forgotten() -> None:
    clock, handled = [0.0], []
    keyed = KeyedResponses(lambda: clock[0])

    async def handle() -> Response:
        handled.append(1)
        await asyncio.sleep(0)
        if len(handled) == 1:
            raise ValueError("the store fails")
        return Response(str(len(handled)))

    async def main() -> None:
        with pytest.raises(ValueError, match="the store fails"):
            await keyed.once(request_of(b""), "k", handle)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(keyed.once(request_of(b""), "k", handle)) for _ in range(3)]
        assert [task.result().body for task in tasks] == [b"2"] * 3
        clock[0] = 25 * 60 * 60.0
        assert (await keyed.once(request_of(b"another"), "k", handle)).body == b"3"

    asyncio.run(main())


def test_operation_ids_are_names_that_clients_can_have(tmp_path: Path) -> None:
    async def use(server: Serving, http: httpx2.AsyncClient) -> Any:
        return (await http.get("/openapi.json")).json()["paths"]

    paths = serve(tmp_path, use)
    ids = [operation["operationId"] for operations in paths.values() for operation in operations.values()]
    assert len(set(ids)) == len(ids)
    assert all(name.replace("_", "").isalpha() and name.count("_") in (1, 2) for name in ids)
    assert paths["/agent/runs"]["post"]["operationId"] == "start_run"
    assert paths["/agent/runs/{run_id}/decisions"]["post"]["operationId"] == "decide_run"
