"""Conversations as data: export to every format and import, without loss of what the format can express."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.genai import types as gemini
from hypothesis import given
from hypothesis import strategies as st

from framework import RequestError
from framework.llm.message_formats import FORMS, Form, exported, imported
from framework.types.messages import MAX_MESSAGE_CHARS, Message, Reasoning, ToolCall, ToolDefinition, transcript_errors
from tests.support.cases import cases, each

TOOLS = ("echo", "orders.lookup", "mcp.docs.search_files", "x." + "long" * 20)
DEFINITIONS = [ToolDefinition(name=name, description="", parameters={"type": "object"}) for name in TOOLS]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(str.strip)
VALUES = st.none() | st.booleans() | st.integers(-9, 9) | TEXTS
ARGUMENTS = st.dictionaries(TEXTS, VALUES | st.lists(VALUES, max_size=3), max_size=3)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Generate user turns, each answered after some rounds of calls; roles alternate, as all providers require."""
    messages: list[Message] = []
    for _ in range(draw(st.integers(0, 4))):
        messages.append(Message(role="user", content=draw(TEXTS)))
        for _ in range(draw(st.integers(0, 2))):
            calls = [
                ToolCall(id=f"c{len(messages)}-{n}", tool=draw(st.sampled_from(TOOLS)), arguments=draw(ARGUMENTS))
                for n in range(draw(st.integers(1, 3)))
            ]
            messages.append(Message(role="assistant", content=draw(st.just("") | TEXTS), tool_calls=tuple(calls)))
            answers = [Message(role="tool", tool_call_id=call.id, content=draw(TEXTS)) for call in calls]
            messages.extend(answers)
        messages.append(Message(role="assistant", content=draw(TEXTS)))
    return messages


@pytest.mark.parametrize("form", FORMS)
@cases(30)
@given(messages=conversations())
def test_export_and_import_preserve_the_conversation(form: Form, messages: list[Message]) -> None:
    data = json.loads(json.dumps(exported(messages, form, DEFINITIONS)))
    assert imported(data, form, DEFINITIONS) == messages


@cases(60)
@given(messages=conversations(), decided=st.sampled_from([None, "approve", "reject: too much"]))
def test_the_neutral_format_is_lossless(messages: list[Message], decided: str | None) -> None:
    thought = Reasoning(text="hm", provider="anthropic", data={"stamp": "s", "outline": ["text"]})
    full = [
        message.model_copy(update={"status": "denied", "decision": decided})
        if message.role == "tool"
        else message.model_copy(update={"reasoning": thought})
        for message in messages
    ]
    assert imported(json.loads(json.dumps(exported(full, "messages"))), "messages") == full


@pytest.mark.parametrize("form", FORMS)
@cases(40)
@given(messages=conversations(), data=st.data())
def test_merged_messages_lose_no_text_and_no_call(form: Form, messages: list[Message], data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        said = Message(role=data.draw(st.sampled_from(["user", "assistant"])), content=data.draw(TEXTS))
        ends = [0, *(n + 1 for n, m in enumerate(messages) if m.role == "assistant" and not m.tool_calls)]
        messages.insert(data.draw(st.sampled_from(ends)), said)
    back = imported(exported(messages, form, DEFINITIONS), form, DEFINITIONS)
    assert not [*transcript_errors(back)]
    assert [call for m in back for call in m.tool_calls] == [call for m in messages for call in m.tool_calls]
    words = ["".join(m.content.split()) for m in (*messages, *back)]
    assert "".join(words[: len(messages)]) == "".join(words[len(messages) :])


THOUGHTS = {
    "openai": Reasoning(text="hm", provider="deepseek", data={"field": "reasoning_content"}),
    "anthropic": Reasoning(
        text="hm",
        provider="anthropic",
        data={"stamp": "s", "outline": [{"type": "thinking", "thinking": "hm", "signature": "xx"}, "call"]},
    ),
    "gemini": Reasoning(text="", provider="gemini", data={"text": None, "calls": ["c2lnbmVk"]}),
}


@pytest.mark.parametrize("maker", THOUGHTS)
@pytest.mark.parametrize("form", ["openai", "anthropic", "gemini"])
def test_reasoning_is_exported_only_to_its_providers_format(form: Form, maker: str) -> None:
    call = ToolCall(id="c1", tool="echo", arguments={"text": "a"})
    turn = Message(role="assistant", tool_calls=(call,), reasoning=THOUGHTS[maker])
    messages = [Message(role="user", content="go"), turn, Message(role="tool", tool_call_id="c1", content="a")]
    text = json.dumps(exported(messages, form))
    assert ("hm" in text or "c2lnbmVk" in text) == (form == maker)
    if form == maker:
        back = imported(json.loads(text), form)
        assert json.dumps(exported(back, form)) == text


def test_an_export_for_gemini_is_accepted_by_its_sdk() -> None:
    call = ToolCall(id="c1", tool="orders.lookup", arguments={"order": "1"})
    messages = [
        Message(role="system", content="be kind"),
        Message(role="user", content="go"),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", tool_call_id="c1", content="found"),
        Message(role="assistant", content="done"),
    ]
    data = exported(messages, "gemini")
    contents = [gemini.Content.model_validate(content) for content in data["contents"]]
    camel = [json.loads(content.model_dump_json(by_alias=True, exclude_none=True)) for content in contents]
    assert "functionCall" in camel[1]["parts"][0], "the API's own spelling"
    assert imported({**data, "contents": camel}, "gemini", [*DEFINITIONS]) == messages


def test_gemini_calls_without_ids_are_paired_by_name_and_order() -> None:
    call = {"functionCall": {"name": "echo", "args": {"text": "a"}}}
    answers = [{"functionResponse": {"name": "echo", "response": {"output": text}}} for text in ("a", "b")]
    data = [{"role": "model", "parts": [call, call]}, {"role": "user", "parts": answers}]
    first, *rest = imported(data, "gemini")
    assert [m.tool_call_id for m in rest] == [call.id for call in first.tool_calls]
    assert [m.content for m in rest] == ["a", "b"]


def test_code_that_gemini_executed_is_imported_as_text() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "print(4)"}}
    output = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "4"}}
    parts = [{"text": "I compute."}, code, output, {"text": "It is 4."}]
    asked = {"role": "user", "parts": [{"text": "2 + 2?"}]}
    _, answer = imported([asked, {"role": "model", "parts": parts}], "gemini")
    assert answer.content == "I compute.\n\n```python\nprint(4)\n```\n\n\n\n```\n4\n```\n\nIt is 4."


@pytest.mark.parametrize("parts", [None, [], [None], [None, {"text": "hello"}]])
def test_gemini_turns_may_lack_parts(parts: Any) -> None:
    asked = {"role": "user", "parts": [{"text": "hi"}]}
    text = "hello" if parts and parts[-1] else ""
    messages = imported([asked, {"role": "model", "parts": parts}], "gemini")
    assert [message.content for message in messages] == ["hi", text]


CALL = {"role": "assistant", "tool_calls": [{"id": "c1", "tool": "echo", "arguments": {}}]}
BROKEN: list[tuple[Form, Any, str]] = [
    ("messages", "hello", "expected a list of messages"),
    ("messages", [{"role": "robot", "content": "x"}], "0.role"),
    ("messages", [{"role": "user", "text": "x"}], "0.text"),
    ("messages", [CALL], "call 'c1' of echo has no answer up to message 1"),
    ("messages", [CALL, {"role": "user", "content": "x"}], "call 'c1' of echo has no answer up to message 1"),
    ("messages", [{"role": "tool", "tool_call_id": "c9", "content": ""}], "message 1 answers call 'c9'"),
    ("messages", [{"role": "user", "content": "x" * 10_000_000}], f"the maximum is {MAX_MESSAGE_CHARS}"),
    ("openai", {"messages": None}, "expected a list of messages"),
    ("openai", [{"role": "robot", "content": "x"}], "message 1 has an invalid role"),
    ("openai", ["x"], "message 1 has an invalid role"),
    ("anthropic", {"messages": [{"role": "user"}]}, "content"),
    ("anthropic", [{"role": "user", "content": [{"type": "image"}]}], "source"),
    ("anthropic", [{"role": "user", "content": [{"type": "video"}]}], "content of type 'video' is not supported"),
    ("anthropic", [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}], "answers call 't'"),
    ("gemini", [{"role": "user", "parts": [{"inlineData": {}}]}], "a file has no contents in base64"),
    ("gemini", [{"role": "user", "parts": [{"fileData": {"fileUri": "gs://b/o"}}]}], "the file 'gs://b/o' is not in"),
    ("gemini", [{"role": "user", "parts": [{"file_data": {"file_uri": "gs://b/o"}}]}], "the file 'gs://b/o' is not in"),
    ("gemini", [{"role": "user", "parts": [{"videoMetadata": {}}]}], "content of type 'videoMetadata' is not"),
    ("gemini", [{"role": "user", "parts": [{}]}], "content of type 'nothing' is not supported"),
    ("gemini", [{"role": "model", "parts": [{"fileData": {"fileUri": "x"}}]}], "content of type 'fileData' is not"),
    ("gemini", [{"role": "model", "parts": [{"text": "x", "thoughtSignature": "%%%"}]}], "base64"),
    ("gemini", ["x"], "format 'gemini'"),
]


@each(("form", "data", "message"), BROKEN)
def test_invalid_data_is_rejected_with_its_position(form: Form, data: Any, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        imported(data, form)
    assert message in str(refused.value)
    assert len(str(refused.value)) < 500
