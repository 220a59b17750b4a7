"""agno: one agent without a database, with its telemetry off."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from benchmarks.peers.job import INSTRUCTIONS, KEY, MODEL, PROMPT, History, Run, ToolFunction

TITLE = "agno"
PACKAGES = ("agno==3.1.10", "openai==3.54.0")


@asynccontextmanager
async def opened(url: str, tools: Sequence[ToolFunction], history: History) -> AsyncIterator[Run]:
    """Create an agent."""
    os.environ["AGNO_TELEMETRY"] = "false"
    from agno.agent import Agent
    from agno.models.message import Message
    from agno.models.openai.like import OpenAILike

    model = OpenAILike(id=MODEL, base_url=url, api_key=KEY)
    agent = Agent(model=model, tools=list(tools), instructions=INSTRUCTIONS, telemetry=False)
    messages = [Message(role=role, content=text) for role, text in (*history, ("user", PROMPT))]

    async def run() -> str:
        text: str = (await agent.arun(list(messages))).content
        return text

    yield run
