"""The schema of a reply accepts every call with valid arguments, whatever JSON Schema the tool declares."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.llm.json_protocol import reply_schema
from framework.types.messages import ToolDefinition
from tests.support.cases import cases

SUPPORTED = {"type", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf"}
SIMPLE = st.sampled_from(
    [
        {"type": "string", "pattern": "^a", "minLength": 1, "format": "date"},
        {"type": "integer", "minimum": 1, "multipleOf": 2},
        {"type": ["string", "null"], "default": None},
        {"enum": ["a", 1, None]},
        {"const": {"a": 1}},
        {"$ref": "#/$defs/kind"},
        {"not": {"type": "string"}},
        {"type": "any"},
        True,
        {},
    ]
)


def objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["a", "b", "type"])
    return st.builds(
        lambda properties, required, closed: {
            "type": "object",
            "properties": properties,
            "required": sorted(required),
            **({"additionalProperties": False} if closed else {}),
        },
        st.dictionaries(names, values, max_size=3),
        st.sets(names),
        st.booleans(),
    )


SCHEMAS = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        objects(inner),
        st.builds(lambda items: {"type": "array", "items": items, "uniqueItems": True}, inner),
        st.builds(lambda choices: {"oneOf": choices}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda choices: {"allOf": choices}, st.lists(inner, min_size=1, max_size=2)),
    ),
    max_leaves=5,
)
VALUES = st.recursive(
    st.sampled_from(["", "abc", 0, 2, 3, None, True, 1.5]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["a", "b", "type", "c"]), inner, max_size=3)
    ),
    max_leaves=4,
)


def arguments_schema(parameters: Any) -> dict[str, Any]:
    tool = ToolDefinition(name="look", description="", parameters=parameters)
    schema: dict[str, Any] = reply_schema([tool], must_act=True)["properties"]["args"]
    return schema


def keywords(schema: object) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ()), schema.get("items")]
    return {*schema}.union(*map(keywords, inner))


@cases(300)
@given(parameters=objects(SCHEMAS), arguments=st.dictionaries(st.sampled_from(["a", "b", "type", "c"]), VALUES))
def test_valid_arguments_are_never_excluded(parameters: dict[str, Any], arguments: dict[str, Any]) -> None:
    simplified = arguments_schema(parameters)
    assert keywords(simplified) <= SUPPORTED
    complete = {**parameters, "$defs": {"kind": {}}}
    try:
        is_valid = jsonschema_rs.validator_for(complete).is_valid(arguments)
    except ValueError:  # the tool's own schema is invalid
        return
    assert not is_valid or jsonschema_rs.validator_for(simplified).is_valid(arguments)


@pytest.mark.parametrize(
    ("parameters", "simplified"),
    [
        ({}, {"type": "object"}),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "object"}}}, {"type": "object"}),
        (
            {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n", "gone"]},
            {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        ),
        (
            {"type": "object", "properties": {"n": {"type": ["any"]}, "m": {"anyOf": [{"type": "null"}, True]}}},
            {"type": "object", "properties": {"n": {}, "m": {"anyOf": [{"type": "null"}, {}]}}, "required": []},
        ),
    ],
)
def test_keywords_that_servers_may_reject_are_dropped(parameters: dict[str, Any], simplified: dict[str, Any]) -> None:
    assert arguments_schema(parameters) == simplified
