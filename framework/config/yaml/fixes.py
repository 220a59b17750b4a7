"""Detects typos with exactly one plausible correction, and applies the corrections without other changes to a file.

These are names one edit away from exactly one unused known name, and YAML 1.1 booleans such as `yes` and `off`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from framework.config.yaml.document import Document, DocumentError, KeyPath, line_starts, read_document
from framework.types.problem import Fix, Problem

_MIN_WORD_CHARS = 3
"""Shorter words are one edit away from too many others."""
YAML_1_1_BOOLEANS: Mapping[str, str] = {
    word: meant
    for meant, words in (("true", ("y", "yes", "on")), ("false", ("n", "no", "off")))
    for small in words
    for word in (small, small.capitalize(), small.upper())
}
"""Words that are booleans in YAML 1.1 but strings in YAML 1.2, with their YAML 1.2 spelling."""


def key_fix(document: Document, path: KeyPath, known: Collection[str]) -> Fix | None:
    """Return the fix for an unknown key, if a known key is one edit away."""
    siblings, letters = _value_at(document.data, path[:-1]), sorted(str(path[-1]))
    transposed = [name for name in known if sorted(name) == letters]  # `modle` is `model` rather than `mode`
    unused = [name for name in transposed or known if not isinstance(siblings, dict) or name not in siblings]
    return text_fix(document, path, str(path[-1]), _only_match(str(path[-1]), unused), at_key=True) if path else None


def value_fix(document: Document, path: KeyPath, word: object, options: Sequence[str]) -> Fix | None:
    """Return the fix for an invalid value, if one of the options is one edit away."""
    return text_fix(document, path, word, _only_match(word, options)) if isinstance(word, str) else None


def boolean_fix(document: Document, path: KeyPath, word: object) -> Fix | None:
    """Return the fix for a YAML 1.1 boolean where `true` or `false` is required."""
    return text_fix(document, path, word, YAML_1_1_BOOLEANS.get(word)) if isinstance(word, str) else None


def apply_fixes(path: str, source: bytes, problems: Iterable[Problem]) -> bytes:
    """Return a file's bytes with the fixes of its problems applied.

    Fixes that no longer match the text, or would make it invalid YAML, are skipped.
    """
    try:
        text = source.decode("utf-8")
    except UnicodeDecodeError:
        return source
    fixes = {(problem.line, problem.column): problem.fix for problem in problems if problem.fix}
    for (line, column), fix in sorted(fixes.items(), key=lambda entry: (entry[0][0] or 0, entry[0][1] or 0))[::-1]:
        at = _offset(text, line or 0, column or 0)
        if not text.startswith(fix.written, at):
            continue
        changed = text[:at] + fix.instead + text[at + len(fix.written) :]
        if _is_readable(path, changed):
            text = changed
    return text.encode("utf-8")


def _only_match(word: object, known: Iterable[str]) -> str | None:
    """Return the known name that is one edit away, if there is exactly one."""
    close = [name for name in dict.fromkeys(known) if isinstance(word, str) and _is_typo(word, name)]
    return close[0] if len(close) == 1 else None


def _is_typo(one: str, other: str) -> bool:
    """Return whether two words differ by one missing, extra, wrong or transposed character."""
    short, long = sorted((one, other), key=len)
    if len(short) < _MIN_WORD_CHARS or len(long) - len(short) > 1 or one == other:
        return False
    same = next((index for index, pair in enumerate(zip(short, long, strict=False)) if pair[0] != pair[1]), len(short))
    if len(short) < len(long):
        return short[same:] == long[same + 1 :]
    swapped = short[same : same + 2] == long[same : same + 2][::-1] and short[same + 2 :] == long[same + 2 :]
    return swapped or short[same + 1 :] == long[same + 1 :]


def text_fix(document: Document, path: KeyPath, word: object, meant: str | None, *, at_key: bool = False) -> Fix | None:
    """Return a fix for a word, including its quotes; None if the file spells the word differently."""
    if meant is None or path not in document.marks:
        return None
    document = document.layer(path)
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
    """Return the offset of a line and column. A byte order mark does not count as a column."""
    starts = line_starts(text)
    has_bom = line == 1 and text.startswith("\ufeff")
    return starts[line - 1] + column - 1 + has_bom if 0 < line <= len(starts) else len(text)


def _is_readable(path: str, text: str) -> bool:
    """Return whether the text is still a document: fixing two keys may have made them equal."""
    try:
        read_document(path, text.encode("utf-8"))
    except DocumentError:
        return False
    return True
