"""Connections to servers, through the SDK, send what was encoded and return what the server says."""

from __future__ import annotations

import asyncio
import gzip
import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from framework.llm.client import Delta
from framework.llm.openai.client import OpenAIModel
from framework.llm.openai.connection import LARGE_BODY
from framework.llm.openai.responses import ResponsesModel
from framework.types.errors import ModelError
from framework.types.messages import Message, Usage
from tests.support.formats import RESPONSES
from tests.support.formats import says as says_in
from tests.support.openai_requests import BOTH_WAYS, KEY, deltas, request
from tests.support.site import answer, site
from tests.support.wire import (
    Answer,
    Answers,
    WireServer,
    bad_event,
    calls,
    cut_stream,
    html,
    no_finish,
    rate_limited,
    raw,
    says,
    stalled,
    wire_server,
)

PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
Prepare = Callable[[pytest.MonkeyPatch, str], str]
"""Makes the SDK be asked in one way; returns the address to ask."""


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)


def direct(patch: pytest.MonkeyPatch, url: str) -> str:
    return url


def with_password(patch: pytest.MonkeyPatch, url: str) -> str:
    return url.replace("http://", "http://bob:secret@")


each_connection = pytest.mark.parametrize("prepare", [direct, with_password])


def ask(
    prepare: Prepare,
    answers: Answers,
    patch: pytest.MonkeyPatch,
    kind: type[OpenAIModel] | type[ResponsesModel] = OpenAIModel,
    **asked: Any,
) -> tuple[list[Delta], WireServer]:
    async def run() -> tuple[list[Delta], WireServer]:
        async with wire_server(answers) as server:
            model = kind("openai", "m", api_key=KEY, base_url=prepare(patch, server.url))
            return await deltas(model, request(**asked)), server

    return asyncio.run(run())


@BOTH_WAYS
@pytest.mark.parametrize(
    ("kind", "scripted"),
    [
        (OpenAIModel, calls(("docs__search", {"q": "é"}), text="so")),
        (ResponsesModel, says_in(RESPONSES, "so", calls=(("docs__search", {"q": "é"}),), thought="hm")),
    ],
    ids=["chat", "responses"],
)
def test_every_connection_sends_the_same_request_and_returns_the_same_reply(
    kind: type[OpenAIModel] | type[ResponsesModel], scripted: Answer, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies, bodies, headers = [], [], []
    for prepare in (direct, with_password):
        with monkeypatch.context() as patch:
            heard, server = ask(prepare, [scripted], patch, kind, stream=stream)
        replies.append([(delta.text, delta.reply.message if delta.reply else None) for delta in heard])
        bodies.append(server.requests)
        changing = {"Content-Length", "Host", "Authorization", "Connection", "Accept-Encoding"}
        headers.append({name.title(): text for name, text in server.headers[0].items() if name.title() not in changing})

    assert replies[0] == replies[1]
    assert bodies[0] == bodies[1]
    assert headers[0] == headers[1]
    assert not [name for name in headers[0] if "stainless" in name.lower()]  # no description of this machine is sent
    last = replies[0][-1][1]
    assert last is not None
    assert last.tool_calls[0].arguments == {"q": "é"}


@each_connection
def test_openai_account_variables_are_not_sent_to_other_servers(
    prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-admin")

    _, server = ask(prepare, [says("hello")], monkeypatch)

    sent = str(dict(server.headers[0]))
    assert not [value for value in ("org-1", "proj-1", "sk-admin") if value in sent]


HAZARDS: list[tuple[Answer, str, bool]] = [
    (rate_limited("7"), "rate limited, retry after 7 s", True),
    (raw(500, b"<html>oops</html>", "text/html"), "the provider failed (500)", True),
    (raw(401, b'{"error": {"message": "bad key"}}'), "the API key was rejected: set a valid one", False),
]


@each_connection
@BOTH_WAYS
@pytest.mark.parametrize(("hazard", "says_what", "retryable"), HAZARDS)
def test_a_rejected_request_is_one_error(
    prepare: Prepare, stream: bool, hazard: Answer, says_what: str, retryable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError) as caught:
        ask(prepare, [hazard], monkeypatch, stream=stream)

    assert caught.value.message.startswith(f"openai/m: {says_what}")
    assert caught.value.retryable is retryable
    assert KEY not in caught.value.message


@each_connection
@pytest.mark.parametrize(
    ("hazard", "stream", "says_what"),
    [
        (html(), False, "a web page instead of a completion"),
        (raw(200, b"{not json"), False, "the server's answer is not JSON"),
        (cut_stream(), True, "was lost before the answer was complete"),
        (bad_event(), True, "the server's answer is not JSON"),
        (no_finish(), True, "the stream ended before the answer was complete"),
    ],
)
def test_an_incomplete_response_is_one_error(
    prepare: Prepare, hazard: Answer, stream: bool, says_what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match=says_what) as caught:
        ask(prepare, [hazard], monkeypatch, stream=stream)

    assert caught.value.retryable


@each_connection
@BOTH_WAYS
def test_cancelling_closes_the_connection(prepare: Prepare, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with wire_server([stalled()]) as server:
            model = OpenAIModel("openai", "m", api_key=KEY, base_url=prepare(monkeypatch, server.url))
            task = asyncio.create_task(deltas(model, request(stream=stream)))
            async with asyncio.timeout(30):
                await server.request_received.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await server.disconnected.wait()

    asyncio.run(run())


def test_a_connection_is_kept_for_the_next_request() -> None:
    ports = set()

    async def run() -> None:
        answers = [says("one"), says("two"), replace(says("three"), chunked=True), says("four")]
        async with wire_server(answers) as server:
            model = OpenAIModel("openai", "m", api_key=KEY, base_url=server.url)
            for stream in (False, True, False, False):
                async for _ in model.stream(request(stream=stream)):
                    pass
                ports.update(server.ports)
            await model.close()

    asyncio.run(run())

    assert len(ports) == 1


def test_an_unfinished_response_closes_only_its_connection() -> None:
    async def run() -> str:
        async with wire_server([stalled(), says("well")]) as server:
            model = OpenAIModel("openai", "m", api_key=KEY, base_url=server.url)
            left = model.stream(request(stream=True))
            await anext(left)
            await left.aclose()
            (delta,) = await deltas(model, request())
            assert delta.reply is not None
            return delta.reply.message.content

    assert asyncio.run(run()) == "well"


def test_a_large_request_and_a_compressed_response() -> None:
    packed = gzip.compress(says("unpacked").completion.to_json().encode())  # type: ignore[union-attr]  # it has one
    answer = raw(200, packed, content_encoding="gzip")

    async def run() -> tuple[list[Delta], WireServer]:
        async with wire_server([answer]) as server:
            model = OpenAIModel("openai", "m", api_key=KEY, base_url=server.url)
            message = Message(role="user", content="x" * (LARGE_BODY + 1))
            return await deltas(model, request(messages=(message,))), server

    (delta,), server = asyncio.run(run())

    assert delta.reply is not None
    assert (delta.reply.message.content, delta.reply.usage.total_tokens) == ("unpacked", 15)
    assert len(server.requests[0]["messages"][0]["content"]) == LARGE_BODY + 1


@BOTH_WAYS
def test_a_redirect_is_followed_with_the_complete_request(stream: bool) -> None:
    async def run() -> tuple[Usage, WireServer]:
        async with wire_server([says("here")]) as server:
            place = f"location: {server.url}/chat/completions"
            moved = answer("", place, "connection: close", status="307 Temporary Redirect")
            async with site({"/old/v1/chat/completions": moved}) as old:
                model = OpenAIModel("openai", "m", api_key=KEY, base_url=f"{old.url}/old/v1")
                received = await deltas(model, request(stream=stream))
                assert received[-1].reply is not None
                return received[-1].reply.usage, server

    usage, server = asyncio.run(run())

    assert usage.total_tokens == 15
    assert server.requests[0]["messages"] == [{"role": "user", "content": "hi"}]


def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[str]:
        page = answer(json.dumps({"error": {"message": "no"}}), "content-type: application/json", status="402 Pay")
        async with site({"http://models.invalid/v1/chat/completions": page}) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url)
            with pytest.raises(ModelError, match="quota is used up"):
                await deltas(OpenAIModel("openai", "m", api_key=KEY, base_url="http://models.invalid/v1"), request())
            return [request.target for request in proxy.requests]

    assert asyncio.run(run()) == ["http://models.invalid/v1/chat/completions"]


def test_a_password_in_the_address_is_sent_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    _, server = ask(with_password, [says("hello")], monkeypatch)

    sent = {name.lower(): text for name, text in server.headers[0].items()}
    assert sent["authorization"] == f"Basic {b64encode(b'bob:secret').decode()}"


def test_a_server_that_refuses_connections_is_reported_as_such() -> None:
    with pytest.raises(ModelError, match="ConnectError"):
        asyncio.run(deltas(OpenAIModel("openai", "m", api_key=KEY, base_url="http://127.0.0.1:1/v1"), request()))


@pytest.mark.parametrize("key", ["line\nbreak", "null\x00", "tab\there"])
def test_a_key_that_no_header_can_contain_is_reported_without_it(key: str) -> None:
    model = OpenAIModel("openai", "m", api_key=key, base_url="http://127.0.0.1:1/v1")

    with pytest.raises(ModelError, match="Authorization contains a line break or another character") as caught:
        asyncio.run(deltas(model, request()))

    assert key not in caught.value.message


def test_openai_gets_the_account_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")

    async def run() -> WireServer:
        async with wire_server([says("one"), says("two")]) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.url)
            model = OpenAIModel("openai", "m", api_key=KEY)
            for _ in range(2):
                assert [delta async for delta in model.stream(request())]
            await model.close()
            return server

    for headers in asyncio.run(run()).headers:
        sent = {name.lower(): text for name, text in headers.items()}
        assert (sent["openai-organization"], sent["authorization"]) == ("org-1", f"Bearer {KEY}")
