"""Markdown in pieces: the blocks do not depend on the pieces, stay small, and control nothing on a terminal."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from framework.cli.run_view import MAX_BLOCK_CHARS, MAX_CODE_LINES, MarkdownBlocks, rendered
from tests.support.cases import cases
from tests.support.screens import without_styles

PARTS = ["# Title", "\n", "\n\n", "text", "- item", "1. one", "   more", "```python", "```", "    code", "| a |", "{"]


def blocks_of(*pieces: str) -> list[str]:
    stream = MarkdownBlocks()
    return [block for piece in pieces for block in stream.feed(piece)] + stream.finish()


def shown(text: str, columns: int = 80) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=columns)
    return "\n\n".join(rendered(console, block) for block in blocks_of(text))


@cases(300)
@given(st.lists(st.one_of(st.text(max_size=8), st.sampled_from(PARTS)), max_size=20), st.integers(1, 7))
def test_blocks_do_not_depend_on_the_pieces(parts: list[str], size: int) -> None:
    text = "".join(parts)
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    assert blocks_of(*pieces) == blocks_of(text)


@cases(300)
@given(st.lists(st.one_of(st.text(max_size=8), st.sampled_from(PARTS)), max_size=20))
def test_no_character_is_lost(parts: list[str]) -> None:
    text = "".join(parts)
    kept = [*"".join(blocks_of(text))]
    assert all(char in kept for char in text if char.isalnum())


def test_paragraphs_lists_and_code_are_blocks_of_their_own() -> None:
    text = "One\nparagraph.\n\n- a\n\n  more of a\n- b\n\n```python\nx = 1\n\ny = 2\n```\nAfter."
    assert blocks_of(text) == [
        "One\nparagraph.\n",
        "- a\n\n  more of a\n- b\n",
        "```python\nx = 1\n\ny = 2\n```",
        "After.",
    ]


def test_long_blocks_are_split_and_code_stays_code() -> None:
    code = "\n".join(f"line {number}" for number in range(50))
    blocks = blocks_of(f"```python\n{code}\n```\n")
    assert len(blocks) == 50 // MAX_CODE_LINES + 1
    assert all(block.startswith("```python\n") and block.endswith("```") for block in blocks)
    assert re.findall(r"line \d+", "".join(blocks)) == code.splitlines()
    assert max(map(len, blocks_of("word " * 100_000))) <= MAX_BLOCK_CHARS


def test_a_huge_line_in_small_pieces_is_split() -> None:
    blocks = blocks_of(*["word "] * 10_000)
    assert max(map(len, blocks)) <= MAX_BLOCK_CHARS + len("word ")


def test_json_is_code() -> None:
    assert blocks_of('{"a": "*b*",\n', '"c": "_d_"}') == ['```json\n{"a": "*b*",\n"c": "_d_"}']
    assert '"*b*"' in without_styles(shown('{"a": "*b*"}'))


@pytest.mark.parametrize(
    "evil",
    [
        "\x1b[2J",
        "`\x1b[2J`",
        "```\n\x1b]52;c;x\x07\n```",
        "&#27;[2J",
        "[a](\x1b[2J)",
        "&#x202e;drow",
        "\u202edrow",
        "\x9b2J",
    ],
)
def test_control_characters_are_escaped_also_as_entities(evil: str) -> None:
    text = without_styles(shown(f"before {evil} after\n"))
    assert re.fullmatch(r"[^\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]*", text), text


def test_markdown_is_rendered_without_marks_and_padding() -> None:
    text = shown("# Title\n\nSome **bold** `code`.\n\n1. one\n2. two\n")
    lines = without_styles(text).splitlines()
    assert lines == ["Title", "", "Some bold code.", "", " 1 one", " 2 two"]
    assert all(len(line) <= 40 for line in without_styles(shown("word " * 30, 40)).splitlines())
