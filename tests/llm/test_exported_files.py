"""Files in exported and imported conversations: nothing changes on the way, and nothing is fetched."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.llm.message_formats import Form, exported, imported, imported_with_files
from framework.types.errors import RequestError
from framework.types.file import File
from framework.types.media import MediaPart
from framework.types.messages import Message, ToolCall
from tests.support.cases import cases
from tests.support.file_requests import contents, files_in, sample, with_files
from tests.support.media import SAMPLES, png

PROVIDERS: tuple[Form, ...] = ("openai", "anthropic", "gemini")
EXPRESSED: dict[Form, set[str]] = {
    "openai": {"audio/ogg", "audio/flac"} ^ SAMPLES.keys(),
    "anthropic": {media_type for media_type in SAMPLES if not media_type.startswith("audio/")},
    "gemini": SAMPLES.keys() - {"image/gif"},
    "messages": {*SAMPLES},
}
PNG, PDF = sample("image/png"), sample("application/pdf")
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=12).filter(str.strip)


def dumped(data: Any) -> Any:
    """Return the data as a program that reads its JSON sees it."""
    return json.loads(json.dumps(data))


def conversations(form: Form, *, results: bool) -> st.SearchStrategy[list[Message]]:
    """Return conversations with files that a format expresses, in user messages or also in tool results."""
    named = {"application/pdf": "document.pdf"} if form == "openai" else {}  # which requires a name
    files = st.sampled_from(
        [File.from_bytes(SAMPLES[media_type], name=named.get(media_type)) for media_type in sorted(EXPRESSED[form])]
    )
    parts = st.lists(st.one_of(TEXTS, files), min_size=1, max_size=4)
    calls = tuple(ToolCall(id=f"c{number}", tool="chart") for number in range(2))
    answer = Message(role="assistant", content="done")

    def turn(asked: list[str | File], returned: list[list[str | File]]) -> list[Message]:
        question = with_files(*asked)
        answers = [
            with_files("result", *(given if results else ()), role="tool", tool_call_id=call.id)
            for call, given in zip(calls, returned, strict=False)
        ]
        called = [Message(role="assistant", tool_calls=calls[: len(answers)]), *answers] if answers else []
        return [question, *called, answer]

    turns = st.lists(st.builds(turn, parts, st.lists(parts, max_size=2)), min_size=1, max_size=3)
    return turns.map(lambda made: [message for messages in made for message in messages])


@pytest.mark.parametrize("form", [*PROVIDERS, "messages"])
def test_files_of_users_survive_an_export_and_an_import(form: Form) -> None:
    @cases(40)
    @given(messages=conversations(form, results=form in ("messages", "anthropic")))
    def check(messages: list[Message]) -> None:
        files = contents(*messages)
        data = dumped(exported(messages, form, files=files))

        back, found = imported_with_files(data, form)

        assert back == messages
        assert found == files
        assert dumped(exported(back, form, files=found)) == data

    check()


@pytest.mark.parametrize("form", PROVIDERS)
def test_every_export_is_valid_for_the_sdk_and_can_be_imported(form: Form) -> None:
    @cases(40)
    @given(messages=conversations("messages", results=True), known=st.booleans())
    def check(messages: list[Message], known: bool) -> None:
        files = contents(*messages) if known else {}
        data = dumped(exported(messages, form, files=files))
        body = data if form != "openai" else {"messages": data}

        sent = files_in(form, body)
        back, found = imported_with_files(data, form)

        expected = [part for message in messages for part in message.media if part.media_type in EXPRESSED[form]]
        assert len(sent) == (len(expected) if known else 0)
        assert {*found} == {part.digest for part in expected if known}
        assert exported(back, form, files=found)
        omitted = {part.description for message in messages for part in message.media} - {
            part.description for part in expected if known
        }
        assert all(description in json.dumps(data) for description in omitted)

    check()


def test_the_files_of_results_follow_all_results_of_a_turn_in_the_format_of_gemini() -> None:
    calls = (ToolCall(id="c1", tool="chart"), ToolCall(id="c2", tool="chart"))
    messages = [
        Message(role="user", content="draw"),
        Message(role="assistant", tool_calls=calls),
        with_files("one", PNG, role="tool", tool_call_id="c1"),
        with_files("two", PDF, role="tool", tool_call_id="c2"),
    ]

    data = exported(messages, "gemini", files=contents(*messages))

    kinds = [next(iter(part)) for part in data["contents"][2]["parts"]]
    assert kinds == ["function_response", "function_response", "text", "inline_data", "text", "inline_data"]


def test_a_neutral_export_contains_the_contents_only_if_they_are_given() -> None:
    message = with_files("look", File.from_bytes(png(), name="chart.png"))
    (part,) = message.media
    without = dumped(exported([message], "messages"))

    assert "data" not in without[0]["parts"][1]
    assert imported(without, "messages") == [message], "a reference to a stored file"
    assert imported_with_files(exported([message], "messages", files={part.digest: png()}), "messages") == (
        [message],
        {part.digest: png()},
    )


def test_a_document_keeps_its_name_where_the_format_has_one() -> None:
    message = with_files("read", File.from_bytes(PDF.data, name="report.pdf"))

    names: dict[Form, str | None] = {"openai": "report.pdf", "anthropic": "report.pdf", "gemini": None}
    for form, name in names.items():
        data = exported([message], form, files=contents(message))
        ((file,),) = (m.media for m in imported_with_files(data, form)[0])
        assert file.name == name


DATA_URL = "data:image/png;base64," + base64.b64encode(png()).decode()
CLAUDE_URL = {"type": "image", "source": {"type": "url", "url": "https://example.org/cat.png?key=secret"}}


def chat(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [part]}]


def image_url(url: str) -> list[dict[str, Any]]:
    return chat({"type": "image_url", "image_url": {"url": url}})


def neutral(**part: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "parts": [{"type": "media", "media_type": "image/png", "size": 1, **part}]}]


@pytest.mark.parametrize(
    ("form", "data", "message"),
    [
        (
            "openai",
            image_url("https://example.org/cat.png?key=secret"),
            "'https://example.org/cat.png' is not in the data",
        ),
        ("openai", image_url("file:///etc/passwd"), "nothing is fetched: replace it by a data URL"),
        ("openai", image_url("data:image/png,raw"), "is not in the data"),
        ("openai", image_url("data:image/png;base64,%%"), "not valid base64"),
        ("openai", image_url(DATA_URL.replace("png", "jpeg")), "declared as image/jpeg, but its content is image/png"),
        ("openai", image_url("data:text/html;base64,PGh0bWw+"), "declared as text/html"),
        ("openai", chat({"type": "file", "file": {"file_id": "f1"}}), "content of type 'file' is not supported"),
        ("openai", chat({"type": "video_url"}), "content of type 'video_url' is not supported"),
        ("openai", chat({"type": "input_audio", "input_audio": {"data": "eA==", "format": "wav"}}), "audio/wav"),
        ("anthropic", [{"role": "user", "content": [CLAUDE_URL]}], "'https://example.org/cat.png' is not in the data"),
        ("anthropic", [{"role": "user", "content": [{**CLAUDE_URL, "source": {"type": "file"}}]}], "type 'file'"),
        ("gemini", [{"role": "user", "parts": [{"inlineData": {"data": "PGh0bWw+"}}]}], "not of a supported type"),
        ("messages", neutral(digest="0" * 64, data=DATA_URL[22:]), "are not the ones it stands for"),
        ("messages", neutral(digest="../../x"), "digest"),
        ("messages", neutral(digest="0" * 64, data="PGh0bWw+"), "its content is not of a supported type"),
    ],
)
def test_files_that_cannot_be_imported_are_one_error(form: Form, data: Any, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        imported_with_files(data, form, what="chat.json")

    assert str(refused.value).startswith("chat.json")
    assert message in str(refused.value)
    assert "secret" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_an_import_without_a_place_for_files_rejects_them() -> None:
    with pytest.raises(RequestError, match="this conversation contains files, which are not supported here"):
        imported(image_url(DATA_URL), "openai")


def test_both_base64_alphabets_and_missing_padding_are_read() -> None:
    data = bytes(SAMPLES["image/png"])
    standard = base64.b64encode(data).decode()
    for text in (standard, standard.translate(str.maketrans("+/", "-_")), standard.rstrip("=")):
        inline = [{"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": text}}]}]
        (message,), files = imported_with_files(inline, "gemini")
        assert isinstance(message.parts[0], MediaPart)
        assert [*files.values()] == [data]
