"""Mistakes that can only mean one thing, and what is to be written instead: everything else in a file stays as it is.

A name with one slip of the keyboard, where one known name fits and is not there yet; `yes` and `off` where YAML 1.2
wants `true` or `false`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from framework.config.yaml.document import Document, DocumentError, KeyPath, line_starts, read_document
from framework.types.problem import Fix, Problem

_MIN_WORD_CHARS = 3
"""Shorter words have too many neighbours."""
YAML_1_1_BOOLEANS: Mapping[str, str] = {
    word: meant
    for meant, words in (("true", ("y", "yes", "on")), ("false", ("n", "no", "off")))
    for small in words
    for word in (small, small.capitalize(), small.upper())
}
"""What YAML 1.1 read as booleans; YAML 1.2 reads text."""


def key_fix(document: Document, path: KeyPath, known: Iterable[str]) -> Fix | None:
    """For a key that is none of those that are known at its place."""
    beside = _value_at(document.data, path[:-1])
    free = [name for name in known if not isinstance(beside, dict) or name not in beside]
    return _fix(document, path, str(path[-1]), _only_match(str(path[-1]), free), at_key=True) if path else None


def value_fix(document: Document, path: KeyPath, word: object, options: Sequence[str]) -> Fix | None:
    """For a word that is none of the options."""
    return _fix(document, path, word, _only_match(word, options)) if isinstance(word, str) else None


def boolean_fix(document: Document, path: KeyPath, word: object) -> Fix | None:
    """For text where `true` or `false` is wanted."""
    return _fix(document, path, word, YAML_1_1_BOOLEANS.get(word)) if isinstance(word, str) else None


def apply_fixes(path: str, source: bytes, problems: Iterable[Problem]) -> bytes:
    """A file's bytes with the fixes of its problems applied, as far as they still fit and leave it readable."""
    try:
        text = source.decode("utf-8")
    except UnicodeDecodeError:
        return source
    fixes = {(problem.line, problem.column): problem.fix for problem in problems if problem.fix}
    for (line, column), fix in sorted(fixes.items(), key=lambda found: (found[0][0] or 0, found[0][1] or 0))[::-1]:
        at = _offset(text, line or 0, column or 0)
        if not text.startswith(fix.written, at):
            continue
        changed = text[:at] + fix.instead + text[at + len(fix.written) :]
        if _is_readable(path, changed):
            text = changed
    return text.encode("utf-8")


def _only_match(word: object, known: Iterable[str]) -> str | None:
    """The one known name that is a slip away."""
    close = [name for name in dict.fromkeys(known) if isinstance(word, str) and _is_typo(word, name)]
    return close[0] if len(close) == 1 else None


def _is_typo(one: str, other: str) -> bool:
    """One character is missing, too much or another, or two neighbours have changed places."""
    short, long = sorted((one, other), key=len)
    if len(short) < _MIN_WORD_CHARS or len(long) - len(short) > 1 or one == other:
        return False
    same = next((index for index, pair in enumerate(zip(short, long, strict=False)) if pair[0] != pair[1]), len(short))
    if len(short) < len(long):
        return short[same:] == long[same + 1 :]
    swapped = short[same : same + 2] == long[same : same + 2][::-1] and short[same + 2 :] == long[same + 2 :]
    return swapped or short[same + 1 :] == long[same + 1 :]


def _fix(document: Document, path: KeyPath, word: object, meant: str | None, *, at_key: bool = False) -> Fix | None:
    """What stands in the file for a word, with its quotes; none if it is written otherwise, or not there at all."""
    if meant is None or path not in document.marks:
        return None
    line, column = document.marks[path][0 if at_key else 1]
    rest = document.lines[line - 1][column - 1 :]
    for quote in ("", '"', "'"):
        written = f"{quote}{word}{quote}"
        if rest.startswith(written) and not rest[len(written) : len(written) + 1].isalnum():
            return Fix(written=written, instead=meant)
    return None


def _value_at(data: Any, path: KeyPath) -> Any:
    for part in path:
        data = data[part]
    return data


def _offset(text: str, line: int, column: int) -> int:
    """Where in a text a place is; a byte order mark is no column."""
    starts = line_starts(text)
    mark = line == 1 and text.startswith("\ufeff")
    return starts[line - 1] + column - 1 + mark if 0 < line <= len(starts) else len(text)


def _is_readable(path: str, text: str) -> bool:
    """Whether it is still a document: two keys may have been meant to be the same."""
    try:
        read_document(path, text.encode("utf-8"))
    except DocumentError:
        return False
    return True
