"""A program that makes five kinds of runs and sends their traces, for tests of real backends.

`python -m tests.support.backend_runs ENDPOINT CONTENT SERVICE [HEADER=VALUE]` prints the results as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from framework import Approve, ModelError, RunResult, Runtime, tool
from framework.llm.capabilities import Capabilities, Prices, with_cost
from framework.llm.client import Delta, ModelInfo, ModelRequest
from framework.telemetry.setup import export_traces
from framework.testing import ScriptedModel, calls
from tests.support.plans import draft, step
from tests.support.projects import agent, write

WORD = "paris-4711"
"""A word in all messages, arguments and results."""
TOKENS = 10
"""Tokens of every model call."""
PRICE = 0.001
"""Price of a token of the priced model, in US dollars."""


@tool(risk="low")
async def work(n: str) -> str:
    """Works."""
    if n == "fail":
        raise ValueError(WORD)
    return f"did {n} {WORD}"


@tool(risk="high")
async def erase(n: str) -> str:
    """Erases."""
    return f"erased {n}"


class Priced(ScriptedModel):
    """A model that is missing from the price lists of backends; the operator sets its price."""

    @property
    def info(self) -> ModelInfo:
        prices = Prices(input=PRICE * 1_000_000, output=PRICE * 1_000_000)
        return ModelInfo("house", "house-1", typed=True, stand_in=True, capabilities=Capabilities(prices=prices))

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        async for delta in super().stream(request):
            reply = delta.reply
            if reply is not None:
                reply = replace(reply, usage=with_cost(reply.usage, self.info.capabilities), model="house-1")
            yield replace(delta, reply=reply)


AGENTS = {
    "react": agent("react"),
    "planner": agent("planner", executor="plan"),
    "careful": agent("careful", runtime_policy="{risk_level: high}"),
    "failing": agent("failing"),
    "flaky": agent("flaky"),
}
SCRIPTS = {
    "react": ScriptedModel(calls(("work", {"n": WORD}), ("work", {"n": "fail"})), f"ok {WORD}", tokens=TOKENS),
    "planner": ScriptedModel(draft(step("a"), {"id": "b", "description": "think"}), "thought", "end", tokens=TOKENS),
    "careful": ScriptedModel(calls(("erase", {"n": WORD})), "erased", tokens=TOKENS),
    "failing": ScriptedModel(ModelError(WORD)),
    "flaky": Priced(ModelError("busy", retryable=True), f"ok {WORD}", tokens=TOKENS),
}


QUICK = "model_calls: {backoff: 0.001}\n"


async def runs(content: str) -> dict[str, Any]:
    """Run each agent once; the careful one pauses and is resumed."""
    files = {f"agents.d/{name}.yaml": text.replace("scripted", f"s-{name}") for name, text in AGENTS.items()}
    done: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        root = write(Path(folder), {**files, "agentsd.yaml": f"telemetry: {{content: {content}}}\n{QUICK}"})
        models = {f"s-{name}": model for name, model in SCRIPTS.items()}
        async with Runtime.open(root, tools=[work, erase], models=models, watch=False) as runtime:
            for name in AGENTS:
                result = await runtime.run(f"go to {WORD}", agent=name, conversation=f"{name}-{content}")
                done[name] = _summary(result)
                if result.status == "paused":
                    answers = {question.id: Approve() for question in result.pending}
                    done["resumed"] = _summary(await runtime.resume(result.run_id, answers))
    return done


def _summary(result: RunResult) -> dict[str, Any]:
    return {
        "trace_id": result.trace_id,
        "run_id": result.run_id,
        "status": result.status,
        "tokens": result.usage.total_tokens,
    }


def main(endpoint: str, content: str, service: str, *headers: str) -> None:
    """Run the agents, export their traces and print the results."""
    with export_traces(endpoint, dict(header.split("=", 1) for header in headers), service, exit_seconds=30):
        done = asyncio.run(runs(content))
    sys.stdout.write(json.dumps(done))


if __name__ == "__main__":
    main(*sys.argv[1:])
