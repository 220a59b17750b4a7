"""A project whose store was written by an earlier version."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.support.paths import TESTS
from tests.support.projects import agent, write

VERSION_2 = TESTS / "store/sql/stores/version-2.sql"
"""SQLite dump of a store with three runs: one ended, one paused, one whose process was killed."""
STORE = "sqlite:///state.db"


def project_with_old_store(root: Path) -> Path:
    """Create a project with a store of schema version 2."""
    with closing(sqlite3.connect(root / "state.db")) as database:
        database.executescript(VERSION_2.read_text("utf-8"))
    return write(root, {"agents.d/one.yaml": agent("one", skill_policy="{ask: [pay], allow: [pay, look, hang]}")})
