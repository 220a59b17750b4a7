"""Projects with shared budgets, a model whose calls cost money, and processes that spend together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from framework import ModelError, RunResult, Runtime
from framework.llm.capabilities import Capabilities, Prices
from framework.llm.client import Delta, ModelInfo, ModelReply, ModelRequest, Script, ScriptedModel, Turn, calls
from framework.store.store import Store
from framework.store.types import RunQuery
from framework.types.messages import Usage
from framework.types.report import Status
from tests.support.projects import agent, write

CENT = 0.01
LEASE = 0.4
IN_PROGRESS = RunQuery(statuses=frozenset[Status](("running",)))
FREE_LIMITS = "{max_steps: null, max_tool_calls: null, max_total_tokens: null, timeout: null, max_repeated_calls: null}"


class PaidModel:
    """A scripted model that is no stand-in: each reply and each failure costs what `usage` returns."""

    def __init__(
        self,
        script: Script | ScriptedModel,
        usage: Callable[[], tuple[int, float]],
        *,
        max_output: int | None = None,
        is_priced: bool = True,
    ) -> None:
        """Create a model.

        Args:
            script: its replies.
            usage: returns tokens and US dollars of the next call.
            max_output: declared length of its longest answer, in tokens.
            is_priced: whether it declares prices.
        """
        prices = Prices(input=1000, output=1000) if is_priced else None
        can = Capabilities(prices=prices, max_output=max_output)
        self.info = ModelInfo(provider="paid", model="m", typed=True, capabilities=can)
        self._scripted = script if isinstance(script, ScriptedModel) else ScriptedModel(script=script)
        self._usage = usage
        self.in_flight = self.most_in_flight = self.calls = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Yield the reply of the script with its cost."""
        self.calls += 1
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        try:
            for _ in range(3):  # let other calls begin
                await asyncio.sleep(0)
            tokens, cost = self._usage()
            usage = Usage(prompt_tokens=tokens, total_tokens=tokens, cost_usd=cost)
            async for delta in self._scripted.stream(request):
                reply = delta.reply
                yield delta if reply is None else Delta(reply=ModelReply(reply.message, reply.finish_reason, usage))
        except ModelError as error:
            error.usage = usage
            raise
        finally:
            self.in_flight -= 1

    async def close(self) -> None:
        """Do nothing: there is no connection."""


def project(root: Path, budgets: str, *, uses: str = "[team]", **keys: str) -> Path:
    """Create a project whose agent `one` uses budgets, given as YAML."""
    one = agent("one", **{"budgets": uses, "runtime_policy": FREE_LIMITS, **keys})
    return write(root, {"agents.d/one.yaml": one, "agentsd.yaml": f"budgets: {budgets}\n"})


async def run_many(runtime: Runtime, number: int) -> list[RunResult]:
    """Run the agent `one` this many times concurrently."""
    async with asyncio.TaskGroup() as group:
        runs = [group.create_task(runtime.run(f"go {n}", agent="one")) for n in range(number)]
    return [run.result() for run in runs]


def spend_in_process(url: str, root: Path, runs: int, results: Connection) -> None:
    """Wait for a word, make concurrent runs whose calls cost a cent each, and send what they report."""
    results.send("ready")
    results.recv()
    results.send(asyncio.run(_spend(url, root, runs)))


async def _spend(url: str, root: Path, runs: int) -> list[tuple[str, float, int]]:
    store = await Store.open(url, root)
    model = PaidModel(done, cents)
    async with Runtime.open(root, store=store, models={"scripted": model}, watch=False) as runtime:
        ended = await run_many(runtime, runs)
    await store.close()
    return [(one.finish_reason, one.usage.cost_usd or 0.0, one.usage.total_tokens) for one in ended]


def work_until_killed(url: str, root: Path, progress: Connection) -> None:
    """Run one run after another, and send a word after each tool call."""
    asyncio.run(_work(url, root, progress))


async def _work(url: str, root: Path, progress: Connection) -> None:
    store = await Store.open(url, root, lease_seconds=LEASE)
    model = PaidModel(_two_calls, cents)
    async with Runtime.open(root, store=store, models={"scripted": model}, watch=False) as runtime:
        while True:
            async with runtime.stream("go") as stream:
                async for event in stream:
                    progress.send(type(event).__name__)


async def resume_all(url: str, root: Path) -> int:
    """Resume the runs whose processes were killed, wait for their end, and return their number."""
    store = await Store.open(url, root, lease_seconds=LEASE)
    model, resumed = PaidModel(_two_calls, cents), 0
    async with Runtime.open(root, store=store, models={"scripted": model}, watch=False) as runtime:
        while await store.runs(IN_PROGRESS):
            for info in await runtime.orphans():
                assert (await runtime.resume(info.run_id, {})).status == "completed"
                resumed += 1
            await asyncio.sleep(LEASE / 10)  # until the leases of killed processes have expired
    await store.close()
    return resumed


def _two_calls(request: ModelRequest) -> Turn:
    results = sum(message.role == "tool" for message in request.messages)
    return calls(("echo", {"text": str(results)}), prefix=f"c{results}-") if results < 2 else "done"


def done(_: ModelRequest) -> Turn:
    """Reply with one word."""
    return "done"


def cents() -> tuple[int, float]:
    """Return the use of a call that costs a cent."""
    return 10, CENT


def opened(root: Path, model: Any = None, **options: Any) -> Any:
    """Open a runtime whose model is paid, by default one that replies with one word for a cent."""
    return Runtime.open(root, models={"scripted": model or PaidModel(done, cents)}, watch=False, **options)


async def spent(store: Store, budget: str = "team") -> dict[tuple[str, str], tuple[int, float]]:
    """Return the counters of a budget by scope and period."""
    uses = [use for use in await store.budget_uses() if use.budget == budget]
    return {(use.scope, use.period): (use.tokens, round(use.cost_usd, 6)) for use in uses}


async def total(store: Store, budget: str = "team") -> float:
    """Return the cost in all counters of a budget."""
    return sum(cost for _, cost in (await spent(store, budget)).values())
