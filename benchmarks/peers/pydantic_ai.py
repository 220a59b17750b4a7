"""pydantic-ai: one agent on its model of the Chat Completions API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

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

TITLE = "pydantic-ai"
DURABLE_TITLE = "pydantic-ai on DBOS"
PACKAGES = ("pydantic-ai-slim[openai]==2.68.0", "dbos==3.4.0", "openai==3.54.0")


@asynccontextmanager
async def opened(url: str, tools: Sequence[ToolFunction], history: History) -> AsyncIterator[Run]:
    """Create an agent without a limit of requests."""
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.usage import UsageLimits

    earlier = [
        ModelRequest(parts=[UserPromptPart(text)]) if role == "user" else ModelResponse(parts=[TextPart(text)])
        for role, text in history
    ]
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=url, api_key=KEY))
    agent = Agent(model, instructions=INSTRUCTIONS, tools=list(tools))
    limits = UsageLimits(request_limit=None)

    async def run() -> str:
        result = await agent.run(PROMPT, message_history=earlier or None, usage_limits=limits)
        text: str = result.output
        return text

    yield run


@asynccontextmanager
async def durable(database: str, tool: ToolFunction, asked: Callable[[], object]) -> AsyncIterator[Durable]:
    """Launch DBOS with its defaults. Model calls are steps by the capability, and the tool is one by its decorator."""
    from dbos import DBOS, SetWorkflowID
    from pydantic_ai import Agent
    from pydantic_ai.durable_exec.dbos import DBOSDurability
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    async def answer(messages: Any, _info: Any) -> Any:
        asked()
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        call = ToolCallPart("note", {"n": turn}, f"c{turn}")
        return ModelResponse(parts=[call if turn < DURABLE_STEPS else TextPart(ANSWER)])

    DBOS(config={"name": "peer", "system_database_url": database})
    tools = [DBOS.step(name="note")(tool)]
    agent = Agent(
        FunctionModel(answer), name="worker", instructions=INSTRUCTIONS, tools=tools, capabilities=[DBOSDurability()]
    )

    @DBOS.workflow(name="work")  # type: ignore[untyped-decorator]  # DBOS is not installed where mypy runs
    async def work() -> str:
        text: str = (await agent.run(PROMPT)).output
        return text

    async def run(key: str) -> str:
        with SetWorkflowID(key):
            text: str = await work()
        return text

    async def resume(key: str) -> str:  # the launch has resumed it
        handle = await DBOS.retrieve_workflow_async(key)
        text: str = await handle.get_result()
        return text

    DBOS.launch()
    try:
        yield Durable(run, resume)
    finally:
        DBOS.destroy()
