"""The Chinese texts of the console: complete, without leftovers, and with the placeholders of the English texts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.node_modules import CONSOLE

MODULES = sorted(path for path in CONSOLE.rglob("*.js") if not {"zh", "built"} & {*path.parts})
AREAS = sorted(path for path in (CONSOLE / "zh").glob("*.js") if path.stem != "index")

TEXT = r'"(?:[^"\\\n]|\\.)*"'
CALLS = re.compile(rf"\bt(?:Parts)?\(\s*({TEXT})|\btn\([^\"]*?{TEXT},\s*({TEXT})")
"""Texts that are translated: of `tn`, only the plural."""
VARIABLE = re.compile(r"\bt(?:Parts)?\(\s*(?![\"\s])[^)]*\)")
ENTRY = re.compile(rf"^  ({TEXT}|\w+):\s+({TEXT}),$", re.MULTILINE)
PLACEHOLDER = re.compile(r"\{\w+\}")


def used_texts() -> dict[str, str]:
    """Return the English texts, each with a module that shows it."""
    found: dict[str, str] = {}
    for path in MODULES:
        for match in CALLS.finditer(path.read_text("utf-8")):
            found[json.loads(match[1] or match[2])] = path.relative_to(CONSOLE).as_posix()
    return found


def entries() -> list[tuple[str, str, str]]:
    """Return each entry: English, Chinese, its file."""
    found = []
    for path in AREAS:
        for english, chinese in ENTRY.findall(path.read_text("utf-8")):
            found.append((json.loads(english) if english[0] == '"' else english, json.loads(chinese), path.name))
    return found


def test_every_text_has_an_entry() -> None:
    known = {english for english, _, _ in entries()}
    missing = {text: module for text, module in used_texts().items() if text not in known}
    assert missing == {}, "add them to the zh/ file of their area; what several areas use belongs to zh/core.js"


def test_no_entry_is_left_over_or_there_twice() -> None:
    used, seen = used_texts(), set[str]()
    for english, _, file in entries():
        assert english in used, f"zh/{file}: no module uses {english!r}; remove the entry"
        assert english not in seen, f"zh/{file}: {english!r} has another entry; keep one of them"
        seen.add(english)


def test_placeholders_are_the_same_in_both_languages() -> None:
    for english, chinese, file in entries():
        assert sorted(PLACEHOLDER.findall(english)) == sorted(PLACEHOLDER.findall(chinese)), f"zh/{file}: {english!r}"


@pytest.mark.parametrize("path", AREAS, ids=lambda path: path.name)
def test_an_area_has_nothing_but_entries(path: Path) -> None:
    text = ENTRY.sub("", path.read_text("utf-8"))
    assert re.fullmatch(r"export default \{\s*\};\n", text), f"not `English: Chinese,` in one line or two:\n{text}"


def test_texts_are_literals() -> None:
    for path in MODULES:
        if path.name != "i18n.js":
            assert VARIABLE.findall(path.read_text("utf-8")) == [], f"{path}: the texts cannot be found"
