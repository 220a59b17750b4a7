"""Bodies of OpenAI's clients become messages and options of a run, or an error that names the field."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from framework import File
from framework.engine.runtime.request import check_request, read_history
from framework.server.openai_request import (
    ChatCompletionBody,
    ClientRequest,
    ResponseBody,
    read_chat,
    read_response,
)
from framework.types.errors import RequestError
from tests.support.cases import cases, each
from tests.support.media import png

PNG = png()
IMAGE = f"data:image/png;base64,{b64encode(PNG).decode()}"
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

CITY_FUNCTION = {"name": "City", "description": "A city.", "parameters": SCHEMA, "strict": True}
CITY: dict[str, Any] = {"type": "function", "function": CITY_FUNCTION}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "time"}}


def chat(messages: Any = HI, **fields: Any) -> ClientRequest:
    return read_chat(ChatCompletionBody.model_validate({"model": "one", "messages": messages, **fields}))


def response(given_input: Any = "hi", **fields: Any) -> ClientRequest:
    return read_response(ResponseBody.model_validate({"model": "one", "input": given_input, **fields}))


def test_system_messages_anywhere_become_instructions_and_the_rest_a_history() -> None:
    asked = chat(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": [{"type": "text", "text": "yes?"}], "refusal": None, "audio": None},
            {"role": "developer", "content": [{"type": "text", "text": "Answer in French."}]},
            {"role": "user", "content": [{"type": "text", "text": "how are you?"}]},
            {"role": "system", "content": " \n"},
        ]
    )
    assert asked.options == {"instructions": "Be brief.\n\nAnswer in French."}
    assert asked.message == "how are you?"
    assert asked.history == ({"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes?"})


def test_sampling_settings_become_defaults_and_limits_only_shrink() -> None:
    asked = chat(
        temperature=0, top_p=0.5, seed=7, stop="END", max_tokens=90, max_completion_tokens=50, frequency_penalty=1
    )
    assert asked.options["default_model_settings"] == {
        "temperature": 0, "top_p": 0.5, "seed": 7, "stop": ["END"], "max_tokens": 50,
    }  # fmt: skip
    assert response(max_output_tokens=9, stop="ignored").options["default_model_settings"] == {"max_tokens": 9}
    assert chat(temperature=None, stop=None, n=1, tools=[], store=False, metadata=None).options == {}


def test_a_schema_and_json_become_options() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "City", "schema": SCHEMA, "strict": True}}
    assert chat(response_format=form).options == {"output_schema": SCHEMA}
    assert chat(response_format=form).wants_data
    text = {"format": {"type": "json_schema", "name": "City", "schema": SCHEMA}, "verbosity": "low"}
    assert response(text=text).options == {"output_schema": SCHEMA}
    json = {"output_schema": {"type": "object", "additionalProperties": True}}
    assert chat(response_format={"type": "json_object"}).options == json
    assert response(text={"format": {"type": "json_object"}}).options == json
    assert chat(response_format={"type": "json_object"}).wants_data
    assert chat(response_format={"type": "text"}).options == response(text={}).options == {}


def test_images_and_files_in_the_data_become_files() -> None:
    asked = chat([{"role": "user", "content": [
        {"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}},
    ]}])  # fmt: skip
    assert asked.message == ["what is this?", File.from_bytes(PNG)]
    asked = response([{"role": "user", "content": [
        {"type": "input_image", "image_url": IMAGE, "detail": "auto"}, {"type": "input_text", "text": "what is this?"},
        {"type": "input_file", "file_data": IMAGE, "filename": "a.png"},
    ]}])  # fmt: skip
    assert asked.message == [File.from_bytes(PNG), "what is this?", File.from_bytes(PNG, name="a.png")]


def test_a_file_of_an_earlier_message_stays_in_the_history() -> None:
    asked = chat([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE}}]},
                  {"role": "assistant", "content": "a dot"}, *HI])  # fmt: skip
    messages, files = read_history(asked.history)
    assert [part.digest for part in messages[0].media] == list(files)
    assert list(files.values()) == [PNG]


def test_items_of_responses_become_messages_and_reasoning_is_left_out() -> None:
    asked = response(
        [
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": "hello"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": "yes?", "annotations": []}]},
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        ],
        instructions="Be kind.",
    )  # fmt: skip
    assert asked.options == {"instructions": "Be kind.\n\nBe brief."}
    assert asked.message == "hi"
    assert asked.history == ({"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes?"})
    assert (response().message, response().history) == ("hi", ())


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}, {"tool_choice": None}])
def test_tools_that_the_model_may_call_are_ignored(choice: dict[str, Any]) -> None:
    for asked in (chat(tools=[CITY, TIME], **choice), response(tools=[{**CITY, **CITY["function"]}], **choice)):
        assert (asked.options, asked.function, asked.ignored) == ({}, "", ("tools",))
    assert chat(functions=[{"name": "x"}], function_call="auto").ignored == ("functions",)
    assert chat(tools=[CITY], tool_choice="none").ignored == ()


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "City"}}])
def test_a_function_that_must_be_called_is_the_schema_of_the_answer(choice: Any) -> None:
    tools = [CITY] if choice == "required" else [TIME, CITY]
    form = {"type": "json_object"}
    asked = chat(tools=tools, tool_choice=choice, response_format=form)
    assert asked.options == {"output_schema": {"description": "A city.", **SCHEMA}}
    assert (asked.function, asked.ignored, asked.wants_data) == ("City", (), True)
    flat = [{"type": "function", **tool["function"]} for tool in tools]
    named = choice if choice == "required" else {"type": "function", "name": "City"}
    assert response(tools=flat, tool_choice=named).options == asked.options
    assert chat(tools=[TIME], tool_choice="required").options == {"output_schema": {"type": "object"}}


CITY_CALLED = {"id": "c1", "type": "function", "function": {"name": "City", "arguments": '{"city": "Rome"}'}}
CALL = {"role": "assistant", "content": None, "tool_calls": [CITY_CALLED]}
CALLED = {"role": "assistant", "tool_calls": [{"id": "c1", "tool": "City", "arguments": {"city": "Rome"}}]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "in Italy, please"}


def test_a_conversation_may_contain_calls_and_end_with_their_results_or_an_answer() -> None:
    asked = chat([*HI, CALL, RESULT, {"role": "user", "content": "thanks"}])
    user, *rest = asked.history
    assert (user, rest[0], rest[1]["content"], asked.message) == (HI[0], CALLED, "in Italy, please", "thanks")
    asked = chat([*HI, CALL, RESULT])
    assert (asked.history[1], asked.message, asked.ends_with_result) == (CALLED, "Continue.", True)
    asked = chat([*HI, {"role": "assistant", "content": "Once upon"}])
    assert (asked.history[-1]["content"], asked.message, asked.ends_with_result) == ("Once upon", "Continue.", False)


def test_calls_among_the_items_of_responses_become_those_of_one_message() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "City", "arguments": "{}"}
    outputs: dict[str, Any] = {"c1": "c1", "c2": [{"type": "input_text", "text": "c2"}]}
    results = [{"type": "function_call_output", "call_id": name, "output": outputs[name]} for name in outputs]
    asked = response([*HI, call, {"type": "reasoning", "summary": []}, {**call, "call_id": "c2"}, *results])
    _, called, *answers = asked.history
    assert [one["id"] for one in called["tool_calls"]] == ["c1", "c2"]
    assert [(one["tool_call_id"], one["content"]) for one in answers] == [("c1", "c1"), ("c2", "c2")]
    assert (asked.message, asked.ends_with_result) == ("Continue.", True)


URL_PART = [{"role": "user", "content": [{"type": "text", "text": "a"},
             {"type": "image_url", "image_url": {"url": "https://x.example/a.png?token=secret"}}]}]  # fmt: skip


@each(
    ("fields", "param", "problem"),
    [
        ({"tools": [CITY], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice",
         "no function 'x'"),
        ({"tool_choice": "required"}, "tool_choice", "no function"),
        ({"tools": [CITY], "tool_choice": "any"}, "tool_choice", "expected none, auto, required or a function"),
        ({"tools": [CITY], "tool_choice": 7}, "tool_choice", "expected none, auto, required or a function, got 7"),
        ({"functions": [{"name": "x"}], "function_call": {"name": "x"}}, "function_call", "use tool_choice"),
        ({"n": 2}, "n", "n: only one answer is supported, not 2"),
        ({"store": True}, "store", "store is not supported: responses are not kept here"),
        ({"modalities": ["text", "audio"]}, "modalities", "modalities: only text"),
        ({"response_format": {"type": "xml"}}, "response_format", "expected json_schema, json_object or text"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "expected a JSON Schema"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "messages", "there is no message of the user"),
        ({"messages": [{"role": "system", "content": "a"}]}, "messages", "there is no message of the user"),
        ({"messages": [{"role": "robot", "content": "a"}, *HI]}, "messages", "message 1 has an invalid role"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages.0.content.0", "expected an object with a type"),
        ({"messages": URL_PART}, "messages.0.content.1.image_url", "send the image as a data URL"),
        ({"messages": [{"role": "user", "content": [{"type": "video", "video": {}}]}]}, "messages", "type 'video'"),
        ({"messages": [{"role": "tool", "tool_call_id": "x", "content": "a"}, *HI]}, "messages", "no earlier message"),
    ],
)  # fmt: skip
def test_what_chat_completions_cannot_do_is_an_error_that_names_the_field(
    fields: dict[str, Any], param: str, problem: str
) -> None:
    with pytest.raises(RequestError, match=problem) as error:
        chat(**fields)
    assert error.value.param == param
    assert "secret" not in error.value.message


@pytest.mark.parametrize(
    ("fields", "param", "problem"),
    [
        ({"previous_response_id": "resp_1", "input": [{"type": "function_call_output", "call_id": "x", "output": ""},
                                                      *HI]}, "input", "results of calls without further messages"),
        ({"background": True}, "background", "POST /agent/runs"),
        ({"conversation": "c1"}, "conversation", "send the header X-Conversation-Id"),
        ({"prompt": {"id": "p"}}, "prompt", "instructions are in the agent's file"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0", "providerOptions.openai.store = false"),
        ({"input": [*HI, {"type": "function_call_output", "call_id": "x", "output": ""}]}, "input", "no earlier"),
        ({"input": [{"type": "computer_call"}]}, "input.0", "computer_call"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "no function"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice", "got 'web_search'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
         "input.0.content.0", "content of type 'input_image' is not supported in this form"),
        ({"input": [{"role": "user", "content": [7]}]}, "input.0.content.0", "expected an object with a type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "expected a JSON Schema"),
    ],
)  # fmt: skip
def test_what_responses_cannot_do_is_an_error_that_names_the_field(
    fields: dict[str, Any], param: str, problem: str
) -> None:
    with pytest.raises(RequestError, match=problem) as error:
        response(fields.pop("input", "hi"), **fields)
    assert error.value.param == param


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["user", "text", "hi", "message", IMAGE, "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "image_url", "url", "tool_calls", "refusal", "schema"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
FIELDS = st.dictionaries(
    st.sampled_from(
        [
            "response_format",
            "text",
            "tools",
            "tool_choice",
            "n",
            "stop",
            "seed",
            "metadata",
            "instructions",
            "temperature",
        ]
    ),
    JSON,
    max_size=3,
)


@cases(150)
@given(messages=st.lists(JSON, max_size=3), fields=FIELDS, is_chat=st.booleans())
def test_any_body_is_a_request_that_the_runtime_accepts_or_an_error(
    messages: Any, fields: dict[str, Any], is_chat: bool
) -> None:
    try:
        asked = chat(messages, **fields) if is_chat else response(messages, **fields)
        check_request(asked.message, {**asked.options, "history": asked.history, "metadata": asked.metadata})
    except (RequestError, ValidationError):
        return
    assert asked.model == "one"
