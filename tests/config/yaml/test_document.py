"""YAML becomes data with positions, or an error with its position."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from framework.config.yaml.document import (
    MAX_DOCUMENT_BYTES,
    BlockDumper,
    Document,
    DocumentError,
    KeyPath,
    Marks,
    PackedMarks,
    plain_scalar,
    read_document,
)
from framework.types.problem import Problem
from tests.support.cases import cases, each
from tests.support.growth import assert_alike

TYPICAL = """\
version: 1
name: support      # the identity
tools:
  allow: [a, "b c"]
  deny:
    - tool: x
      reason: no
text: |
  one
  two
"""


def read(text: str | bytes) -> Document:
    return read_document("agents.d/a.yaml", text if isinstance(text, bytes) else text.encode())


def refused(text: str | bytes) -> Problem:
    with pytest.raises(DocumentError) as caught:
        read(text)
    return caught.value.problem


def place(problem: Problem) -> tuple[int | None, int | None]:
    return problem.line, problem.column


@each(
    ("text", "value"),
    [
        *((word, word) for word in ("yes", "no", "on", "off", "y", "n", "Yes", "NO", "tRue", "nULL", "=")),
        *((word, True) for word in ("true", "True", "TRUE")),
        *((word, False) for word in ("false", "False", "FALSE")),
        *((word, None) for word in ("", "~", "null", "Null", "NULL")),
        ("0", 0),
        ("-0", 0),
        ("+12", 12),
        ("0777", 777),
        ("0o17", 15),
        ("0x1F", 31),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1.5E-2", -0.015),
        *((text, text) for text in ("1_000", "0b1", "0o8", "0x", "1e", "12:30:45", "2001-01-01", "1.2.3", ".", "+")),
    ],
)
def test_plain_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    read_value = read(f"key: {text}\n").data["key"]
    assert (read_value, type(read_value)) == (value, type(value))


@pytest.mark.parametrize("text", ['"12"', "'12'", "! 12", "|-\n  12", ">-\n  12"])
def test_quoted_scalars_are_strings(text: str) -> None:
    assert read(f"key: {text}\n").data == {"key": "12"}


def test_keys_are_always_strings() -> None:
    assert read("1: a\nnull: b\ntrue: c\n'<<': d\n").data == {"1": "a", "null": "b", "true": "c", "<<": "d"}


def test_every_key_and_value_has_a_position() -> None:
    document = read(TYPICAL)
    expected: dict[KeyPath, tuple[tuple[int, int], tuple[int, int]]] = {
        (): ((1, 1), (1, 1)),
        ("version",): ((1, 1), (1, 10)),
        ("name",): ((2, 1), (2, 7)),
        ("tools",): ((3, 1), (4, 3)),
        ("tools", "allow"): ((4, 3), (4, 10)),
        ("tools", "allow", 0): ((4, 11), (4, 11)),
        ("tools", "allow", 1): ((4, 14), (4, 14)),
        ("tools", "deny"): ((5, 3), (6, 5)),
        ("tools", "deny", 0): ((6, 7), (6, 7)),
        ("tools", "deny", 0, "tool"): ((6, 7), (6, 13)),
        ("tools", "deny", 0, "reason"): ((7, 7), (7, 15)),
        ("text",): ((8, 1), (8, 7)),
    }
    assert document.marks == expected
    assert document.data["text"] == "one\ntwo\n"


def test_a_missing_key_is_a_default_and_its_problem_is_at_the_closest_key() -> None:
    document = read(TYPICAL)
    assert document.place(("tools", "deny", 0, "when", "amount")) == "default"
    assert document.place(("tools", "deny", 0)) == "agents.d/a.yaml:6"
    assert document.place(("limits",)) == "default"
    problem = document.problem(("tools", "allow", 1), "no", hint="b")
    assert str(problem) == 'agents.d/a.yaml:4:14: no\n    4 |   allow: [a, "b c"]\n      |              ^\n      = b'


def test_columns_count_characters_not_bytes() -> None:
    document = read('名: {描述: "好", b: 1}\n')
    assert document.marks[("名", "b")][1] == (1, 17)
    assert place(refused('名: "好" x\n')) == (1, 8)


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_line_endings_and_a_byte_order_mark_change_nothing(ending: str) -> None:
    plain, other = read(TYPICAL), read("\ufeff" + TYPICAL.replace("\n", ending))
    assert (other.data, other.marks) == (plain.data, plain.marks)


def test_all_duplicate_keys_are_reported_and_the_rest_of_the_file_is_read() -> None:
    with pytest.raises(DocumentError) as caught:
        read_document("x.yaml", b"a: 1\na: 2\nb: {c: 1, c: 2}\nd: 3\n")
    assert [(problem.line, problem.column) for problem in caught.value.problems] == [(2, 1), (3, 11)]
    assert caught.value.document is not None
    assert caught.value.document.data == {"a": 2, "b": {"c": 2}, "d": 3}


def test_the_number_of_reported_duplicate_keys_is_limited() -> None:
    with pytest.raises(DocumentError) as caught:
        read_document("x.yaml", b"a: 1\n" * 1000)
    assert (len(caught.value.problems), caught.value.document) == (21, None)


def test_lines_are_counted_as_in_the_parser() -> None:
    problem = refused('a: "one\u2028two"\nb: [}\n')
    assert (place(problem), problem.excerpt) == ((3, 5), "b: [}")


@each(
    ("text", "where", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", (3, 1), "duplicate key 'a': first defined on line 1"),
        ("x: {a: 1, a: 2}\n", (1, 11), "duplicate key 'a': first defined on line 1"),
        ("a: &x 1\n", (1, 4), "anchors and aliases are not supported: write the value out"),
        ("a: [*x]\n", (1, 5), "anchors and aliases are not supported: write the value out"),
        ("*x : 1\n", (1, 1), "anchors and aliases are not supported: write the value out"),
        ("&x {a: 1}\n", (1, 1), "anchors and aliases are not supported: write the value out"),
        ("a: !env X\n", (1, 4), "the tag !env is not supported"),
        ("a: !!str 12\n", (1, 4), "the tag tag:yaml.org,2002:str is not supported"),
        ("a: !!python/object/apply:os.system [x]\n", (1, 4), "the tag tag:yaml.org,2002:python/object/apply:os.system"),
        ("a: 1\n<<: {b: 1}\n", (2, 1), "merge keys (<<) are not supported: write the values out"),
        ("a: 1\n---\nb: 2\n", (2, 1), "a second document: only one per file is allowed"),
        ("- a\n", (1, 1), "expected a mapping of keys, found a list"),
        ("hello\n", (1, 1), "expected a mapping of keys, found a single value"),
        ("", (1, 1), "expected a mapping of keys, found nothing"),
        ("# nothing yet\n", (1, 1), "expected a mapping of keys, found nothing"),
        ("[a]: b\n", (1, 1), "a key must be plain text"),
        ("{a: {[b]: 1}}\n", (1, 6), "a key must be plain text"),
        ("a:\n\tb: 1\n", (2, 1), "this line starts with a tab"),
        ("a: b: c\n", (1, 5), "a second `: ` in a value without quotes"),
        ("a: [1,\n", (1, 4), "this `[` is not closed"),
        ('a: "x\n', (1, 4), "this quote is not closed"),
        ("a: .inf\n", (1, 4), "a number must be finite"),
        ("a: [1, .NaN]\n", (1, 8), "a number must be finite"),
        ("a: 1e999\n", (1, 4), "a number must be finite"),
        ("a: " + "1" * 5000, (1, 4), "number with 5000 characters; the limit is 100"),
        ("a: 0x" + "f" * 5000, (1, 4), "number with 5002 characters; the limit is 100"),
        ('名: 好\nb: "x\0y"\n', (2, 6), "character U+0000 is not allowed in files"),
        ("a: \x1b[2J\n", (1, 4), "character U+001B is not allowed in files"),
        ("\ufeff\ufeffa: 1\n", (1, 1), "character U+FEFF is not allowed in files"),
        ('a: "\\ud800"\n', (1, 7), "invalid Unicode character"),
        (b"a: 1\nb: caf\xe9\n", (2, 7), "not UTF-8: byte 0xe9"),
        (b"\xef\xbb\xbfa: 1\nb: caf\xe9\n", (2, 7), "not UTF-8: byte 0xe9"),
        ("a: 1\n".encode("utf-16"), (1, 1), "not UTF-8: byte 0xff"),
        ("a: 1\n".encode("utf-16-le"), (1, 2), "character U+0000 is not allowed in files"),
    ],
)
def test_rejected_input_has_its_position(text: str | bytes, where: tuple[int, int], message: str) -> None:
    problem = refused(text)
    assert place(problem) == where
    assert message in problem.message


def test_tabs_between_words_are_allowed() -> None:
    assert read("a:\t1\t# one\nb: [x,\ty]\n").data == {"a": 1, "b": ["x", "y"]}


@pytest.fixture(scope="module")
def largest() -> str:
    """About the longest text that is read."""
    text = "".join(f"k{number}: 1\n" for number in range(24_000))
    read(text)
    return text


@pytest.mark.hostile(30)
@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "a: " + "[" * 100_000,
        "{a: " * 100_000,
        "? " * 20_000,
        "- " * 100_000,
        "-\n" * 500_000,
        "a: [" + "x," * 500_000,
        "a: [" + "," * 1_000_000,
        "".join(f"k{number}: 1\n" for number in range(80_000)),
        "{" + ",".join(f"k{number}" for number in range(80_000)) + "}",
        "a: " * 300_000,
        ":" * 1_000_000,
        "!" * 1_000_000,
        '"' * 1_000_000,
        "&a " * 300_000,
        "---\n" * 200_000,
        "x" * 1_000_000 + ": 1\ny: [",
        "a: b" + "\n" * 1_000_000 + "c",
        "a: &a [x]\n" + "".join(f"b{n}: &b{n} [*a, *a]\n" for n in range(30)),
        "\n".join(f"a{'x' * 500}: 1" for _ in range(2000)),
        b"a: " + b"x" * 2_000_000,
        b"\xff" * 1_000_000,
        b"\0" * 1_000_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_input_costs_no_more_than_valid_input_and_has_a_short_message(largest: str, text: str | bytes) -> None:
    refusals: list[Problem] = []

    def attempt(text: str | bytes) -> None:
        try:
            read(text)
        except DocumentError as error:
            refusals.append(error.problem)

    assert_alike(attempt, largest, text, noticeable=0.1)
    problem = refusals[0]
    assert len(str(problem)) < 1000
    assert problem.line is not None or len(text) > 1 << 20


def test_excerpts_contain_no_control_characters() -> None:
    assert refused("a: \x1b[2J\n").excerpt == "a: \ufffd[2J"


def test_a_number_within_bounds_is_exact() -> None:
    assert plain_scalar("9" * 100) == int("9" * 100)


KEYS = st.text(st.characters(codec="utf-8", categories=("L", "N")), min_size=1, max_size=8)
LEAVES = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=20)
DATA = st.dictionaries(
    KEYS,
    st.recursive(
        LEAVES | TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=5,
)


@cases(100)
@given(data=DATA, indent=st.none() | st.integers(0, 4))
def test_json_is_read_unchanged(data: dict[str, Any], indent: int | None) -> None:
    document = read(json.dumps(data, ensure_ascii=False, indent=indent))
    assert document.data == data
    for path in document.marks:
        assert _at(data, path) is not _MISSING


@cases(100)
@given(data=DATA)
def test_block_style_is_read_unchanged(data: dict[str, Any]) -> None:
    assert read(_block(data) or "{}").data == data


@cases(400)
@given(source=st.binary(max_size=200))
@example(source=b"\xef\xbb\xbf\xef\xbb\xbf")
@example(source=b"%YAML 3.0\n---\na: 1")
@example(source=b"%TAG ! x\n---\n!a")
def test_any_bytes_are_a_document_or_a_document_error(source: bytes) -> None:
    _parses_or_is_refused(source)


@cases(400)
@given(source=st.text(st.sampled_from(list("ab:-?[]{},&*!|>'\"%@`#<~0. \n\t\r")), max_size=60))
def test_any_text_of_yamls_own_signs_is_a_document_or_a_document_error(source: str) -> None:
    _parses_or_is_refused(source.encode())


def _parses_or_is_refused(source: bytes) -> None:
    try:
        document = read(source)
    except DocumentError as error:
        problem = error.problem
        assert problem.message
        assert problem.line is not None
        assert 1 <= problem.line <= source.count(b"\n") + source.count(b"\r") + source.count(b"\x85") + 3
    else:
        assert isinstance(document.data, dict)
        json.dumps(document.data, allow_nan=False)


_MISSING = object()


def _at(data: Any, path: KeyPath) -> Any:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError):
            return _MISSING
    return data


def _block(value: Any, depth: int = 0) -> str:
    """Return the data in YAML's block style, with scalars in JSON notation."""
    lead = "  " * depth
    if isinstance(value, dict) and value:
        return "".join(
            f"{lead}{json.dumps(key, ensure_ascii=False)}:{_entry(item, depth)}" for key, item in value.items()
        )
    return "".join(f"{lead}-{_entry(item, depth)}" for item in value)


def _entry(item: Any, depth: int) -> str:
    if isinstance(item, (dict, list)) and item:
        return "\n" + _block(item, depth + 1)
    return f" {json.dumps(item, ensure_ascii=False)}\n"


MARKS = st.tuples(st.integers(1, MAX_DOCUMENT_BYTES), st.integers(1, MAX_DOCUMENT_BYTES + 1))


@given(
    st.dictionaries(
        st.lists(st.text(max_size=3) | st.integers(0, 9), max_size=4).map(tuple),
        st.tuples(MARKS, MARKS),
    )
)
@cases(100)
def test_packed_marks_equal_the_original_marks(marks: dict[KeyPath, Marks]) -> None:
    assert dict(PackedMarks(marks)) == marks


def test_a_document_without_data_keeps_its_positions() -> None:
    whole = read_document("a.yaml", b"a:\n  - b: 1\n  - 2\n")
    kept = whole.without_data()
    assert not kept.data
    for path in (("a",), ("a", 0, "b"), ("a", 1), ("a", 7)):
        assert kept.place(path) == whole.place(path)
        assert kept.problem(path, "wrong") == whole.problem(path, "wrong")


NUMBERS = ["0o17", "0x1F", "1_000", "1e3", "+1", ".5", ".inf", "-", "---", "1:30", "2026-01-01", "9" * 400]
WORDS = ["yes", "On", "y", "true", "FALSE", "~", "null", "Null", "<<", "=", "", "word " * 60]
SIGNS = ["*a", "&a", "!a", "%a", "@a", "`a", "'a", '"a', "{a", "[a", "#a", "- a", "a: b", "a #b"]
ODD = ["a\tb", "\xa0", "\x07", "\x85", "\u2028", "\ufeffa", "é日😀"]
LINES = ["a\nb", "a\n\n", "\na", " a\nb", "a \nb", "a\nb  ", "a\n \nb", "a\n  b\n", "a\n---\nb", "a\n#b", "a\r\nb"]


@pytest.mark.parametrize("text", [*NUMBERS, *WORDS, *SIGNS, *ODD, *LINES])
@pytest.mark.parametrize("width", [80, 140])
def test_a_text_is_read_as_it_was_written(text: str, width: int) -> None:
    data = {"key": text, "list": [text, {"key": text}]}
    written = yaml.dump(data, Dumper=BlockDumper, sort_keys=False, allow_unicode=True, width=width)
    assert read_document("a.yaml", written.encode()).data == data


@given(text=st.text(alphabet=st.sampled_from("ab 01.-+:#{}[]|>&*!%@`'\"\\,?~=\n\t\r\x85é日"), max_size=40))
def test_any_text_is_read_as_it_was_written(text: str) -> None:
    written = yaml.dump({"key": text}, Dumper=BlockDumper, allow_unicode=True)
    assert read_document("a.yaml", written.encode()).data == {"key": text}


def test_texts_are_written_as_people_write_them() -> None:
    data = {"description": "Pays bills.", "instructions": "You pay.\n  Be short.\n", "tags": ["a", "a"], "version": "1"}
    written = yaml.dump(data, Dumper=BlockDumper, sort_keys=False)
    assert written == (
        'description: Pays bills.\ninstructions: |\n  You pay.\n    Be short.\ntags:\n- a\n- a\nversion: "1"\n'
    )
