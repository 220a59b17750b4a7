"""Complete runs on a real llama.cpp server: its grammar keeps calls and typed answers in form."""

from __future__ import annotations

import asyncio
from pathlib import Path

from framework import Runtime, events, tool
from tests.support.llama_cpp import LlamaCpp
from tests.support.projects import agent, write

BARE = {"skill_policy": "{allow: []}"}


@tool(risk="low")
async def look(city: str, days: int = 1) -> str:
    """Look up the weather of a city."""
    return f"{city}: {days} days of sun"


def project(root: Path, server: LlamaCpp, *, capabilities: str = "{}", **keys: str) -> Path:
    alias = f"{{model: openai/tiny, base_url: '{server.url}', capabilities: {capabilities}}}"
    text = agent("one", model="local", **({"model_settings": "{seed: 1}"} | keys))
    return write(root, {"agents.d/one.yaml": text, "agentsd.yaml": f"models: {{local: {alias}}}\n"})


def test_a_chat_is_streamed_as_the_model_writes_it(tmp_path: Path, llama_cpp: LlamaCpp) -> None:
    async def main() -> None:
        async with Runtime.open(project(tmp_path, llama_cpp, **BARE), watch=False) as runtime:
            async with runtime.stream("hello") as stream:
                texts = [event.text async for event in stream if isinstance(event, events.ContentReceived)]
            result = await stream.result()
            again = await runtime.run("hello")

        assert result.status == "completed", result.error
        assert "".join(texts) == result.output == again.output
        assert len(texts) > 1
        assert result.usage.prompt_tokens > len("You are one.") + len("hello"), "a token is a character here"

    asyncio.run(main())


def test_a_tool_loop_calls_the_tool_and_answers_from_its_result(tmp_path: Path, llama_cpp: LlamaCpp) -> None:
    async def main() -> None:
        root = project(tmp_path, llama_cpp, skill_policy="{allow: [look]}")
        async with Runtime.open(root, tools=[look], watch=False) as runtime:
            result = await runtime.run("how is the weather?")

        assert result.status == "completed", result.error
        assert {call.tool for call in result.tool_calls} == {"look"}
        assert {call.status for call in result.tool_calls} == {"success"}
        assert result.steps == 2
        assert result.output.endswith(".")

    asyncio.run(main())
