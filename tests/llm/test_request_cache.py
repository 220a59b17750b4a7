"""Cached bytes equal a fresh encoding of the request, whatever changes in a conversation."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from framework.llm.capabilities import Capabilities
from framework.llm.client import ModelRequest
from framework.llm.message_shape import MAX_TOOLSETS, EncodedMessages, ToolsetCache, encode_json, json_object
from framework.llm.openai.client import OpenAIModel
from framework.llm.openai_format import message_to_chat
from framework.types.messages import Message, Reasoning, ToolCall, ToolDefinition
from tests.support.cases import cases
from tests.support.openai_requests import deltas
from tests.support.wire import says, wire_server


def write(message: Message) -> dict[str, Any]:
    return message_to_chat(message, {})


CONVERSATIONS = st.lists(
    st.tuples(st.sampled_from(["append", "replace", "drop", "insert"]), st.integers(0, 8), st.text(max_size=5))
)


@cases(100)
@given(steps=CONVERSATIONS)
def test_cached_bytes_equal_a_fresh_encoding_after_any_edits(
    steps: list[tuple[str, int, str]],
) -> None:
    written, messages = EncodedMessages(), list[Message]()
    for what, place, text in steps:
        message = Message(role="user", content=text)
        if what == "append":
            messages.append(message)
        elif what == "insert":
            messages.insert(place, message)
        elif messages and what == "replace":
            messages[place % len(messages)] = message
        elif messages:
            del messages[place % len(messages)]
        chunks = written.chunks(messages, lambda position: encode_json(write(messages[position])))
        assert json.loads(b"".join(chunks)) == [write(message) for message in messages]


def test_a_message_may_become_several_elements() -> None:
    def twice(position: int) -> bytes:
        return encode_json([write(messages[position])] * 2)[1:-1]

    messages = [Message(role="user", content=text) for text in "abc"]
    encoded = EncodedMessages()
    assert len(json.loads(b"".join(encoded.chunks(messages[:1], twice)))) == 2
    assert json.loads(b"".join(encoded.chunks(messages, twice))) == [write(m) for m in messages for _ in range(2)]


def test_unchanged_messages_are_not_encoded_again() -> None:
    seen: list[str] = []

    def noting(position: int) -> bytes:
        seen.append(messages[position].content)
        return encode_json(write(messages[position]))

    written, messages = EncodedMessages(), [Message(role="user", content=str(n)) for n in range(3)]
    written.chunks(messages, noting)
    messages.append(Message(role="user", content="3"))
    written.chunks(messages, noting)
    assert seen == ["0", "1", "2", "3"]


def test_two_servers_of_one_model_get_a_conversation_each_in_its_own_form() -> None:
    call = ToolCall(id="call_1", tool="t", arguments={})
    thoughts = Reasoning(text="aloud", provider="openai", data={"field": "reasoning_content", "source": "x@127.0.0.1"})
    conversation = (
        Message(role="user", content="hi"),
        Message(role="assistant", content="", tool_calls=(call,), reasoning=thoughts),
        Message(role="tool", content="1", tool_call_id="call_1"),
    )

    async def run() -> list[Any]:
        async with wire_server([says("a")]) as first, wire_server([says("b")]) as second:
            url, any_id = second.url.replace("127.0.0.1", "localhost"), Capabilities(call_ids="any")
            clients = [
                OpenAIModel("openai", "x", api_key="", base_url=first.url),
                OpenAIModel("openai", "x", api_key="", base_url=url, capabilities=any_id),
            ]
            request = ModelRequest(conversation)
            for client in clients:
                await deltas(client, request)
                await client.close()
            return [server.requests[0]["messages"] for server in (first, second)]

    first, second = asyncio.run(run())
    assert (len(first[2]["tool_call_id"]), first[1]["reasoning_content"]) == (9, "aloud")
    assert (second[2]["tool_call_id"], second[1].get("reasoning_content")) == ("call_1", None)


def test_a_tool_list_is_processed_once_while_it_is_in_use() -> None:
    made: list[int] = []

    def make(tools: tuple[ToolDefinition, ...]) -> int:
        made.append(len(tools))
        return len(tools)

    toolsets = ToolsetCache(make)
    lists = [
        tuple(ToolDefinition(name=f"t{n}", description="d", parameters={}) for n in range(size)) for size in range(3)
    ]
    for _ in range(3):
        assert [toolsets.get(tools) for tools in lists] == [0, 1, 2]
    assert made == [0, 1, 2]
    for n in range(MAX_TOOLSETS):
        toolsets.get((ToolDefinition(name=f"x{n}", description="d", parameters={}),))
    toolsets.get(lists[2])
    assert made.count(2) == 2, "the least recently used list was dropped"


def test_encoded_fields_are_combined_with_other_fields() -> None:
    assert json.loads(json_object({"model": "m", "n": 1}, messages=[b"[1", b"]"], tools=[b"[]"])) == {
        "model": "m",
        "n": 1,
        "messages": [1],
        "tools": [],
    }
    assert json_object({}, a=[b"1"], b=[b"2"]) == b'{"a":1,"b":2}'
    assert json_object({}) == b"{}"
