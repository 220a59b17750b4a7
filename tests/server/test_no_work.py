"""A server that executes no runs (`agentsd serve --no-work`): its routes work while other processes execute them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from framework import Runtime
from framework.config.settings import Settings
from framework.server.startup import housekeeping, open_work
from framework.store import open_store
from framework.telemetry.metrics import ServerMetrics
from framework.testing import ScriptedModel, calls
from tests.support.projects import agent, write
from tests.support.runs_http import RunClient, client_of
from tests.support.submitted_runs import PATIENCE, Gate
from tests.support.waiting import until

ASKS = '{allow: ["*"], ask: [{tool: pay, optional: true}]}'


def project(root: Path, url: str, **keys: str) -> Path:
    files = {
        "agents.d/a.yaml": agent("a", skill_policy=ASKS, **keys),
        "agentsd.yaml": f'store: {{url: "{url}"}}\nrouting: {{default_agent: a}}\n',
    }
    return write(root, files)


@dataclass
class Fleet:
    """An API without work, and workers that a test starts."""

    client: RunClient
    root: Path
    gate: Gate
    stack: AsyncExitStack

    async def start_worker(self, model: ScriptedModel) -> Runtime:
        """Start a process that executes runs."""
        return await self.stack.enter_async_context(_opened(self.root, model, self.gate, capacity=5))


@asynccontextmanager
async def _opened(root: Path, model: ScriptedModel, gate: Gate, capacity: int) -> AsyncIterator[Runtime]:
    settings = Settings.load(root)
    store = await open_store(settings.store.url.get_secret_value(), root)
    options = {"models": {"scripted": model}, "tools": gate.tools(), "watch": False}
    async with (
        open_work(settings, root, capacity) as work,
        Runtime.open(root, store=store, work=work, **options) as runtime,  # type: ignore[arg-type]
        housekeeping(runtime, ServerMetrics()),
    ):
        yield runtime
    await store.close()


@asynccontextmanager
async def accepting(root: Path) -> AsyncIterator[Fleet]:
    settings, gate = Settings.load(root), Gate()
    store = await open_store(settings.store.url.get_secret_value(), root)
    async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
        work = await stack.enter_async_context(open_work(settings, root, 0))
        client = await stack.enter_async_context(client_of(root, ScriptedModel(), gate, store=store, work=work))
        await stack.enter_async_context(housekeeping(client.serving.runtime, ServerMetrics()))
        yield Fleet(client, root, gate, stack)
    await store.close()


def test_a_run_waits_for_a_worker_and_is_decided_and_followed_from_the_api(tmp_path: Path, store_url: str) -> None:
    async def main() -> None:
        async with accepting(project(tmp_path, store_url)) as fleet:
            run = await fleet.client.post("runs", {"message": "pay"}, 202)
            path = f"runs/{run['run_id']}"
            assert (await fleet.client.get(path))["status"] == "queued"
            await fleet.start_worker(ScriptedModel(calls(("pay", {})), "paid"))
            events = await fleet.client.events(f"{path}/events")
            assert events[-1].data["status"] == "paused"
            (pending,) = (await fleet.client.get(path))["pending"]
            decisions = {"decisions": {pending["id"]: {"type": "approve"}}}
            await fleet.client.post(f"{path}/decisions", decisions, 202)
            events = await fleet.client.events(f"{path}/events?wait=true")
            assert [event.id for event in events if event.id] == list(range(1, events[-1].id + 1))  # type: ignore[operator]
            assert events[-1].data["status"] == "completed"
            assert (await fleet.client.get(path))["output"] == "paid"
            assert fleet.gate.paid == 1

    asyncio.run(main())


def test_a_waiting_run_and_one_in_progress_elsewhere_are_cancelled(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        async with accepting(project(tmp_path, file_url)) as fleet:
            waiting = await fleet.client.post("runs", {"message": "m"}, 202)
            await fleet.client.post(f"runs/{waiting['run_id']}/cancel", None, 202)
            assert (await fleet.client.get(f"runs/{waiting['run_id']}"))["status"] == "cancelled"
            await fleet.start_worker(ScriptedModel(calls(("hold", {}))))
            held = await fleet.client.post("runs", {"message": "m"}, 202)
            await fleet.gate.began.wait()
            await fleet.client.post(f"runs/{held['run_id']}/cancel", None, 202)
            events = await fleet.client.events(f"runs/{held['run_id']}/events")
            assert events[-1].data["status"] == "cancelled"

    asyncio.run(main())


@pytest.mark.parametrize("on_expiry", ["reject", "cancel"])
def test_a_decision_expires_while_no_worker_is_alive(tmp_path: Path, file_url: str, on_expiry: str) -> None:
    """A run that ends needs no worker; one that continues is begun by the next worker."""

    async def main() -> None:
        policy = f"{{confirm: {{from: high, expires: 300ms, on_expiry: {on_expiry}}}}}"
        root = project(tmp_path, file_url, runtime_policy=policy)
        async with accepting(root) as fleet:
            model = ScriptedModel(calls(("pay", {})), "not paid")
            async with _opened(root, model, fleet.gate, capacity=5):
                run = await fleet.client.post("runs", {"message": "pay"}, 202)
                path = f"runs/{run['run_id']}"
                await fleet.client.events(f"{path}/events")
            if on_expiry == "reject":
                await fleet.start_worker(ScriptedModel("not paid"))
            events = await fleet.client.events(f"{path}/events?wait=true")
            assert events[-1].data["status"] == ("completed" if on_expiry == "reject" else "cancelled")
            assert fleet.gate.paid == 0

    asyncio.run(main())


def test_other_protocols_submit_and_follow(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        async with accepting(project(tmp_path, file_url)) as fleet:
            await fleet.start_worker(ScriptedModel(script=lambda _: "hello"))
            assert (await fleet.client.post("chat", {"message": "hi"}))["response"] == "hello"
            http = fleet.client.http
            messages = [{"role": "user", "content": "hi"}]
            completed = await http.post("/v1/chat/completions", json={"model": "a", "messages": messages})
            assert completed.json()["choices"][0]["message"]["content"] == "hello"
            body = {
                "threadId": "t",
                "runId": "r",
                "messages": [{"id": "m", "role": "user", "content": "hi"}],
                "tools": [],
                "context": [],
                "state": {},
                "forwardedProps": {},
            }
            streamed = await http.post("/agui/a", json=body)
            assert "RUN_FINISHED" in streamed.text
            assert "hello" in streamed.text

    asyncio.run(main())


def test_the_log_says_that_runs_wait_and_no_worker_is_alive(
    tmp_path: Path, file_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        root = project(tmp_path, file_url)
        async with accepting(root) as fleet:
            await fleet.client.post("runs", {"message": "m"}, 202)
        async with accepting(root):
            await until(lambda: "but no worker is alive" in caplog.text, "the log says that no worker is alive")

    asyncio.run(main())
