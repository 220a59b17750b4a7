"""The diagrams are what their script draws, and their texts do not overlap."""

from __future__ import annotations

import pytest

from examples.diagrams import DIAGRAMS, IMAGES, WIDTH, Diagram, draw
from tests.support.paths import ROOT

CHARACTERS = WIDTH // 7
"""How many characters of the font fit into a box."""


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda diagram: diagram.file)
def test_a_diagram_is_what_its_script_draws_and_a_page_shows_it(diagram: Diagram) -> None:
    assert (IMAGES / diagram.file).read_text("utf-8") == draw(diagram), "run `python -m examples.diagrams`"
    pages = (page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert any(f"images/{diagram.file})" in page for page in pages)


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda diagram: diagram.file)
def test_texts_fit_into_their_boxes_and_no_two_boxes_are_at_one_place(diagram: Diagram) -> None:
    for boxes in diagram.lanes.values():
        assert len({box.column for box in boxes}) == len(boxes)
        for box in boxes:
            assert max(map(len, box.text.split("/"))) <= CHARACTERS, box.text
