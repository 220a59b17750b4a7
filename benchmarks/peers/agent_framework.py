"""Microsoft's agent-framework: an agent on its client of the Chat Completions API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from benchmarks.peers.job import INSTRUCTIONS, KEY, MODEL, PROMPT, History, Run, ToolFunction

TITLE = "agent-framework"
PACKAGES = ("agent-framework-core==1.23.0", "agent-framework-openai==1.17.0", "openai==3.54.0")
_MAX_TURNS = 1000


@asynccontextmanager
async def opened(url: str, tools: Sequence[ToolFunction], history: History) -> AsyncIterator[Run]:
    """Create an agent without instrumentation."""
    from agent_framework import Agent, Message, observability
    from agent_framework.openai import OpenAIChatCompletionClient
    from openai import AsyncOpenAI

    observability.OBSERVABILITY_SETTINGS.enable_instrumentation = False
    earlier = [Message(role, [text]) for role, text in history]
    async with AsyncOpenAI(base_url=url, api_key=KEY) as connection:
        client = OpenAIChatCompletionClient(
            model=MODEL, async_client=connection, function_invocation_configuration={"max_iterations": _MAX_TURNS}
        )
        agent = Agent(client, instructions=INSTRUCTIONS, tools=list(tools))

        async def run() -> str:
            text: str = (await agent.run([*earlier, Message("user", [PROMPT])])).text
            return text

        yield run
