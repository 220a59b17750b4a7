"""A program that makes the runs for `tests.support.pictures`, each in a new runtime, as the command line does.

It imports nothing from the tests, so that it also runs on older checkouts:
`python tests/support/picture_runs.py ENDPOINT SERVICE [HEADER=VALUE]` prints the trace ids by agent, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from framework import ModelError, Runtime, tool
from framework.llm.capabilities import Capabilities, Prices, with_cost
from framework.llm.client import Delta, ModelInfo, ModelRequest
from framework.telemetry.setup import export_traces
from framework.testing import ScriptedModel, Turn, calls

PLAN = {
    "goal": "a note on this week's orders",
    "steps": [
        {"id": "s1", "description": "Read this week's orders", "tool": "orders", "parameters": {"week": 47}},
        {"id": "s2", "description": "Say which of them are late", "depends_on": ["s1"]},
    ],
}


class HouseModel(ScriptedModel):
    """A model whose price the operator sets."""

    @property
    def info(self) -> ModelInfo:
        capabilities = Capabilities(prices=Prices(input=2, output=8))
        return ModelInfo("house", "house-1", typed=True, stand_in=True, capabilities=capabilities)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Reply after the latency of a small model."""
        await asyncio.sleep(0.05)  # seen in the picture
        async for delta in super().stream(request):
            reply = delta.reply
            if reply is not None:
                reply = replace(reply, usage=with_cost(reply.usage, self.info.capabilities), model="house-1")
            yield replace(delta, reply=reply)


@tool(risk="low")
async def orders(week: int) -> str:
    """List the orders of a week."""
    await asyncio.sleep(0.02)  # seen in the picture
    return f"week {week}: 12 orders, 3 late"


@tool(risk="high")
async def write_file(path: str, text: str) -> str:
    """Write a file."""
    return f"wrote {len(text)} characters to {path}"


RUNS: dict[str, tuple[str, list[Turn]]] = {
    "orders": ("How many orders were late this week?", [calls(("orders", {"week": 47})), "Three of twelve were late."]),
    "writer": ("Write that into report.md", [calls(("write_file", {"path": "report.md", "text": "3 of 12"}))]),
    "planner": ("Which orders are late, and why?", [json.dumps(PLAN), "Orders 3, 7 and 9.", "Three orders are late."]),
    "retried": ("Say hello", [ModelError("503: busy", retryable=True), "Hello!"]),
}
EXTRA = {"planner": "executor: plan\n", "writer": "runtime_policy: {risk_level: high}\n"}


async def run(agent: str) -> str:
    """Run one agent in a new project; return its trace id."""
    message, turns = RUNS[agent]
    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "agents.d").mkdir()
        head = f"version: 1\nname: {agent}\ndescription: The agent of a picture.\nmodel: house\ninstructions: Help.\n"
        policy = "skill_policy: {allow: ['*']}\n"
        (root / f"agents.d/{agent}.yaml").write_text(head + policy + EXTRA.get(agent, ""), "utf-8")
        (root / "agentsd.yaml").write_text("telemetry: {content: full}\nmodel_calls: {backoff: 0.05}\n", "utf-8")
        model = HouseModel(*turns, tokens=420)
        async with Runtime.open(root, tools=[orders, write_file], models={"house": model}, watch=False) as runtime:
            result = await runtime.run(message, agent=agent)
            assert result.trace_id
            return result.trace_id


def main(endpoint: str, service: str, *headers: str) -> None:
    """Run all agents and send their traces."""
    with export_traces(endpoint, dict(header.split("=", 1) for header in headers), service, exit_seconds=30):
        trace_ids = {agent: asyncio.run(run(agent)) for agent in RUNS}
    sys.stdout.write(json.dumps(trace_ids))


if __name__ == "__main__":
    main(*sys.argv[1:])
