"""agentsd, with policy, limits, events and records in memory; it also offers its built-in tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.peers.job import (
    ANSWER,
    DURABLE_STEPS,
    INSTRUCTIONS,
    KEY,
    MODEL,
    PROMPT,
    Durable,
    History,
    Run,
    ToolFunction,
)

TITLE = DURABLE_TITLE = "agentsd"
PACKAGES: tuple[str, ...] = ()
_AGENT = f"""\
version: 1
name: worker
description: Calls a tool.
model: %s
instructions: {INSTRUCTIONS}
skill_policy: {{allow: ["*"]}}
conversation: {{window: 1000}}
runtime_policy: {{max_steps: null, max_tool_calls: null, max_total_tokens: null}}
"""


@asynccontextmanager
async def opened(url: str, tools: Sequence[ToolFunction], history: History) -> AsyncIterator[Run]:
    """Open a project with one agent."""
    from framework import Runtime, tool

    earlier = [{"role": role, "content": text} for role, text in history]
    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "agents.d").mkdir()
        (root / "agents.d/worker.yaml").write_text(_AGENT % "served", "utf-8")
        alias = f"{{model: openai/{MODEL}, base_url: '{url}', api_key: {KEY}, stream: false}}"
        (root / "agentsd.yaml").write_text(f"models: {{served: {alias}}}\n", "utf-8")
        registered = [tool(risk="low")(function) for function in tools]
        async with Runtime.open(root, tools=registered, watch=False) as runtime:

            async def run() -> str:
                return (await runtime.run(PROMPT, history=earlier)).output

            yield run


@asynccontextmanager
async def durable(
    database: str, tool: ToolFunction, asked: Callable[[], object], settings: str = ""
) -> AsyncIterator[Durable]:
    """Open a project with a store; `settings` is the text of its `agentsd.yaml`."""
    from framework import Runtime
    from framework import tool as registered
    from framework.llm.client import ModelRequest
    from framework.testing import ScriptedModel, Turn
    from framework.types.messages import ToolCall

    def script(request: ModelRequest) -> Turn:
        asked()
        turn = sum(message.role == "assistant" for message in request.messages)
        return (ToolCall(id=f"c{turn}", tool="note", arguments={"n": turn}),) if turn < DURABLE_STEPS else ANSWER

    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "agents.d").mkdir()
        (root / "agents.d/worker.yaml").write_text(_AGENT % "scripted", "utf-8")
        if settings:
            (root / "agentsd.yaml").write_text(settings, "utf-8")
        models, tools = {"scripted": ScriptedModel(script=script)}, [registered(risk="low", idempotent=True)(tool)]
        async with Runtime.open(root, tools=tools, models=models, watch=False, store=database) as runtime:

            async def run(_key: str) -> str:
                return (await runtime.run(PROMPT)).output

            async def resume(_key: str) -> str:
                (run_id,) = await runtime.resume_orphans()
                return (await runtime.result(run_id)).output

            yield Durable(run, resume)
