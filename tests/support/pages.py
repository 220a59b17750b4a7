"""Pages of the documentation and their code blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.support.paths import ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "AGENTS.md", *(ROOT / "docs").rglob("*.md")])


def code_blocks(language: str) -> Iterator[tuple[str, str]]:
    """Yield the place and text of each fenced block of a language."""
    for page in PAGES:
        for number, text in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), re.DOTALL), 1):
            yield f"{page.relative_to(ROOT)}#{number}", text
