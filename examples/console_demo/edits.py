"""The edits of the shop's files during the two weeks: each makes a new generation of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ShopEdit:
    """A text of a file, and what replaces it."""

    path: str
    before: str
    after: str


_SUPPORT = "agents.d/support.yaml"
EDITS = (
    ShopEdit(_SUPPORT, 'when: {amount: "> 80"}', 'when: {amount: "> 50"}'),
    ShopEdit("agents.d/planner.yaml", "steps: 12", "steps: 20"),
    ShopEdit(_SUPPORT, "tone: friendly}", "tone: friendly and short}"),
    ShopEdit(_SUPPORT, '"docs.*", ask_user]', '"docs.*", stock.level, ask_user]'),
)
"""In order. The files of the shop are those after all of them."""
MISTAKE = ShopEdit("agents.d/stock.yaml", "steps: 6", "stesp: 6")
"""The last edit, which breaks a file: its agent keeps the last good version."""


def apply_edit(project: Path, edit: ShopEdit) -> None:
    """Save the file with its new text."""
    path = project / edit.path
    text = path.read_text("utf-8")
    assert edit.before in text, f"{edit.path} does not contain {edit.before!r}"
    path.write_text(text.replace(edit.before, edit.after, 1), "utf-8")


def undo_edits(project: Path) -> None:
    """Write the files as they were before the first edit."""
    for edit in reversed(EDITS):
        apply_edit(project, ShopEdit(edit.path, edit.after, edit.before))
