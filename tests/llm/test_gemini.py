"""Features of the Gemini client only: schemas, signatures, base URLs and retry delays."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from typing import Any, get_args

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.llm.capabilities import known_capabilities
from framework.llm.client import ModelInfo, ModelRequest
from framework.llm.gemini import request_to_arguments
from framework.llm.message_shape import SchemaForm, gemini_parameters, marked_notice, wire_schema
from framework.llm.openai_format import FOREIGN_SIGNATURE
from framework.types.errors import ModelError
from framework.types.messages import Message, Reasoning, ToolCall, ToolDefinition
from framework.types.spec import ModelSettings
from tests.support.cases import cases
from tests.support.formats import GEMINI, says
from tests.support.wire import Answer, WireServer, raw, wire_server

SYSTEM = Message(role="system", content="Be kind.")
USER = Message(role="user", content="hi")
PARAMETERS = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOLS = (
    ToolDefinition(name="a.b", description="x", parameters=PARAMETERS),
    ToolDefinition(name="c", description="y", parameters={"type": "object", "properties": {}}),
)
CALL = ToolCall(id="call_1", tool="a.b", arguments={"q": "1"})
RESULT = Message(role="tool", content="found", tool_call_id="call_1")


def arguments(*messages: Message, model: str = "gemini-2.5-flash", **settings: Any) -> dict[str, Any]:
    info = ModelInfo("gemini", model, capabilities=known_capabilities(f"gemini/{model}"))
    return request_to_arguments(ModelRequest(messages or (SYSTEM, USER), TOOLS, ModelSettings(**settings)), info)


def ask(answer: Answer, base: str = "", **settings: Any) -> WireServer:
    async def run() -> WireServer:
        async with wire_server([answer]) as server:
            client = GEMINI.model(server.url.removesuffix("/v1") + base)
            try:
                async for _ in client.stream(ModelRequest((USER,), TOOLS, ModelSettings(**settings))):
                    pass
            finally:
                await client.close()
            return server

    return asyncio.run(run())


def test_a_conversation_in_the_api_format() -> None:
    late = Message(role="system", content="Only the answer.")
    asked = Message(role="assistant", content="wait", tool_calls=(CALL,))

    sent = arguments(SYSTEM, USER, asked, RESULT, late, temperature=0.2, max_tokens=9, stop=("END",), seed=1)

    call = {"id": "call_1", "name": "a__b", "args": {"q": "1"}}
    result = {"id": "call_1", "name": "a__b", "response": {"output": "found"}}
    assert sent["contents"] == [
        {"role": "user", "parts": [{"text": "hi"}]},
        {"role": "model", "parts": [{"text": "wait"}, {"function_call": call}]},
        {"role": "user", "parts": [{"function_response": result}, {"text": marked_notice("Only the answer.")}]},
    ]
    declared = [
        {"name": "a__b", "description": "x", "parameters_json_schema": PARAMETERS},
        {"name": "c", "description": "y"},
    ]
    assert sent["config"] == {
        "system_instruction": "Be kind.",
        "temperature": 0.2,
        "max_output_tokens": 9,
        "stop_sequences": ["END"],
        "seed": 1,
        "automatic_function_calling": {"disable": True},
        "automatic_continuation": False,
        "tools": [{"function_declarations": declared}],
        "tool_config": {"function_calling_config": {"mode": "AUTO"}},
    }


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ("a.b", {"mode": "ANY", "allowed_function_names": ["a__b"]}),
    ],
)
def test_the_tool_choice(choice: str, sent: dict[str, Any]) -> None:
    assert arguments(tool_choice=choice)["config"]["tool_config"] == {"function_calling_config": sent}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("gemini-2.5-flash", {"include_thoughts": True, "thinking_budget": 2048}),
        ("gemini-3-flash-preview", {"include_thoughts": True, "thinking_level": "LOW"}),
        ("not-heard-of", {"include_thoughts": True, "thinking_level": "LOW"}),
        ("gemini-2.0-flash", None),
    ],
)
def test_the_thinking_settings_of_each_gemini_model(model: str, expected: dict[str, Any] | None) -> None:
    assert arguments(model=model, reasoning="low")["config"].get("thinking_config") == expected
    assert "thinking_config" not in arguments(model=model)["config"]


def test_calls_of_another_model_get_the_foreign_signature_if_required() -> None:
    asked = Message(role="assistant", tool_calls=(CALL, CALL.model_copy(update={"id": "call_2"})))

    def signatures(model: str) -> list[Any]:
        (_, turn, _) = arguments(USER, asked, RESULT, model=model)["contents"]
        return [part.get("thought_signature") for part in turn["parts"]]

    assert signatures("gemini-3-pro-preview") == [FOREIGN_SIGNATURE, None]
    assert signatures("gemini-2.5-flash") == [None, None]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"source": "gemini-3-pro-preview@"}, b"signed"),
        ({"source": "gemini-3-flash-preview@"}, FOREIGN_SIGNATURE),
        ({"source": "gemini-3-pro-preview@proxy.example.org"}, FOREIGN_SIGNATURE),
        ({}, b"signed"),  # of an imported conversation
    ],
)
def test_signatures_return_to_their_model_and_host_only(source: dict[str, str], expected: bytes) -> None:
    signature = b64encode(b"signed").decode()
    data = {"text": signature, "calls": [signature], **source}
    reasoning = Reasoning(text="", provider="gemini", data=data)
    asked = Message(role="assistant", content="I look.", tool_calls=(CALL,), reasoning=reasoning)

    (_, turn, _) = arguments(USER, asked, RESULT, model="gemini-3-pro-preview")["contents"]

    text = None if expected == FOREIGN_SIGNATURE else expected
    assert [part.get("thought_signature") for part in turn["parts"]] == [text, expected]


@pytest.mark.parametrize(
    ("base", "path"),
    [
        ("", "/v1/models/m:generateContent"),
        ("/v1", "/v1/models/m:generateContent"),
        ("/v1beta/", "/v1beta/models/m:generateContent"),
    ],
)
def test_the_version_of_the_api_is_part_of_base_url(base: str, path: str) -> None:
    assert ask(says(GEMINI, "x"), base).paths == [path]


def test_the_sdk_sends_the_request_unchanged() -> None:
    body = ask(says(GEMINI, "x"), tool_choice="required", reasoning="low").requests[0]

    sent = json.dumps(body).replace("_", "").lower()  # the SDK writes some keys in snake_case and some in camelCase
    schema = json.dumps(PARAMETERS).lower()
    assert f'"name": "ab", "parametersjsonschema": {schema}' in sent
    assert '"functioncallingconfig": {"mode": "any"}' in sent
    assert '"thinkingconfig": {"includethoughts": true, "thinkinglevel": "low"}' in sent


def test_a_blocked_prompt_is_refused() -> None:
    with pytest.raises(ModelError, match="refused: PROHIBITED_CONTENT") as caught:
        ask(raw(200, b'{"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}'))

    assert not caught.value.retryable


@pytest.mark.parametrize("end", ["MALFORMED_FUNCTION_CALL", "OTHER", "MISSING_THOUGHT_SIGNATURE"])
def test_a_failed_generation_is_an_error(end: str) -> None:
    with pytest.raises(ModelError, match=f"unexpected finish_reason: {end}") as caught:
        ask(says(GEMINI, "x", end=end))

    assert caught.value.retryable
    assert bool(caught.value.correction) == (end == "MALFORMED_FUNCTION_CALL")


def test_the_sdk_sends_no_continuation_request() -> None:
    cut = json.loads(says(GEMINI, "half an", end="CONTINUATION").body)
    cut["candidates"][0]["continuationToken"] = "dG9rZW4="

    server = ask(raw(200, json.dumps(cut).encode()))

    assert len(server.requests) == 1


def test_the_retry_delay_in_an_errors_details_is_used() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "12.5s"}]
    error = {"error": {"code": 429, "message": "quota", "status": "RESOURCE_EXHAUSTED", "details": details}}

    with pytest.raises(ModelError, match=r"rate limited, retry after 12.5 s: quota") as caught:
        ask(raw(429, json.dumps(error).encode()))

    assert caught.value.retry_after == 12.5


# --- schemas


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string", "minLength": 3, "default": "x", "$comment": "y"}, {"type": "string"}),
        ({"const": "a"}, {"enum": ["a"]}),
        ({"enum": ["a", 1, None]}, {}),
        ({"type": "integer", "exclusiveMinimum": 0, "maximum": 9}, {"type": "integer", "minimum": 0, "maximum": 9}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"type": "string", "format": "uuid"}, {"type": "string"}),
        ({"$ref": "#/$defs/X", "description": "d"}, {"$ref": "#/$defs/X"}),
        ({"$ref": "#/definitions/X"}, {"$ref": "#/$defs/X"}),
        ({"$ref": "https://example.com/x"}, {}),
        ({"anyOf": [{"type": "null"}, {"const": 1}]}, {"anyOf": [{"type": "null"}, {"enum": [1]}]}),
        (
            {"allOf": [{"properties": {"a": True}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}]},
            {"properties": {"a": {}, "b": {}}, "required": ["a", "b"]},
        ),
        (
            {"type": "object", "additionalProperties": {"type": "string", "pattern": "x"}},
            {"type": "object", "additionalProperties": {"type": "string"}},
        ),
        ({"type": "object", "additionalProperties": False}, {"type": "object", "additionalProperties": False}),
        (
            {"type": "array", "items": {"const": 1}, "uniqueItems": True},
            {"type": "array", "items": {"enum": [1]}},
        ),
    ],
)
def test_a_schema_keeps_what_gemini_accepts(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert gemini_parameters({"properties": {"x": schema}}) == {"type": "object", "properties": {"x": expected}}


def test_definitions_of_older_drafts_are_renamed() -> None:
    made = gemini_parameters({"properties": {"x": {"$ref": "#/definitions/X"}}, "definitions": {"X": {"const": 1}}})

    assert made == {"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"enum": [1]}}}


LEAVES = st.sampled_from(
    [
        {"type": "integer", "minimum": 0, "exclusiveMaximum": 10},
        {"type": "string", "minLength": 1, "pattern": "^a"},
        {"const": "a"},
        {"enum": [1, "b", None]},
        {"type": ["string", "null"], "format": "email"},
        True,
        {"$ref": "#/$defs/leaf"},
    ]
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"type": st.just("array"), "items": inner, "maxItems": st.just(3)}),
        st.builds(lambda one, two: {"anyOf": [one, two]}, inner, inner),
        st.builds(lambda one, two: {"allOf": [one, two]}, inner, inner),
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("xyz"), inner)},
            optional={"required": st.just(["x"]), "additionalProperties": inner},
        ),
    ),
    max_leaves=6,
)
VALUES = st.recursive(
    st.sampled_from([None, 0, 1, 5, "a", "ab", "b", ""]),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("xyz"), inner)),
    max_leaves=5,
)


@given(SCHEMAS, VALUES)
@cases(50)
def test_a_sent_schema_accepts_all_valid_arguments(schema: Any, value: Any) -> None:
    definitions = {"leaf": {"type": "integer", "multipleOf": 5}}
    whole = {"type": "object", "properties": {"value": schema}, "$defs": definitions}

    for api in get_args(SchemaForm):
        made = wire_schema(whole, api)
        jsonschema.Draft202012Validator.check_schema(made)
        if jsonschema.Draft202012Validator(whole).is_valid({"value": value}):
            jsonschema.Draft202012Validator(made).validate({"value": value})
