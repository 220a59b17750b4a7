"""Requests to an OpenAI client, and the deltas of its reply."""

from __future__ import annotations

from typing import Any

import pytest

from framework.llm.client import Delta, ModelRequest
from framework.llm.openai.client import OpenAIModel
from framework.llm.openai.responses import ResponsesModel
from framework.types.messages import Message, ToolDefinition

KEY = "sk-very-secret-4711"
USER = Message(role="user", content="hi")
SEARCH = ToolDefinition(name="docs.search", description="Search.", parameters={"type": "object", "properties": {}})
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def request(*, stream: bool = False, **changes: Any) -> ModelRequest:
    """Return a request with one message and one tool."""
    return ModelRequest(**{"messages": (USER,), "tools": (SEARCH,), "stream": stream, **changes})


async def deltas(model: OpenAIModel | ResponsesModel, model_request: ModelRequest) -> list[Delta]:
    """Send the request, close the model, and return the deltas."""
    try:
        return [delta async for delta in model.stream(model_request)]
    finally:
        await model.close()
