"""Explanations of text that is not YAML: where the mistake is, what it is, and what to do."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from framework.config.yaml.document import DocumentError, read_document
from tests.support.cases import cases, each


def explained(text: str) -> tuple[int, int, str, str]:
    with pytest.raises(DocumentError) as caught:
        read_document("a.yaml", text.encode())
    (problem,) = caught.value.problems
    return problem.line or 0, problem.column or 0, problem.message, problem.hint or ""


TAB = ("this line starts with a tab", "use spaces: YAML allows no tabs in an indentation")
QUOTES = 'put the whole value in quotes: "…"'
TEMPLATE = ("`{{` outside of quotes", 'put the whole value in quotes: "{{ … }}"')
OPEN = ("this quote is not closed", "close it where the text ends")


@each(
    ("text", "line", "column", "message", "hint"),
    [
        ("a:\n\tb: 1\n", 2, 1, *TAB),
        ("a:\n  b: 1\n\tc: 2\n", 3, 1, *TAB),
        ("a:\n\t- b\n", 2, 1, *TAB),
        ("a: |\n\ttext\n", 2, 1, *TAB),
        ("note: Answer: always\n", 1, 13, "a second `: ` in a value without quotes", QUOTES),
        ("- note: see: this\n", 1, 12, "a second `: ` in a value without quotes", QUOTES),
        (
            "name: x\n  description: y\n", 2, 14, "a `:` in the text that starts on line 1",
            "start a key at column 1, as on line 1; put longer text below `KEY: |`",
        ),
        (
            "a:\n    b: 1\n  c: 2\n", 3, 3, "the indentation of this line matches no line above",
            "start it at column 1 (line 1) or column 5 (line 2)",
        ),
        (
            "  name: x\nversion: 1\n", 2, 1, "the indentation of this line matches no line above",
            "start it at column 3 (line 1)",
        ),
        ("a:\n  b: 1\n  - c\n", 3, 3, "a list item among keys", ""),
        ("a:\n  - b\n  c: d\n", 3, 3, "a key among the items of a list", ""),
        ("a: {{ x }}\n", 1, 4, *TEMPLATE),
        ("a: {{ x }} and more\n", 1, 4, *TEMPLATE),
        ("- {{ x }}\n", 1, 3, *TEMPLATE),
        ("a: {% if x %}\n", 1, 4, "`{%` outside of quotes", QUOTES),
        ('a: "x\nb: 1\n', 1, 4, *OPEN),
        ("a: 1\nb: 'x\nc: 2\n", 2, 4, *OPEN),
        ('a: "Bills\nb: {c: ["d"]}\n', 1, 4, "this quote is closed on line 2 only", OPEN[1]),
        ("a: 'it's\nb: 1\n", 1, 8, "text after a closing quote", "write '' for an apostrophe inside '…'"),
        ('a: "Hi" there\n', 1, 9, "text after a closing quote", 'write \\" for a quote inside "…"'),
        ("a: [b, c\nd: e\n", 1, 4, "this `[` is not closed", "add `]`, or a comma"),
        ("a: {b: 1\nc: 2\n", 1, 4, "this `{` is not closed", "add `}`, or a comma"),
        ("a: [b]]\n", 1, 7, "`]` closes nothing", "remove it"),
        ("a: [b] c\n", 1, 8, "text after the end of a value", QUOTES),
        ("a: {b: [1}\n", 1, 10, "expected `,` or `]`: the `[` at column 8 is still open", ""),
        ("name:x\nfoo: bar\n", 1, 1, "a space is missing after the `:`", "write it as `KEY: VALUE`"),
        ("name: x\ndescription\nb: c\n", 2, 1, "a `:` is missing: this line is no key", "write it as `KEY: VALUE`"),
        ("a: - b\n", 1, 4, "a list starts on the line of its key", "write [a, b]"),
        ('a: "\\d"\n', 1, 5, "unknown escape `\\d`", "write `\\\\` for a backslash"),
        ("a: [b.*, *]\n", 1, 10, "a value without quotes cannot start with `*`", QUOTES),
        ("a: @b\n", 1, 4, "a value without quotes cannot start with `@`", QUOTES),
        ("a: | b\n", 1, 6, "text on the line of `|` or `>`", "start the text on the next line, indented"),
    ],
)  # fmt: skip
def test_a_mistake_has_its_place_and_what_to_do(text: str, line: int, column: int, message: str, hint: str) -> None:
    found = explained(text)
    assert found[:3] == (line, column, message)
    assert found[3].startswith(hint)


def test_a_hint_contains_no_value_of_the_file() -> None:
    """A line may contain a secret, which is masked in the excerpt only."""
    for text in ("key: sk-1: x\n", "key: 'sk-1' x\n", "key: [sk-1\n", "key\n  sk-1: y\nb: c\n"):
        assert "sk-1" not in " ".join(map(str, explained(text)))


@cases(100)
@example(["{{ ", "}", "}", "a: "])
@given(st.lists(st.sampled_from(["a: ", "b", "\n", "  ", "\t", "- ", "'", '"', "[", "}", "{{ ", ", ", "|", "*", "#"])))
def test_every_syntax_error_has_a_place_in_the_text(parts: list[str]) -> None:
    text = "".join(parts)
    try:
        list(yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError:
        line, column, message, _ = explained(text)
        lines = [*text.split("\n"), ""]
        assert 1 <= line <= len(lines)
        assert 1 <= column <= len(lines[line - 1]) + 1
        assert message
