"""Converts text and small tables to another format."""

from __future__ import annotations

import csv
import io
import json
import re
import textwrap
from collections.abc import Sequence
from typing import Any, Literal

from agentsd import ToolError, tool

_MAX_TEXT_CHARS = 200_000
_MAX_WIDTH = 1_000
MAX_CELLS = 200_000
"""Maximum of rows times columns. A text of the maximum length has fewer cells; the others would be padding."""
MAX_FORMATTED_CHARS = 2_000_000
"""Maximum length of a result, checked before it is built: repeated names and indentation multiply a text."""
_MAX_DEPTH = 100
_INDENT = 2
_RULE = re.compile(r"\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?")
"""The line below the header of a Markdown table."""
_CELL_END = re.compile(r"(?<!\\)\|")

_Rows = list[list[str]]
"""Rows of a table; the first one contains the names of the columns."""


@tool(risk="low", idempotent=True, prefix=False)
def format_text(text: str, style: Literal["table", "csv", "json", "list", "wrap"], width: int = 80) -> str:
    """Convert text to another format.

    table, csv, json: convert rows to a Markdown table, CSV or JSON; the input is CSV, a Markdown table, or a JSON array
    of objects or arrays. json also indents any other JSON. list: each line becomes a bullet point. wrap: breaks long
    lines between words.

    Args:
        text: The text to format.
        style: The format to convert it to.
        width: For wrap: the maximum length of a line.
    """
    if not text.strip() or len(text) > _MAX_TEXT_CHARS:
        raise ToolError(f"the text must have 1 to {_MAX_TEXT_CHARS} characters")
    match style:
        case "table":
            return _table(_rows(text))
        case "csv":
            return _csv(_rows(text))
        case "json":
            return _json(text)
        case "list":
            return "\n".join(f"- {line}" for raw in text.splitlines() if (line := _without_bullet(raw)))
        case "wrap":
            return _wrapped(text, width)


def _rows(text: str) -> _Rows:
    text = text.strip("\ufeff\r\n")
    if text.lstrip()[:1] in ("[", "{"):
        return _rows_of_json(_parsed(text))
    lines = text.splitlines()
    if len(lines) > 1 and "|" in lines[0] and _RULE.fullmatch(lines[1].strip()):
        return [_cells(line) for index, line in enumerate(lines) if index != 1 and line.strip()]
    separator = max(",;\t", key=lines[0].count)
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True) if row]
    except csv.Error as error:
        raise ToolError(f"the text is not CSV: {error}") from None
    if len(rows[0]) == 1 and len(rows) > 1 and any(len(row) > 1 for row in rows):
        raise ToolError("the first line has one column and others have more: put the column names in the first line")
    return _checked(rows)


def _rows_of_json(data: Any) -> _Rows:
    items = [data] if isinstance(data, dict) else data
    if items and all(isinstance(item, dict) for item in items):
        names = list(dict.fromkeys(name for item in items for name in item))
        _check_cells(len(items) + 1, len(names))
        return [names, *([_cell(item.get(name)) for name in names] for item in items)]
    if items and all(isinstance(item, list) for item in items):
        return _checked([[_cell(value) for value in item] for item in items])
    raise ToolError("the JSON is not a table: pass an array whose items are all objects, or all arrays")


def _checked(rows: _Rows) -> _Rows:
    for number, row in enumerate(rows, start=1):
        if len(row) > len(rows[0]):
            raise ToolError(f"row {number} has {len(row)} columns, the first row has {len(rows[0])}")
    return rows


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|")
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    return [cell.strip().replace("\\|", "|") for cell in _CELL_END.split(inner)]


def _check_cells(rows: int, columns: int) -> None:
    if rows * columns > MAX_CELLS:
        raise ToolError(
            f"the table is too large: {rows} rows with {columns} columns; the limit is {MAX_CELLS} cells:"
            " choose fewer rows or columns"
        )


def _table(rows: _Rows) -> str:
    _check_cells(len(rows), len(rows[0]))
    head, *body = ([_in_one_line(cell) for cell in row] + [""] * (len(rows[0]) - len(row)) for row in rows)
    return "\n".join(_line(row) for row in (head, ["---"] * len(head), *body))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _in_one_line(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")


def _csv(rows: _Rows) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().rstrip("\n")


def _json(text: str) -> str:
    try:
        data = _parsed(text)
    except ToolError:
        if text.lstrip()[:1] in ("[", "{"):
            raise
        names, *body = _rows(text)
        if not body:
            raise
        data = [dict(zip(names, row, strict=False)) for row in body]
    _check_layout(data)
    return json.dumps(data, ensure_ascii=False, indent=_INDENT)


def _check_layout(data: Any) -> None:
    """Raise ToolError for data whose indented JSON would be too long or too deep, without building it."""
    length, depth, level = 0, 0, [data]
    while level:
        if depth > _MAX_DEPTH:
            raise ToolError(f"the JSON nests deeper than {_MAX_DEPTH} levels")
        inner: list[Any] = []
        for value in level:
            length += depth * _INDENT + (len(value) if isinstance(value, str) else 1)
            if isinstance(value, dict):
                length += sum(map(len, value))
            if isinstance(value, dict | list):
                inner.extend(value.values() if isinstance(value, dict) else value)
        if length > MAX_FORMATTED_CHARS:
            raise ToolError(
                f"the result would have more than {MAX_FORMATTED_CHARS} characters: format a part of the data"
            )
        level, depth = inner, depth + 1


def _parsed(text: str) -> Any:
    try:
        return json.loads(text.strip("\ufeff"))
    except json.JSONDecodeError as error:
        message = f"the text is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise ToolError(message) from None
    except RecursionError:
        raise ToolError("the JSON is nested too deeply") from None
    except ValueError as error:  # such as a number with thousands of digits
        raise ToolError(f"the text is not JSON: {error}") from None


def _without_bullet(line: str) -> str:
    return re.sub(r"^\s*(?:[-*+•]|\d{1,3}[.)])\s+", "", line).strip()


def _wrapped(text: str, width: int) -> str:
    if not 10 <= width <= _MAX_WIDTH:
        raise ToolError(f"width must be between 10 and {_MAX_WIDTH}")
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrapper.fill(line) for line in text.splitlines())
