"""The tutorial, followed literally from an empty folder: its files, its commands, and what they print."""

from __future__ import annotations

from pathlib import Path

from tests.support.tutorial import follow_the_tutorial


def test_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    follow_the_tutorial(tmp_path)
