"""Each chunk, event and answer fits the types of the openai SDK."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from framework.server.openai_answer import AnswerText, ChatWriter, Ending, ResponseWriter
from framework.server.openai_api import AnswerWriter
from framework.types.messages import Usage

USAGE = Usage(prompt_tokens=7, completion_tokens=3, total_tokens=10, cached_tokens=2)
PIECES = [
    AnswerText("reasoning", "m1", "let me "),
    AnswerText("reasoning", "m1", "see"),
    AnswerText("content", "m1", "I look."),
    AnswerText("content", "m2", "It is "),
    AnswerText("content", "m2", "noon."),
]
ENDINGS = {
    "stop": Ending("It is noon.", "stop", USAGE),
    "length": Ending("It is noon.", "length", USAGE),
    "content_filter": Ending("It is noon.", "content_filter", USAGE),
    "error": Ending("", None, USAGE, error_code="model_error", error_message="it failed"),
}
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def data_of(chunks: Iterable[bytes]) -> list[Any]:
    """Return the data of encoded events; `[DONE]` as text."""
    texts = b"".join(chunks).decode().removesuffix("\n\n").split("\n\n")
    found = [line.removeprefix("data: ") for text in texts for line in text.split("\n") if line.startswith("data: ")]
    return [text if text == "[DONE]" else json.loads(text) for text in found]


def encoded(writer: AnswerWriter, ending: Ending, *own: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield a whole stream, with events of the run before its end."""
    yield from writer.begin("one")
    for piece in PIECES:
        yield from writer.text(piece)
    yield from map(writer.own_event, own)
    yield from writer.end(ending)


def chat_stream(ending: Ending, *, include_usage: bool = False) -> list[Any]:
    return data_of(encoded(ChatWriter("run_1", 1700000000, include_usage=include_usage), ending))


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter"])
def test_chunks_are_those_of_chat_completions(reason: str) -> None:
    *data, done = chat_stream(ENDINGS[reason])
    chunks = [ChatCompletionChunk.model_validate(one) for one in data]
    assert done == "[DONE]"
    assert {(chunk.id, chunk.model, chunk.created) for chunk in chunks} == {("chatcmpl-1", "one", 1700000000)}
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "I look.\n\nIt is noon."
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == "let me see"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + [reason]
    assert not any(delta.tool_calls for delta in deltas)
    assert not any("usage" in one for one in data)


def test_the_chunk_with_usage_has_no_choices_and_is_sent_only_if_requested() -> None:
    *data, last, _ = chat_stream(ENDINGS["stop"], include_usage=True)
    assert all(len(one["choices"]) == 1 for one in data)
    chunk = ChatCompletionChunk.model_validate(last)
    assert chunk.choices == []
    assert chunk.usage is not None
    assert (chunk.usage.prompt_tokens, chunk.usage.completion_tokens, chunk.usage.total_tokens) == (7, 3, 10)


def test_an_error_in_a_stream_is_an_object_that_clients_raise() -> None:
    *_, error, done = chat_stream(ENDINGS["error"])
    assert error == {"error": {"code": "model_error", "type": "server_error", "message": "it failed", "param": None}}
    assert done == "[DONE]"


def test_our_events_are_an_extra_key_of_an_empty_chunk() -> None:
    writer = ChatWriter("run_1", 1)
    _, data = data_of([*writer.begin("one"), writer.own_event({"event": "tool_call", "seq": 3})])
    chunk = ChatCompletionChunk.model_validate(data)
    assert chunk.choices[0].delta.model_dump(exclude_none=True) == {}
    assert data["agentsd"] == {"event": "tool_call", "seq": 3}


def test_a_completion_is_that_of_the_api() -> None:
    data = ChatWriter("run_1", 1700000000).complete("one", ENDINGS["stop"], "hm")
    completion = ChatCompletion.model_validate(data)
    message = completion.choices[0].message
    assert (message.content, message.tool_calls, completion.choices[0].finish_reason) == ("It is noon.", None, "stop")
    assert getattr(message, "reasoning_content", None) == "hm"
    assert completion.usage is not None
    assert completion.usage.total_tokens == 10
    assert (
        "reasoning_content" not in ChatWriter("run_1", 1).complete("one", ENDINGS["stop"], "")["choices"][0]["message"]
    )


def response_stream(ending: Ending) -> list[Any]:
    return data_of(encoded(ResponseWriter("run_1", 1700000000), ending, {"event": "tool_call", "seq": 3}))


@pytest.mark.parametrize(
    ("reason", "last"),
    [("stop", "response.completed"), ("length", "response.incomplete"), ("content_filter", "response.incomplete"),
     ("error", "response.failed")],
)  # fmt: skip
def test_events_are_those_of_the_responses_api(reason: str, last: str) -> None:
    data = response_stream(ENDINGS[reason])
    events = [EVENTS.validate_python(one) for one in data]
    assert [type(event).__name__ for event in events] != ["BaseModel"]
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == last
    assert [event.sequence_number for event in events] == list(range(len(events)))
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert texts == ["I look.", "It is ", "noon."]
    assert [one["agentsd"]["seq"] for one in data if "agentsd" in one] == [3]


def test_the_items_of_a_response_are_its_messages_with_their_reasoning() -> None:
    final = response_stream(ENDINGS["stop"])[-1]["response"]
    response = Response.model_validate(final)
    assert [item.type for item in response.output] == ["reasoning", "message", "message"]
    assert [item.get("phase") for item in final["output"]] == [None, "commentary", "final_answer"]
    assert response.output_text == "I look.It is noon."
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens) == (7, 2)
    assert len({item["id"] for item in final["output"]}) == 3


def test_each_item_is_added_once_and_done_once() -> None:
    names: dict[str, list[str]] = {}
    for one in response_stream(ENDINGS["stop"]):
        item = one.get("item", {}).get("id") or one.get("item_id")
        if item:
            names.setdefault(item, []).append(one["type"].removeprefix("response."))
    assert [*names.values()][2] == [
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
    ]  # fmt: skip
    assert next(iter(names.values()))[:3] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
    ]


@pytest.mark.parametrize(
    ("reason", "status", "why"),
    [("stop", "completed", None), ("length", "incomplete", "max_output_tokens"),
     ("content_filter", "incomplete", "content_filter"), ("error", "failed", None)],
)  # fmt: skip
def test_a_response_says_how_it_ended(reason: str, status: str, why: str | None) -> None:
    response = Response.model_validate(ResponseWriter("run_1", 1).complete("one", ENDINGS[reason], "hm"))
    assert response.status == status
    assert (response.incomplete_details.reason if response.incomplete_details else None) == why
    if status == "failed":
        assert response.error is not None
        assert (response.error.code, response.error.message) == ("server_error", "model_error: it failed")


def test_an_error_of_the_server_in_a_stream_is_the_event_error() -> None:
    (data,) = data_of([ResponseWriter("run_1", 1).error("store_error", "it is gone")])
    assert EVENTS.validate_python(data).type == "error"
