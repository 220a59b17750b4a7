"""Malformed responses: each becomes a reply that can be stored, or an error of one line with advice."""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
import logging
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Runtime
from framework.llm.client import ModelReply, ModelRequest
from framework.llm.http_client import normalize_base_url
from framework.llm.message_shape import blamed_tool
from framework.llm.openai_format import MAX_TOKEN_COUNT
from framework.llm.providers import create_client
from framework.types.errors import ConfigError, ModelError, ModelRefused
from framework.types.messages import Message, ToolDefinition
from tests.support.cases import cases
from tests.support.formats import FORMATS, KEY, OPENAI, RESPONSES, Format, begun, each_format, each_way, says
from tests.support.projects import agent, write
from tests.support.site import answer, redirect, site
from tests.support.wire import Answer, endless, raw, wire_server

SEARCH = ToolDefinition(name="docs.search", description="x", parameters={"type": "object", "properties": {"q": {}}})
ODD: list[Any] = [
    None, "", "x", "12", "\ud800", 0, -1, 3.0, 1e300, 10**30, True, [], [None], ["x"], [{}], {}, {"a": {"b": []}},
]  # fmt: skip
DEEP = "[" * 100_000
SENT_AS_JSON = [form for form in FORMATS if form.name != "gemini"]
"""Formats whose servers may send a complete response in place of a stream."""
Place = tuple[str | int, ...]


def ask(form: Format, url: str, *, stream: bool, **options: Any) -> ModelReply | ModelError:
    """Send one request; return the reply or the error."""

    async def run() -> ModelReply | None:
        model = form.model(url, **options)
        try:
            asked = ModelRequest((Message(role="user", content="hi"),), (SEARCH,), stream=stream)
            return [delta.reply async for delta in model.stream(asked)][-1]
        finally:
            await model.close()

    try:
        reply = asyncio.run(run())
    except ModelError as raised:
        error = raised
    else:
        assert reply is not None
        return reply
    assert error.__cause__ is None
    assert error.__context__ is None
    assert error.message.isprintable(), error.message
    assert KEY not in error.message
    return error


def served(form: Format, answer: Answer, *, stream: bool) -> ModelReply | ModelError:
    async def run() -> ModelReply | ModelError:
        async with wire_server([answer]) as server:
            return await asyncio.to_thread(ask, form, server.url, stream=stream)

    return asyncio.run(run())


def error_of(form: Format, answer: Answer, *, stream: bool = False) -> ModelError:
    error = served(form, answer, stream=stream)
    assert isinstance(error, ModelError), error
    return error


def paths(value: object, at: Place = ()) -> Iterator[Place]:
    yield at
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*at, key))


def put(value: Any, path: Place, new: object) -> Any:
    if not path:
        return new
    value = copy.deepcopy(value)
    place = value
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = new
    return value


def with_odd_part(form: Format, stream: bool, draw: st.DrawFn) -> Answer:
    """Generate a valid response in which one value, anywhere, is replaced."""
    good = says(form, "hello", calls=(("docs__search", {"q": "ü"}),), thought="hm", usage=(12, 7, 4))
    events = list(good.streamed) if stream else [good.body.decode()]
    place = draw(st.integers(0, len(events) - 1))
    before, mark, data = events[place].rpartition("\ndata: ")
    value = json.loads(data)
    changed = put(value, draw(st.sampled_from(list(paths(value)))), draw(st.sampled_from(ODD)))
    events[place] = before + mark + json.dumps(changed)
    return Answer(streamed=tuple(events)) if stream else raw(200, events[0].encode())


@st.composite
def odd_answers(draw: st.DrawFn) -> tuple[Format, bool, Answer]:
    form, stream = draw(st.sampled_from(FORMATS)), draw(st.booleans())
    return form, stream, with_odd_part(form, stream, draw)


@pytest.mark.hostile(34)
@cases(60)
@given(odd_answers())
def test_any_response_is_a_reply_that_can_be_stored_or_one_error(
    odd: tuple[Format, bool, Answer],
) -> None:
    form, stream, answer = odd
    reply = served(form, answer, stream=stream)
    if isinstance(reply, ModelError):
        return
    assert Message.model_validate_json(reply.message.model_dump_json()) == reply.message
    json.dumps([reply.model, reply.response_id], ensure_ascii=False).encode()
    counts = reply.usage.model_dump(exclude={"cost_usd"}).values()
    assert all(0 <= count <= 3 * MAX_TOKEN_COUNT for count in counts)
    assert all(call.id and not (call.invalid and call.arguments) for call in reply.message.tool_calls)


@pytest.mark.hostile(34)
@each_format
@each_way
@pytest.mark.parametrize("status", [200, 400])
def test_a_deeply_nested_response_is_one_error(form: Format, stream: bool, status: int) -> None:
    answered = Answer(events=(DEEP,), ending="clean") if stream and status == 200 else raw(status, DEEP.encode())
    assert error_of(form, answered, stream=stream).retryable is (status == 200 or form.name == "gemini")


@each_format
def test_a_tool_with_any_schema_can_be_offered(form: Format) -> None:
    """Schemas come from external servers; a number in one may exceed any machine type."""
    odd = {"type": "object", "properties": {"q": {"type": "integer", "maximum": 10**30, "description": "h\ud800"}}}

    async def run() -> str:
        async with wire_server([says(form, "ok")]) as server:
            model = form.model(server.url)
            tool = ToolDefinition(name="odd", description="x", parameters=odd)
            async for _ in model.stream(ModelRequest((Message(role="user", content="hi"),), (tool,))):
                pass
            await model.close()
            return json.dumps(server.requests[0])

    if form.name == "anthropic":
        odd["properties"]["q"].pop("description")  # type: ignore[index]  # its SDK writes UTF-8; servers' tools are checked before
    assert '"odd"' in asyncio.run(run())


@each_format
@pytest.mark.parametrize(("sent", "counted"), [("12", 12), (12.0, 12), (-12, 0), (10**30, 0), ("many", 0), (1e300, 0)])
def test_token_counts_are_accepted_in_every_notation(form: Format, sent: object, counted: int) -> None:
    whole = json.loads(says(form, "x").body)
    usage = whole.get("usage") or whole["usageMetadata"]
    for name, places in {"in": ("prompt_tokens", "input_tokens", "promptTokenCount"), "out": ()}.items():
        usage.update({place: sent for place in places if place in usage and name == "in"})
    usage.pop("total_tokens", None)
    usage.pop("totalTokenCount", None)
    reply = served(form, raw(200, json.dumps(whole).encode()), stream=False)
    if form.name == "gemini" and isinstance(reply, ModelError):
        assert "not JSON" in reply.message, "its SDK accepts no such number"
        return
    assert isinstance(reply, ModelReply)
    assert (reply.usage.prompt_tokens, reply.usage.total_tokens) == (counted, counted + 5)


# --- finish reasons


@each_format
def test_an_unstreamed_response_to_a_stream_request_is_accepted(form: Format) -> None:
    whole = says(form, "hello", calls=(("docs__search", {"q": "ü"}),), usage=(12, 7, 4))
    reply = served(form, raw(200, whole.body), stream=True)
    assert isinstance(reply, ModelReply)
    assert (reply.message.content, reply.finish_reason, reply.usage.total_tokens) == ("hello", "tool_calls", 19)
    assert [call.arguments for call in reply.message.tool_calls] == [{"q": "ü"}]


@pytest.mark.parametrize("form", SENT_AS_JSON, ids=lambda form: form.id)
def test_an_error_of_status_200_is_reported_for_a_stream_request(form: Format) -> None:
    error = error_of(form, raw(200, form.failed(400, "no credits").body), stream=True)
    assert "the provider reported an error: no credits" in error.message


@pytest.mark.parametrize("form", SENT_AS_JSON, ids=lambda form: form.id)
def test_a_stream_with_a_json_content_type_is_read_as_a_stream(form: Format) -> None:
    events = says(form, "hello").streamed
    lines = [event if event.startswith("event:") else f"data: {event}" for event in events]
    reply = served(form, raw(200, "".join(f"{line}\n\n" for line in lines).encode()), stream=True)
    assert isinstance(reply, ModelReply)
    assert reply.message.content == "hello"


ENDS = {
    "openai": {"calls": "tool_calls", "stop": "stop", "cut": "length"},
    "anthropic": {"calls": "tool_use", "stop": "end_turn", "cut": "max_tokens"},
    "gemini": {"stop": "STOP", "cut": "MAX_TOKENS"},
    "responses": {"stop": "stop", "cut": "length"},
}


@pytest.mark.hostile(34)
@each_format
@pytest.mark.parametrize("order", [("cut", "stop"), ("stop", "cut")])
def test_a_cut_answer_is_reported_if_either_finish_reason_reports_it(form: Format, order: tuple[str, str]) -> None:
    """A call in a cut answer may look complete; a second finish reason must not make it run."""

    def events_of(end: str) -> list[str]:
        return list(says(form, calls=(("docs__search", {"q": "x"}),), end=ENDS[form.id][end]).streamed)

    first, second = events_of(order[0]), events_of(order[1])
    last = -2 if form.id in ("openai", "anthropic") else -1  # the finish reason and the chunk after it
    events = (*first, second[last])
    error = error_of(form, Answer(streamed=events), stream=True)
    assert "a tool call was cut by max_tokens" in error.message
    assert not error.retryable


@pytest.mark.parametrize("form", FORMATS[:2], ids=lambda form: form.name)
@each_way
def test_an_announced_call_that_is_missing_is_one_error(form: Format, stream: bool) -> None:
    word = ENDS[form.name]["calls"]
    error = error_of(form, says(form, "", end=word), stream=stream)
    assert "the finish reason announces a tool call, but the answer contains none" in error.message
    assert error.retryable
    reply = served(form, says(form, "No need.", end=word), stream=stream)
    assert isinstance(reply, ModelReply)
    assert (reply.finish_reason, reply.message.content) == ("stop", "No need.")


@each_format
def test_a_reply_above_the_length_limit_is_an_error(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.llm.provider_client.MAX_ANSWER_CHARS", 100)
    assert isinstance(served(form, says(form, "x" * 100), stream=False), ModelReply)
    error = error_of(form, says(form, "x" * 101))
    assert "the answer exceeds 100 characters" in error.message
    assert (error.retryable, error.unavailable) == (False, True)


@each_format
@pytest.mark.parametrize(("stream", "capped"), [(False, "answer"), (True, "answer"), (True, "event")])
def test_an_endless_response_is_aborted(
    form: Format, stream: bool, capped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"framework.llm.http_client.MAX_{capped.upper()}_BYTES", 2_000_000)

    async def run() -> ModelReply | ModelError:
        async with wire_server([endless(stream=stream)]) as server:
            outcome = await asyncio.to_thread(ask, form, server.url, stream=stream)
            await asyncio.wait_for(server.disconnected.wait(), 20)
            return outcome

    error = asyncio.run(run())
    assert isinstance(error, ModelError), error
    assert error.message.endswith(f": the {capped} exceeds 2 MB, more than any model writes")
    assert (error.retryable, error.unavailable) == (False, True)


@each_format
def test_a_stream_of_blanks_is_aborted(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.llm.provider_client.MAX_ANSWER_CHARS", 500)
    error = error_of(form, says(form, " \n" * 300), stream=True)
    assert "the answer exceeds 500 characters" in error.message or "is empty" in error.message


@each_format
def test_a_compression_bomb_is_aborted(form: Format) -> None:
    error = error_of(form, raw(200, gzip.compress(random.Random(1).randbytes(1_100_000)), content_encoding="gzip"))
    assert error.message.endswith(": the compressed answer exceeds 1 MB, more than any model writes")


# --- refusals


@each_format
@pytest.mark.parametrize(
    ("status", "says_what", "retryable", "unavailable"),
    [
        (302, r"redirects \(302\): check base_url, or for a login page: boom$", False, True),
        (400, r"the request was rejected \(400\): boom$", False, False),
        (401, r"the API key was rejected: set a valid one$", False, True),
        (402, r"the account's quota is used up: boom$", False, True),
        (403, r"the request was rejected \(403\): check that the API key may use this model: boom$", False, False),
        (404, r"no such model at http://127.0.0.1:\d+/v1, or base_url is wrong: boom$", False, True),
        (405, r"no such model at http://127.0.0.1:\d+/v1, or base_url is wrong: boom$", False, True),
        (408, r"the provider failed \(408\): boom$", True, True),
        (409, r"the provider failed \(409\): boom$", True, True),
        (
            413,
            r"context window \(413\): start a new conversation, or lower conversation.window .*: boom$",
            False,
            False,
        ),
        (422, r"the request was rejected \(422\): boom$", False, False),
        (429, r"rate limited: boom$", True, True),
        (500, r"the provider failed \(500\): boom$", True, True),
        (503, r"the provider failed \(503\): boom$", True, True),
        (529, r"the provider failed \(529\): boom$", True, True),
    ],
)
def test_each_status_is_one_error_with_advice(
    form: Format, status: int, says_what: str, retryable: bool, unavailable: bool
) -> None:
    error = error_of(form, form.failed(status, "boom"))
    if form is RESPONSES:
        says_what = says_what.replace(
            "/v1, or", r"/v1, no Responses API there \(then set `api: chat` at its alias\), or"
        )
    assert re.search(says_what, error.message), error.message
    assert (error.retryable, error.unavailable) == (retryable, unavailable)


def test_an_unknown_model_does_not_suggest_a_wrong_base_url() -> None:
    error = error_of(OPENAI, OPENAI.failed(404, "there is no `x`", "model_not_found"))
    assert re.search(r"no such model at http://127.0.0.1:\d+/v1: there is no `x`$", error.message)


@each_format
@pytest.mark.parametrize(
    ("status", "words", "says_what"),
    [
        (400, "API key not valid. Please pass a valid API key.", "the API key was rejected: set a valid one"),
        (400, "API key expired. Please renew the API key.", "the API key was rejected: set a valid one"),
        (403, "invalid x-api-key", "the API key was rejected: set a valid one"),
        (400, "Your credit balance is too low to access the API.", "the account's quota is used up: Your credit"),
    ],
)
def test_a_rejected_key_or_account_is_recognized_under_any_status(
    form: Format, status: int, words: str, says_what: str
) -> None:
    error = error_of(form, form.failed(status, words))
    assert says_what in error.message
    assert (error.retryable, error.unavailable) == (False, True), "another model may answer"


@each_way
@pytest.mark.parametrize("code", ["content_filter", "data_inspection_failed", "content_policy_violation"])
def test_refused_content_has_its_own_error_code(code: str, stream: bool) -> None:
    refused = OPENAI.failed(400, "Output data may contain inappropriate content.", code)
    late = begun(OPENAI, json.dumps({"error": {"message": "not this", "code": code}}))
    for response in (refused, *([late] if stream else [])):
        error = error_of(OPENAI, response, stream=stream)
        assert isinstance(error, ModelRefused)
        assert (error.retryable, error.unavailable) == (False, False)


@pytest.mark.parametrize(
    ("words", "window"),
    [
        ("This model's maximum context length is 4096 tokens. However, you requested 9000 tokens.", 4096),
        ("Your input exceeds the context window of this model.", None),
        ("prompt is too long: 210000 tokens > 200000 maximum", 200_000),
        ("input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease it", 200_000),
        ("The input token count (1048577) exceeds the maximum number of tokens allowed (1048576).", 1_048_576),
        ("the request exceeds the available context size, try increasing it", None),
        ("request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it", 4096),
        ("Input is too long for requested model.", None),
        (
            "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
            32768,
        ),
        ("Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192", 8192),
        (
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000 `inputs` tokens",
            4097,
        ),
        ("The prompt is too long: 5000, model maximum context length: 4095", 4095),
        ("too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000", 4081),
        ("This model's maximum prompt length is 131072 but the request contains 537812 tokens.", 131_072),
        ("InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]", 30_720),
        ("The decoder prompt (length 5000) is longer than the maximum model length of 4096.", 4096),
        ("The input (5000 tokens) is longer than the model's context length (4096 tokens).", 4096),
        ("Trying to keep the first 5000 tokens when context the overflows. The context length is only 4096", 4096),
        ("prompt too long; exceeded max context length by 100 tokens", None),
        ("prompt token count of 130,000 exceeds the limit of 128,000", 128_000),
        ("Invalid request: Your request exceeded model token limit: 8192", 8192),
        ("invalid params, context window exceeds limit", None),
        ("Prompt exceeds max length", None),
        ("Total tokens of image and text exceed max message tokens", None),
    ],
)
def test_a_conversation_above_the_context_window_is_an_error_with_advice(words: str, window: int | None) -> None:
    for response in (
        OPENAI.failed(400, words),
        OPENAI.failed(500, words),
        begun(OPENAI, OPENAI.error_event(words, False)),
    ):
        error = error_of(OPENAI, response, stream=True)
        assert "exceeds the model's context window (" in error.message
        assert "lower conversation.window" in error.message
        assert (error.too_long, error.window, error.retryable) == (True, window, False)


@pytest.mark.parametrize(
    "words",
    [
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens",
        "string too long: expected a string with maximum length 64",
        "temperature must be at most 2",
    ],
)
def test_other_sizes_are_not_the_context_window(words: str) -> None:
    assert not error_of(OPENAI, OPENAI.failed(400, words)).too_long


@pytest.mark.parametrize(
    "words",
    [
        "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details.",
        "tool call validation failed: parameters for tool work did not match schema",
        "1 validation error for list[function-wrap[FunctionDefinition]]: Invalid JSON: EOF while parsing",
        "error parsing tool call: raw='{\"n\":', err=unexpected end of JSON input",
        "Failed to parse tool call: unexpected token",
    ],
)
def test_a_function_call_that_the_provider_cannot_read_is_retried_with_a_correction(words: str) -> None:
    for response in (
        OPENAI.failed(400, words),
        OPENAI.failed(500, words),
        begun(OPENAI, OPENAI.error_event(words, False)),
    ):
        error = error_of(OPENAI, response, stream=True)
        assert "the model's function call could not be read: " in error.message
        assert (error.retryable, error.unavailable) == (True, True)
        assert words[:20] in error.correction


def test_a_gateways_error_contains_the_providers_own() -> None:
    raw_error = json.dumps({"error": {"message": "Failed to call a function", "code": "tool_use_failed"}})
    body = {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw_error}}}
    assert error_of(OPENAI, raw(400, json.dumps(body).encode())).correction


@pytest.mark.parametrize(
    "words",
    [
        "Invalid file data: 'file_data'. Expected a base64-encoded data URL with an application/pdf MIME type. "
        "See https://platform.openai.com/docs/assistants/tools/file-search#supported-files",
        "unsupported MIME type 'audio/mpeg': only the types of tools and functions that we support are allowed",
    ],
)
def test_an_error_about_a_file_is_not_explained_as_missing_function_calls(words: str) -> None:
    error = error_of(OPENAI, OPENAI.failed(400, words))
    assert "function calls" not in error.message
    assert not error.unavailable


@pytest.mark.parametrize(
    "words",
    [
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        "This model doesn't support function calling",
        "`tools` is not supported by this model",
        "Tool use is not enabled for this model",
    ],
)
def test_a_model_without_function_calls_is_named_with_advice(words: str) -> None:
    error = error_of(OPENAI, OPENAI.failed(400, words))
    assert "does not support function calls: set `protocol: json`" in error.message
    assert error.unavailable


@pytest.mark.parametrize(
    "words",
    [
        "tools.2.custom.defer_loading: Extra inputs are not permitted",
        "Tool reference 'look' not found in available tools",
        "messages.2.content.0.tool_result.content.0: Input tag 'tool_reference' found using 'type' does not match any",
        "Invalid value: 'additional_tools'. Supported values are: 'message' and 'reasoning'.",
        "The item type additional_tools is not supported with the tools of this model.",
    ],
)
def test_a_server_that_refuses_late_tools_is_named_with_the_setting(words: str) -> None:
    error = error_of(OPENAI, OPENAI.failed(400, words))
    assert "set `capabilities: {late_tools: false}` at an alias" in error.message
    assert error.unavailable
    tools = [ToolDefinition(name=name, description="", parameters={}) for name in ("tool_search", "first", "look")]
    assert blamed_tool(error.message, tools) is None, "no tool is at fault"


def test_llama_cpp_without_function_calls_is_not_asked_again() -> None:
    error = error_of(OPENAI, OPENAI.failed(500, "tools param requires --jinja flag"))
    assert "start the server with --jinja, or set `protocol: json`" in error.message
    assert (error.retryable, error.unavailable) == (False, True)


@each_format
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('[{"error": {"message": "in a list"}}]', "in a list"),
        ('{"detail": [{"loc": ["body"], "msg": "field required"}]}', "field required"),
        ('{"detail": "not so"}', "not so"),
        ('{"error": {"message": "\\u001b[31mred\\u0000\\u202e\\u2028 end"}}', "[31mred end"),
        ('{"error": {"message": {"a": 1}, "code": {"a": 1}}}', ""),
        ('{"error": [], "message": 7}', ""),
    ],
)
def test_a_providers_message_is_found_in_every_structure_and_shown_as_plain_text(
    form: Format, body: str, expected: str
) -> None:
    error = error_of(form, raw(400, body.encode()))
    after = error.message.partition("(400)")[2].removeprefix(": ")
    if form.name == "gemini" and not body.startswith('{"error": {"message": "'):
        assert after in (expected, ""), "its SDK keeps only some of them"
    else:
        assert after == expected


def test_a_short_key_is_masked_only_as_a_separate_word() -> None:
    async def run(key: str) -> str:
        async with wire_server([OPENAI.failed(400, f"no key {key}: {key}nown")]) as server:
            error = await asyncio.to_thread(ask, OPENAI, server.url, stream=False, api_key=key)
        assert isinstance(error, ModelError)
        return error.message

    assert asyncio.run(run("unk")).endswith("(400): no key ***: unknown")
    assert asyncio.run(run("0123456789")).endswith("(400): no key ***: ***nown")


SECRET = "correct-horse-battery-4711"
"""A key that looks like none: only who knows it can mask it."""


def quoting(form: Format) -> Iterator[Answer]:
    """Generate every way in which a server can quote the key."""
    said = f"your key {SECRET} ({SECRET[:15]}...) is bad"
    yield from (form.failed(status, said) for status in (400, 401, 403, 404, 413, 429, 500))
    yield raw(400, SECRET.encode(), "text/plain")
    yield raw(200, f"<html>{SECRET}</html>".encode(), "text/html")
    yield raw(429, b"{}", retry_after=SECRET)
    yield says(form, "x", calls=(("echo", {"text": "x"}),), end=SECRET)
    yield begun(form, form.error_event(said, True))
    yield begun(form, SECRET)


@each_format
def test_a_key_in_a_servers_error_is_never_reported_logged_or_stored(
    form: Format, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def run() -> str:
        answers = list(quoting(form))
        async with wire_server(answers) as server:
            alias = form.alias(server.url, api_key=SECRET)
            files = {
                "agents.d/one.yaml": agent("one", model="local", telemetry="{content: full}"),
                "agentsd.yaml": f"models: {{local: {alias}}}\nmodel_calls: {{max_retries: 0, cooldown_after: 99}}\n"
                "telemetry: {content: full}\n",
            }
            async with Runtime.open(write(tmp_path, files), watch=False, store="sqlite:///state.db") as runtime:
                heard = []
                for _ in answers:
                    async with runtime.stream("go") as stream:
                        heard += [event.model_dump_json() async for event in stream]
                    result = await stream.result()
                    assert result.status == ("stopped" if result.finish_reason == "context_full" else "failed")
                    heard.append(result.model_dump_json())
        return "".join(heard)

    heard = asyncio.run(run())
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("state.db*"))
    assert b"your key" in kept, "the words were kept"
    for piece in (SECRET, SECRET[:15]):
        assert piece not in heard
        assert piece not in caplog.text
        assert piece.encode() not in kept


@pytest.mark.parametrize(
    "date", ["Wed, 21 Oct 99999999999999999999 07:28:30 GMT", "Wed, 21 Oct 2026 07:28:30 +99999999999999999999"]
)
@each_format
def test_a_date_out_of_range_requests_no_wait(form: Format, date: str) -> None:
    error = error_of(form, form.failed(429, "slow down", retry_after=date))
    assert (error.retryable, error.retry_after) == (True, None)


@each_format
@each_way
def test_endless_redirects_are_one_error(form: Format, stream: bool) -> None:
    async def run() -> ModelReply | ModelError:
        moved = redirect("/again", "307 Temporary Redirect").replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        pages = {"/again": moved}
        paths = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/models/m:generateContent")
        pages |= dict.fromkeys((*paths, "/v1/models/m:streamGenerateContent"), moved)
        async with site(pages) as server:
            return await asyncio.to_thread(ask, form, f"{server.url}/v1", stream=stream)

    error = asyncio.run(run())
    assert isinstance(error, ModelError)
    assert re.search(r"redirects \(30[27]\): check base_url", error.message)
    assert (error.retryable, error.unavailable) == (False, True)


# --- connection failures


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://h:8080/v1", "http://h:8080/v1"),
        (" http://h/v1/\n", "http://h/v1"),
        ("https://h/v1/chat/completions", "https://h/v1"),
        ("HTTP://[::1]:80//v1//", "HTTP://[::1]:80//v1"),
        ("http://bob:p@h", "http://bob:p@h"),
    ],
)
def test_a_base_url_is_normalized(given: str, used: str) -> None:
    assert normalize_base_url(given) == used


@pytest.mark.parametrize(
    ("address", "wrong"),
    [
        ("", "it is empty"),
        ("localhost:8080/v1", "does not start with http:// or https://"),
        ("htp://h/v1", "does not start with"),
        ("http:/h/v1", "does not start with"),
        ("http://", "does not start with"),
        ("http:///v1", "it has no valid host"),
        ("http://h:0/v1", "it has no valid port"),
        ("http://h:99999/v1", "its port, or the address in brackets, is invalid"),
        ("http://h:80a/v1", "its port, or the address in brackets, is invalid"),
        ("http://[::1/v1", "its port, or the address in brackets, is invalid"),
        ("http://a b/v1", "a character that is not allowed in a URL"),
        ("http://${HOST}/v1", "a character that is not allowed in a URL"),
        ("http://h/v1?key=k", "it must end with its path"),
    ],
)
@each_format
def test_an_invalid_base_url_is_rejected_without_being_quoted(form: Format, address: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=f"base_url of {form.name}/m: .*such as http://127.0.0.1:8080/v1") as caught:
        create_client(f"{form.name}/m", base_url=address, api_key=KEY, environ={})

    assert wrong in str(caught.value)
    assert "key=k" not in str(caught.value)


def test_a_missing_v1_is_mentioned() -> None:
    async def run(path: str) -> str:
        missing = answer('{"error": {"message": "File Not Found"}}', status="404 Not Found")
        async with site({"/chat/completions": missing, "/v1/chat/completions": missing}) as server:
            error = await asyncio.to_thread(ask, OPENAI, f"{server.url}{path}", stream=False)
            assert [request.target for request in server.requests] == [f"{path}/chat/completions"]
        assert isinstance(error, ModelError)
        return error.message

    assert "base_url is wrong (most end with /v1): File Not Found" in asyncio.run(run(""))
    assert "base_url is wrong: File Not Found" in asyncio.run(run("/v1"))


@each_format
@each_way
@pytest.mark.parametrize(
    "environment",
    [
        {"all_proxy": "socks9://127.0.0.1:1"},
        {"http_proxy": "http://[::1"},
    ],
    ids=lambda environment: next(iter(environment)),
)
def test_an_environment_without_a_usable_client_is_one_error(
    form: Format, stream: bool, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    error = ask(form, "http://127.0.0.1:1/v1", stream=stream)

    assert isinstance(error, ModelError)
    assert "the client cannot be created: check base_url, the proxy variables and SSL_CERT_FILE" in error.message
    assert (error.retryable, error.unavailable) == (False, True)


@each_format
def test_a_missing_certificate_file_does_not_stop_a_server_without_tls(
    form: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/file.pem")
    error = ask(form, "http://127.0.0.1:1/v1", stream=False)
    assert isinstance(error, ModelError)
    assert "the connection to http://127.0.0.1:1/v1 failed" in error.message, "it was tried"


@each_format
def test_https_to_a_server_without_tls_is_explained(form: Format) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(64)
        writer.write(answer("", status="400 Bad Request"))
        await writer.drain()
        writer.close()

    async def run() -> ModelReply | ModelError:
        async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await asyncio.to_thread(ask, form, f"https://127.0.0.1:{port}/v1", stream=False)

    error = asyncio.run(run())
    assert isinstance(error, ModelError)
    assert "the port does not use TLS: write http:// in base_url" in error.message
    assert not error.retryable
