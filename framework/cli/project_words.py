"""Names of a project for completions, read from its files without loading the project."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

Word = tuple[str, str]
"""A completion, and a few words about it."""

MAX_FILES = 500
MAX_RUNS = 30
_NAME = re.compile(r"^name:\s*[\"']?([a-z][a-z0-9_-]*)", re.MULTILINE)
_DESCRIPTION = re.compile(r"^description:\s*[\"']?([^\"'>|\n][^\n]*)", re.MULTILINE)
_STORE_URL = re.compile(r"^store:[^\n]*?(?:\n[ \t]+[^\n]*)*?[\s{]url:\s*[\"']?([^\"'\s},#]+)", re.MULTILINE)
_SQLITE = "sqlite:///"
_DEFAULT_STORE = f"{_SQLITE}.agentsd/state.db"


class ProjectWords:
    """The names of a project: agents and runs as they are now, tools and models as of the last check or run."""

    def __init__(self, folder: str) -> None:
        """Take the project's folder. Whatever cannot be read completes nothing."""
        self._folder = Path(folder)

    def agents(self) -> Iterator[Word]:
        """Yield the names of the agents."""
        for path in sorted((self._folder / "agents.d").glob("*.y*ml"))[:MAX_FILES]:
            with suppress(OSError):
                text = path.read_text("utf-8", "replace")
                if found := _NAME.search(text):
                    description = _DESCRIPTION.search(text)
                    yield found[1], description[1] if description else ""

    def tools(self) -> Iterator[Word]:
        """Yield the names of the tools."""
        yield from self._schema_words("$defs", "SkillPolicy", "properties", "allow", "items")

    def models(self) -> Iterator[Word]:
        """Yield the names of the models: aliases, and providers to continue with the name of a model."""
        yield from self._schema_words("properties", "model")

    def runs(self) -> Iterator[Word]:
        """Yield the newest runs; `last` is the newest."""
        yield "last", "the newest run"
        yield from self._rows("SELECT id, status || ', ' || agent FROM agentsd_runs ORDER BY no DESC LIMIT ?")

    def conversations(self) -> Iterator[Word]:
        """Yield the conversations with the latest turns."""
        yield from self._rows("SELECT id, agent FROM agentsd_conversations ORDER BY updated_at DESC LIMIT ?")

    def _schema_words(self, *path: str) -> Iterator[Word]:
        """Yield the names that the schema for editors lists at a path."""
        with suppress(OSError, ValueError, LookupError, TypeError):
            found = json.loads((self._folder / ".agentsd" / "agent.schema.json").read_text("utf-8"))
            for key in (*path, "anyOf", 0):
                found = found[key]
            texts = found.get("enumDescriptions") or [""] * len(found["enum"])
            yield from ((name, text.partition("\n")[0]) for name, text in zip(found["enum"], texts, strict=False))

    def _rows(self, query: str) -> Iterator[Word]:
        if (path := self._store()) is None:
            return
        with (
            suppress(sqlite3.Error),
            closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=0)) as store,
        ):
            yield from ((name, text or "") for name, text in store.execute(query, (MAX_RUNS,)))

    def _store(self) -> Path | None:
        """Return the SQLite file of the store; None for other databases."""
        url = os.environ.get("AGENTSD_STORE__URL") or self._store_of_settings() or _DEFAULT_STORE
        path = (self._folder / url.removeprefix(_SQLITE)).absolute()
        return path if url.startswith(_SQLITE) and path.is_file() else None

    def _store_of_settings(self) -> str | None:
        with suppress(OSError):
            found = _STORE_URL.search((self._folder / "agentsd.yaml").read_text("utf-8", "replace"))
            return found[1] if found else None
        return None
