"""Summarizes and searches log files without reading them into the conversation."""

from __future__ import annotations

import json
import os
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO, Literal

from agentsd import ToolContext, ToolError, tool

MAX_LOG_BYTES = 50 * 1024 * 1024
_BINARY_CHECK_BYTES = 8 * 1024
_MAX_LINE_BYTES = 64 * 1024
_MAX_SHOWN_CHARS = 300
_MAX_LIMIT = 1_000
_MAX_GROUPS = 10_000
_MIN_CLUSTER = 3
"""Minimum number of errors in an hour that count as a cluster."""

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_LEVEL_OF: Mapping[str, str] = {
    "TRACE": "DEBUG", "DEBUG": "DEBUG", "INFO": "INFO", "NOTICE": "INFO", "WARN": "WARNING", "WARNING": "WARNING",
    "ERR": "ERROR", "ERROR": "ERROR",
    "CRIT": "CRITICAL", "CRITICAL": "CRITICAL", "FATAL": "CRITICAL", "PANIC": "CRITICAL",
    "10": "DEBUG", "20": "DEBUG", "30": "INFO", "40": "WARNING", "50": "ERROR", "60": "CRITICAL",
}  # fmt: skip
"""Levels by their words in logs, and by the numbers that JSON loggers write."""
_LEVEL_WORD = "|".join(word for word in _LEVEL_OF if word.isalpha())
_LEVEL_PATTERN = re.compile(
    rf"\b(?:{_LEVEL_WORD})\b|(?i:\b(?:level|lvl|severity)[=:]\s*\"?(?:{_LEVEL_WORD})\b|[\[<](?:{_LEVEL_WORD})[\]>])"
)
_TIME_PATTERN = re.compile(
    r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?: ?(?:Z\b|[+-]\d\d:?\d\d\b))?",
)
_LOGFMT_MESSAGE = re.compile(r'\bmsg=(?:"((?:[^"\\]|\\.)*)"|(\S+))')
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# The order matters: an id is recognised as a whole before its digits are replaced.
_VARIABLE_PARTS = (
    (re.compile(r"(?<!\w)(\"[^\"]*\"|'[^']*')(?!\w)"), "<text>"),
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b(?:0x[0-9a-fA-F]+|(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,})\b"), "<id>"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "<n>"),
)


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.number}: {_shortened(self.text)}"


@dataclass(frozen=True, slots=True)
class _Record:
    """A parsed line; a part that the line does not contain is None."""

    level: str | None
    time: str | None
    message: str


@tool(risk="low", idempotent=True, prefix=False, paths="path")
def log_transform(
    path: str,
    operation: Literal["summary", "levels", "errors", "tail", "grep"] = "summary",
    pattern: str = "",
    limit: int = 20,
    *,
    context: ToolContext,
) -> str | dict[str, int | str]:
    """Analyse a log file: plain text, logfmt or JSON lines. Start with summary.

    summary: lines, time span, counts per level, the most frequent errors, and whether errors cluster in an hour.
    levels: the number of lines per level. errors: the last ERROR and CRITICAL lines. tail: the last lines. grep: the
    first lines that contain the pattern. Lines are numbered. Only the last 50 MB of a larger file are read.

    Args:
        path: The log file, relative to the base folder.
        operation: The analysis to make.
        pattern: For grep only: literal text to find, ignoring case.
        limit: Maximum number of lines or messages to show, up to 1000.
        context: The run.
    """
    if not 1 <= limit <= _MAX_LIMIT:
        raise ToolError(f"limit must be between 1 and {_MAX_LIMIT}")
    if operation == "grep" and not pattern:
        raise ToolError("grep needs a pattern: the text to find")
    with context.open(path) as file:
        size = os.fstat(file.fileno()).st_size
        if b"\0" in file.read(_BINARY_CHECK_BYTES):
            raise ToolError("the file is binary (or compressed), not a log in text form")
        lines = _lines(file, size)
        if operation == "levels":
            counts = _levels(lines)
            return {**counts, "note": _cut_note(size)} if size > MAX_LOG_BYTES else {**counts}
        text = _text_result(operation, lines, pattern, limit)
    return f"{text}\n({_cut_note(size)})" if size > MAX_LOG_BYTES else text


def _text_result(operation: str, lines: Iterator[_Line], pattern: str, limit: int) -> str:
    match operation:
        case "errors":
            return _errors(lines, limit)
        case "tail":
            return "\n".join(str(line) for line in deque(lines, maxlen=limit)) or "(the file is empty)"
        case "grep":
            return _grep(lines, pattern, limit)
    summary = _Summary()
    for line in lines:
        summary.add(line)
    return summary.text(limit)


def _lines(file: BinaryIO, size: int) -> Iterator[_Line]:
    """Yield the lines in the last 50 MB of a file of `size` bytes, each shortened to its first 64 KB."""
    remaining = min(size, MAX_LOG_BYTES)
    file.seek(size - remaining)
    if remaining < size:
        remaining -= len(file.readline(remaining))
    number = 0
    while remaining > 0 and (raw := file.readline(min(remaining, _MAX_LINE_BYTES))):
        number += 1
        remaining -= len(raw)
        text = _COLOUR.sub("", raw.decode("utf-8-sig" if number == 1 else "utf-8", "replace")).rstrip("\r\n")
        while remaining > 0 and not raw.endswith(b"\n") and (raw := file.readline(min(remaining, _MAX_LINE_BYTES))):
            remaining -= len(raw)
        yield _Line(number, text)


def _levels(lines: Iterable[_Line]) -> dict[str, int]:
    counts = Counter(_record(line.text).level or "none" for line in lines if line.text.strip())
    return {level: counts[level] for level in (*_LEVELS, "none")}


def _errors(lines: Iterable[_Line], limit: int) -> str:
    total = 0
    last: deque[_Line] = deque(maxlen=limit)
    for line in lines:
        if _is_error(_record(line.text).level):
            total += 1
            last.append(line)
    if not total:
        return "No ERROR or CRITICAL lines."
    head = [f"The last {limit} of {total} error lines:"] if total > limit else []
    return "\n".join([*head, *map(str, last)])


def _grep(lines: Iterable[_Line], pattern: str, limit: int) -> str:
    folded, total = pattern.casefold(), 0
    matches: list[str] = []
    for line in lines:
        if folded in line.text.casefold():
            total += 1
            if total <= limit:
                matches.append(str(line))
    if not total:
        return f"No lines contain '{pattern}'."
    return "\n".join(matches + ([f"({total} lines contain the pattern; {limit} are shown)"] if total > limit else []))


class _Summary:
    """Counts lines, levels, messages and hours; memory is bounded by `_MAX_GROUPS`."""

    def __init__(self) -> None:
        self.lines = 0
        self.first: str | None = None
        self.last: str | None = None
        self.levels: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        self.hours: Counter[str] = Counter()

    def add(self, line: _Line) -> None:
        self.lines += 1
        if not line.text.strip():
            return
        record = _record(line.text)
        self.first = self.first or record.time
        self.last = record.time or self.last
        self.levels[record.level or "none"] += 1
        if _is_error(record.level):
            _count(self.messages, _shortened(_message_template(record.message)))
            if record.time:
                _count(self.hours, f"{record.time[:10]} {record.time[11:13]}:00")

    def text(self, limit: int) -> str:
        span = f"from {self.first} to {self.last}" if self.first else "no timestamps"
        levels = ", ".join(f"{level} {self.levels[level]}" for level in _LEVELS if self.levels[level]) or "none found"
        without = f"; {self.levels['none']} lines without a level" if self.levels["none"] else ""
        head = [f"Lines: {self.lines} ({span})", f"Levels: {levels}{without}"]
        frequent = [f"  {count} x {message}" for message, count in self.messages.most_common(limit)]
        return "\n".join(
            [*head, *(["Most frequent errors:", *frequent, self._cluster()] if frequent else ["No errors."])]
        )

    def _cluster(self) -> str:
        if not self.hours:
            return "The errors have no timestamps, so whether they cluster is unknown."
        [(hour, count)], total = self.hours.most_common(1), self.hours.total()
        if count >= _MIN_CLUSTER and count * 2 > total:
            return f"Errors cluster: {count} of {total} in the hour from {hour}."
        return f"Errors do not cluster: at most {count} of {total} in one hour (from {hour})."


def _record(text: str) -> _Record:
    if text.lstrip().startswith("{"):
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        if isinstance(data, dict):
            return _from_json(data)
    time = _TIME_PATTERN.search(text, 0, 200)
    rest = text if time is None else text[: time.start()] + text[time.end() :]
    level = _LEVEL_PATTERN.search(rest)
    message = _LOGFMT_MESSAGE.search(rest)
    message_text = (message[1] or message[2] or "") if message else rest[level.end() :] if level else rest
    return _Record(
        _level_in(level[0]) if level else None, time[0] if time else None, message_text.strip(" \t[]<>|:-\"'")
    )


def _level_in(marker: str) -> str | None:
    return _LEVEL_OF.get(re.split(r"[=:]", marker)[-1].strip(' "[]<>').upper())


def _from_json(data: Mapping[str, Any]) -> _Record:
    level = _first(data, "level", "severity", "levelname", "lvl")
    message = _first(data, "message", "msg", "event", "error")
    time = _first(data, "time", "timestamp", "ts", "@timestamp")
    word = _LEVEL_OF.get(str(level).upper()) if isinstance(level, str | int) else None
    message_text = message if isinstance(message, str) else "" if message is None else json.dumps(message)
    return _Record(word, _time_text(time), message_text)


def _first(data: Mapping[str, Any], *keys: str) -> Any:
    return next((data[key] for key in keys if data.get(key) is not None), None)


def _time_text(value: Any) -> str | None:
    """Return a time as ISO text. Numbers are seconds since 1970, or milliseconds if larger than 1e11."""
    if isinstance(value, str):
        match = _TIME_PATTERN.search(value)
        return match[0] if match else None
    if not isinstance(value, int | float) or not 0 < value < 1e13:
        return None
    seconds = value / 1000 if value > 1e11 else value
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _message_template(message: str) -> str:
    for variable, placeholder in _VARIABLE_PARTS:
        message = variable.sub(placeholder, message[:_MAX_LINE_BYTES])
    return message or "(no message)"


def _count(counter: Counter[str], key: str) -> None:
    if key in counter or len(counter) < _MAX_GROUPS:
        counter[key] += 1


def _is_error(level: str | None) -> bool:
    return level in ("ERROR", "CRITICAL")


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[: _MAX_SHOWN_CHARS - 1]}…"


def _cut_note(size: int) -> str:
    return f"only the last 50 MB of {size / 1024**2:.1f} MB were read; line numbers count from there"
