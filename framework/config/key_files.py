"""API keys in files, `${file:/run/secrets/key}`, which container platforms mount, and replace to rotate a key."""

from __future__ import annotations

import os
import pathlib
import re
import stat

MAX_KEY_BYTES = 65_536
_REFERENCE = re.compile(r"\s*\$\{file:(?P<path>[^}]*)\}\s*")


def key_path(text: str) -> str | None:
    """Return the path of the file that contains a key; None if the text is the key itself."""
    found = _REFERENCE.fullmatch(text)
    return found["path"].strip() if found else None


def read_key(path: str) -> str:
    """Return the key in a file, without blanks around it.

    Raises:
        ValueError: the path is not absolute, or the file is missing, unreadable, too large, empty or not text.
    """
    if not pathlib.Path(path).is_absolute() or "\0" in path:
        raise ValueError(f"{path!r:.200} is not an absolute path: write ${{file:/run/secrets/NAME}}")
    try:
        # Without O_NONBLOCK, opening a FIFO would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
            content = file.read(MAX_KEY_BYTES + 1) if is_file else b""
    except OSError as error:
        raise ValueError(f"the key file {path} cannot be read: {error.strerror}") from None
    if not is_file:
        raise ValueError(f"the key file {path} is not a regular file")
    if len(content) > MAX_KEY_BYTES:
        raise ValueError(f"the key file {path} is larger than {MAX_KEY_BYTES // 1024} KB, so it contains no key")
    try:
        key = content.decode("ascii").strip()
    except UnicodeDecodeError:
        key = "\n"
    if not key:
        raise ValueError(f"the key file {path} is empty")
    if not key.isprintable():
        raise ValueError(f"the key file {path} contains more than one line, or characters that no key contains")
    return key
