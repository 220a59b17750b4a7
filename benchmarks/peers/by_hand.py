"""The baseline: a hand-written loop on `AsyncOpenAI` with its defaults, without limits, events or records."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.peers.job import INSTRUCTIONS, KEY, MODEL, PROMPT, History, Run, ToolFunction

TITLE = "hand-written loop"
PACKAGES = ("openai==3.54.0",)
_NUMBER = {"n": {"type": "integer", "description": "a number"}}
_LOOK_UP = {
    "query": {"type": "string", "description": "The search terms."},
    "limit": {"type": "integer", "description": "Maximum number of records.", "default": 10},
    "exact": {"type": "boolean", "description": "Whether to match exactly.", "default": False},
}


@asynccontextmanager
async def opened(url: str, tools: Sequence[ToolFunction], history: History) -> AsyncIterator[Run]:
    """Connect to the model server, and describe the tools."""
    from openai import AsyncOpenAI

    functions = {tool.__name__: tool for tool in tools}
    definitions: list[Any] = [_definition(tool) for tool in tools]
    earlier = [{"role": role, "content": text} for role, text in history]

    async with AsyncOpenAI(base_url=url, api_key=KEY) as client:

        async def run() -> str:
            messages: list[Any] = [
                {"role": "system", "content": INSTRUCTIONS},
                *earlier,
                {"role": "user", "content": PROMPT},
            ]
            while True:
                completion = await client.chat.completions.create(model=MODEL, messages=messages, tools=definitions)
                message = completion.choices[0].message
                if not message.tool_calls:
                    return message.content or ""
                messages.append(message.model_dump(exclude_none=True))
                for call in messages[-1]["tool_calls"]:
                    function = call["function"]
                    result = await functions[function["name"]](**json.loads(function["arguments"]))
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

        yield run


def _definition(tool: ToolFunction) -> dict[str, Any]:
    properties, required = (_NUMBER, ["n"]) if tool.__name__ == "note" else (_LOOK_UP, ["query"])
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    description = (tool.__doc__ or "").partition("\n")[0]
    function = {"name": tool.__name__, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}
