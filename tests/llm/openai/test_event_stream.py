"""Events of a stream are the same however its bytes are cut into chunks."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import APIError

from framework.llm.openai.connection import read_events
from framework.llm.provider_client import STREAM_END
from tests.support.cases import cases

EVENTS = [{"id": "a", "text": "one\ntwo é \u2028"}, {"id": "b"}, {"n": [1, {"x": None}]}]


def events_in(chunks: list[bytes], **headers: str) -> list[Any]:
    """Return the events of a response whose body arrives in these chunks."""

    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def main() -> list[Any]:
        request = httpx2.Request("POST", "http://127.0.0.1/v1")
        response = httpx2.Response(200, content=body(), headers=headers, request=request)
        received: list[Any] = []
        try:
            async for batch in read_events(response):
                assert batch
                received += batch
        except (ValueError, APIError) as error:
            received.append(error)
        await response.aclose()
        return received

    return asyncio.run(main())


def framed(end: str, *, field: str = "data: ") -> bytes:
    comment, name = f": keep-alive{end}{end}", f"event: chunk{end}id: 7{end}"
    blocks = [f"{name}{field}{json.dumps(event)}{end}{end}" for event in EVENTS]
    return (comment + comment.join(blocks) + f"data: [DONE]{end}{end}data: not JSON{end}{end}").encode()


@cases(20)
@given(
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    field=st.sampled_from(["data: ", "data:"]),
    cuts=st.lists(st.integers(0, 400)),
)
def test_events_do_not_depend_on_chunks_and_line_ends(end: str, field: str, cuts: list[int]) -> None:
    text = framed(end, field=field)
    places = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    chunks = [text[start:stop] for start, stop in pairwise(places)]

    assert events_in(chunks) == [*EVENTS, STREAM_END]


def test_a_compressed_stream_is_decoded() -> None:
    assert events_in([gzip.compress(framed("\n"))], **{"content-encoding": "gzip"}) == [*EVENTS, STREAM_END]


def test_data_of_several_lines_is_one_event() -> None:
    assert events_in([b'data: {"a":\ndata:  1}\n\n']) == [{"a": 1}]


def test_numbers_and_characters_that_orjson_rejects_are_accepted() -> None:
    assert str(events_in([b'data: {"a": NaN}\n\n'])) == "[{'a': nan}]"
    assert events_in([b'data: {"a": "\\ud800"}\n\n']) == [{"a": "\ud800"}]


@pytest.mark.parametrize(
    ("rest", "received"), [(b'data: {"b": 2}\n', []), (b"data: [DONE]\n", [STREAM_END]), (b"data:[DONE]", [STREAM_END])]
)
def test_an_event_that_has_not_ended_is_dropped_unless_it_ends_the_stream(rest: bytes, received: list[Any]) -> None:
    assert events_in([b'data: {"a": 1}\n\n', rest]) == [{"a": 1}, *received]


def test_an_error_comes_after_the_events_before_it() -> None:
    first, error = events_in([b'data: {"a": 1}\n\ndata: {"error": {"message": "overloaded", "code": 5}}\n\n'])
    assert first == {"a": 1}
    assert isinstance(error, APIError)
    assert (error.message, error.body) == ("overloaded", {"message": "overloaded", "code": 5})

    first, error = events_in([b'data: {"a": 1}\n\ndata: {"b\n\ndata: {"c": 1}\n\n'])
    assert first == {"a": 1}
    assert isinstance(error, ValueError)
