"""Images, PDFs and audio in the requests of every client: valid for its SDK, byte for byte, and encoded once."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from framework.llm.client import ModelRequest
from framework.llm.json_protocol import JsonProtocol
from framework.llm.message_shape import RequestCache
from framework.types.errors import ModelError
from framework.types.file import File
from framework.types.messages import Message, ToolCall, ToolDefinition
from tests.support.file_requests import contents, files_in, sample, with_files
from tests.support.formats import ANTHROPIC, FORMATS, GEMINI, OPENAI, RESPONSES, Format, each_format, each_way, says
from tests.support.media import SAMPLES, png
from tests.support.wire import Answer, Answers, WireServer, wire_server

PNG, PDF = sample("image/png"), sample("application/pdf")
CHART = ToolDefinition(name="docs.chart", description="Draws.", parameters={"type": "object", "properties": {}})
SENT = {
    "openai": ["image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf", "audio/wav", "audio/mpeg"],
    "anthropic": ["image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"],
    "responses": ["image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"],
    "gemini": [
        "image/png",
        "image/jpeg",
        "image/webp",
        "application/pdf",
        "audio/wav",
        "audio/mpeg",
        "audio/ogg",
        "audio/flac",
    ],
}


def request(*messages: Message, **changes: Any) -> ModelRequest:
    return ModelRequest(messages, **{"tools": (CHART,), "media": contents(*messages), **changes})


def send(form: Format, *requests: ModelRequest, answers: Answers | None = None, **options: Any) -> list[dict[str, Any]]:
    """Send requests with one client; return their bodies."""

    async def run() -> WireServer:
        async with wire_server(answers or [says(form, "ok")] * len(requests)) as server:
            model = form.model(server.url, **options)
            try:
                for asked in requests:
                    async for _ in model.stream(asked):
                        pass
            finally:
                await model.close()
            return server

    return asyncio.run(run()).requests


def conversation(body: dict[str, Any]) -> Any:
    return body.get("messages") or body.get("contents") or body["input"]


def texts(value: Any) -> list[str]:
    """Return the texts of a request, in order."""
    if isinstance(value, dict):
        found = [value["text"]] if isinstance(value.get("text"), str) else []
        return found + [text for inner in value.values() for text in texts(inner)]
    return [text for inner in value for text in texts(inner)] if isinstance(value, list) else []


@each_format
@each_way
def test_files_are_sent_in_order_with_their_bytes(form: Format, stream: bool) -> None:
    message = with_files("first", PNG, "second", PDF, "third")

    (body,) = send(form, request(message, stream=stream))

    assert files_in(form.id, body) == [("image/png", PNG.data), ("application/pdf", PDF.data)]
    sent = texts(conversation(body))
    assert sent == ["first", "second", "third"]


@each_format
@pytest.mark.parametrize("media_type", SAMPLES)
def test_each_media_type_is_sent_or_described(form: Format, media_type: str) -> None:
    file = File.from_bytes(SAMPLES[media_type], name=None)
    message = with_files("look", file)

    (body,) = send(form, request(message))

    if media_type in SENT[form.id]:
        assert [data for _, data in files_in(form.id, body)] == [file.data]
    else:
        assert files_in(form.id, body) == []
        assert file.part.description in json.dumps(body)
    accepts = form.model("http://h/v1").info.accepts(file.part)
    assert (accepts is False) == (media_type not in SENT[form.id])


@each_format
def test_a_missing_file_is_described(form: Format) -> None:
    (body,) = send(form, request(with_files("look", PNG), media={}))

    assert files_in(form.id, body) == []
    assert PNG.part.description in json.dumps(body)


@each_format
def test_a_message_of_one_file_has_no_text(form: Format) -> None:
    (body,) = send(form, request(with_files(PNG)))

    assert len(files_in(form.id, body)) == 1
    assert texts(conversation(body)) == []


@pytest.mark.parametrize("form", [OPENAI, RESPONSES, ANTHROPIC], ids=lambda form: form.id)  # Google's SDK takes bytes
def test_a_file_is_encoded_once_per_run(form: Format) -> None:
    message, cache = with_files("look", PNG), RequestCache()
    answered = Message(role="assistant", content="grey")
    again = with_files("and this?", PDF)
    unreadable: dict[str, Any] = {PNG.part.digest: None}

    first, second = send(
        form,
        request(message, scratch=cache),
        request(message, answered, again, scratch=cache, media={**contents(again), **unreadable}),
    )

    assert [data for _, data in files_in(form.id, first)] == [PNG.data]
    assert [data for _, data in files_in(form.id, second)] == [PNG.data, PDF.data]


def test_concurrent_requests_of_one_client_get_their_own_files() -> None:
    async def run(form: Format) -> list[dict[str, Any]]:
        async with wire_server(lambda _: says(form, "ok")) as server:
            model = form.model(server.url)

            async def ask(file: File) -> None:
                message = with_files(file.name or "", file)
                media = {file.part.digest: file.data}
                async for _ in model.stream(ModelRequest((message,), media=media)):
                    pass

            async with asyncio.TaskGroup() as tasks:
                for n in range(20):
                    tasks.create_task(ask(File.from_bytes(png(f"file {n}"), name=f"{n}.png")))
            await model.close()
            return server.requests

    for form in FORMATS:
        for body in asyncio.run(run(form)):
            ((_, data),) = files_in(form.id, body)
            (number,) = texts(conversation(body))
            assert f"file {number.removesuffix('.png')}".encode() in data


# --- files that tools return


def turn_with_files() -> tuple[Message, ...]:
    calls = (
        ToolCall(id="c1", tool="docs.chart"),
        ToolCall(id="c2", tool="docs.chart"),
        ToolCall(id="c3", tool="made.up"),
    )
    return (
        Message(role="user", content="draw"),
        Message(role="assistant", tool_calls=calls),
        with_files("the chart", PNG, role="tool", tool_call_id="c1"),
        Message(role="tool", content="no chart", tool_call_id="c2"),
        with_files("the page", PDF, role="tool", tool_call_id="c3"),
        Message(role="assistant", content="done"),
        Message(role="user", content="thanks"),
    )


def test_chat_sends_the_files_of_a_turn_after_its_results() -> None:
    (body,) = send(OPENAI, request(*turn_with_files()), model="gpt-5")

    messages = body["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "tool", "tool", "user", "assistant", "user"]
    assert [m["content"] for m in messages[2:5]] == ["the chart", "no chart", "the page"]
    first, image, second, document = messages[5]["content"]
    assert "docs.chart (call c1)" in first["text"]
    assert "made.up (call c3)" in second["text"]
    assert (image["type"], document["type"]) == ("image_url", "file")
    assert files_in("openai", body) == [("image/png", PNG.data), ("application/pdf", PDF.data)]


def test_a_model_of_which_nothing_is_known_gets_them_between_messages_that_alternate() -> None:
    (body,) = send(OPENAI, request(*turn_with_files()))

    roles = [message["role"] for message in body["messages"]]
    call, files = ["assistant", "tool"], ["assistant", "user"]
    assert roles == ["user", *call, *files, *call, *call, *files, "assistant", "user"]
    assert files_in("openai", body) == [("image/png", PNG.data), ("application/pdf", PDF.data)]


def test_chat_keeps_the_files_of_results_while_the_conversation_grows() -> None:
    messages, cache = turn_with_files(), RequestCache()

    grown = send(OPENAI, *(request(*messages[:length], scratch=cache) for length in (1, 5, 6, 7)))

    assert [len(files_in("openai", body)) for body in grown] == [0, 2, 2, 2]
    assert grown[-1] == send(OPENAI, request(*messages))[0]


def test_responses_get_the_files_inside_of_the_results() -> None:
    (body,) = send(RESPONSES, request(*turn_with_files()))

    results = [item["output"] for item in body["input"] if item.get("type") == "function_call_output"]
    assert [part["type"] for part in results[0]] == ["input_text", "input_image"]
    assert results[1] == "no chart"
    assert [part["type"] for part in results[2]] == ["input_text", "input_file"]
    assert files_in("responses", body) == [("image/png", PNG.data), ("application/pdf", PDF.data)]


def test_claude_gets_the_files_inside_of_the_results() -> None:
    (body,) = send(ANTHROPIC, request(*turn_with_files()))

    results = body["messages"][2]["content"]
    assert [block["type"] for block in results] == ["tool_result"] * 3
    assert [block["type"] for block in results[0]["content"]] == ["text", "image"]
    assert results[1]["content"] == "no chart"
    assert [block["type"] for block in results[2]["content"]] == ["text", "document"]
    assert files_in("anthropic", body) == [("image/png", PNG.data), ("application/pdf", PDF.data)]


def test_gemini_3_gets_the_files_inside_of_the_results_and_older_models_beside_them() -> None:
    newer, older = (
        send(GEMINI, request(*turn_with_files()), model=model)[0]["contents"][2]["parts"]
        for model in ("gemini-3-pro", "gemini-2.5-pro")
    )

    assert ["parts" in part["functionResponse"] for part in newer] == [True, False, True]
    assert ["functionResponse" in part for part in older] == [True, True, True, False, False, False, False]
    assert "docs__chart (call c1)" in older[3]["text"]
    for parts in (newer, older):
        sent = files_in("gemini", {"contents": [{"role": "user", "parts": parts}]})
        assert sent == [("image/png", PNG.data), ("application/pdf", PDF.data)]


@each_format
def test_the_json_protocol_keeps_files(form: Format) -> None:
    async def run() -> dict[str, Any]:
        async with wire_server([says(form, '{"type":"final","answer":"ok"}')]) as server:
            model = JsonProtocol(form.model(server.url))
            messages = (with_files("compare", sample("image/webp")), *turn_with_files()[1:])
            async for _ in model.stream(request(*messages)):
                pass
            await model.close()
            return server.requests[0]

    body = asyncio.run(run())

    assert [media_type for media_type, _ in files_in(form.id, body)] == ["image/webp", "image/png", "application/pdf"]
    assert "toolConfig" not in body
    assert "tool_choice" not in body


def test_claude_caches_a_conversation_that_ends_with_a_file() -> None:
    (body,) = send(ANTHROPIC, request(with_files(PNG)))

    assert body["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}


# --- rejected files


@each_format
@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (
            500,
            "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
            "images",
        ),
        (400, "messages[1]: unknown variant `image_url`, expected `text` at line 1 column 9", "images"),
        (400, "this model does not support image input (ref: 1)", "images"),
        (400, "Invalid content type. image_url is only supported by certain models.", "images"),
        (404, "No endpoints found that support image input", "images"),
        (400, "Image input modality is not enabled for models/m", "images"),
        (400, "m does not support PDF input", "PDFs"),
        (400, "audio input is not supported", "audio"),
    ],
)
def test_a_model_that_rejects_files_is_one_error_with_advice(
    form: Format, status: int, message: str, kind: str
) -> None:
    with pytest.raises(ModelError, match=f"/m: the model does not accept {kind}: use another model, or set") as caught:
        send(form, request(with_files(PNG)), answers=[form.failed(status, message)])

    assert "capabilities" in caught.value.message
    assert (caught.value.retryable, caught.value.unavailable) == (False, True)


@each_format
@pytest.mark.parametrize("message", ["Could not process image", "unsupported file type: image/tiff", "no such tool"])
def test_other_rejections_of_requests_with_files_are_unchanged(form: Format, message: str) -> None:
    with pytest.raises(ModelError, match=rf"rejected \(400\): {message}"):
        send(form, request(with_files(PNG)), answers=[form.failed(400, message)])


@each_format
@each_way
def test_an_error_that_quotes_the_request_does_not_show_the_file(form: Format, stream: bool) -> None:
    def echo(body: dict[str, Any]) -> Answer:
        return form.failed(400, json.dumps(body)[-4000:])

    file = File.from_bytes(png("secret pixels", width=200, height=200))
    message = with_files("", file)
    asked = request(message, media={file.part.digest: file.data}, stream=stream, tools=())
    with pytest.raises(ModelError) as caught:
        send(form, asked, answers=echo)

    encoded = base64.b64encode(file.data).decode()
    assert not any(encoded[at : at + 30] in caught.value.message for at in range(0, len(encoded) - 30, 30))
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
