"""`/agent/runs/{run_id}/files`, `/test-case` and `/replay`: what a run ran on, and what it would do now."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from fastapi import FastAPI

from framework import Runtime
from framework.llm.client import ScriptedModel, calls
from framework.server import router
from framework.server.errors import ReplayTimeout, TooManyReplays
from framework.server.replay_api import MAX_REPLAYS, Replays
from framework.store.types import StoredRun
from framework.testing import Turn
from framework.types.messages import Message
from framework.types.state import RunState
from tests.support.api_keys import key_entry
from tests.support.commands import agentsd
from tests.support.projects import agent, write
from tests.support.runs_http import RunClient, client_of
from tests.support.submitted_runs import Gate, project, within

SUM = calls(("calculator", {"expression": "1+2"}))
AGENT = {"agents.d/a.yaml": agent("a", instructions='{template: "a.j2"}'), "prompts/a.j2": "Count."}


async def ask(client: RunClient, message: str = "how many?", status: int = 200, **fields: Any) -> str:
    """Start a run, and return its id."""
    found: dict[str, str] = await client.post("chat", {"message": message, **fields}, status)
    return found["run_id"]


def durable(root: Path) -> dict[str, Any]:
    return {"store": f"sqlite:///{root}/state.db"}


# --- the files


def test_the_files_of_a_run_are_compared_with_the_live_ones(tmp_path: Path) -> None:
    async def main() -> None:
        root = write(tmp_path, AGENT)
        async with client_of(root, ScriptedModel("three"), **durable(root)) as client:
            run_id = await ask(client)
            before = await client.get(f"runs/{run_id}/files")
            assert [(one["path"], one["change"], one["kind"]) for one in before["files"]] == [
                ("agents.d/a.yaml", "same", "agent"),
                ("prompts/a.j2", "same", "template"),
            ]
            assert before["files"][1]["text"] == "Count."
            assert all("live" not in one for one in before["files"])
            second = agent("a", instructions='{template: "b.j2"}', skill_policy="{allow: []}")
            write(root, {"agents.d/a.yaml": second, "prompts/b.j2": "password: hunter2-hunter2"})
            await client.serving.runtime.reload()
            now = await client.get(f"runs/{run_id}/files")
            assert (now["generation"], now["live_generation"], now["stored"]) == (1, 2, True)
            assert now["digest"] == before["live_digest"] != now["live_digest"]
            changed, old, new = now["files"]
            assert (changed["change"], changed["live"]) == ("changed", second)
            assert (old["path"], old["change"], old["text"], "live" in old) == (
                "prompts/a.j2",
                "removed",
                "Count.",
                False,
            )
            assert (new["path"], new["change"], new["live"]) == ("prompts/b.j2", "added", "password: ***")
            assert ("live" in old, "text" in new) == (False, False)

    within(main)


def test_a_store_in_memory_knows_the_files_while_they_are_live(tmp_path: Path) -> None:
    async def main() -> None:
        root = write(tmp_path, AGENT)
        async with client_of(root, ScriptedModel("three")) as client:
            run_id = await ask(client)
            assert {one["change"] for one in (await client.get(f"runs/{run_id}/files"))["files"]} == {"same"}
            write(root, {"prompts/a.j2": "Count again."})
            await client.serving.runtime.reload()
            found = await client.get(f"runs/{run_id}/files")
            assert (found["stored"], found["files"]) == (False, [])

    within(main)


# --- the test case


def test_a_run_is_exported_as_a_case_that_passes(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/team/a.yaml": agent("a")})

    async def main() -> dict[str, Any]:
        async with client_of(root, ScriptedModel(SUM, "three")) as client:
            found: dict[str, Any] = await client.get(f"runs/{await ask(client)}/test-case")
            return found

    case = asyncio.run(main())
    assert case["path"] == "agents.d/team/a.test.yaml"
    assert yaml.safe_load(case["text"])["cases"][0]["message"] == "how many?"
    write(root, {case["path"]: case["text"], "agents.d/team/a.yaml": agent("a", model="offline")})
    done = agentsd("test", cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_that_has_not_begun_has_no_case(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        async with client_of(project(tmp_path), ScriptedModel(calls(("hold", {})), "one", "two"), gate) as client:
            await client.post("runs", {"message": "first", "conversation_id": "c"}, 202)
            await gate.began.wait()
            waiting = await client.post("runs", {"message": "second", "conversation_id": "c", "queue": True}, 202)
            for method, path in (("GET", "test-case"), ("POST", "replay")):
                error = await client.error(method, f"runs/{waiting['run_id']}/{path}", 400)
                assert error["message"] == f"run {waiting['run_id']} is queued: it has not started"
            gate.opened.set()

    within(main)


# --- replays


def test_a_replay_returns_what_would_be_different(tmp_path: Path) -> None:
    async def main() -> None:
        root = write(tmp_path, AGENT)
        model = ScriptedModel(SUM, "three")
        async with client_of(root, model, **durable(root)) as client:
            run_id = await ask(client)
            same = await client.post(f"runs/{run_id}/replay")
            assert (same["differences"], same["generation"]) == ([], 1)
            stored = await client.get(f"runs/{run_id}")
            denying = agent("a", instructions='{template: "a.j2"}', skill_policy="{allow: []}")
            write(root, {"agents.d/a.yaml": denying, "prompts/a.j2": "Count. api_key=sk-123456789012"})
            await client.serving.runtime.reload()
            now = await client.post(f"runs/{run_id}/replay")
            found = {one["what"]: one for one in now["differences"]}
            prompts = found["prompt"]["before"], found["prompt"]["after"]
            assert [text.partition("\n")[0] for text in prompts] == ["Count.", "Count. api_key=***"]
            assert found["call"]["after"].startswith("denied: ")
            assert now["digest"] == client.serving.runtime.catalog.current.digest
            assert await client.get(f"runs/{run_id}") == stored, "the run is unchanged"
            assert len(await client.serving.runs()) == 1
            assert len(model.requests) == 2, "the replay called no model"
            write(root, {"agents.d/a.yaml": agent("b"), "prompts/a.j2": "x"})
            await client.serving.runtime.reload()
            assert (await client.error("POST", f"runs/{run_id}/replay", 404))["code"] == "agent_not_found"

    within(main)


def test_keys_that_are_limited_to_agents_see_no_files_of_others(tmp_path: Path) -> None:
    keys = {"limited": "limited-key-0123456789", "reader": "reader-key-0123456789", "chatter": "chatter-key-0123456789"}
    entries = [
        key_entry("limited", keys["limited"], agents=["a"], roles=["read", "chat"]),
        key_entry("reader", keys["reader"], roles=["read"], rate="1/h"),
        key_entry("chatter", keys["chatter"], roles=["chat"]),
    ]
    root = write(tmp_path, {**AGENT, "agentsd.yaml": f"server: {{api_keys: {json.dumps(entries)}}}\n"})

    async def main() -> None:
        async with Runtime.open(root, models={"scripted": ScriptedModel("three")}, watch=False) as runtime:
            app = FastAPI()
            app.router.routes.extend(router(runtime).routes)

            async def send(who: str, method: str, path: str, **options: Any) -> httpx2.Response:
                headers = {"authorization": f"Bearer {keys[who]}"}
                return await http.request(method, f"/agent/{path}", headers=headers, **options)

            async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test") as http:
                run_id = (await send("limited", "POST", "chat", json={"message": "hi"})).json()["run_id"]
                expected = {"files": ("GET", 403, 200), "replay": ("POST", 403, 200), "test-case": ("GET", 200, 200)}
                for path, (method, limited, reader) in expected.items():
                    assert (await send("limited", method, f"runs/{run_id}/{path}")).status_code == limited
                    assert (await send("reader", method, f"runs/{run_id}/{path}")).status_code == reader
                    assert (await send("chatter", method, f"runs/{run_id}/{path}")).status_code == 403
                again = await send("reader", "POST", f"runs/{run_id}/replay")
                assert (again.status_code, again.json()["error"]["code"]) == (429, "rate_limited")

    asyncio.run(main())


class Replaying:
    """Stands for the engine: each replay waits until it is released or cancelled."""

    def __init__(self) -> None:
        self.began, self.ended, self.released = threading.Semaphore(0), threading.Semaphore(0), threading.Event()
        self.thread: threading.Thread | None = None

    async def __call__(self, *_: object) -> tuple[()]:
        self.thread = threading.current_thread()
        self.began.release()
        try:
            while not self.released.is_set():
                await asyncio.to_thread(self.released.wait, 0.01)
            return ()
        finally:
            self.ended.release()


@pytest.fixture
def replaying(monkeypatch: pytest.MonkeyPatch) -> Replaying:
    found = Replaying()
    monkeypatch.setattr("framework.server.replay_api.replay", found)
    return found


RUN = StoredRun(RunState(agent="a", messages=[Message(role="user", content="x")]), (), None)


def replay_of(replays: Replays) -> Any:
    return replays.differences(Path("/"), RUN, None)  # type: ignore[arg-type]  # the replay is replaced


def test_replays_are_few_and_leave_the_event_loop_alone(replaying: Replaying) -> None:
    async def main() -> None:
        replays = Replays()
        first = [asyncio.create_task(replay_of(replays)) for _ in range(MAX_REPLAYS)]
        for _ in first:
            await asyncio.to_thread(replaying.began.acquire)
        assert replaying.thread is not threading.main_thread()
        with pytest.raises(TooManyReplays, match="retry in a few seconds"):
            await replay_of(replays)
        replaying.released.set()
        assert [await one for one in first] == [(), ()]
        assert await replay_of(replays) == ()

    within(main)


def test_a_replay_ends_with_its_caller(replaying: Replaying) -> None:
    async def main() -> None:
        one = asyncio.create_task(replay_of(Replays()))
        await asyncio.to_thread(replaying.began.acquire)
        one.cancel()
        await asyncio.to_thread(replaying.ended.acquire)
        with pytest.raises(asyncio.CancelledError):
            await one

    within(main)


def test_a_replay_has_a_time_limit(replaying: Replaying) -> None:
    async def main() -> None:
        with pytest.raises(ReplayTimeout, match=r"longer than 0\.1 s: use agentsd runs replay"):
            await replay_of(Replays(seconds=0.1))
        assert replaying.ended.acquire(blocking=False)

    within(main)


def test_a_replay_ends_when_the_client_leaves(tmp_path: Path, replaying: Replaying) -> None:
    async def main() -> None:
        async with client_of(write(tmp_path, AGENT), ScriptedModel("three")) as client:
            run_id = await ask(client)
            leaving = asyncio.create_task(client.http.post(f"/agent/runs/{run_id}/replay"))
            await asyncio.to_thread(replaying.began.acquire)
            leaving.cancel()
            await asyncio.to_thread(replaying.ended.acquire)

    within(main)


def test_a_long_replay_does_not_hold_the_event_loop(tmp_path: Path) -> None:
    async def main() -> None:
        limits = "{max_steps: 1000, max_tool_calls: 1000, max_repeated_calls: null, max_total_tokens: null}"
        root = write(tmp_path, {"agents.d/a.yaml": agent("a", runtime_policy=limits)})
        turns: list[Turn] = [calls(("calculator", {"expression": f"{n}+1"})) for n in range(150)]
        async with client_of(root, ScriptedModel(*turns, "done")) as client:
            run_id = await ask(client)
            ticks = 0
            replaying = asyncio.create_task(client.post(f"runs/{run_id}/replay"))
            while not replaying.done():
                await asyncio.sleep(0)
                ticks += 1
            assert (await replaying)["differences"] == []
            assert ticks > 150, "other work continued"

    within(main)
