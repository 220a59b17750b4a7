from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.llm.openai_format import (
    chat_to_call,
    chat_to_message,
    chat_to_tool,
    chat_to_usage,
    content_text,
    message_to_chat,
    settings_to_chat,
    tool_choice_to_chat,
    tool_names,
    tool_to_chat,
    usage_to_chat,
    wire_names,
)
from framework.types.messages import Message, Reasoning, ToolCall, ToolDefinition, Usage, parse_call
from framework.types.spec import ModelSettings
from framework.types.text import MAX_JSON_DEPTH, fix_surrogates
from tests.support.cases import cases

SEARCH = ToolDefinition(name="docs.search", description="Search.", parameters={"type": "object", "properties": {}})
LONG = ToolDefinition(name="mcp." + "x" * 80, description="Long.", parameters={"type": "object", "properties": {}})
OFFERED = (SEARCH, LONG)

text = st.text(st.characters(exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(text, children, max_size=3),
    max_leaves=8,
)
calls = st.builds(
    ToolCall,
    id=text.filter(bool),
    tool=st.sampled_from([SEARCH.name, LONG.name, "read_file"]),
    arguments=st.dictionaries(text, json_values, max_size=3),
)
messages = st.one_of(
    st.builds(Message, role=st.sampled_from(["system", "user"]), content=text),
    st.builds(
        Message, role=st.just("assistant"), content=text, tool_calls=st.lists(calls, max_size=3).map(lambda c: tuple(c))
    ),
    st.builds(Message, role=st.just("tool"), content=text, tool_call_id=text),
)


@cases(100)
@given(messages)
def test_a_message_survives_conversion_to_the_api_and_back(message: Message) -> None:
    sent = json.loads(json.dumps(message_to_chat(message, wire_names(OFFERED))))

    assert chat_to_message(sent, tool_names(OFFERED)) == message


@cases(100)
@given(st.text())
def test_parsing_arguments_never_raises_and_reports_the_mistake(given_text: str) -> None:
    call = parse_call("c", "f", given_text)

    assert call.arguments == {} or call.invalid is None
    assert call.invalid is None or call.invalid.startswith("the arguments")


@cases(100)
@given(st.dictionaries(text, json_values, max_size=4))
def test_every_json_object_is_parsed_unchanged(arguments: dict[str, Any]) -> None:
    assert parse_call("c", "f", json.dumps(arguments)) == ToolCall(id="c", tool="f", arguments=arguments)


@cases(100)
@given(st.dictionaries(text, json_values, max_size=4))
def test_an_object_that_is_encoded_twice_is_parsed(arguments: dict[str, Any]) -> None:
    twice = json.dumps(json.dumps(arguments))
    assert parse_call("c", "f", twice) == ToolCall(id="c", tool="f", arguments=arguments)


@cases(100)
@given(st.dictionaries(text, json_values, min_size=1, max_size=4), st.data())
def test_a_truncated_object_is_never_accepted(arguments: dict[str, Any], data: st.DataObject) -> None:
    whole = json.dumps(arguments)
    cut = whole[: data.draw(st.integers(min_value=1, max_value=len(whole) - 1))]

    assert parse_call("c", "f", cut).invalid is not None


@pytest.mark.hostile(4)
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"city": "Par', "Unterminated string"),
        ('{"a": 1}{"a": 2}', "Extra data"),
        ('```json\n{"a": 1}\n```', "Expecting value"),
        ('{"path": "a", "path": "b"}', "duplicate key 'path'"),
        ('{"a": {"b": 1, "b": 2}}', "duplicate key 'b'"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": -Infinity}', "-Infinity is not a JSON number"),
        ('{"a": 1e999}', "1e999 is too large"),
        ('["a"]', "it is a list"),
        ("null", "it is null"),
        ('"text"', "it is a str"),
        ('{"a": "\\ud800"}', "surrogates not allowed"),
        (f'{{"a": {"9" * 5000}}}', "digits"),
        ('{"a": ' + "[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH + "}", "deeper than"),
        ('{"a": ' * 100_000, "deeper than"),
        (7, "it is a int"),
        (object(), "not JSON serializable"),
    ],
)
def test_arguments_that_are_not_one_strict_object_make_an_invalid_call(arguments: object, problem: str) -> None:
    call = parse_call("c1", "f", arguments)

    assert (call.id, call.tool, call.arguments) == ("c1", "f", {})
    assert call.invalid is not None
    assert problem in call.invalid


@pytest.mark.parametrize("arguments", [None, "", "  ", "{}", {}])
def test_a_call_may_omit_empty_arguments(arguments: object) -> None:
    assert parse_call("c", "f", arguments) == ToolCall(id="c", tool="f")


def test_arguments_sent_as_an_object_are_parsed_like_text() -> None:
    assert parse_call("c", "f", {"a": [1, "ü"]}).arguments == {"a": [1, "ü"]}
    assert parse_call("c", "f", {"a": float("nan")}).invalid is not None


def test_tool_names_are_converted_to_the_api_and_back() -> None:
    wire = tool_to_chat(LONG)["function"]["name"]

    assert len(wire) == 64
    assert chat_to_call({"function": {"name": wire, "arguments": "{}"}}, tool_names(OFFERED)).tool == LONG.name


def test_an_unknown_tool_name_is_kept_and_sent_back_with_allowed_characters() -> None:
    call = chat_to_call({"id": "c", "function": {"name": "röd tool()", "arguments": "{}"}}, tool_names(OFFERED))
    sent = message_to_chat(Message(role="assistant", tool_calls=(call,)), wire_names(OFFERED))

    assert call.tool == "röd tool()"
    assert sent["tool_calls"][0]["function"]["name"] == "r_d_tool__"


def test_a_custom_tool_call_cannot_run() -> None:
    call = chat_to_call({"id": "c", "type": "custom", "custom": {"name": "sql", "input": "drop"}}, {})

    assert call.tool == "sql"
    assert call.invalid is not None


@pytest.mark.parametrize("chat", [{}, {"function": None}, {"function": "f"}, {"type": "custom", "custom": 3}])
def test_a_malformed_call_has_an_empty_tool_name(chat: dict[str, Any]) -> None:
    assert chat_to_call(chat, {}).tool == ""


def test_a_tool_definition_survives_conversion_to_the_api_and_back() -> None:
    named = SEARCH.model_copy(update={"name": "read_file"})

    assert chat_to_tool(tool_to_chat(named)) == named
    assert chat_to_tool({"function": {"name": "f"}}).parameters == {"type": "object", "properties": {}}


def test_only_settings_that_are_set_are_sent() -> None:
    chosen = ModelSettings(temperature=0, max_tokens=9, stop=("END",), tool_choice="required")

    assert settings_to_chat(ModelSettings()) == {}
    assert settings_to_chat(chosen) == {
        "temperature": 0,
        "max_tokens": 9,
        "stop": ["END"],
    }


def test_a_tool_choice_by_name_forces_that_tool() -> None:
    names = wire_names(OFFERED)

    assert tool_choice_to_chat("required", names) == "required"
    assert tool_choice_to_chat("docs.search", names) == {"type": "function", "function": {"name": "docs__search"}}


def test_reasoning_is_sent_only_to_its_provider_and_only_with_tool_calls() -> None:
    call = ToolCall(id="c", tool="read_file")
    thought = Reasoning(text="hm", provider="deepseek", data={"field": "reasoning_content"})
    acting = Message(role="assistant", tool_calls=(call,), reasoning=thought)
    answering = Message(role="assistant", content="done", reasoning=thought)

    assert message_to_chat(acting, {}, provider="deepseek")["reasoning_content"] == "hm"
    assert "reasoning_content" not in message_to_chat(acting, {}, provider="openai")
    assert "reasoning_content" not in message_to_chat(answering, {}, provider="deepseek")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_read_from_either_field(field: str) -> None:
    message = chat_to_message({"role": "assistant", "content": "x", field: "hm"}, provider="qwen")

    assert message.reasoning == Reasoning(text="hm", provider="qwen", data={"field": field})
    assert message_to_chat(message, {}, provider="qwen") == {"role": "assistant", "content": "x"}


def test_reasoning_data_of_a_stored_message_cannot_add_other_fields() -> None:
    call = ToolCall(id="c", tool="read_file")
    forged = Reasoning(text="system", provider="p", data={"field": "role"})

    sent = message_to_chat(Message(role="assistant", tool_calls=(call,), reasoning=forged), {}, provider="p")

    assert sent["role"] == "assistant"


def test_content_in_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, "loose", {"text": "b"}]

    assert content_text(parts) == "ab"
    assert chat_to_message({"role": "developer", "content": parts}) == Message(role="system", content="ab")


def test_lone_surrogates_are_joined_or_replaced() -> None:
    assert fix_surrogates("\ud83d" + "\ude00") == "😀"
    assert fix_surrogates("a\ud800b") == "a\ufffdb"
    assert chat_to_message({"role": "assistant", "content": "\udfff"}).content == "\ufffd"


def test_usage_is_counted_with_its_cached_part() -> None:
    usage = Usage(prompt_tokens=10, completion_tokens=4, total_tokens=14, cached_tokens=6)

    assert chat_to_usage(usage_to_chat(usage)) == usage


@pytest.mark.parametrize(
    ("chat", "usage"),
    [
        ({}, Usage()),
        ({"prompt_tokens": None, "completion_tokens": [9], "prompt_tokens_details": None}, Usage()),
        ({"prompt_tokens": -5, "completion_tokens": 3}, Usage(completion_tokens=3, total_tokens=3)),
        ({"prompt_tokens": 2, "completion_tokens": 3}, Usage(prompt_tokens=2, completion_tokens=3, total_tokens=5)),
    ],
)
def test_missing_and_invalid_counts_are_zero(chat: dict[str, Any], usage: Usage) -> None:
    assert chat_to_usage(chat) == usage
