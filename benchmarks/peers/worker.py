"""Executes jobs of one peer in its environment: `python -m benchmarks.peers.worker NAME`.

Each line of standard input is a job as JSON, and each line of standard output its result. What frameworks print goes to
standard error.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from time import perf_counter, process_time
from typing import Any, TextIO

from benchmarks.harness import resident_mb
from benchmarks.peers.environment import peer
from benchmarks.peers.job import ANSWER, Done, Job, Peer, Run, earlier_messages, job_tools

LIMIT_SECONDS = 120.0
"""After how long a job fails: with 500 conversations at once, a framework may wait forever."""


class Worker:
    """Keeps the agent of the last job open for the next one."""

    def __init__(self, module: Peer) -> None:
        self._module = module
        self._called = Counter[int]()
        self.latencies = list[float]()
        """Seconds of each run of the last job that has ended."""
        self._agent: tuple[Job, Run] | None = None
        self._open = AsyncExitStack()

    async def execute(self, job: Job) -> Done:
        """Execute the runs of a job. Raises ValueError if their tool calls or answers are not the expected ones."""
        run = await self._agent_for(job)
        self._called.clear()
        gc.collect()
        self.latencies, errors, left = [], Counter[str](), iter(range(job.runs))

        async def lane() -> None:
            for _ in left:
                started = perf_counter()
                try:
                    answer = await run()
                    if answer != ANSWER:
                        errors[f"answered {answer[:80]!r}"] += 1
                except Exception as error:  # noqa: BLE001 - whatever a framework raises is counted and reported
                    errors[f"{type(error).__name__}: {error}"[:200]] += 1
                self.latencies.append(perf_counter() - started)

        started, cpu = perf_counter(), process_time()
        async with asyncio.TaskGroup() as group:
            for _ in range(job.at_once):
                group.create_task(lane())
        seconds, cpu = perf_counter() - started, process_time() - cpu
        first = job.history // 2
        expected = Counter(dict.fromkeys(range(first, first + job.steps), job.runs))
        if not errors and self._called != expected:
            raise ValueError(f"its runs made the tool calls {dict(self._called)}, not {dict(expected)}")
        return Done(seconds, cpu, sorted(self.latencies), dict(errors), resident_mb())

    async def _agent_for(self, job: Job) -> Run:
        agent = replace(job, runs=1, at_once=1)
        if self._agent is None or self._agent[0] != agent:
            await self.close()
            tools = job_tools(job.tools, lambda n: self._called.update([n]))
            opened = self._module.opened(job.url, tools, earlier_messages(job.history))
            self._agent = agent, await self._open.enter_async_context(opened)
        return self._agent[1]

    async def close(self) -> None:
        """Close the agent."""
        self._agent = None
        await self._open.aclose()


@asynccontextmanager
async def working(name: str) -> AsyncIterator[Worker]:
    """Yield a worker, and close its agent at the end."""
    worker = Worker(peer(name))
    try:
        yield worker
    finally:
        await worker.close()


async def answer(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Execute a job, and return its result or its error."""
    job = Job(**request)
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            return asdict(await worker.execute(job))
    except TimeoutError:
        return {"error": f"only {len(worker.latencies)} of {job.runs} runs ended within {LIMIT_SECONDS:g} s"}
    except Exception as error:  # noqa: BLE001 - reported to the benchmark, which leaves this peer out
        return {"error": f"{type(error).__name__}: {error}"[:500]}


async def main(name: str, results: TextIO) -> None:
    """Execute jobs until the end of the input."""
    async with working(name) as worker:
        while line := sys.stdin.readline():
            print(json.dumps(await answer(worker, json.loads(line))), file=results, flush=True)


if __name__ == "__main__":
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asyncio.run(main(sys.argv[1], results))
