"""The files of a store's database, from its URL. Tools must not read or write them."""

from __future__ import annotations

from pathlib import Path

_SUFFIXES = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files that belong to a SQLite database."""


def database_paths(url: str, root: Path) -> tuple[Path, ...]:
    """Return the absolute paths of a store's database files, or nothing if the URL names a server.

    Args:
        url: a store URL such as `sqlite:///state.db`; it may be invalid.
        root: the project folder.
    """
    scheme, mark, rest = url.partition(":///")
    name = rest.partition("?")[0].removeprefix("file:")
    if not mark or not scheme.startswith("sqlite") or not name:
        return ()
    file = (root / name).resolve()
    return tuple(file.with_name(f"{file.name}{suffix}") for suffix in _SUFFIXES)
