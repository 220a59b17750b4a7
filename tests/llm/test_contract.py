"""The contract of every client: the same tests for all formats, on a misbehaving server."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from framework.llm.capabilities import Capabilities, Prices
from framework.llm.client import Delta, ModelReply, ModelRequest
from framework.types.errors import ModelError
from framework.types.messages import Message, ToolCall, ToolDefinition, Usage
from framework.types.spec import ModelSettings
from tests.support.formats import (
    KEY,
    OPENAI,
    SIGNATURE,
    Calls,
    Format,
    ScriptedReply,
    begun,
    each_format,
    each_way,
    says,
)
from tests.support.site import make_certificate, served_with, site
from tests.support.wire import Answer, Answers, WireServer, html, raw, wire_server

USER = Message(role="user", content="hi")
PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}}
SEARCH = ToolDefinition(name="docs.search", description="Search.", parameters=PARAMETERS)
CALLS: Calls = (("docs__search", {"query": "a ü"}), ("made_up", {}))


def request(*, stream: bool = False, **changes: Any) -> ModelRequest:
    return ModelRequest(**{"messages": (USER,), "tools": (SEARCH,), "stream": stream, **changes})


def ask(form: Format, answers: Answers, asked: ModelRequest, **options: Any) -> tuple[list[Delta], WireServer]:
    async def run() -> tuple[list[Delta], WireServer]:
        async with wire_server(answers) as server:
            model = form.model(server.url, **options)
            try:
                return [delta async for delta in model.stream(asked)], server
            finally:
                await model.close()

    return asyncio.run(run())


def reply(form: Format, answer: Answer, *, stream: bool = False, **changes: Any) -> ModelReply:
    received, _ = ask(form, [answer], request(stream=stream, **changes))
    last = received[-1].reply
    assert last is not None
    return last


def failure(form: Format, answer: Answer, *, stream: bool) -> ModelError:
    with pytest.raises(ModelError) as caught:
        ask(form, [answer], request(stream=stream))
    error = caught.value
    assert "\n" not in error.message
    assert error.message.startswith(f"{form.name}/m: ")
    assert KEY not in error.message
    assert error.__cause__ is None
    assert error.__context__ is None
    return error


@each_format
@each_way
def test_a_text_answer_arrives_with_its_usage(form: Format, stream: bool) -> None:
    answer = reply(form, says(form, "hello big world", usage=(12, 7, 4)), stream=stream)

    assert answer.message == Message(role="assistant", content="hello big world")
    assert answer.usage == Usage(prompt_tokens=12, completion_tokens=7, total_tokens=19, cached_tokens=4, cost_usd=None)
    assert (answer.finish_reason, answer.model) == ("stop", "wire-model")
    assert answer.response_id


@each_format
def test_an_unstreamed_reply_is_one_delta_and_a_streamed_one_several(form: Format) -> None:
    answer = says(form, "hello big world", thought="let me see")
    whole, _ = ask(form, [answer], request())
    pieces, _ = ask(form, [answer], request(stream=True))

    assert len(whole) == 1
    assert [delta.text for delta in pieces if delta.text] == ["hello", " big", " world"]
    assert [delta.reasoning for delta in pieces if delta.reasoning] == ["let", " me", " see"]
    assert [delta for delta in pieces if delta.reply] == pieces[-1:]


@each_format
def test_clients_share_the_trusted_certificates(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    original = ssl.SSLContext.load_verify_locations

    def counted(context: ssl.SSLContext, *paths: Any, **named: Any) -> None:
        read.append(context)
        original(context, *paths, **named)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", counted)
    ask(form, [says(form, "x")], request())
    read.clear()

    ask(form, [says(form, "x")], request())

    assert not read


@each_format
def test_the_key_is_sent_and_no_other(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.setenv(variable, "sk-of-the-environment")

    with_key, without = (
        json.dumps(ask(form, [says(form, "x")], request(), api_key=key)[1].headers) for key in (KEY, "")
    )

    assert KEY in with_key
    assert "sk-of-the-environment" not in with_key + without


@each_format
@each_way
def test_tool_calls_arrive_under_their_own_names(form: Format, stream: bool) -> None:
    answer = reply(form, says(form, "wait", calls=CALLS), stream=stream)

    first, second = answer.message.tool_calls
    assert first == ToolCall(id="call_1", tool="docs.search", arguments={"query": "a ü"})
    assert second == ToolCall(id="call_2", tool="made_up")
    assert (answer.message.content, answer.finish_reason) == ("wait", "tool_calls")


@each_format
def test_a_call_id_already_in_the_conversation_is_replaced(form: Format) -> None:
    earlier = Message(role="assistant", tool_calls=(ToolCall(id="call_1", tool="docs.search"),))
    messages = (USER, earlier, Message(role="tool", content="x", tool_call_id="call_1"))

    answer = reply(form, says(form, calls=CALLS), messages=messages)

    ids = {call.id for call in answer.message.tool_calls}
    assert len(ids) == 2
    assert not ids & {"", "call_1"}


@each_format
@each_way
def test_a_tool_turn_sends_calls_results_and_thinking_back_unchanged(form: Format, stream: bool) -> None:
    first = reply(form, says(form, "wait", calls=CALLS, thought="let me see"), stream=stream).message
    results = tuple(Message(role="tool", content=f"found {call.id}", tool_call_id=call.id) for call in first.tool_calls)

    assert first.reasoning is not None
    assert first.reasoning.text == "let me see"
    _, server = ask(form, [says(form, "ok")], request(messages=(USER, first, *results)))

    (body,) = server.requests
    text = json.dumps(body, ensure_ascii=False)
    assert [text.count(word) for word in ("found call_1", "found call_2", "made_up")] in ([1, 1, 1], [1, 1, 2])
    assert "docs.search" not in text
    thinking = {"type": "thinking", "thinking": "let me see", "signature": SIGNATURE}
    sent = {"openai": "let me see", "anthropic": thinking, "gemini": SIGNATURE, "responses": SIGNATURE}
    assert form.returned(body) == sent[form.id]


@each_format
def test_thinking_of_another_provider_is_not_sent(form: Format) -> None:
    first = reply(form, says(form, calls=CALLS, thought="secret thoughts")).message
    assert first.reasoning
    first = first.model_copy(update={"reasoning": first.reasoning.model_copy(update={"provider": "another"})})
    results = tuple(Message(role="tool", content="x", tool_call_id=call.id) for call in first.tool_calls)

    _, server = ask(form, [says(form, "ok")], request(messages=(USER, first, *results)))

    text = json.dumps(server.requests[0])
    assert "secret thoughts" not in text
    assert SIGNATURE not in text


@each_format
@each_way
def test_a_text_cut_by_max_tokens_is_reported(form: Format, stream: bool) -> None:
    assert reply(form, says(form, "half an", end="length"), stream=stream).finish_reason == "length"


@pytest.mark.hostile(34)
@each_format
def test_a_stream_cut_at_any_position_is_the_complete_reply_or_an_error(form: Format) -> None:
    answer = says(form, "wait", calls=CALLS, thought="let me see")
    expected = reply(form, answer, stream=True).message

    def outcome(length: int) -> Message | None:
        events = answer.streamed[:length] or (": nothing",)
        try:
            return reply(form, Answer(events=events, ending="clean"), stream=True).message
        except ModelError as error:
            return None if error.retryable else Message(role="system", content=error.message)

    outcomes = [outcome(length) for length in range(len(answer.streamed))]
    assert outcomes[:-2] == [None] * (len(outcomes) - 2), "its end comes with one of the last events"
    assert all(message in (None, expected) for message in outcomes)


@each_format
@each_way
@pytest.mark.parametrize(
    ("hazard", "says_what", "retryable"),
    [
        ("html", "check base_url", True),
        ("half", "not JSON|streamed nothing", True),
        ("list", "is empty|streamed nothing|ended before", True),
        ("null", "is empty|streamed nothing|ended before", True),
        ("no bytes", "not JSON|is empty|streamed nothing|ended before", True),
        ("429", "rate limited, retry after 7 s: slow down$", True),
        ("500", r"the provider failed \(500\): oops$", True),
        ("529", r"the provider failed \(529\): overloaded$", True),
        ("502", r"the provider failed \(502\)$", True),
        ("408", r"failed \(408\): slow$", True),
        ("400", r"rejected \(400\): no such option$", False),
        ("401", "the API key was rejected: set a valid one$", False),
        ("403", r"rejected \(403\): check that the API key may use this model: \*\*\* may not$", False),
        ("404", r"no such model at http://127.* or base_url is wrong: unknown$", False),
        ("422", r"a b c+…$", False),
        ("refused", "refused", False),
        ("calls cut", "cut by max_tokens", False),
    ],
)
def test_each_hazard_is_one_error_with_advice(
    form: Format, hazard: str, says_what: str, retryable: bool, stream: bool
) -> None:
    answers = {
        "html": html(),
        "half": raw(200, b'{"id": "x", "cho'),
        "list": raw(200, b"[]"),
        "null": raw(200, b"null"),
        "no bytes": raw(200, b""),
        "429": form.failed(429, "slow down", retry_after="7"),
        "500": form.failed(500, "oops"),
        "529": form.failed(529, "overloaded"),
        "502": raw(502, b"<html>bad gateway</html>", "text/html"),
        "408": form.failed(408, "slow"),
        "400": form.failed(400, "no such option"),
        "401": form.failed(401, f"wrong key {KEY}"),
        "403": form.failed(403, f"{KEY} may not"),
        "404": form.failed(404, "unknown"),
        "422": form.failed(422, "a\nb\n" + "c" * 900),
        "refused": says(form, "x", end="refused"),
        "calls cut": says(form, calls=CALLS, end="length"),
    }

    error = failure(form, answers[hazard], stream=stream)

    assert re.search(says_what, error.message)
    assert error.retryable is retryable
    assert error.retry_after == (7.0 if hazard == "429" else None)


@each_format
@pytest.mark.parametrize(
    ("hazard", "says_what", "retryable"),
    [
        ("clean end", "ended before the answer was complete", True),
        ("cut", "was lost before the answer was complete", True),
        ("bad event", "not JSON", True),
        ("bad bytes", "not JSON", True),
        ("overloaded", "please wait", True),
        ("final", "too long", False),
    ],
)
def test_a_failure_during_a_stream_is_one_error(form: Format, hazard: str, says_what: str, retryable: bool) -> None:
    event = "event: content_block_delta\ndata: " if form.name == "anthropic" else ""
    answers = {
        "clean end": begun(form),
        "cut": begun(form, ending="cut"),
        "bad event": begun(form, event + '{"id": "x", "cho'),
        "bad bytes": begun(form, event + "\udcff"),
        "overloaded": begun(form, form.error_event("please wait", True)),
        "final": begun(form, form.error_event("too long", False)),
    }

    error = failure(form, answers[hazard], stream=True)

    assert re.search(says_what, error.message)
    assert error.retryable is retryable


@each_format
def test_deltas_before_a_cut_are_delivered_without_a_reply(form: Format) -> None:
    received: list[Delta] = []

    async def run() -> None:
        async with wire_server([begun(form, ending="cut")]) as server:
            model = form.model(server.url)
            try:
                async for delta in model.stream(request(stream=True)):
                    received.append(delta)
            finally:
                await model.close()

    with pytest.raises(ModelError):
        asyncio.run(run())
    assert [delta.text for delta in received if delta.text] == ["par", " tial"]
    assert not any(delta.reply for delta in received)


@each_format
@each_way
def test_a_stalled_server_is_one_error(form: Format, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form.timeout, 0.05)

    error = failure(form, begun(form, ending="stall"), stream=stream)

    assert "timeout while waiting for http://127.0.0.1" in error.message
    assert error.retryable


@each_format
@each_way
def test_an_unreachable_server_is_named_without_its_credentials(form: Format, stream: bool) -> None:
    async def run() -> None:
        async with wire_server([]) as server:
            port = server.url.rsplit(":", 1)[1]
        model = form.model(f"http://bob:{KEY}@127.0.0.1:{port}")
        try:
            async for _ in model.stream(request(stream=stream)):
                pass
        finally:
            await model.close()

    with pytest.raises(ModelError, match=r"/m: the connection to http://127.0.0.1:\d+/v1 failed") as caught:
        asyncio.run(run())

    assert caught.value.retryable
    assert KEY not in caught.value.message


@each_format
@each_way
def test_an_untrusted_certificate_is_one_error_with_advice(
    form: Format, stream: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with site({}, tls=served_with(make_certificate(tmp_path))) as served:
            model = form.model(f"https://{served.host}/v1")
            try:
                async for _ in model.stream(request(stream=stream)):
                    pass
            finally:
                await model.close()

    with pytest.raises(ModelError, match=r"/m: the TLS connection to https://127.0.0.1:\d+/v1 failed") as caught:
        asyncio.run(run())

    assert re.search(r"SSL_CERT_FILE .*: self-signed certificate$", caught.value.message)
    assert (caught.value.retryable, caught.value.unavailable) == (False, True)
    assert KEY not in caught.value.message
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/file.pem")
    with pytest.raises(ModelError, match=r"SSL_CERT_FILE names a file that does not exist \(/no/such/file\.pem\)"):
        asyncio.run(run())


@each_format
@pytest.mark.parametrize("leave", ["cancelled", "closed"])
def test_leaving_a_stream_closes_the_connection(form: Format, leave: str) -> None:
    async def run() -> None:
        async with wire_server([begun(form, ending="stall")]) as server:
            model = form.model(server.url)
            stream = model.stream(request(stream=True))
            await anext(stream)
            if leave == "cancelled":
                while (await anext(stream)).text != " tial":
                    pass
                waiting = asyncio.ensure_future(anext(stream))
                done, _ = await asyncio.wait([waiting], timeout=0)
                assert not done
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            else:
                await stream.aclose()
            async with asyncio.timeout(30):
                await server.disconnected.wait()
            await model.close()

    asyncio.run(run())


@each_format
def test_a_closed_client_can_send_another_request(form: Format) -> None:
    async def run() -> list[str]:
        async with wire_server([says(form, "one"), says(form, "two")]) as server:
            model = form.model(server.url)
            texts = []
            for _ in range(2):
                texts += [d.reply.message.content async for d in model.stream(request()) if d.reply]
                await model.close()
            return texts

    assert asyncio.run(run()) == ["one", "two"]


@each_format
def test_usage_contains_the_cost(form: Format) -> None:
    prices = Capabilities(prices=Prices(input=2, output=10, cached=0.5))
    received, _ = ask(form, [says(form, "x", usage=(1_000_000, 100_000, 400_000))], request(), capabilities=prices)

    assert received[-1].reply is not None
    assert received[-1].reply.usage.cost_usd == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.1 * 10)


@each_format
def test_a_stream_only_model_is_always_streamed(form: Format) -> None:
    only = Capabilities(stream_only=True)
    received, server = ask(form, [says(form, "one two")], request(), capabilities=only)

    assert [delta.reply.message.content for delta in received if delta.reply] == ["one two"]
    assert "".join(delta.text for delta in received) == "one two"
    assert server.requests[0].get("stream") or server.paths[0].endswith(":streamGenerateContent")


@each_format
@pytest.mark.parametrize("wanted", ["required", "docs.search"])
def test_a_model_without_forced_calls_gets_tool_choice_auto(form: Format, wanted: str) -> None:
    def chosen(**can: Any) -> str:
        settings = ModelSettings(tool_choice=wanted)
        several = request(settings=settings, tools=(SEARCH, SEARCH.model_copy(update={"name": "docs.read"})))
        _, server = ask(form, [says(form, "x")], several, capabilities=Capabilities(**can))
        body = server.requests[0]
        return json.dumps(body.get("tool_choice") or body["toolConfig"]).lower()

    assert "auto" not in chosen()
    assert "auto" in chosen(tool_choice_required=False)
    if wanted == "docs.search":
        assert "docs__search" in chosen()


@each_format
def test_the_sdk_is_not_loaded_before_the_first_request(form: Format) -> None:
    program = (
        "import sys; from framework.llm.providers import create_client;"
        f"create_client('{form.name}/m', api_key='k', environ={{}});"
        "print(sorted({'openai', 'anthropic', 'google.genai', 'instructor', 'httpx2'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_an_unknown_finish_reason_is_accepted_only_without_calls() -> None:
    assert reply(OPENAI, OPENAI.answer(ScriptedReply("x", end="eos"))).finish_reason == "stop"
    assert (
        "unexpected finish_reason: eos" in failure(OPENAI, says(OPENAI, calls=CALLS, end="eos"), stream=False).message
    )
