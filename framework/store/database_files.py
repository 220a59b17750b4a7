"""Which files a store keeps its data in, by its URL: tools must not touch them."""

from __future__ import annotations

from pathlib import Path

_SUFFIXES = ("", "-wal", "-shm", "-journal")
"""What SQLite appends to a database's name for the files that belong to it."""


def database_paths(url: str, root: Path) -> tuple[Path, ...]:
    """The files of a store with this URL, as absolute paths; none where it is a server.

    Args:
        url: `sqlite:///state.db` or any other; it need not be a valid one.
        root: the project's folder.
    """
    scheme, mark, rest = url.partition(":///")
    name = rest.partition("?")[0].removeprefix("file:")
    if not mark or not scheme.startswith("sqlite") or not name:
        return ()
    file = (root / name).resolve()
    return tuple(file.with_name(f"{file.name}{suffix}") for suffix in _SUFFIXES)
