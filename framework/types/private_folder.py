"""The folder of a project's own data: only its user may look into it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

DATA_FOLDER = ".agentsd"
"""Holds the store, the accepted contracts of tools, and schemas for editors."""
_OTHERS_MODE = 0o077


def make_private_folder(folder: Path) -> None:
    """Make a folder that only its user may use; one of ours that others may look into is closed. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.name == DATA_FOLDER and folder.stat().st_mode & _OTHERS_MODE:
        with suppress(PermissionError):  # another user's
            folder.chmod(0o700)
