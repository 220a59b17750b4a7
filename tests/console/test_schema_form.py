"""Forms for JSON Schemas: which fields they have, and that only what a person changes is changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import cases
from tests.support.node_modules import ModuleError, call

FORM = "../../tests/support/schema_form.mjs"
REFUND = {
    "type": "object",
    "$defs": {"Address": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
    "properties": {
        "order": {"type": "string", "minLength": 3, "pattern": "^[0-9]+$"},
        "amount": {"type": "number", "exclusiveMinimum": 0},
        "count": {"type": "integer", "maximum": 9},
        "notify": {"type": "boolean"},
        "speed": {"enum": ["slow", "fast"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "lines": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "address": {"$ref": "#/$defs/Address"},
        "version": {"const": 2},
        "extra": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["order", "amount"],
}
VALUE = {
    "order": "10482",
    "amount": 89.0,
    "count": 1,
    "notify": True,
    "speed": "slow",
    "note": None,
    "lines": ["a", "b"],
    "address": {"city": "Bern", "zip": "3000"},
    "version": 2,
    "extra": [1, 2],
    "unknown": {"x": 9007199254740993},
}


def fill(value: Any, schema: Any = REFUND, **typed: str) -> Any:
    """Return a value after a person typed texts into fields; `__` stands for the dot of a path."""
    paths = {name.replace("__", "."): text for name, text in typed.items()}
    return json.loads(call(FORM, "fillIn", json.dumps(schema), json.dumps(value), paths))


def exact(value: Any) -> Any:
    """Return a value in which numbers are texts, because 1 == 1.0 == True."""
    return json.loads(json.dumps(value), parse_int=lambda text: f"int {text}", parse_float=lambda text: f"float {text}")


def test_each_kind_of_value_has_its_field() -> None:
    fields = call(FORM, "shownFields", json.dumps(REFUND), json.dumps(VALUE))
    assert {name: kind for name, (kind, _) in fields.items()} == {
        "order": "text",
        "amount": "number",
        "count": "number",
        "notify": "choice",
        "speed": "choice",
        "note": "text",
        "lines": "list",
        "address.city": "text",
        "address.zip": "text",
        "version": "const",
        "extra": "json",
        "unknown": "json",
    }
    assert fields["amount"][1] == "89.0"
    assert json.loads(fields["unknown"][1]) == {"x": 9007199254740993}


@pytest.mark.parametrize(
    ("typed", "changed"),
    [
        ({"amount": "74.50"}, {"amount": 74.5}),
        ({"amount": "1e3"}, {"amount": 1000}),
        ({"count": "-9007199254740993"}, {"count": -9007199254740993}),
        ({"notify": "2"}, {"notify": False}),
        ({"speed": "2"}, {"speed": "fast"}),
        ({"note": "in haste"}, {"note": "in haste"}),
        ({"lines": "b"}, {"lines": ["b"]}),
        ({"lines": ""}, {"lines": []}),
        ({"address__city": "Basel"}, {"address": {"city": "Basel", "zip": "3000"}}),
        ({"extra": "[9007199254740993, 1.0]"}, {"extra": [9007199254740993, 1.0]}),
    ],
)
def test_a_change_changes_nothing_else(typed: dict[str, str], changed: dict[str, Any]) -> None:
    assert exact(fill(VALUE, **typed)) == exact({**VALUE, **changed})


def test_an_optional_value_that_is_emptied_is_left_out_and_a_missing_one_is_added() -> None:
    assert fill(VALUE, count="") == {name: value for name, value in VALUE.items() if name != "count"}
    assert fill(VALUE, notify="0") == {name: value for name, value in VALUE.items() if name != "notify"}
    assert fill({"order": "1", "amount": 2}, count="3", speed="1") == {
        "order": "1",
        "amount": 2,
        "count": 3,
        "speed": "slow",
    }
    assert fill({**VALUE, "note": "x"}, note="")["note"] is None


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ({"amount": "12,5"}, "not a number, such as 12.5"),
        ({"amount": "0"}, "more than 0"),
        ({"amount": ""}, "a value is needed"),
        ({"count": "1.5"}, "not a whole number"),
        ({"count": "10"}, "at most 9"),
        ({"order": "12"}, "at least 3"),
        ({"order": "12x"}, r"must match \^\[0-9\]\+\$"),
        ({"lines": "a\nb\nc"}, "at most 2"),
        ({"extra": "[1,"}, "not valid JSON"),
    ],
)
def test_invalid_input_says_what_is_wrong(typed: dict[str, str], problem: str) -> None:
    with pytest.raises(ModuleError, match=problem):
        fill(VALUE, **typed)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**53 + 1, -(2**63), 10**30, 0, -0.0, 1.0, 1e300, 0.1]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8")),
    st.sampled_from(["", "a\r\nb", "\u202e", " 1 "]),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
NAMES = st.sampled_from(["a", "b", "c", "__proto__", "constructor", "ü"])
LEAVES = st.sampled_from(
    [
        {},
        True,
        {"type": "string"},
        {"type": "number"},
        {"type": "integer"},
        {"type": "boolean"},
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "number"}, {"type": "null"}]},
        {"anyOf": [{"type": "number"}, {"type": "string"}]},
        {"enum": ["", 1, 1.5, None, "x"]},
        {"const": 1},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array"},
        {"$ref": "#/$defs/D"},
        {"$ref": "#/$defs/missing"},
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}},
    ]
)
SCHEMAS = st.builds(
    lambda properties, required: {
        "type": "object",
        "$defs": {"D": {"anyOf": [{"$ref": "#/$defs/D"}, {"type": "null"}]}},
        "properties": properties,
        "required": required,
    },
    st.dictionaries(NAMES, LEAVES, max_size=4),
    st.lists(NAMES, max_size=2),
)


@cases(80)
@given(SCHEMAS, st.dictionaries(NAMES, VALUES, max_size=4))
def test_a_form_that_nobody_touches_returns_the_value_exactly(schema: Any, value: dict[str, Any]) -> None:
    assert exact(fill(value, schema)) == exact(value)
