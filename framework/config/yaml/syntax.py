"""Says what is wrong with text that is not YAML, and what to do: libyaml names what its scanner expected."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from yaml.events import Event, ScalarEvent

Mark = tuple[int, int]
"""1-based line and column."""
Explanation = tuple[Mark, str, str | None]
"""Where a mistake is, what it is, and what to do."""
_QUOTE_IT = 'put the whole value in quotes: "…"'
_NO_SPACE = re.compile(r"[\w.-]+:[^\s/]")
_ALL_LEVELS = 4
"""Lines with other indentations that a hint names at most."""
QUOTE_TEMPLATE = 'put the whole value in quotes: "{{ … }}"'


_FIXED: Mapping[str, tuple[bool, str, str | None]] = {
    "found unexpected end of stream": (True, "this quote is not closed", "close it where the text ends"),
    "found unexpected document indicator": (True, "this quote is not closed", "close it where the text ends"),
    "block sequence entries are not allowed in this context": (
        False,
        "a list begins on the line of its key",
        "write [a, b], or each `- item` on a line of its own",
    ),
    "did not find expected comment or line break": (
        False,
        "text on the line of `|` or `>`",
        "begin the text on the next line, indented",
    ),
}
"""Whether the mistake is where the construct begins, what it is and what to do, by libyaml's description."""


def explain(error: yaml.YAMLError, lines: Sequence[str], last: Event | None, opened: Mark) -> Explanation:
    """Explain an error of libyaml.

    Args:
        error: the error.
        lines: the lines of the text.
        last: the last event before it.
        opened: where the innermost mapping or list that has not ended begins.
    """
    problem, context = str(getattr(error, "problem", "")), getattr(error, "context", None)
    mark = _position(getattr(error, "problem_mark", None)) or _position(getattr(error, "context_mark", None)) or (1, 1)
    begin = _position(getattr(error, "context_mark", None)) or mark
    if fixed := _FIXED.get(problem):
        at_begin, message, hint = fixed
        return (begin if at_begin else mark), message, hint
    match problem:
        case "mapping values are not allowed in this context":
            return _colon(mark, lines, last)
        case "could not find expected ':'":
            return _no_key(begin, lines)
        case (
            "did not find expected key"
            | "did not find expected <document start>"
            | "did not find expected '-' indicator"
        ):
            return _misplaced(mark, lines, last)
        case "did not find expected ',' or ']'" | "did not find expected ',' or '}'":
            return _not_closed(mark, begin, lines)
        case "did not find expected node content":
            at_end = not any(line.strip() for line in lines[mark[0] - 1 :])
            return _not_closed(mark, opened, lines) if at_end else (mark, "a value is missing here", None)
    message = ": ".join(part for part in (context, problem) if part)
    hint = "check the indentation and the quotes of this line and the one above"
    return _character(problem, mark, begin, lines) or (mark, message or "not YAML", hint)


def _character(problem: str, mark: Mark, begin: Mark, lines: Sequence[str]) -> Explanation | None:
    """Explain a character that is not allowed where it is; None if that is not the mistake."""
    char, template = _text_at(lines, mark)[:1], (mark[0], mark[1] - 1)
    if "tab character" in problem or (char == "\t" and "cannot start" in problem):
        return mark, "this line begins with a tab", "use spaces: YAML allows no tabs in an indentation"
    match problem:
        case "found character that cannot start any token" if _text_at(lines, template).startswith("{%"):
            return template, "`{%` outside of quotes", _QUOTE_IT
        case "found character that cannot start any token":
            return mark, f"a value without quotes cannot begin with `{char}`", _QUOTE_IT
        case "did not find expected alphabetic or numeric character":
            sign = _text_at(lines, begin)[:1]
            return begin, f"a value without quotes cannot begin with `{sign}`", _QUOTE_IT
        case "found unknown escape character":
            escape = _text_at(lines, mark)[:2]
            return mark, f"unknown escape `{escape}`", "write `\\\\` for a backslash, or use single quotes: '…'"
    return None


def _position(mark: Any) -> Mark | None:  # a mark of libyaml or of its Python version
    return (mark.line + 1, mark.column + 1) if mark else None


def _text_at(lines: Sequence[str], mark: Mark) -> str:
    """Return the rest of a line from a mark."""
    line, column = mark
    return lines[line - 1][max(column - 1, 0) :] if 0 < line <= len(lines) else ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _colon(mark: Mark, lines: Sequence[str], last: Event | None) -> Explanation:
    """Explain a colon after text that is a value."""
    began = _position(last.start_mark) if isinstance(last, ScalarEvent) else None
    if began is None or began[0] == mark[0]:
        return mark, "a second `: ` in a value without quotes", _QUOTE_IT
    if _NO_SPACE.match(_text_at(lines, began)):
        return _no_key(began, lines)
    column = _indent(lines[began[0] - 1]) + 1
    hint = f"begin a key at column {column}, as on line {began[0]}; put longer text below `KEY: |`"
    return mark, f"a `:` in the text that begins on line {began[0]}", hint


def _no_key(mark: Mark, lines: Sequence[str]) -> Explanation:
    """Explain a line that is neither a key nor a part of the value above it."""
    if _NO_SPACE.match(_text_at(lines, mark)):
        return mark, "a space is missing after the `:`", "write it as `KEY: VALUE`"
    hint = "write it as `KEY: VALUE`; indent the lines of a longer text below `KEY: |`"
    return mark, "a `:` is missing: this line is no key", hint


def _misplaced(mark: Mark, lines: Sequence[str], last: Event | None) -> Explanation:
    """Explain something where a key, or the next item of a list, is expected."""
    line, column = mark
    text = lines[line - 1] if line <= len(lines) else ""
    begins_line = column - 1 <= _indent(text)
    if isinstance(last, ScalarEvent) and last.style in ("'", '"') and not begins_line:
        return _after_quote(mark, last)
    if not begins_line:
        if (char := text[column - 1]) in "]}":
            return mark, f"`{char}` closes nothing", f"remove it, or open it with `{'[' if char == ']' else '{'}`"
        return mark, "text after the end of a value", _QUOTE_IT
    levels = dict[int, int]()  # line by indentation
    for number in range(line - 1, 0, -1):
        above = lines[number - 1]
        if (
            above.strip()
            and not above.lstrip().startswith("#")
            and _indent(above) < min(levels, default=len(text) + 99)
        ):
            levels[_indent(above)] = number
    if (indent := _indent(text)) in levels:
        kind = "a list item among keys" if text[indent:].startswith("-") else "a key among the items of a list"
        return mark, kind, "a value is a list or a mapping: indent this line below its key, or correct the lines above"
    places = [f"column {indent + 1} (line {number})" for indent, number in sorted(levels.items())[-_ALL_LEVELS:]]
    return mark, "the indentation of this line matches no line above", f"begin it at {' or '.join(places)}"


def _after_quote(mark: Mark, quoted: ScalarEvent) -> Explanation:
    """Explain text after a closing quote, at the opening one if a closing one is missing on its line."""
    begin, end = _position(quoted.start_mark) or (1, 1), _position(quoted.end_mark) or (1, 1)
    if end[0] > begin[0]:
        return begin, f"this quote is closed on line {end[0]} only", "close it where the text ends"
    inner = "write '' for an apostrophe inside '…'" if quoted.style == "'" else 'write \\" for a quote inside "…"'
    return mark, "text after a closing quote", f"{inner}, or quote the whole value"


def _not_closed(mark: Mark, begin: Mark, lines: Sequence[str]) -> Explanation:
    """Explain a list or mapping in brackets that does not end."""
    bracket = _text_at(lines, begin)[:1]
    closing = {"[": "]", "{": "}"}.get(bracket, bracket)
    if mark[0] == begin[0]:
        return mark, f"expected `,` or `{closing}`: the `{bracket}` at column {begin[1]} is still open", None
    return begin, f"this `{bracket}` is not closed", f"add `{closing}`, or a comma between two items of it"
