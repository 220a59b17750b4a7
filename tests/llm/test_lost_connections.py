"""A connection that the server closed before it answered is replaced: without an error, a delay or a retry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from framework import Runtime
from framework.llm.client import ModelReply, ModelRequest
from framework.llm.openai.connection import LARGE_BODY
from framework.types.errors import ModelError
from framework.types.messages import Message
from tests.support.closing import Action, ClosingServer, closing_server
from tests.support.formats import FORMATS, OPENAI, RESPONSES, Format, ScriptedReply, each_format, each_way
from tests.support.projects import agent, write

ON_AIOHTTP = (OPENAI, RESPONSES)
"""The formats whose SDK sends requests with aiohttp."""
each_client_of_ours = pytest.mark.parametrize(
    "form", [form for form in FORMATS if form not in ON_AIOHTTP], ids=lambda form: form.id
)
HELLO = ScriptedReply(text="hello there")


async def ask(
    form: Format,
    server: ClosingServer,
    times: int,
    *,
    stream: bool,
    size: int = 10,
    between: Callable[[], object] = int,
) -> list[ModelReply | ModelError]:
    """Send requests one after the other through one client; return replies and errors."""
    results: list[ModelReply | ModelError] = []
    model = form.model(server.url)
    request = ModelRequest((Message(role="user", content="x" * size),), stream=stream)
    for _ in range(times):
        try:
            results += [delta.reply async for delta in model.stream(request) if delta.reply is not None]
        except ModelError as error:
            results.append(error)
        between()
    await model.close()
    return results


def failed(results: list[ModelReply | ModelError]) -> list[bool]:
    return [isinstance(result, ModelError) for result in results]


@each_format
@each_way
@pytest.mark.parametrize("lost", ["close", "reset"])
@pytest.mark.parametrize("size", [10, 3 * LARGE_BODY], ids=["small", "large"])
def test_a_used_connection_that_is_lost_is_replaced_by_a_new_one(
    form: Format, stream: bool, lost: Action, size: int
) -> None:
    with closing_server(form.answer(HELLO), "answer", lost, "answer", streamed=stream) as server:
        results = asyncio.run(ask(form, server, 3, stream=stream, size=size))

    assert failed(results) == [False, False, False]
    assert server.connections[:3] == [0, 0, 1]
    assert len(server.connections) == 4
    assert min(server.sizes) >= size, "the whole request is sent again"


@each_client_of_ours
def test_a_request_is_not_sent_again_on_another_used_connection(form: Format) -> None:
    async def main() -> None:
        model = form.model(server.url)
        request = ModelRequest((Message(role="user", content="hi"),))

        async def send() -> None:
            assert [delta async for delta in model.stream(request)]

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            group.create_task(send())
        await send()
        await model.close()

    actions: tuple[Action, ...] = ("answer together", "answer together", "close", "answer")
    with closing_server(form.answer(HELLO), *actions, streamed=False) as server:
        asyncio.run(main())

    assert sorted(server.connections[:2]) == [0, 1], "two connections were open"
    assert server.connections[3] == 2


@each_format
@each_way
@pytest.mark.parametrize("lost", ["close", "reset"])
def test_a_new_connection_that_is_lost_is_an_error(form: Format, stream: bool, lost: Action) -> None:
    with closing_server(form.answer(HELLO), lost, "answer", lost, streamed=stream) as server:
        results = asyncio.run(ask(form, server, 3, stream=stream))

    if form in ON_AIOHTTP:  # it does not say whether a connection is new: the request is sent once more
        assert failed(results) == [False, True, True]
        assert server.connections[:4] == [0, 1, 1, 2], "a request is sent at most twice"
    else:
        assert failed(results) == [True, False, True]
        assert server.connections == [0, 1, 1, 2], "a request is sent at most twice"
    assert all(result.retryable for result in results if isinstance(result, ModelError))


@each_format
@each_way
def test_a_connection_that_is_lost_during_an_answer_is_an_error(form: Format, stream: bool) -> None:
    with closing_server(form.answer(HELLO), "answer", "half an answer", streamed=stream) as server:
        results = asyncio.run(ask(form, server, 2, stream=stream))

    assert failed(results) == [False, True]
    assert server.connections == [0, 0]


@each_way
def test_a_connection_that_is_lost_within_the_header_of_an_answer_is_an_error(stream: bool) -> None:
    with closing_server(OPENAI.answer(HELLO), "answer", "half a header", streamed=stream) as server:
        results = asyncio.run(ask(OPENAI, server, 2, stream=stream))

    assert failed(results) == [False, True]
    assert server.connections == [0, 0]


@each_format
@each_way
def test_no_request_is_sent_on_a_connection_that_is_closed_already(form: Format, stream: bool) -> None:
    with closing_server(form.answer(HELLO), "answer and close", streamed=stream) as server:

        def wait_for_close() -> None:  # blocks the event loop, which cannot notice the close
            assert server.closed.wait(30)
            server.closed.clear()

        results = asyncio.run(ask(form, server, 3, stream=stream, between=wait_for_close))

    assert failed(results) == [False, False, False]
    assert sorted(set(server.connections)) == [0, 1, 2]
    assert form in ON_AIOHTTP or server.connections == [0, 1, 2], "aiohttp may notice a close only as it sends"


def test_a_run_on_a_server_that_closes_after_each_answer_has_no_warning(tmp_path: Path) -> None:
    with closing_server(OPENAI.answer(HELLO), "answer", "close", "answer", "reset", streamed=False) as server:
        known = "{context_window: 10000, json_schema: false}"  # so that the server is asked for answers only
        alias = f"{{model: openai/m, base_url: '{server.url}', api_key: k, capabilities: {known}}}"
        settings = f"models: {{wire: {alias}}}\nmodel_calls: {{max_retries: 0}}\n"
        root = write(tmp_path, {"agents.d/one.yaml": agent("one", model="wire"), "agentsd.yaml": settings})

        async def main() -> list[tuple[str, int]]:
            async with Runtime.open(root, watch=False) as runtime:
                results = [await runtime.run("hi") for _ in range(2)]
            return [(result.status, len(result.warnings)) for result in results]

        assert asyncio.run(main()) == [("completed", 0), ("completed", 0)]
