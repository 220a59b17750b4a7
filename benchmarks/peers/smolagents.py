"""smolagents: its agent that calls tools, which is synchronous, so that each run has a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.peers.job import INSTRUCTIONS, KEY, MODEL, PROMPT, History, Run, ToolFunction, blocking

TITLE = "smolagents"
PACKAGES = ("smolagents[openai]==1.26.0", "openai==3.54.0")
_MAX_STEPS = 1000
_MAX_THREADS = 1000


@asynccontextmanager
async def opened(url: str, tools: Sequence[ToolFunction], history: History) -> AsyncIterator[Run]:
    """Create an agent for each run in progress, because an agent has one memory; they share the client."""
    from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool
    from smolagents.memory import ActionStep, TaskStep
    from smolagents.monitoring import Timing

    model = OpenAIModel(MODEL, api_base=url, api_key=KEY)
    functions = [tool(blocking(function)) for function in tools]
    idle = list[Any]()

    def work() -> str:
        agent = idle.pop() if idle else created()
        agent.memory.reset()
        agent.memory.steps += [
            TaskStep(text) if role == "user" else ActionStep(number, Timing(0, 0), model_output=text)
            for number, (role, text) in enumerate(history)
        ]
        answer: str = agent.run(PROMPT, reset=not history)
        idle.append(agent)
        return answer

    def created() -> Any:
        options = {"instructions": INSTRUCTIONS, "max_steps": _MAX_STEPS, "verbosity_level": LogLevel.OFF}
        return ToolCallingAgent(functions, model, **options)

    with ThreadPoolExecutor(_MAX_THREADS) as threads:

        async def run() -> str:
            return await asyncio.get_running_loop().run_in_executor(threads, work)

        yield run
