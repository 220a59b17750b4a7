"""`format_text` converts rows between three formats, and formats text."""

from __future__ import annotations

import csv
import io
import json
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.types.errors import ToolError
from plugins.format_text import format_text
from tests.support.cases import cases

CSV = 'name,price\ntea,3\n"a, b","say ""hi"""'
TABLE = '| name | price |\n| --- | --- |\n| tea | 3 |\n| a, b | say "hi" |'
JSON = [{"name": "tea", "price": "3"}, {"name": "a, b", "price": 'say "hi"'}]


@pytest.mark.parametrize("text", [CSV, TABLE, json.dumps(JSON), "\ufeff" + CSV, CSV.replace("\n", "\r\n")])
def test_rows_convert_between_all_formats(text: str) -> None:
    assert format_text(text, "csv") == CSV
    assert format_text(text, "table") == TABLE
    assert json.loads(format_text(text, "json")) == JSON


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("a;b\n1;2", "| a | b |\n| --- | --- |\n| 1 | 2 |"),
        ("a\tb\n1\t", "| a | b |\n| --- | --- |\n| 1 |  |"),
        ("a,b\n1", "| a | b |\n| --- | --- |\n| 1 |  |"),
        ('[["a", "b"], [1, null]]', "| a | b |\n| --- | --- |\n| 1 |  |"),
        ('{"a": [1], "b": "x|y\\nz"}', "| a | b |\n| --- | --- |\n| [1] | x\\|y z |"),
        ('[{"a": 1}, {"b": true}]', "| a | b |\n| --- | --- |\n| 1 |  |\n|  | true |"),
        ("a | b\n:-- | --:\n1 \\| 2 | 3", "| a | b |\n| --- | --- |\n| 1 \\| 2 | 3 |"),
    ],
)
def test_tables_accept_what_people_write(text: str, table: str) -> None:
    assert format_text(text, "table") == table


def test_json_of_any_kind_is_indented() -> None:
    assert format_text('{"b":1,"a":["é"]}', "json") == '{\n  "b": 1,\n  "a": [\n    "é"\n  ]\n}'
    assert format_text("3", "json") == "3"


def test_lines_become_bullet_points_regardless_of_their_previous_marker() -> None:
    assert format_text("one\n\n * two\n3. three\n-4 degrees\n", "list") == "- one\n- two\n- three\n- -4 degrees"


def test_long_lines_are_wrapped_between_words_and_paragraphs_are_kept() -> None:
    assert format_text("aaa bbb ccc ddd\n\nhttps://example.com/long-path x", "wrap", 10) == (
        "aaa bbb\nccc ddd\n\nhttps://example.com/long-path\nx"
    )


@pytest.mark.parametrize(
    ("text", "style", "message"),
    [
        (" ", "table", "1 to 200000 characters"),
        ("x" * 200_001, "list", "1 to 200000 characters"),
        ('[{"a": 1}, 2]', "table", "items are all objects, or all arrays"),
        ("[]", "csv", "items are all objects, or all arrays"),
        ("[1, 2]", "table", "items are all objects, or all arrays"),
        ('[{"a": 1]', "table", "not JSON: .* at line 1, column 9"),
        ('{"a": }', "json", "not JSON: Expecting value at line 1, column 7"),
        ("just words", "json", "not JSON"),
        ("a,b\n1,2,3", "table", "row 2 has 3 columns, the first row has 2"),
        ("Prices:\na,b\n1,2", "table", "put the column names in the first line"),
        ('a,b\n"1,2', "csv", "not CSV: unexpected end of data"),
        ("[" * 100_000, "json", "nested too deeply"),
        ("text", "wrap", "width must be between 10 and 1000"),
    ],
)
def test_input_that_cannot_be_formatted_is_explained(
    text: str, style: Literal["table", "csv", "json", "list", "wrap"], message: str
) -> None:
    with pytest.raises(ToolError, match=message):
        format_text(text, style, 5)


CELLS = st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters="`"), min_size=1, max_size=8)


@cases(100)
@given(st.integers(2, 4).flatmap(lambda n: st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=2, max_size=4)))
def test_rows_survive_a_round_trip(rows: list[list[str]]) -> None:
    data = json.dumps(rows)
    assert [*csv.reader(io.StringIO(format_text(data, "csv")))] == rows
    if not any("\\" in cell for row in rows for cell in row):
        back = format_text(format_text(data, "table"), "csv")
        assert [*csv.reader(io.StringIO(back))] == rows
