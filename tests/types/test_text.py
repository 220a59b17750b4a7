"""The size of a JSON text is counted before anything is built of it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.types.text import MAX_JSON_DEPTH, check_json_size, has_more_values, nesting_depth, read_json
from tests.support.cases import cases

TEXTS = st.text() | st.text(alphabet='[]{},"\\: ')
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=30,
)


def is_accepted(text: str, max_values: int) -> bool:
    try:
        check_json_size(text, max_values)
    except ValueError:
        return False
    return True


@cases(80)
@given(VALUES, st.integers(1, 40), st.booleans(), st.sampled_from([None, 1]))
def test_the_values_of_a_text_are_counted_exactly(value: Any, most: int, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert is_accepted(text, most) == (not has_more_values(value, most))


@pytest.mark.parametrize("inner", ["", "1", "[]", '"[[["'])
def test_the_levels_of_a_text_are_counted_exactly(inner: str) -> None:
    for levels in range(MAX_JSON_DEPTH - 3, MAX_JSON_DEPTH + 3):
        text = "[" * levels + inner + "]" * levels
        assert is_accepted(text, 1000) == (nesting_depth(json.loads(text)) <= MAX_JSON_DEPTH)


@pytest.mark.parametrize(
    "text",
    [
        *("[" + part * 1_000_000 for part in ("[],", '"",', "{},", "0,", "{}", '{"a":')),
        *(part * 1_500_000 for part in ("[", "]", ",", '""', '"\\"', '"\\', "{[")),
    ],
)
def test_a_text_of_any_form_is_rejected_for_little_work(text: str) -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match=r"more than 100000 values|deeper than 100 levels|^Ex|Unterminated"):
        read_json(text)
    assert time.process_time() - started < 0.5  # parsing 4 MB of nested lists takes longer, and 100 times the memory


def test_characters_of_structure_in_texts_are_no_values() -> None:
    text = json.dumps({"text": '[{"a, b",}]' * 100_000})
    assert read_json(text) == json.loads(text)
