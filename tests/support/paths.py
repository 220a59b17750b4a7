"""Folders of this repository."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
