"""`/agent/runs/{run_id}/rating`: a person's rating of an answer, with a comment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from framework.llm.client import ScriptedModel, calls
from tests.support.api_keys import key_entry
from tests.support.projects import agent, write
from tests.support.runs_http import client_of


def test_an_answer_is_rated_found_by_its_rating_and_exported_with_the_comment(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel(calls(("calculator", {"expression": "1+2"})), "It is four.", "fine")
        write(tmp_path, {"agents.d/one.yaml": agent("one", skill_policy="{allow: [calculator]}")})
        async with client_of(tmp_path, model, store=f"sqlite:///{tmp_path}/state.db") as client:
            run = (await client.post("chat", {"message": "1+2?"}))["run_id"]
            other = (await client.post("chat", {"message": "hi"}))["run_id"]
            assert (await client.get(f"runs/{run}"))["rating"] is None
            body = {"rating": "down", "comment": " 1+2 is 3 "}
            response = await client.http.put(f"/agent/runs/{run}/rating", json=body)
            assert response.status_code == 200
            rating = response.json()["rating"]
            assert (rating["value"], rating["comment"]) == ("down", "1+2 is 3")
            assert (await client.get(f"runs/{run}"))["rating"] == rating
            found = (await client.get("runs?rating=down"))["runs"]
            assert [(one["run_id"], one["rating"]) for one in found] == [(run, rating)]
            assert (await client.get("runs?rating=up"))["runs"] == []
            case = (await client.get(f"runs/{run}/test-case"))["text"]
            assert "note: 'rated down: 1+2 is 3'" in case or 'note: "rated down: 1+2 is 3"' in case
            assert "note" not in (await client.get(f"runs/{other}/test-case"))["text"]
            assert (await client.delete(f"runs/{run}/rating")) == {"run_id": run, "rating": None}
            assert (await client.get("runs?rating=down"))["runs"] == []
            for wrong in (
                {},
                {"rating": "good"},
                {"rating": "up", "comment": "x" * 4001},
                {"rating": "up", "by": "me"},
            ):
                assert (await client.http.put(f"/agent/runs/{run}/rating", json=wrong)).status_code == 400, wrong
            await client.error("GET", "runs?rating=good", 400)

    asyncio.run(main())


def test_a_rating_names_who_made_it_and_needs_the_right_to_chat(tmp_path: Path) -> None:
    async def main() -> None:
        secrets = {name: f"{name}-0123456789abcdef" for name in ("ann", "reader")}
        rights: dict[str, dict[str, Any]] = {"ann": {"user": "ann", "roles": ["chat"]}, "reader": {"roles": ["read"]}}
        entries = ", ".join(str(key_entry(name, secrets[name], **rights[name])) for name in secrets)
        settings = f"server: {{api_keys: [{entries}]}}\n"
        write(tmp_path, {"agents.d/one.yaml": agent("one"), "agentsd.yaml": settings})
        async with client_of(tmp_path, ScriptedModel("hello")) as client:
            client.http.headers["authorization"] = f"Bearer {secrets['ann']}"
            run = (await client.post("chat", {"message": "hi"}))["run_id"]
            rated = await client.http.put(f"/agent/runs/{run}/rating", json={"rating": "up"})
            assert rated.json()["rating"]["by"] == "ann"
            client.http.headers["authorization"] = f"Bearer {secrets['reader']}"
            for method in ("PUT", "DELETE"):
                body = {"rating": "down"} if method == "PUT" else None
                await client.error(method, f"runs/{run}/rating", 403, json=body)

    asyncio.run(main())
