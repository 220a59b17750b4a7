"""What `is_small_json` accepts is unchanged by writing it as text and reading it strictly."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.types.strict_json import is_small_json, read_json
from tests.support.cases import cases


class Colour(StrEnum):
    RED = "red"


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([Colour.RED, b"x", 1j])
KEYS = st.text() | st.integers() | st.sampled_from([Colour.RED, None, True])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner) | st.tuples(inner), max_leaves=20
)


def types_of(value: Any) -> Any:
    """Return a value with the type of each part, in which `True` differs from `1`, and a tuple from a list."""
    if isinstance(value, dict):
        return [(types_of(key), types_of(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [types_of(item) for item in value]
    return type(value), value


@cases(200)
@given(VALUES)
def test_an_accepted_value_survives_writing_and_reading(value: Any) -> None:
    if is_small_json(value):
        assert types_of(read_json(json.dumps(value))) == types_of(value)


@pytest.mark.parametrize("value", [{"n": 1, "text": "a", "liste é 中": [None, True, {"k": []}]}, {}, [], "", -7])
def test_plain_arguments_are_accepted(value: Any) -> None:
    assert is_small_json(value)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        *(Colour.RED, {"k": Colour.RED}, {Colour.RED: 1}, {1: 2}, (1,), 1.5, "\ud800", {"\ud800": 1}, 2**60),
        *(nested(100), "x" * 1001, [1] * 1001, {str(n): n for n in range(600)}),
    ],
)
def test_everything_else_is_left_to_the_parser(value: Any) -> None:
    assert not is_small_json(value)
