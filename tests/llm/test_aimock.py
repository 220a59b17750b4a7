"""All clients on a third-party server: both sides interpret the formats in the same way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from framework.llm.client import Delta, ModelReply, ModelRequest
from framework.types.errors import ModelError
from framework.types.messages import Message, ToolDefinition
from tests.support.aimock import PROGRAM, aimock
from tests.support.editor import node
from tests.support.file_requests import contents, sample, with_files
from tests.support.formats import KEY, Format, each_format, each_way

if not PROGRAM.exists() or node() is None:
    pytest.skip("no aimock: `make test` fetches it where it finds npm", allow_module_level=True)

LONG = "one two three four five six seven eight nine ten eleven twelve"
COUNTED = {"prompt_tokens": 111, "completion_tokens": 9, "total_tokens": 120}
ASKED = [
    {"id": "call_1", "name": "weather__at", "arguments": {"city": "Paris"}},
    {"id": "call_2", "name": "clock", "arguments": {}},
]
FIXTURES: list[dict[str, Any]] = [
    {
        "match": {"userMessage": "weather", "hasToolResult": False},
        "response": {"content": "Let me look.", "toolCalls": ASKED, "finishReason": "stop", "reasoning": "hm"},
    },
    {
        "match": {"userMessage": "weather", "hasToolResult": True, "toolResultContains": "18 degrees"},
        "response": {"content": "It is 18.", "usage": COUNTED},
    },
    {"match": {"userMessage": "hello"}, "response": {"content": LONG, "usage": COUNTED}},
    {"match": {"userMessage": "think"}, "response": {"content": "42", "reasoning": "let me see"}},
    {"match": {"userMessage": "long"}, "response": {"content": "half an", "finishReason": "length"}},
    {"match": {"userMessage": "cut"}, "response": {"content": LONG}, "truncateAfterChunks": 2, "chunkSize": 5},
    {
        "match": {"userMessage": "calls cut"},
        "response": {"toolCalls": ASKED, "finishReason": "stop"},
        "truncateAfterChunks": 1,
    },
    {"match": {"userMessage": "garbled"}, "response": {"content": "x"}, "chaos": {"malformedRate": 1}},
    {"match": {"userMessage": "hangup"}, "response": {"content": "x"}, "chaos": {"disconnectRate": 1}},
    {
        "match": {"userMessage": "too fast"},
        "response": {"error": {"message": "slow down", "type": "rate_limit_error"}, "status": 429, "retryAfter": 2},
    },
    {
        "match": {"userMessage": "boom"},
        "response": {"error": {"message": "it exploded", "type": "server_error"}, "status": 500},
    },
]
FIXTURES.sort(key=lambda fixture: -len(fixture["match"]["userMessage"]))
TOOLS = tuple(
    ToolDefinition(
        name=name, description="x", parameters={"type": "object", "properties": {"city": {"type": "string"}}}
    )
    for name in ("weather.at", "clock")
)
PATHS = {"openai": "/v1", "anthropic": "", "gemini": "/v1beta"}
Ask = Callable[..., list[Delta]]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Send requests to one server, shared by all tests here, from outside its event loop."""

    async def asked(url: str, form: Format, *messages: Message, stream: bool) -> list[Delta]:
        model = form.model(url + PATHS[form.name])
        try:
            request = ModelRequest(messages, TOOLS, stream=stream, media=contents(*messages))
            return [delta async for delta in model.stream(request)]
        finally:
            await model.close()

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        url = runner.run(stack.enter_async_context(aimock(tmp_path_factory.mktemp("aimock"), FIXTURES)))
        yield lambda form, *messages, stream: runner.run(asked(url, form, *messages, stream=stream))
        runner.run(stack.aclose())


def user(text: str) -> Message:
    return Message(role="user", content=text)


def reply(deltas: list[Delta]) -> ModelReply:
    assert deltas[-1].reply
    return deltas[-1].reply


@each_format
@each_way
def test_a_text_and_its_usage(ask: Ask, form: Format, stream: bool) -> None:
    deltas = ask(form, Message(role="system", content="Be kind."), user("hello"), stream=stream)

    usage = reply(deltas).usage
    assert reply(deltas).message.content == LONG
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (111, 9, 120)
    assert "".join(delta.text for delta in deltas) == (LONG if stream else "")
    assert len(deltas) > 2 or not stream


@each_format
def test_images_and_documents_are_accepted(ask: Ask, form: Format) -> None:
    message = with_files("hello", sample("image/png"), sample("application/pdf"))

    assert reply(ask(form, message, stream=False)).message.content == LONG


@each_format
@each_way
def test_reasoning_is_returned(ask: Ask, form: Format, stream: bool) -> None:
    message = reply(ask(form, user("think"), stream=stream)).message

    assert message.content == "42"
    assert message.reasoning
    assert message.reasoning.text == "let me see"


@each_format
@each_way
def test_tool_calls_and_a_second_turn_with_their_results(ask: Ask, form: Format, stream: bool) -> None:
    first = reply(ask(form, user("weather"), stream=stream))

    assert first.finish_reason == "tool_calls"
    assert first.message.content == "Let me look."
    assert [(call.tool, call.arguments) for call in first.message.tool_calls] == [
        ("weather.at", {"city": "Paris"}),
        ("clock", {}),
    ]
    one, two = first.message.tool_calls
    results = (
        Message(role="tool", content="noon", tool_call_id=one.id),
        Message(role="tool", content="18 degrees", tool_call_id=two.id),
    )
    second = reply(ask(form, user("weather"), first.message, *results, stream=stream))
    assert second.message.content == "It is 18."


@each_format
@each_way
def test_a_text_cut_by_max_tokens(ask: Ask, form: Format, stream: bool) -> None:
    assert reply(ask(form, user("long"), stream=stream)).finish_reason == "length"


@each_format
@each_way
@pytest.mark.parametrize(
    ("text", "says_what", "wait"),
    [
        ("too fast", "rate limited, retry after 2 s: slow down", 2.0),
        ("boom", r"the provider failed \(500\): it exploded", None),
        ("garbled", "not JSON|streamed nothing", None),
        ("hangup", "was lost before the answer was complete", None),
    ],
)
def test_each_failure_is_one_error(
    ask: Ask, form: Format, text: str, says_what: str, wait: float | None, stream: bool
) -> None:
    with pytest.raises(ModelError, match=says_what) as caught:
        ask(form, user(text), stream=stream)

    assert (caught.value.retryable, caught.value.retry_after) == (True, wait)
    assert KEY not in caught.value.message


@each_format
@pytest.mark.parametrize("text", ["cut", "calls cut"])
def test_a_truncated_stream_is_one_error(ask: Ask, form: Format, text: str) -> None:
    with pytest.raises(ModelError) as caught:
        ask(form, user(text), stream=True)

    assert caught.value.retryable
