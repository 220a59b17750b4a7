"""Priorities, queues and the limit of waiting runs over HTTP: who may send what, and what each API answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2

from framework.testing import ScriptedModel, calls
from tests.support.api_keys import KEY, OTHER, key_entry
from tests.support.projects import write
from tests.support.runs_http import RunClient, client_of
from tests.support.submitted_runs import Gate, project
from tests.support.waiting import until

WORK = "work: {max_waiting: 1, max_running: {agents: {a: 1}}}\n"
AGUI = {
    "threadId": "t",
    "runId": "r",
    "messages": [{"id": "1", "role": "user", "content": "hi"}],
    "state": {},
    "tools": [],
    "context": [],
    "forwardedProps": {},
}
"""A request of an AG-UI client."""
OPENAI: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "a", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"model": "a", "input": "hi"},
}


async def fill(client: RunClient, gate: Gate) -> tuple[str, str]:
    """Let one run be in progress and one wait for its slot; return their ids."""
    first = await client.post("runs", {"message": "1", "agent": "a"}, 202)
    await gate.began.wait()
    second = await client.post("runs", {"message": "2", "agent": "a", "priority": 3}, 202)

    async def waits() -> bool:
        return bool((await client.get(f"runs/{second['run_id']}"))["waits_for"] == "agent:a")

    await until(waits, "the second run waits for the slot")
    return first["run_id"], second["run_id"]


def test_a_full_queue_is_429_with_retry_after_in_each_api(tmp_path: Path) -> None:
    gate, model = Gate(), ScriptedModel(calls(("hold", {})), "one", "two")
    root = write(project(tmp_path), {"agentsd.yaml": WORK})

    async def refused(client: RunClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response: httpx2.Response = await client.http.post(path, json=body)
        assert response.status_code == 429, (path, response.text)
        assert 1 <= int(response.headers["retry-after"]) <= 600
        assert response.headers.get("x-should-retry") != "false", "openai's SDK waits and repeats the request"
        assert "1 runs wait, the maximum (work.max_waiting): retry" in response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def main() -> None:
        async with client_of(root, model, gate) as client:
            _, second = await fill(client, gate)
            for path in ("/agent/runs", "/agent/chat"):
                error = (await refused(client, path, {"message": "3", "agent": "a"}))["error"]
                assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
            for path, body in OPENAI.items():
                for stream in (False, True):
                    error = (await refused(client, path, {**body, "stream": stream}))["error"]
                    assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
            await refused(client, "/agui/a", AGUI)
            assert len(await client.serving.runs()) == 2, "nothing was saved"
            gate.opened.set()
            assert (await client.serving.runtime.result(second)).status == "completed"

    asyncio.run(main())


def test_a_run_shows_what_it_waits_for_and_its_priority(tmp_path: Path) -> None:
    gate, model = Gate(), ScriptedModel(calls(("hold", {})), "one", "two")
    root = write(project(tmp_path), {"agentsd.yaml": WORK})

    async def main() -> None:
        async with client_of(root, model, gate) as client:
            first, second = await fill(client, gate)
            listed = {run["run_id"]: (run["waits_for"], run["priority"]) for run in (await client.get("runs"))["runs"]}
            assert listed == {first: (None, 0), second: ("agent:a", 3)}
            shown = await client.get(f"runs/{second}")
            assert (shown["status"], shown["waits_for"], shown["priority"]) == ("queued", "agent:a", 3)
            gate.opened.set()
            assert (await client.serving.runtime.result(second)).status == "completed"

    asyncio.run(main())


def test_a_place_before_others_needs_the_role_admin(tmp_path: Path) -> None:
    entries = [
        key_entry("chat", KEY, roles=["chat", "read"], tenant="t"),
        key_entry("ops", OTHER, roles=["chat", "admin"], tenant="t"),
    ]
    root = write(project(tmp_path), {"agentsd.yaml": f"server: {{api_keys: {json.dumps(entries)}}}\n"})

    async def main() -> None:
        async with client_of(root, ScriptedModel("ok", "ok", "ok"), key=KEY) as client:
            body = {"message": "hi", "agent": "a"}
            error = await client.error("POST", "runs", 403, json={**body, "priority": 1})
            assert (error["code"], error["param"]) == ("access_denied", "priority")
            assert "'chat' lacks the role 'admin', which a priority above 0 needs: send 0 or less" in error["message"]
            error = await client.error("POST", "chat", 403, json={**body, "queue_name": "gpu"})
            assert (error["code"], error["param"]) == ("access_denied", "queue_name")
            for priority in (0, -100):
                await client.post("runs", {**body, "priority": priority}, 202)
            client.http.headers["authorization"] = f"Bearer {OTHER}"
            await client.post("runs", {**body, "priority": 100, "queue_name": "gpu"}, 202)
            assert [info.priority for info in await client.serving.runs()] == [0, -100, 100]

    asyncio.run(main())


def test_invalid_places_are_400(tmp_path: Path) -> None:
    async def main() -> None:
        async with client_of(project(tmp_path), ScriptedModel()) as client:
            for field, value in [
                ("priority", 101), ("priority", -101), ("priority", "high"), ("priority", 1.5), ("priority", True),
                ("queue_name", ""), ("queue_name", "a/b"), ("queue_name", "x" * 65), ("queue_name", 5),
            ]:  # fmt: skip
                error = await client.error("POST", "runs", 400, json={"message": "hi", "agent": "a", field: value})
                assert error["param"] == field, (value, error)
            assert await client.serving.runs() == []

    asyncio.run(main())
