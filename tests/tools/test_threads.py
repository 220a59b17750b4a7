"""A tool that hangs, or raises SystemExit and the like, affects only its own run."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import threading
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from framework import Runtime, Tool, tool
from framework.testing import ScriptedModel
from framework.tools.threads import MAX_ABANDONED, THREADS_PER_RUN, ToolThreads
from framework.types.errors import ToolError
from framework.types.messages import ToolCall
from tests.support.clocks import skip
from tests.support.projects import agent, write

LIMITS = "{max_tool_calls: 200, max_steps: 20, max_parallel_tools: 50}"


def calls(name: str, number: int) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(id=f"{name}{n}", tool=name, arguments={"n": n}) for n in range(number))


def project(root: Path, *names: str) -> Path:
    files = {
        f"agents.d/{name}.yaml": agent(name, skill_policy=f"{{allow: [{name}]}}", runtime_policy=LIMITS)
        for name in names
    }
    return write(root, {**files, "a.txt": "hello\n"})


def opened(root: Path, model: ScriptedModel, *tools: Tool) -> AbstractAsyncContextManager[Runtime]:
    return Runtime.open(root, models={"scripted": model}, tools=tools, watch=False)


def test_asi08_hanging_calls_occupy_no_thread_of_another_run(tmp_path: Path) -> None:
    begun, over = threading.Semaphore(0), threading.Event()

    @tool(risk="low", idempotent=True)
    def hang(n: int) -> str:
        """Hang."""
        begun.release()
        over.wait(30)
        return "done"

    @tool(risk="low", idempotent=True, timeout=5)
    def quick(n: int) -> str:
        """Answer."""
        return "quick"

    async def main() -> tuple[str, int]:
        model = ScriptedModel(calls("hang", 50), calls("quick", 1), "read", "hung")
        async with opened(project(tmp_path, "hang", "quick"), model, hang, quick) as runtime:
            hanging = asyncio.create_task(runtime.run("go", agent="hang"))
            for _ in range(THREADS_PER_RUN):
                assert await asyncio.to_thread(begun.acquire, timeout=20)
            other = await runtime.run("go", agent="quick")
            over.set()
            return other.tool_calls[0].status, len((await hanging).tool_calls)

    assert asyncio.run(main()) == ("success", 50)


def test_waiting_for_a_thread_does_not_count_towards_a_tools_timeout(tmp_path: Path) -> None:
    over = threading.Event()

    @tool(risk="low", idempotent=True)
    def hang(n: int) -> str:
        """Hang."""
        over.wait(30)
        return "done"

    @tool(risk="low", idempotent=True, timeout=20)
    def quick(n: int) -> str:
        """Answer."""
        return "quick"

    @tool(risk="low", idempotent=True)
    async def release(n: int) -> str:
        """Release the other calls after the timeout of `quick` would have expired."""
        skip(25)
        for _ in range(10):
            await asyncio.sleep(0)
        over.set()
        return "released"

    async def main() -> list[str]:
        turn = (*calls("hang", 40), *calls("quick", 1), *calls("release", 1))
        root = write(
            tmp_path,
            {"agents.d/a.yaml": agent("a", skill_policy="{allow: [hang, quick, release]}", runtime_policy=LIMITS)},
        )
        tools = [hang, quick, release]
        async with Runtime.open(
            root, models={"scripted": ScriptedModel(turn, "ok")}, tools=tools, watch=False
        ) as runtime:
            return [call.status for call in (await runtime.run("go")).tool_calls]

    assert set(asyncio.run(main())) == {"success"}


async def give_up(threads: ToolThreads, run_id: str, tool: str, over: threading.Event) -> None:
    """Call a tool that hangs, and cancel the call once it is in its thread."""
    began = threading.Event()

    def hang() -> None:
        began.set()
        over.wait()

    async with threads.turn(run_id, tool) as thread:
        call = asyncio.get_running_loop().run_in_executor(thread, hang)
        await asyncio.to_thread(began.wait)
        async with asyncio.timeout(0):
            await call


def test_abandoned_threads_are_counted_and_limit_only_their_own_tool(
    caplog: pytest.LogCaptureFixture,
) -> None:
    over, changes = threading.Event(), list[int]()

    async def main() -> None:
        threads = ToolThreads(changes.append)
        for n in range(MAX_ABANDONED):
            with pytest.raises(TimeoutError):
                await give_up(threads, f"run{n // 8}", "slow", over)
        assert threads.abandoned == MAX_ABANDONED
        with pytest.raises(
            ToolError, match=f"{MAX_ABANDONED} earlier calls of slow have timed out and are still running"
        ):
            await give_up(threads, "another", "slow", over)
        async with threads.turn("run0", "other") as thread:
            assert await asyncio.get_running_loop().run_in_executor(thread, lambda: 5) == 5
        over.set()
        while threads.abandoned:
            await asyncio.to_thread(lambda: None)
        async with threads.turn("another", "slow") as thread:
            assert await asyncio.get_running_loop().run_in_executor(thread, over.wait)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert (
        f"an abandoned call of slow still occupies its thread ({MAX_ABANDONED} such threads in this process)"
        in caplog.text
    )
    assert (sum(changes), changes.count(1)) == (0, MAX_ABANDONED)


def test_a_run_whose_threads_all_hang_reports_it() -> None:
    over = threading.Event()

    async def main() -> None:
        threads = ToolThreads()
        for n in range(THREADS_PER_RUN):
            with pytest.raises(TimeoutError):
                await give_up(threads, "r", f"tool{n}", over)
        with pytest.raises(ToolError, match="all 16 threads of this run are busy with calls that timed out"):
            async with threads.turn("r", "tool"):
                raise AssertionError
        over.set()

    asyncio.run(main())


def test_an_abandoned_thread_is_in_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(metrics, "get_meter", lambda name: provider.get_meter(name))
    over = threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        @tool(risk="low", timeout=20)
        def hang(n: int) -> str:
            """Hang until the timeout has expired."""
            loop.call_soon_threadsafe(skip, 25)
            over.wait(30)
            return "done"

        model = ScriptedModel(calls("hang", 1), "ok")
        async with opened(project(tmp_path, "hang"), model, hang) as runtime:
            assert "timed out after 20s" in str((await runtime.run("go")).tool_calls)
            data = reader.get_metrics_data()
            assert data is not None
            assert "agentsd.tool.threads.abandoned" in data.to_json()
            over.set()

    asyncio.run(main())


HANGING = """
import asyncio, threading
from framework import Runtime, tool
from framework.testing import ScriptedModel, calls

@tool(risk="low", timeout=0.1)
def hang() -> str:
    "Hang."
    threading.Event().wait()

model = ScriptedModel(calls(("hang", {})), "ok")

async def main():
    async with Runtime.open(".", models={"scripted": model}, tools=[hang], watch=False) as runtime:
        print((await runtime.run("go")).status, flush=True)

asyncio.run(main())
"""


def test_the_interpreter_does_not_wait_for_a_tool_that_hangs(tmp_path: Path) -> None:
    root = project(tmp_path, "hang")
    done = subprocess.run(
        [sys.executable, "-c", HANGING], cwd=root, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout, done.returncode) == ("completed\n", 0), done.stderr


class Unspeakable(Exception):
    """An error whose `__str__` raises SystemExit."""

    def __str__(self) -> str:
        raise SystemExit


RAISED = [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, asyncio.CancelledError, Unspeakable]


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("is_async", [True, False])
def test_an_exception_in_a_tool_ends_its_call_and_neither_its_run_nor_the_host(
    tmp_path: Path, raised: type[BaseException], is_async: bool
) -> None:
    def fail(n: int) -> str:
        """Fail."""
        raise raised

    async def fail_async(n: int) -> str:
        """Fail."""
        raise raised

    failing = tool(name="fail", risk="low")(fail_async if is_async else fail)

    async def main() -> Any:
        model = ScriptedModel(calls("fail", 2), "ok")
        async with opened(project(tmp_path, "fail"), model, failing) as runtime:
            return await runtime.run("go")

    result = asyncio.run(main())
    assert (result.status, result.output) == ("completed", "ok")
    assert {call.status for call in result.tool_calls} == {"error"}


BUSY = """
import asyncio, signal
from framework import Runtime, tool
from framework.testing import ScriptedModel, calls

@tool(risk="low")
async def busy() -> str:
    "Never let go of the loop."
    print("busy", flush=True)
    while True:
        pass

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
model = ScriptedModel(calls(("busy", {})), "ok")

async def main():
    async with Runtime.open(".", models={"scripted": model}, tools=[busy], watch=False) as runtime:
        await runtime.run("go")
        print("went on", flush=True)

asyncio.run(main())
"""


def test_a_users_interrupt_ends_the_program_even_inside_a_tool(tmp_path: Path) -> None:
    errors = tmp_path / "errors.txt"  # not a pipe: each signal may add a traceback, and a full pipe would block
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-c", BUSY],
            cwd=project(tmp_path, "busy"),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "busy\n"
            process.send_signal(signal.SIGINT)
            while process.poll() is None:  # the second SIGINT raises immediately; the first only asks the loop to stop
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(0.2)
                except subprocess.TimeoutExpired:
                    continue
            out = process.stdout.read()
        finally:
            process.kill()
    assert "went on" not in out
    assert "KeyboardInterrupt" in errors.read_text()
