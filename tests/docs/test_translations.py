"""Translated pages have the structure and the code of their originals, so that tests of the originals cover them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

DOCS = ROOT / "docs"
CHINESE = DOCS / "zh"
TRANSLATIONS = sorted(CHINESE.rglob("*.md"))
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
BROKEN = re.compile(r"[\u4e00-\u9fff]\n *[\u4e00-\u9fff]")
"""A line break between two Chinese characters."""


def original(translation: Path) -> Path:
    """Return the page that a page is a translation of."""
    name = translation.relative_to(CHINESE)
    return ROOT / name if name == Path("README.md") else DOCS / name


def heading_levels(page: Path) -> list[int]:
    text = BLOCK.sub("", page.read_text("utf-8"))
    return [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]


def blocks(page: Path) -> list[str]:
    """Return the code blocks of a page, with their languages and titles."""
    return BLOCK.findall(page.read_text("utf-8"))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", TRANSLATIONS, ids=name_of)
def test_a_translation_has_the_headings_and_code_of_its_original(page: Path) -> None:
    source = original(page)
    assert source.is_file(), f"there is no {name_of(source)}"
    assert heading_levels(page) == heading_levels(source)
    assert blocks(page) == blocks(source)


@pytest.mark.parametrize("page", TRANSLATIONS, ids=name_of)
def test_chinese_lines_break_after_punctuation(page: Path) -> None:
    """A browser shows a line break as a space, which is visible between two characters."""
    assert BROKEN.findall(BLOCK.sub("", page.read_text("utf-8"))) == []


def test_the_readme_the_tutorial_and_agent_files_are_translated() -> None:
    translated = {str(page.relative_to(CHINESE)) for page in TRANSLATIONS}
    tutorial = {f"tutorial/{page.name}" for page in (DOCS / "tutorial").glob("*.md")}
    assert {"README.md", "agents.md", *tutorial} - translated == set()
