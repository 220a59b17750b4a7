"""Files in what the user types: paths of images, PDFs and audio in a line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from framework.types.file import EXTENSIONS, File

_WORD = re.compile(r"""(?<!\S)(?:"(?P<double>[^"]+)"|'(?P<single>[^']+)'|(?P<plain>(?:\\.|\S)+))""")
"""A word, with backslashes before spaces as terminals paste them, or a text in quotes."""
_ENDS = ".,;:!?)"
"""Punctuation that may follow a path in a sentence."""


def attached(line: str) -> list[str | File]:
    """Return a line as a message: the files whose paths it contains, then the text with names in place of the paths.

    A path is absolute, relative to the current folder, below `~`, or a `file://` URL; it names an existing file with
    the extension of a supported type. A line that is only paths has no text.

    Raises:
        RequestError: such a file cannot be read, or is not what its name says.
    """
    if path := _path_of(line):
        return [File.from_path(path)]
    files: dict[Path, File] = {}
    pieces: list[str] = []
    end = 0
    for begins, ends, path in _paths_in(line):
        files[path] = files.get(path) or File.from_path(path)
        pieces += (line[end:begins], path.name)
        end = ends
    rest = "".join(pieces[::2]) + line[end:]
    text = "".join((*pieces, line[end:])) if rest.strip() or not files else ""
    return [*files.values(), *([text] if text else [])]


def _paths_in(line: str) -> Iterator[tuple[int, int, Path]]:
    """Yield the paths in a line, with the places where they begin and end."""
    for word in _WORD.finditer(line):
        quoted = word["double"] or word["single"]
        text = quoted or re.sub(r"\\(.)", r"\1", word["plain"])
        if path := _path_of(text):
            yield word.start(), word.end(), path
        elif not quoted and (path := _path_of(text.rstrip(_ENDS))):
            yield word.start(), word.end() - (len(text) - len(text.rstrip(_ENDS))), path


def _path_of(text: str) -> Path | None:
    """Return the path of an existing file of a supported type that a text names; None if it names none."""
    if text.startswith("file://"):
        text = unquote(urlsplit(text).path)
    if Path(text).suffix.lower() not in EXTENSIONS:
        return None
    try:
        path = Path(text).expanduser()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long, no such user, a null byte
        return None
