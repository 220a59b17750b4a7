"""Features of the Anthropic client only: caching, thinking and API versions."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from framework.llm.anthropic import MessageAssembler, content_to_message, request_to_body, thinking_stamp
from framework.llm.capabilities import known_capabilities
from framework.llm.client import ModelInfo, ModelReply, ModelRequest
from framework.llm.message_shape import marked_notice
from framework.types.errors import ModelError
from framework.types.messages import Message, Reasoning, ToolCall, ToolDefinition
from framework.types.spec import ModelSettings
from tests.support.formats import ANTHROPIC, SIGNATURE, says
from tests.support.wire import Answer, raw, wire_server

SYSTEM = Message(role="system", content="Be kind.")
USER = Message(role="user", content="hi")
TOOLS = tuple(
    ToolDefinition(name=name, description="x", parameters={"type": "object", "properties": {}}) for name in ("a.b", "c")
)
CALL = ToolCall(id="call_1", tool="a.b", arguments={"q": 1})
RESULT = Message(role="tool", content="found", tool_call_id="call_1")
CACHED = {"type": "ephemeral"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": SIGNATURE}


def body(
    *messages: Message,
    model: str = "claude-haiku-4-5",
    tools: tuple[ToolDefinition, ...] = TOOLS,
    host: str | None = None,
    **settings: Any,
) -> dict[str, Any]:
    known = known_capabilities(f"anthropic/{model}")
    info = ModelInfo("anthropic", model, server_address=host, capabilities=known)
    return request_to_body(ModelRequest(messages or (SYSTEM, USER), tools, ModelSettings(**settings)), info)


def thinking_turn(*content: dict[str, Any], model: str = "claude-haiku-4-5") -> Message:
    """Return an answer with calls to a request with the same system prompt and tools."""
    asked = body(model=model)
    stamp = thinking_stamp(f"{model}@", asked.get("system", ()), asked.get("tools", ()))
    return content_to_message(content, {"a__b": "a.b"}, stamp=stamp)


TOOL_USE = {"type": "tool_use", "id": "call_1", "name": "a__b", "input": {"q": 1}}


def test_a_conversation_in_the_api_format() -> None:
    late = Message(role="system", content="Only the answer.")
    sent = body(SYSTEM, USER, Message(role="assistant", content="wait", tool_calls=(CALL,)), RESULT, late)

    assert sent == {
        "model": "claude-haiku-4-5",
        "max_tokens": 4096,
        "system": [{"type": "text", "text": "Be kind.", "cache_control": CACHED}],
        "tools": [
            {"name": "a__b", "description": "x", "input_schema": TOOLS[0].parameters},
            {"name": "c", "description": "x", "input_schema": TOOLS[1].parameters, "cache_control": CACHED},
        ],
        "tool_choice": {"type": "auto"},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "wait"}, TOOL_USE]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "call_1", "content": "found", "cache_control": CACHED},
                    {"type": "text", "text": marked_notice("Only the answer.")},
                ],
            },
        ],
    }


def marked(sent: dict[str, Any]) -> list[str]:
    """Return the texts of the blocks that are marked for caching."""
    blocks = [block for turn in sent["messages"] for block in turn["content"] if "cache_control" in block]
    return [block.get("text") or block["content"] for block in blocks]


def test_a_conversation_is_cached_up_to_the_part_the_next_request_repeats() -> None:
    late = Message(role="system", content="late")
    asked = Message(role="assistant", tool_calls=(CALL,))

    assert marked(body(SYSTEM, USER)) == ["hi"]
    assert marked(body(SYSTEM, USER, late, late)) == ["hi"]
    assert marked(body(SYSTEM, USER, asked, RESULT, late)) == ["found"]
    assert marked(body(USER, Message(role="assistant", content="so"), USER, tools=())) == ["hi"]
    assert marked(body(SYSTEM, USER, tools=())) == [], "a question that nothing follows"
    assert marked(body(SYSTEM, USER, Message(role="assistant", content="so"), late)) == [], "no answer is marked"
    assert marked(body(SYSTEM, tools=())) == []
    nothing = Message(role="tool", content=" ", tool_call_id="call_1")
    assert marked(body(SYSTEM, USER, asked, nothing, late)) == [], "the API refuses a mark on what is empty"


def test_results_of_one_turn_are_one_message_without_empty_texts() -> None:
    other = ToolCall(id="call:2", tool="c")
    results = (RESULT, Message(role="tool", content="", tool_call_id="call:2"))
    empty = Message(role="assistant", content=" ")
    sent = body(USER, empty, Message(role="assistant", tool_calls=(CALL, other)), *results, Message(role="user"))

    assert [turn["role"] for turn in sent["messages"]] == ["user", "assistant", "user"]
    assert [block["type"] for block in sent["messages"][1]["content"]] == ["tool_use", "tool_use"]
    assert [block.get("tool_use_id") for block in sent["messages"][2]["content"]] == ["call_1", "call_2", None]
    assert sent["messages"][2]["content"][2]["text"].strip()
    assert "system" not in sent


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (None, {"type": "auto"}),
        ("none", {"type": "none"}),
        ("required", {"type": "any"}),
        ("a.b", {"type": "tool", "name": "a__b"}),
    ],
)
def test_the_tool_choice(choice: str | None, sent: dict[str, str]) -> None:
    assert body(tool_choice=choice)["tool_choice"] == sent
    assert not {"tools", "tool_choice"} & body(tools=(), tool_choice=choice).keys()


@pytest.mark.parametrize(
    ("model", "settings", "expected"),
    [
        ("claude-haiku-4-5", {}, {"max_tokens": 4096}),
        ("claude-haiku-4-5", {"max_tokens": 50}, {"max_tokens": 50}),
        (
            "claude-haiku-4-5",
            {"reasoning": "medium"},
            {"max_tokens": 4096 + 8192, "thinking": {"type": "enabled", "budget_tokens": 8192}},
        ),
        (
            "claude-haiku-4-5",
            {"reasoning": "high", "max_tokens": 3000},
            {"max_tokens": 3000, "thinking": {"type": "enabled", "budget_tokens": 1976}},
        ),
        ("claude-haiku-4-5", {"reasoning": "high", "max_tokens": 2000}, {"max_tokens": 2000}),
        ("claude-haiku-4-5", {"reasoning": "low", "tool_choice": "c"}, {"max_tokens": 6144}),
        (
            "claude-sonnet-5",
            {"reasoning": "minimal"},
            {
                "max_tokens": 5120,
                "thinking": {"type": "adaptive", "display": "summarized"},
                "output_config": {"effort": "low"},
            },
        ),
        (
            "not-heard-of",
            {"reasoning": "high"},
            {
                "max_tokens": 20480,
                "thinking": {"type": "adaptive", "display": "summarized"},
                "output_config": {"effort": "high"},
            },
        ),
        ("claude-sonnet-5", {"tool_choice": "c"}, {"max_tokens": 4096, "thinking": {"type": "disabled"}}),
        ("claude-opus-5-5", {"tool_choice": "c"}, {"max_tokens": 4096}),
        ("claude-3-haiku", {"reasoning": "high"}, {"max_tokens": 4096}),
    ],
)
def test_the_thinking_and_length_settings_of_each_claude_model(
    model: str, settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    sent = body(model=model, **settings)

    assert {key: sent[key] for key in ("max_tokens", "thinking", "output_config") if key in sent} == expected


def test_thinking_is_sent_back_at_its_position_among_the_other_blocks() -> None:
    redacted = {"type": "redacted_thinking", "data": "xyz"}
    text = {"type": "text", "text": "wait"}
    content = (redacted, text, THOUGHT, TOOL_USE)

    sent = body(SYSTEM, USER, thinking_turn(*content), RESULT)

    assert sent["messages"][1]["content"] == [*content]


@pytest.mark.parametrize("changed", ["system", "tools", "model", "host", "turn", "provider"])
def test_thinking_with_another_prefix_is_not_sent_back(changed: str) -> None:
    turn = thinking_turn(THOUGHT, TOOL_USE)
    assert turn.reasoning is not None
    other = Reasoning(text="hm", provider="gemini", data=turn.reasoning.data)
    sent = {
        "system": lambda: body(Message(role="system", content="Be rude."), USER, turn, RESULT),
        "tools": lambda: body(SYSTEM, USER, turn, RESULT, tools=TOOLS[:1]),
        "model": lambda: body(SYSTEM, USER, turn, RESULT, model="claude-sonnet-4-5"),
        "host": lambda: body(SYSTEM, USER, turn, RESULT, host="proxy.example.org"),
        "turn": lambda: body(SYSTEM, USER, turn, RESULT, Message(role="assistant", content="ok"), USER),
        "provider": lambda: body(SYSTEM, USER, turn.model_copy(update={"reasoning": other}), RESULT),
    }[changed]()

    assert sent["messages"][1]["content"] == [TOOL_USE]
    assert body(SYSTEM, USER, turn, RESULT)["messages"][1]["content"] == [THOUGHT, TOOL_USE]


def test_a_tool_turn_that_began_without_thinking_continues_without() -> None:
    bare = Message(role="assistant", tool_calls=(CALL,))

    assert "thinking" not in body(SYSTEM, USER, bare, RESULT, reasoning="high")
    assert body(SYSTEM, USER, thinking_turn(THOUGHT, TOOL_USE), RESULT, reasoning="high")["thinking"]
    assert body(SYSTEM, USER, bare, RESULT, Message(role="assistant", content="ok"), USER, reasoning="high")["thinking"]


# --- tools that searches find

FOUND_BY = ToolCall(id="s1", tool="c", arguments={"words": "x"})
FINDS = Message(role="tool", content="You can call these tools now:", tool_call_id="s1", status="success")
BY_SEARCH = {"s1": ["a.b", "gone"]}


def searched(
    *messages: Message, found: dict[str, list[str]] | None = BY_SEARCH, model: str = "claude-haiku-4-5", **settings: Any
) -> dict[str, Any]:
    """Return the request of a run that searches with the tool `c`, and has found the others."""
    info = ModelInfo("anthropic", model, capabilities=known_capabilities(f"anthropic/{model}"))
    tools = (TOOLS[1], TOOLS[0]) if found else TOOLS[1:]
    given = messages or (SYSTEM, USER, Message(role="assistant", tool_calls=(FOUND_BY,)), FINDS)
    return request_to_body(ModelRequest(given, tools, ModelSettings(**settings), found=found), info)


def beginning(sent: dict[str, Any]) -> dict[str, Any]:
    """Return what the cache of the tools and the system text depends on."""
    first = [tool for tool in sent["tools"] if "defer_loading" not in tool]
    return {"tools": first, "system": sent["system"], "is_deferring": len(first) < len(sent["tools"])}


def test_a_found_tool_is_deferred_and_referred_to() -> None:
    sent = searched()

    names = [(tool["name"], tool.get("defer_loading", False)) for tool in sent["tools"]]
    assert names == [("c", False), ("a__b", True), ("agentsd__hidden", True)]
    assert sent["tools"][0]["cache_control"] == CACHED
    (result,) = sent["messages"][-1]["content"]
    assert result["content"] == [{"type": "tool_reference", "tool_name": "a__b"}]


def test_a_search_leaves_the_cached_beginning_of_a_request_equal() -> None:
    before, after = searched(SYSTEM, USER, found={}), searched()
    assert beginning(before) == beginning(after)
    assert beginning(before)["is_deferring"]
    del before["messages"][-1]["content"][-1]["cache_control"]
    assert after["messages"][: len(before["messages"])] == before["messages"]


def test_thinking_is_sent_back_after_a_search() -> None:
    before = searched(SYSTEM, USER, found={})
    stamp = thinking_stamp("claude-haiku-4-5@", before["system"], before["tools"])
    asks = {**TOOL_USE, "id": "s1", "name": "c"}
    turn = content_to_message((THOUGHT, asks), {}, stamp=stamp)
    assert searched(SYSTEM, USER, turn, FINDS)["messages"][1]["content"][0] == THOUGHT


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "claude-opus-4-1"}, "the model has no references"),
        ({"tool_choice": "a.b"}, "the model must call it"),
    ],
)
def test_a_found_tool_is_an_ordinary_one_if_it_cannot_be_deferred(changes: dict[str, Any], why: str) -> None:
    sent = searched(**changes)
    assert "defer_loading" not in sent["tools"][1], why
    assert sent["messages"][-1]["content"][0]["content"] == FINDS.content, why


@pytest.mark.parametrize("status", ["error", "denied", None])
def test_only_the_result_of_a_search_that_succeeded_has_references(status: Any) -> None:
    failed = FINDS.model_copy(update={"status": status})
    sent = searched(SYSTEM, USER, Message(role="assistant", tool_calls=(FOUND_BY,)), failed)
    assert sent["messages"][-1]["content"][0]["content"] == FINDS.content
    assert "defer_loading" not in sent["tools"][1]


def test_a_tool_is_referred_to_once_by_the_last_result_with_the_id() -> None:
    asks = Message(role="assistant", tool_calls=(FOUND_BY,))
    sent = searched(USER, asks, FINDS, Message(role="assistant", content="so"), USER, asks, FINDS)
    earlier, later = (block for turn in sent["messages"] for block in turn["content"] if block["type"] == "tool_result")
    assert earlier["content"] == FINDS.content
    assert later["content"] == [{"type": "tool_reference", "tool_name": "a__b"}]


def ask(answer: Answer, *, model: str = "m", **settings: Any) -> tuple[dict[str, str], dict[str, Any], str]:
    async def run() -> tuple[dict[str, str], dict[str, Any], str]:
        async with wire_server([answer]) as server:
            client = ANTHROPIC.model(server.url, model)
            replies = [
                delta.reply async for delta in client.stream(ModelRequest((USER,), settings=ModelSettings(**settings)))
            ]
            await client.close()
            assert replies[0]
            return server.headers[0], server.requests[0], replies[0].message.content

    return asyncio.run(run())


def test_sampling_options_use_the_last_api_version_that_accepts_them() -> None:
    headers, sent, _ = ask(says(ANTHROPIC, "x"), temperature=0.2, stop=("END",))
    assert (sent["temperature"], sent["stop_sequences"]) == (0.2, ["END"])
    assert headers["anthropic-version"] == "2023-06-01"

    headers, sent, _ = ask(says(ANTHROPIC, "x"))
    assert "temperature" not in sent
    assert headers["anthropic-version"] > "2023-06-01"

    _, sent, _ = ask(says(ANTHROPIC, "x"), temperature=0.2, reasoning="high")
    assert "temperature" not in sent, "models that think refuse it"


def test_cached_and_written_tokens_are_part_of_the_input() -> None:
    counted = {"input_tokens": 5, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 100, "output_tokens": 7}
    whole = b'{"type":"message","id":"m","model":"x","content":[],"stop_reason":"end_turn","usage":%s}'

    async def run() -> None:
        answer = raw(200, whole % str(counted).replace("'", '"').encode())
        async with wire_server([answer]) as server:
            client = ANTHROPIC.model(server.url)
            (delta,) = [delta async for delta in client.stream(ModelRequest((USER,)))]
            await client.close()
        assert delta.reply
        usage = delta.reply.usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (125, 7, 132)
        assert (usage.cached_tokens, usage.cache_write_tokens) == (100, 20)

    asyncio.run(run())


def test_the_sdk_creates_no_spans(spans: InMemorySpanExporter) -> None:
    assert ask(says(ANTHROPIC, "hello"))[2] == "hello"

    assert spans.get_finished_spans() == ()


def test_deltas_of_several_thoughts_are_separated_as_in_the_message() -> None:
    assembler = MessageAssembler()
    deltas = []
    for index, thought in enumerate(("one", "", "two", "three")):
        assembler.add_event({"type": "content_block_start", "index": index, "content_block": {"type": "thinking"}})
        for piece in (thought[:1], thought[1:]):
            delta = {"type": "thinking_delta", "thinking": piece}
            deltas.append(assembler.add_event({"type": "content_block_delta", "index": index, "delta": delta}))
    message = content_to_message(assembler.content(), {}, stamp="s")
    assert message.reasoning is not None
    assert "".join(delta.reasoning for delta in deltas if delta) == message.reasoning.text == "one\ntwo\nthree"


SEARCH = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        (["I look.", SEARCH, FOUND, "It is ", "4."], "I look.\n\nIt is 4."),
        (["It is ", "4", "."], "It is 4."),
        ([SEARCH, FOUND, "It is 4."], "It is 4."),
        (["It is", THOUGHT, " 4."], "It is 4."),
        (["It is 4.", SEARCH, FOUND], "It is 4."),
    ],
)
@pytest.mark.parametrize("in_start", [False, True])
def test_texts_around_a_tool_of_the_provider_are_paragraphs(blocks: list[Any], text: str, in_start: bool) -> None:
    assembler, deltas = MessageAssembler(), []
    whole = [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks]
    for index, block in enumerate(whole):
        begun = {**block, "text": ""} if block["type"] == "text" and not in_start else block
        start = {"type": "content_block_start", "index": index, "content_block": begun}
        deltas.append(assembler.add_event(start))
        if block["type"] == "text" and not in_start:
            delta = {"type": "text_delta", "text": block["text"]}
            deltas.append(assembler.add_event({"type": "content_block_delta", "index": index, "delta": delta}))
    assert content_to_message(whole, {}, stamp="s").content == text
    assert content_to_message(assembler.content(), {}, stamp="s").content == text
    assert "".join(delta.text for delta in deltas if delta) == text


def test_arguments_may_arrive_as_an_object() -> None:
    assembler = MessageAssembler()
    begun = {"type": "tool_use", "id": "call_1", "name": "c", "input": {}}
    assembler.add_event({"type": "content_block_start", "index": 0, "content_block": begun})
    delta = {"type": "input_json_delta", "partial_json": {"q": 1}}
    assembler.add_event({"type": "content_block_delta", "index": 0, "delta": delta})
    assert content_to_message(assembler.content(), {}, stamp="s").tool_calls[0].arguments == {"q": 1}


def test_thinking_without_text_keeps_its_form() -> None:
    assembler = MessageAssembler()
    begun = {"type": "thinking", "thinking": "", "signature": SIGNATURE}
    assembler.add_event({"type": "content_block_start", "index": 0, "content_block": begun})
    assert assembler.content() == [begun]


def answered(answer: Answer) -> ModelReply:
    """Return the reply to a request that is not streamed."""

    async def main() -> ModelReply:
        async with wire_server([answer]) as server:
            model = ANTHROPIC.model(server.url)
            try:
                replies = [delta.reply async for delta in model.stream(ModelRequest((USER,)))]
            finally:
                await model.close()
            assert replies[-1] is not None
            return replies[-1]

    return asyncio.run(main())


def test_a_cut_answer_of_a_server_that_imitates_the_api_is_reported() -> None:
    cut = {"content": [{"type": "text", "text": "half"}], "stop_reason": "length"}
    assert answered(raw(200, json.dumps(cut).encode())).finish_reason == "length"


@pytest.mark.parametrize("body", [{"error": {"message": "not today"}}, {"error": "not today"}, {"detail": "not today"}])
def test_an_error_with_status_200_is_quoted(body: Any) -> None:
    with pytest.raises(ModelError, match="the provider reported an error: not today"):
        answered(raw(200, json.dumps(body).encode()))


def streamed(*ids: str) -> ModelReply:
    """Return the reply to a stream in which an answer with each of these ids begins after the first block."""
    events = list(says(ANTHROPIC, "one two").streamed)
    start = next(event for event in events if "message_start" in event)
    first_end = next(place for place, event in enumerate(events) if "content_block_delta" in event) + 1
    own = json.loads(start.partition("data: ")[2])["message"]["id"]
    events[first_end:first_end] = [start.replace(own, id_ or own) for id_ in ids]

    async def main() -> ModelReply:
        async with wire_server([Answer(streamed=tuple(events))]) as server:
            model = ANTHROPIC.model(server.url)
            replies = [delta.reply async for delta in model.stream(ModelRequest((USER,), stream=True))]
            await model.close()
            assert replies[-1] is not None
            return replies[-1]

    return asyncio.run(main())


def test_an_answer_that_begins_within_another_one_is_not_merged_with_it() -> None:
    assert streamed("").message.content == "one two", "the same start, sent twice"
    with pytest.raises(ModelError, match="a second answer began within the first one") as failed:
        streamed("msg_other")
    assert failed.value.retryable
