"""Projects whose store was written by an earlier version."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.support.paths import TESTS
from tests.support.projects import agent, write

DUMPS = tuple(TESTS / f"store/sql/stores/version-{number}.sql" for number in (2, 3, 4, 6))
"""SQLite dumps of stores, by schema version, with three runs: one ended, one paused, one whose process was killed."""
TENANTS = TESTS / "store/sql/stores/version-4-tenants.sql"
"""Dump of a store with conversation c1 of tenant a (two turns), a paused run in c2 of tenant b, and c3 of no tenant."""
QUEUED = TESTS / "store/sql/stores/version-6-queued.sql"
"""Dump of a store with six queued runs, "1" to "6": one of no conversation, claimed by a killed process; two in
c1; one in c2, of which a run is paused; two in the new conversation c3."""
STORE = "sqlite:///state.db"


def project_with_old_store(root: Path, dump: Path = DUMPS[0]) -> Path:
    """Create a project with the store of a dump."""
    with closing(sqlite3.connect(root / "state.db")) as database:
        database.executescript(dump.read_text("utf-8"))
    return write(root, {"agents.d/one.yaml": agent("one", skill_policy="{ask: [pay], allow: [pay, look, hang]}")})
