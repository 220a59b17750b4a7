"""openai-agents: its runner, on the Chat Completions API, without its tracing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from benchmarks.peers.job import INSTRUCTIONS, KEY, MODEL, PROMPT, History, Run, ToolFunction

TITLE = "openai-agents"
PACKAGES = ("openai-agents==0.24.0", "openai==3.54.0")
_MAX_TURNS = 1000


@asynccontextmanager
async def opened(url: str, tools: Sequence[ToolFunction], history: History) -> AsyncIterator[Run]:
    """Create an agent."""
    from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    messages = [{"role": role, "content": text} for role, text in (*history, ("user", PROMPT))]
    async with AsyncOpenAI(base_url=url, api_key=KEY) as client:
        model = OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
        functions = [function_tool(tool) for tool in tools]
        agent = Agent(name="worker", instructions=INSTRUCTIONS, model=model, tools=functions)
        config = RunConfig(tracing_disabled=True)

        async def run() -> str:
            result = await Runner.run(agent, list(messages), max_turns=_MAX_TURNS, run_config=config)
            text: str = result.final_output
            return text

        yield run
