from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from time import process_time
from typing import Any

import pytest

from framework.llm.client import Delta, ModelReply, ModelRequest
from framework.llm.message_shape import short_call_id
from framework.llm.openai.client import OpenAIModel
from framework.llm.provider_client import StreamAssembler
from framework.llm.provider_errors import parse_retry_after
from framework.types.errors import ModelError
from framework.types.messages import Message, Reasoning, ToolCall, Usage
from framework.types.spec import ModelSettings
from tests.support.openai_requests import BOTH_WAYS, KEY, SEARCH, USER, deltas, request
from tests.support.wire import (
    HEAD,
    Answer,
    Answers,
    Ending,
    WireServer,
    bad_event,
    calls,
    completion,
    cut_stream,
    empty_choices,
    error_event,
    events,
    failed,
    html,
    no_finish,
    piece,
    rate_limited,
    raw,
    says,
    stalled,
    wire_server,
)


def ask(answers: Answers, asked: ModelRequest, provider: str = "openai") -> tuple[list[Delta], WireServer]:
    async def run() -> tuple[list[Delta], WireServer]:
        async with wire_server(answers) as server:
            model = OpenAIModel(provider, "m", api_key=KEY, base_url=server.url)
            return await deltas(model, asked), server

    return asyncio.run(run())


def reply(answer: Answer, *, stream: bool = False, **changes: Any) -> ModelReply:
    received, _ = ask([answer], request(stream=stream, **changes))
    last = received[-1].reply
    assert last is not None
    return last


def failure(answer: Answer, *, stream: bool) -> ModelError:
    with pytest.raises(ModelError) as caught:
        ask([answer], request(stream=stream))
    error = caught.value
    assert "\n" not in error.message
    assert error.message.startswith("openai/m: ")
    assert KEY not in error.message
    assert error.__cause__ is None
    assert error.__context__ is None
    return error


def bare(**error: Any) -> Answer:
    """Return an error with status 200 without an `error` object."""
    return raw(200, json.dumps(error).encode())


@BOTH_WAYS
def test_a_text_answer_arrives_with_its_usage(stream: bool) -> None:
    answer = reply(says("hello big world", usage=(12, 7, 4)), stream=stream)

    assert answer == ModelReply(
        message=Message(role="assistant", content="hello big world"),
        finish_reason="stop",
        usage=Usage(prompt_tokens=12, completion_tokens=7, total_tokens=19, cached_tokens=4, cost_usd=None),
        model="wire-model",
        response_id="chat-1",
    )


def test_an_unstreamed_reply_is_one_delta_and_one_response() -> None:
    received, server = ask([says("hello world")], request())

    assert len(received) == 1
    assert "stream" not in server.requests[0]
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_streamed_text_and_reasoning_arrive_in_chunks_before_the_reply() -> None:
    received, server = ask([says("hello big world", extra={"reasoning_content": "let me see"})], request(stream=True))

    assert [delta.text for delta in received if delta.text] == ["hello", " big", " world"]
    assert [delta.reasoning for delta in received if delta.reasoning] == ["let", " me", " see"]
    assert [delta.reply is not None for delta in received] == [False] * 6 + [True]
    assert server.requests[0]["stream_options"] == {"include_usage": True}


@BOTH_WAYS
@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_stored_with_the_answer(stream: bool, field: str) -> None:
    answer = reply(says("done", extra={field: "let me see"}), stream=stream)

    assert answer.message.reasoning == Reasoning(
        text="let me see", provider="openai", data={"field": field, "source": "m@127.0.0.1"}
    )


@BOTH_WAYS
@pytest.mark.parametrize("indexed", [True, False], ids=["index", "no index"])
def test_tool_calls_arrive_under_their_own_names(stream: bool, indexed: bool) -> None:
    asked = calls(("docs__search", {"query": "a b"}), ("made_up", {}), ("docs__search", '{"q'), indexed=indexed)

    answer = reply(asked, stream=stream)

    first, second, third = answer.message.tool_calls
    assert first == ToolCall(id="call_1", tool="docs.search", arguments={"query": "a b"})
    assert second == ToolCall(id="call_2", tool="made_up")
    assert third.invalid is not None
    assert answer.finish_reason == "tool_calls"


def function(name: str | None = None, arguments: object = None, **rest: Any) -> dict[str, Any]:
    return piece(tool_calls=[{**rest, "function": {"name": name, "arguments": arguments}}])


END = piece("tool_calls")
F: tuple[str, dict[str, Any]] = ("f", {"a": 1})
G: tuple[str, dict[str, Any]] = ("g", {})


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param([function("f", '{"a": 1}'), function("g", "{}")], [F, G], id="neither index nor id"),
        pytest.param([function("f", '{"a"'), function(arguments=": 1}"), function("g")], [F, G], id="nameless pieces"),
        pytest.param(
            [function("f", '{"a"', id="x"), function("g", "{}", id="y"), function(arguments=": 1}", id="x")],
            [F, G],
            id="interleaved by id",
        ),
        pytest.param(
            [
                function("f", '{"a"', index=0, id="x"),
                function("g", "{}", index=1, id="y"),
                function(None, ": 1}", index=0),
            ],
            [F, G],
            id="interleaved by index",
        ),
        pytest.param(
            [function("f", '{"a": 1}', index=0, id="x"), function("g", "{}", index=0, id="y")],
            [F, G],
            id="every call numbered 0",
        ),
        pytest.param(
            [function("f", '{"a"', index=0, id="x"), function("f", ": 1}", index=0, id="x")],
            [F],
            id="name and id repeated",
        ),
        pytest.param([function("f", {"a": 1}, index=0)], [F], id="arguments as an object"),
        *(
            pytest.param(
                [function("f", '{"a": 1}', index=0, **named), function("f", '{"a": 2}', index=0, **named)],
                [F, ("f", {"a": 2})],
                id=f"numbered 0, {named or 'no id'}",
            )
            for named in ({}, {"id": ""}, {"id": "null"}, {"id": "call"})
        ),
        pytest.param(
            [piece(tool_calls=[{"index": 0, "function": {"name": name, "arguments": "{}"}} for name in "gh"])],
            [G, ("h", {})],
            id="numbered 0 in one piece",
        ),
        pytest.param(
            [function("f", '{"a": 1}', index=0), function("f", "", index=0), function(None, '{"a": 2}', index=0)],
            [F, ("f", {"a": 2})],
            id="numbered 0, arguments after the name",
        ),
        pytest.param(
            [function("f", '{"a"', index="0", id="x"), function(None, ": 1}", index=0)], [F], id="index as text"
        ),
        pytest.param(
            [function("do", "", index=0, id="x"), function("_it", "{}", index=0)], [("do_it", {})], id="name in pieces"
        ),
        pytest.param(
            [function("do", "", index=0, id="x"), function("do_it", "{}", index=0)], [("do_it", {})], id="name grows"
        ),
        pytest.param(
            [function("f", '{"a"', index=0, id="x"), function("f", ": 1}", index=0), function("f", "", index=0)],
            [F],
            id="name repeated to the end",
        ),
        *(
            pytest.param(
                [function("f", '{"a"', index=0, id="x"), function(None, ": 1}", index=0), function(*last, index=0)],
                [F],
                id=f"repeated at the end: {last}",
            )
            for last in (("f", '{"a": 1}'), (None, '{"a": 1}'), ("f", {"a": 1}), ("f", None))
        ),
        pytest.param(
            [
                function("f", '{"a"', index=0, id="x"),
                function("f", '{"a"', index=0, id="y"),
                function(None, ": 1}", index=0, id="x"),
                function(None, ": 2}", index=0, id="y"),
            ],
            [F, ("f", {"a": 2})],
            id="an id wins over the index",
        ),
        pytest.param(
            [function("f", '{"a":', index=0, id="x"), function(None, '{"a":', index=0), function(None, "1}}", index=0)],
            [("f", {"a": {"a": 1}})],
            id="equal pieces",
        ),
    ],
)
def test_fragments_of_tool_calls_are_assembled(pieces: list[dict[str, Any]], expected: list[Any]) -> None:
    answer = reply(events(*pieces, END), stream=True)

    assert [(call.tool, call.arguments) for call in answer.message.tool_calls] == expected
    assert all(call.id for call in answer.message.tool_calls)


def test_a_name_in_every_piece_of_long_arguments_is_read_in_time() -> None:
    assembler, text = StreamAssembler({}), "}" * 99
    pieces = ['{"a": "', *[text] * 20_000, '"}']
    started = process_time()
    for given in pieces:
        assembler.add_chunk(function("f", given, index=0))
    assert process_time() - started < 5
    assert assembler.assembled_message()["tool_calls"][0]["function"]["arguments"] == "".join(pieces)


@BOTH_WAYS
def test_a_custom_tool_call_is_marked_invalid(stream: bool) -> None:
    custom = {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "drop"}}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "tool_calls": [custom]}}
    answer = events(piece(tool_calls=[{**custom, "index": 0}]), END) if stream else completion(choices=[choice])

    (call,) = reply(answer, stream=stream).message.tool_calls

    assert call.tool == "sql"
    assert call.invalid is not None


@BOTH_WAYS
def test_a_used_call_id_is_replaced(stream: bool) -> None:
    earlier = Message(role="assistant", tool_calls=(ToolCall(id="call_1", tool="docs.search"),))
    result = Message(role="tool", content="x", tool_call_id="call_1")

    answer = reply(calls(("docs__search", {})), stream=stream, messages=(USER, earlier, result))

    assert answer.message.tool_calls[0].id not in ("", "call_1")


def test_calls_under_finish_reason_stop_are_calls() -> None:
    assert reply(calls(("docs__search", {}), finish="stop")).finish_reason == "tool_calls"


@BOTH_WAYS
def test_text_cut_by_max_tokens_is_reported(stream: bool) -> None:
    assert reply(says("half an", finish="length"), stream=stream).finish_reason == "length"


@BOTH_WAYS
@pytest.mark.parametrize("finish", ["max_tokens", "MAX_TOKENS"])
def test_text_cut_by_max_tokens_is_reported_in_the_words_of_other_servers(finish: str, stream: bool) -> None:
    assert reply(says("half an", finish=finish), stream=stream).finish_reason == "length"


@BOTH_WAYS
def test_calls_under_the_finish_reason_of_another_api_are_calls(stream: bool) -> None:
    answer = reply(calls(("docs__search", {}), finish="tool_use"), stream=stream)
    assert (answer.finish_reason, len(answer.message.tool_calls)) == ("tool_calls", 1)


def test_a_byte_order_mark_does_not_hide_the_first_event() -> None:
    said = "".join(f"data: {json.dumps(one)}\n\n" for one in (piece(content="first "), piece("stop", content="last")))
    answer = raw(200, f"\ufeff{said}data: [DONE]\n\n".encode(), "text/event-stream")
    assert reply(answer, stream=True).message.content == "first last"


@BOTH_WAYS
@pytest.mark.parametrize(
    "thought",
    [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hmm"}], "closed": True},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hmm"}]},
        {"type": "reasoning", "text": "hmm"},
        {"type": "reasoning_text", "text": "hmm"},
    ],
)
def test_parts_of_thoughts_are_no_part_of_the_answer(thought: dict[str, Any], stream: bool) -> None:
    text = {"type": "text", "text": "so"}
    whole = completion(choices=[{"finish_reason": "stop", "message": {"content": [thought, text]}}])
    streamed = events(piece(content=[thought]), piece("stop", content=[text]))
    received, server = ask([streamed if stream else whole], request(stream=stream))
    assert received[-1].reply is not None
    message = received[-1].reply.message
    assert (message.content, message.reasoning and message.reasoning.text) == ("so", "hmm")
    assert "".join(delta.reasoning for delta in received) == ("hmm" if stream else "")
    _, server = ask([says("ok")], request(messages=(USER, message, USER)))
    assert server.requests[0]["messages"][1] == {"role": "assistant", "content": "so"}


@BOTH_WAYS
def test_lone_surrogates_are_replaced_in_responses(stream: bool) -> None:
    halves = (piece(content="\ud83d"), piece("stop", content="\ude00"))
    whole = completion(choices=[{"index": 0, "finish_reason": "stop", "message": {"content": "\ud83d\ude00"}}])

    assert reply(events(*halves) if stream else whole, stream=stream).message.content == "😀"


def test_conversation_tools_and_settings_reach_the_server() -> None:
    earlier = Message(role="assistant", tool_calls=(ToolCall(id="c", tool="docs.search", arguments={"q": "ü"}),))
    result = Message(role="tool", content="found", tool_call_id="c")
    settings = ModelSettings(temperature=0.5, max_tokens=50, tool_choice="docs.search", reasoning="high", seed=1)

    _, server = ask([says("ok")], request(messages=(USER, earlier, result), settings=settings))

    call_id = short_call_id("c")  # nothing is known of the model
    call = {"id": call_id, "type": "function", "function": {"name": "docs__search", "arguments": '{"q": "ü"}'}}
    assert server.requests[0] == {
        "model": "m",
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "found", "tool_call_id": call_id},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "docs__search", "description": "Search.", "parameters": SEARCH.parameters},
            }
        ],
        "tool_choice": "required",
        "temperature": 0.5,
        "max_tokens": 50,
        "reasoning_effort": "high",
        "seed": 1,
    }


def test_without_tools_no_tool_choice_is_sent() -> None:
    _, server = ask([says("ok")], request(tools=(), settings=ModelSettings(tool_choice="required")))

    assert not {"tools", "tool_choice"} & server.requests[0].keys()


def test_reasoning_is_sent_back_only_to_its_provider() -> None:
    thought = Reasoning(text="hm", provider="deepseek", data={"field": "reasoning_content"})
    earlier = Message(role="assistant", tool_calls=(ToolCall(id="c", tool="docs.search"),), reasoning=thought)
    asked = request(messages=(USER, earlier, Message(role="tool", content="x", tool_call_id="c")))

    sent = {name: ask([says("ok")], asked, name)[1].requests[0]["messages"][1] for name in ("deepseek", "qwen")}

    assert sent["deepseek"]["reasoning_content"] == "hm"
    assert "reasoning_content" not in sent["qwen"]


SIGNED = {"extra_content": {"google": {"thought_signature": "SIG=="}}, "provider_specific_fields": {"n": 1}}
DETAILS = [
    {"type": "reasoning.text", "text": "hm, so", "index": 0, "signature": "S"},
    {"type": "reasoning.encrypted", "data": "ENC", "index": 0},
]


def signed_reply(*, stream: bool, provider: str = "openai", model: str = "m") -> tuple[Message, dict[str, Any]]:
    """Return the reply with opaque fields of one model, and the message that the same conversation sends next."""
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "docs__search", "arguments": "{}", "thought_signature": "F"},
        **SIGNED,
    }
    message = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_details": DETAILS}
    whole = completion(choices=[{"index": 0, "finish_reason": "tool_calls", "message": message}])
    pieces = [
        {"type": "reasoning.text", "index": 0, **part}
        for part in ({"text": "hm"}, {"text": ", so"}, {"signature": "S"})
    ]
    details = (piece(reasoning_details=[part]) for part in (*pieces, DETAILS[1]))
    streamed = events(*details, piece(tool_calls=[{"index": 0, **call}]), END)

    answer = reply(streamed if stream else whole, stream=stream)
    result = Message(role="tool", content="x", tool_call_id=answer.message.tool_calls[0].id)

    async def run() -> dict[str, Any]:
        async with wire_server([says("ok")]) as server:
            client = OpenAIModel(provider, model, api_key=KEY, base_url=server.url)
            await deltas(client, request(messages=(USER, answer.message, result)))
            sent: dict[str, Any] = server.requests[0]["messages"][1]
            return sent

    return answer.message, asyncio.run(run())


@BOTH_WAYS
def test_opaque_fields_come_back_unchanged_to_the_same_model(stream: bool) -> None:
    _, sent = signed_reply(stream=stream)
    call = sent["tool_calls"][0]
    assert sent["reasoning_details"] == DETAILS
    assert {name: call[name] for name in SIGNED} == SIGNED
    assert call["function"]["thought_signature"] == "F"


@pytest.mark.parametrize(("provider", "model"), [("openai", "other"), ("openrouter", "m")])
def test_opaque_fields_reach_no_other_model_or_provider(provider: str, model: str) -> None:
    message, sent = signed_reply(stream=False, provider=provider, model=model)
    assert message.reasoning is not None
    assert not {"SIG==", "ENC", "F"} & set(re.findall(r"[\w=]+", str(sent)))


def test_opaque_fields_that_cannot_be_stored_are_left_out_or_repaired() -> None:
    deep: Any = "x"
    for _ in range(120):
        deep = [deep]
    half = events(piece(extra_content={"a": deep}, reasoning_details=[{"t": "\ud800"}], content="hi"), piece("stop"))

    reasoning = reply(half, stream=True).message.reasoning

    assert reasoning is not None
    assert reasoning.data is not None
    assert reasoning.data["opaque"]["message"] == {"reasoning_details": [{"t": "\ufffd"}]}


@pytest.mark.parametrize(
    ("provider", "model", "text"),
    [("deepseek", "deepseek-chat", ""), ("openai", "deepseek-v3", ""), ("openai", "m", None)],
)
def test_deepseek_gets_reasoning_of_calls_that_another_model_made(provider: str, model: str, text: str | None) -> None:
    thought = Reasoning(text="hm", provider="qwen", data={"field": "reasoning_content"})
    earlier = Message(role="assistant", tool_calls=(ToolCall(id="c", tool="docs.search"),), reasoning=thought)
    asked = request(messages=(USER, earlier, Message(role="tool", content="x", tool_call_id="c")))

    async def run() -> Any:
        async with wire_server([says("ok")]) as server:
            await deltas(OpenAIModel(provider, model, api_key=KEY, base_url=server.url), asked)
            return server.requests[0]["messages"][1].get("reasoning_content")

    assert asyncio.run(run()) == text


def test_openai_receives_max_completion_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> dict[str, Any]:
        async with wire_server([says("ok")]) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.url)
            await deltas(OpenAIModel("openai", "m", api_key=KEY), request(settings=ModelSettings(max_tokens=9)))
            return server.requests[0]

    body = asyncio.run(run())

    assert body["max_completion_tokens"] == 9
    assert "max_tokens" not in body


def test_a_server_without_a_key_is_not_sent_the_environments_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    async def run() -> str:
        async with wire_server([says("ok")]) as server:
            await deltas(OpenAIModel("ollama", "m", api_key="", base_url=server.url), request())
            return server.headers[0]["Authorization"]

    assert KEY not in asyncio.run(run())


REJECTED_PARAM = b'{"error": {"message": "bad schema", "param": "tools[3].function.parameters"}}'
REJECTED_LOC = (
    b'{"object": "error", "message": {"detail": [{"loc": ["body", "tools", 3, "function", "strict"], '
    b'"msg": "Extra inputs"}]}}'
)


@BOTH_WAYS
@pytest.mark.parametrize(
    ("answer", "says_what", "retryable"),
    [
        (html(), "check base_url", True),
        (empty_choices(), "is empty|streamed nothing", True),
        (completion(choices=None), "is empty|streamed nothing", True),
        (raw(200, b'{"id": "x", "cho'), "not JSON|streamed nothing", True),
        (raw(200, b"[]"), "is empty|streamed nothing", True),
        (raw(200, b"null"), "is empty|streamed nothing", True),
        (cut_stream(), "was lost before the answer was complete", True),
        (rate_limited(), "rate limited, retry after 7 s: slow down", True),
        (failed(429, "pay first", "insufficient_quota"), "quota is used up: pay first", False),
        (failed(500, "oops"), r"the provider failed \(500\): oops", True),
        (raw(502, b"<html>bad gateway</html>", "text/html"), r"the provider failed \(502\)$", True),
        (failed(408, "slow"), r"failed \(408\): slow", True),
        (failed(400, "no such option"), r"rejected \(400\): no such option", False),
        (raw(400, REJECTED_PARAM), r"rejected \(400\): bad schema \(tools\[3\].function.parameters\)$", False),
        (raw(422, REJECTED_LOC), r"rejected \(422\): Extra inputs \(body.tools.3.function.strict\)$", False),
        (
            failed(400, "registry/gemma does not support tools"),
            "does not support function calls: set `protocol: json`",
            False,
        ),
        (
            failed(404, "No endpoints found that support tool use"),
            "does not support function calls: set `protocol: json`",
            False,
        ),
        (failed(400, "flagged", "content_filter"), "refused: flagged", False),
        (failed(401, f"Incorrect API key provided: {KEY}"), "the API key was rejected", False),
        (
            failed(403, f"{KEY} may not"),
            r"rejected \(403\): check that the API key may use this model: \*\*\* may not",
            False,
        ),
        (failed(404, "unknown"), r"no such model at http://127.* or base_url is wrong: unknown", False),
        (failed(422, "a\nb\n" + "c" * 900), r"a b c+…$", False),
        (calls(("docs__search", {}), finish="length"), "cut by max_tokens", False),
        (calls(("docs__search", {}), finish="weird"), "unexpected finish_reason: weird$", True),
        (says("x", finish="network_error"), "unexpected finish_reason: network_error$", True),
        (says("x", finish="content_filter"), "refused: ", False),
        (says("x", finish="SAFETY"), "refused: ", False),
        (bare(object="error", type="BadRequestError", code=400, message="not today"), "error: not today$", False),
        (bare(code="InternalError", message="not today", request_id="r"), "error: not today$", True),
        (bare(type="overloaded_error", message="not today"), "error: not today$", True),
        (bare(detail="not today"), "error: not today$", True),
        (bare(error={"message": "not today", "code": "400"}), "error: not today$", False),
        (bare(error={"message": "not today", "type": "invalid_request_error"}), "error: not today$", False),
        (bare(error={"message": "not today", "code": "503"}), "error: not today$", True),
        (raw(400, b'{"errors": [{"message": "not today", "code": 7003}]}'), r"rejected \(400\): not today$", False),
        (raw(422, b'{"message": "not today", "errors": [{"field": "n"}]}'), r"rejected \(422\): not today$", False),
        (raw(422, b'{"detail": "not today", "errors": {"n": ["odd"]}}'), r"rejected \(422\): not today$", False),
        (says("", extra={"refusal": "I will not"}), "refused: I will not", False),
    ],
)
def test_each_hazard_is_one_error_with_advice(answer: Answer, says_what: str, retryable: bool, stream: bool) -> None:
    error = failure(answer, stream=stream)

    assert error.retryable is retryable
    assert re.search(says_what, error.message)


def test_an_event_that_reports_success_is_no_error() -> None:
    answer = events({"code": 0, "message": "Success", "sid": "s"}, piece("stop", content="ok"))
    assert reply(answer, stream=True).message.content == "ok"


def test_an_error_event_without_an_error_object_is_an_error() -> None:
    answer = events(piece(content="ok"), {"object": "error", "message": "out of memory", "code": 507})
    assert failure(answer, stream=True).message.endswith("the provider reported an error: out of memory")


@BOTH_WAYS
@pytest.mark.parametrize(
    ("answer", "retryable", "unavailable", "retry_after"),
    [
        (rate_limited("7"), True, True, 7.0),
        (rate_limited("-1"), True, True, None),
        (failed(429, "slow down"), True, True, None),
        (failed(503, "busy", retry_after="2"), True, True, 2.0),
        (failed(429, "pay first", "insufficient_quota"), False, True, None),
        (failed(402, "pay first"), False, True, None),
        (failed(401, "who are you"), False, True, None),
        (failed(404, "unknown"), False, True, None),
        (failed(400, "unknown", "model_not_found"), False, True, None),
        (failed(400, "too long", "context_length_exceeded"), False, False, None),
        (failed(400, "flagged", "content_filter"), False, False, None),
        (failed(403, "flagged"), False, False, None),
        (failed(413, "too large"), False, False, None),
        (failed(422, "no such field"), False, False, None),
        (html(), True, True, None),
        (cut_stream(), True, True, None),
        (says("", extra={"refusal": "I will not"}), False, False, None),
    ],
)
def test_an_error_reports_whether_a_retry_or_a_fallback_may_succeed(
    answer: Answer, retryable: bool, unavailable: bool, retry_after: float | None, stream: bool
) -> None:
    error = failure(answer, stream=stream)

    assert (error.retryable, error.unavailable, error.retry_after) == (retryable, unavailable, retry_after)


@BOTH_WAYS
@pytest.mark.parametrize(
    "answer", [says("x", finish="content_filter"), calls(("f", {}), finish="length"), says("", extra={"refusal": "no"})]
)
def test_an_invalid_answer_carries_its_usage(answer: Answer, stream: bool) -> None:
    error = failure(answer, stream=stream)

    assert error.usage is not None
    assert error.usage.total_tokens == 15


def test_fragments_of_a_tool_call_are_deltas_without_text() -> None:
    received, _ = ask([calls(("docs__search", {"query": "a b"}))], request(stream=True))

    assert received[0] == Delta()
    assert received[-1].reply is not None
    assert not any(delta.text for delta in received)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "3"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 -0000"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2020 07:28:30 GMT"}, 0.0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "later"}, None),
    ],
)
def test_retry_after_is_parsed_in_every_format(headers: dict[str, str], seconds: float | None) -> None:
    assert parse_retry_after(headers, datetime(2026, 10, 21, 7, 28, tzinfo=UTC)) == seconds


@pytest.mark.parametrize(
    ("answer", "says_what", "retryable"),
    [
        (no_finish(), "ended before the answer was complete", True),
        (
            events(function("docs__search", '{"q": 1}', index=0), ending="clean"),
            "ended before the answer was complete",
            True,
        ),
        (bad_event(), "not JSON", True),
        (events(piece(content="ok"), "\udcff"), "not JSON", True),
        (events("[]", "7", '"x"', piece(content="x"), ending="clean"), "ended before", True),
        (events(function("docs__search", '{"q": ', index=0)), "ended before the answer was complete", True),
        (error_event(), "the provider reported an error: overloaded", True),
        (error_event(message="too long", code=400), "the provider reported an error: too long", False),
        (error_event(message="slow down", code=429), "the provider reported an error: slow down", True),
        (error_event(message="pay", code="insufficient_quota"), "the provider reported an error: pay", False),
        (error_event(message="flagged", code="content_filter"), "refused: flagged", False),
    ],
)
def test_a_failure_during_a_stream_is_one_error(answer: Answer, says_what: str, retryable: bool) -> None:
    error = failure(answer, stream=True)

    assert error.retryable is retryable
    assert re.search(says_what, error.message)


@BOTH_WAYS
def test_a_stalled_server_is_one_error(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.llm.openai.client.SDK_TIMEOUT", 0.05)

    error = failure(stalled(), stream=stream)

    assert "timeout while waiting for http://127.0.0.1" in error.message
    assert error.retryable


def test_an_error_body_with_status_200_is_an_error() -> None:
    error = failure(completion(choices=None, error={"message": "no credits", "code": 402}), stream=False)

    assert "the provider reported an error: no credits" in error.message
    assert not error.retryable


@pytest.mark.parametrize("reported", [{"finish_reason": None}, {"finish_reason": ""}, {}], ids=str)
@pytest.mark.parametrize("requested", [(), (("docs__search", {"q": 1}),)], ids=["text", "calls"])
def test_a_whole_response_without_finish_reason_is_complete(
    reported: dict[str, Any], requested: Sequence[tuple[str, Any]]
) -> None:
    whole = calls(*requested) if requested else says("whole")
    assert whole.completion is not None
    message = whole.completion.choices[0].message.to_dict()

    answer = reply(completion(choices=[{"index": 0, "message": message, **reported}]), stream=False)

    assert answer.finish_reason == ("tool_calls" if requested else "stop")
    assert [call.arguments for call in answer.message.tool_calls] == [given for _, given in requested]


USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


@pytest.mark.parametrize("reported", ["", None])
@pytest.mark.parametrize(
    ("last", "ending"),
    [((), "done"), (({**piece(), "choices": [], "usage": USAGE},), "clean")],
    ids=["done", "usage"],
)
def test_a_stream_that_its_server_ends_needs_no_finish_reason(
    reported: str | None, last: tuple[dict[str, Any], ...], ending: Ending
) -> None:
    texts = events(piece(content="par"), piece(reported, content="tial"), *last, ending=ending)
    requested = events(function("docs__search", '{"q": 1}', index=0), piece(reported), *last, ending=ending)

    text, call = reply(texts, stream=True), reply(requested, stream=True)

    assert (text.message.content, text.finish_reason, text.lacks_finish_reason) == ("partial", "stop", True)
    assert ([one.arguments for one in call.message.tool_calls], call.finish_reason) == ([{"q": 1}], "tool_calls")


def test_counts_of_tokens_before_the_answer_do_not_end_it() -> None:
    early = {**piece(), "choices": [], "usage": USAGE}
    assert "ended before" in failure(events(early, piece(content="half"), ending="clean"), stream=True).message


@BOTH_WAYS
def test_token_counts_of_groq_are_read(stream: bool) -> None:
    counts = {"x_groq": {"id": "r", "usage": USAGE}}
    message = {"role": "assistant", "content": "hi"}
    whole = completion(choices=[{"index": 0, "finish_reason": "stop", "message": message}], usage=None, **counts)

    answer = reply(events(piece(content="hi"), {**piece("stop"), **counts}) if stream else whole, stream=stream)

    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 2)


def test_deltas_before_a_cut_are_delivered_without_a_reply() -> None:
    async def run() -> list[Delta]:
        async with wire_server([cut_stream()]) as server:
            model = OpenAIModel("openai", "m", api_key=KEY, base_url=server.url)
            stream = model.stream(request(stream=True))
            received = [await anext(stream), await anext(stream)]
            with pytest.raises(ModelError):
                await anext(stream)
            await model.close()
        return received

    assert asyncio.run(run()) == [Delta(text="par"), Delta(text="tial")]


@BOTH_WAYS
def test_an_unreachable_server_is_named_without_its_credentials(stream: bool) -> None:
    async def run() -> list[Delta]:
        async with wire_server([]) as server:
            port = server.url.rsplit(":", 1)[1]
        model = OpenAIModel("ollama", "m", api_key=KEY, base_url=f"http://bob:{KEY}@127.0.0.1:{port}?key={KEY}")
        return await deltas(model, request(stream=stream))

    with pytest.raises(ModelError, match=r"ollama/m: the connection to http://127.0.0.1:\d+/v1 failed") as caught:
        asyncio.run(run())

    assert caught.value.retryable
    assert KEY not in caught.value.message


def test_a_base_url_without_a_scheme_is_one_error() -> None:
    with pytest.raises(ModelError, match="check base_url"):
        asyncio.run(deltas(OpenAIModel("openai", "m", api_key=KEY, base_url="localhost/v1"), request()))


def test_cancelling_passes_through_and_closes_the_stream() -> None:
    async def run() -> bool:
        async with wire_server([stalled()]) as server:
            model = OpenAIModel("openai", "m", api_key=KEY, base_url=server.url)
            begun = asyncio.Event()

            async def listen() -> None:
                async for _ in model.stream(request(stream=True)):
                    begun.set()

            task = asyncio.create_task(listen())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with asyncio.timeout(30):
                await server.disconnected.wait()
            await model.close()
            return server.disconnected.is_set()

    assert asyncio.run(run())


def test_leaving_a_stream_early_closes_it() -> None:
    async def run() -> bool:
        async with wire_server([stalled()]) as server:
            model = OpenAIModel("openai", "m", api_key=KEY, base_url=server.url)
            stream = model.stream(request(stream=True))
            await anext(stream)
            await stream.aclose()
            async with asyncio.timeout(30):
                await server.disconnected.wait()
            await model.close()
            return server.disconnected.is_set()

    assert asyncio.run(run())


def test_a_closed_client_can_send_another_request() -> None:
    async def run() -> list[str]:
        async with wire_server([says("one"), says("two")]) as server:
            model = OpenAIModel("openai", "m", api_key=KEY, base_url=server.url)
            received = [await deltas(model, request()), await deltas(model, request())]
        return [delta.reply.message.content for answer in received for delta in answer if delta.reply]

    assert asyncio.run(run()) == ["one", "two"]


def test_the_model_knows_its_name_and_its_server() -> None:
    info = OpenAIModel("qwen", "qwen-max", api_key=KEY, base_url="https://bob:pw@example.org/v1").info

    assert (info.name, info.server_address, info.typed) == ("qwen/qwen-max", "example.org", False)


def test_the_model_named_in_the_answer_is_the_one_that_answered() -> None:
    assert reply(says("x")).model == HEAD["model"]


def test_the_sdk_is_not_loaded_before_the_first_request() -> None:
    program = (
        "import sys; from framework.llm.openai.client import OpenAIModel; import framework.llm.json_protocol;"
        "OpenAIModel('openai', 'm', api_key='k');"
        "print(sorted({'openai', 'instructor', 'httpx2'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_a_forced_tool_is_named_and_the_only_tool_is_required() -> None:
    other = SEARCH.model_copy(update={"name": "docs.read"})
    wanted = ModelSettings(tool_choice="docs.search")
    choices = [
        ask([says("ok")], request(tools=tools, settings=wanted))[1].requests[0]["tool_choice"]
        for tools in ((SEARCH,), (SEARCH, other))
    ]
    assert choices == ["required", {"type": "function", "function": {"name": "docs__search"}}]
    with pytest.raises(ModelError, match="no such function"):  # named although it is not offered, so it is refused
        ask([says("ok")], request(tools=(other,), settings=wanted))
