"""The `.agentsd` folder for a project's data, accessible to its user only."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

DATA_FOLDER = ".agentsd"
"""Name of the folder that contains the store, the accepted tool definitions, and schemas for editors."""
_OTHERS_MODE = 0o077


def make_private_folder(folder: Path) -> None:
    """Create a folder with mode 700, and restrict an existing `.agentsd` folder to that mode; raise OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.name == DATA_FOLDER and folder.stat().st_mode & _OTHERS_MODE:
        with suppress(PermissionError):  # the folder belongs to another user
            folder.chmod(0o700)


def write_private_file(path: Path, text: str) -> None:
    """Replace a file, at once, by one with this text that only its user can read, in a private folder.

    Raises:
        OSError: the file or its folder cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        make_private_folder(path.parent)
        fresh.touch(mode=0o600)
        fresh.write_text(text, "utf-8")
        fresh.replace(path)
    finally:
        with suppress(OSError):
            fresh.unlink()
