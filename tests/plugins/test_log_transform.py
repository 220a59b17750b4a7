"""`log_transform` reads common log formats and summarizes them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.tools.tool import ToolContext
from framework.types.errors import ToolError
from plugins import log_transform as logs
from plugins.log_transform import log_transform
from tests.support.cases import cases

PLAIN = """\
2026-11-21 09:59:00,120 DEBUG start
2026-11-21 10:00:00,000 INFO app: listening on 8080
2026-11-21 10:01:00,000 WARN app: slow answer
2026-11-21 10:02:00,000 ERROR db: Connection to 'db-1' timed out after 30 s
Traceback (most recent call last):
  File "app.py", line 3

2026-11-21 10:03:00,000 ERROR db: Connection to 'db-22' timed out after 5.5 s
2026-11-21 10:04:00,000 ERROR request 7f3a9c0d1e2b of 0xDEADBEEF failed
2026-11-21 12:05:00,000 FATAL out of memory
"""
JSON_LINES = [
    {"time": "2026-11-21T10:00:00Z", "level": "info", "msg": "up"},
    {"timestamp": "2026-11-21T10:00:01.5+02:00", "severity": "ERROR", "message": 'user "anna" not found'},
    {"ts": 1795255202.25, "level": "error", "message": 'user "bert" not found'},
    {"time": 1795255203000, "level": 50, "msg": "user 5 not found"},
    {"ts": 1795255204, "level": "fatal", "msg": "gone"},
]


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(run_id="r", call_id="c", agent="a", base_path=tmp_path)


def write(context: ToolContext, text: str) -> str:
    (context.base_path / "app.log").write_text(text)
    return "app.log"


def test_summary_of_a_plain_log(context: ToolContext) -> None:
    assert log_transform(write(context, PLAIN), context=context) == (
        "Lines: 10 (from 2026-11-21 09:59:00,120 to 2026-11-21 12:05:00,000)\n"
        "Levels: DEBUG 1, INFO 1, WARNING 1, ERROR 3, CRITICAL 1; 2 lines without a level\n"
        "Most frequent errors:\n"
        "  2 x db: Connection to <text> timed out after <n> s\n"
        "  1 x request <id> of <id> failed\n"
        "  1 x out of memory\n"
        "Errors cluster: 3 of 4 in the hour from 2026-11-21 10:00."
    )


def test_summary_of_json_lines(context: ToolContext) -> None:
    text = "\n".join(json.dumps(line) for line in JSON_LINES)

    assert log_transform(write(context, text), context=context) == (
        "Lines: 5 (from 2026-11-21T10:00:00Z to 2026-11-21T10:00:04Z)\n"
        "Levels: INFO 1, ERROR 3, CRITICAL 1\n"
        "Most frequent errors:\n"
        "  2 x user <text> not found\n"
        "  1 x user <n> not found\n"
        "  1 x gone\n"
        "Errors cluster: 4 of 4 in the hour from 2026-11-21 10:00."
    )


def test_summary_shows_at_most_limit_messages(context: ToolContext) -> None:
    path = write(context, "".join(f"ERROR {word}\n" * count for count, word in enumerate("abc", start=1)))

    summary = log_transform(path, limit=2, context=context)

    assert "  3 x c\n  2 x b\nThe errors have no timestamps" in str(summary)


def test_errors_spread_over_hours_are_not_a_cluster(context: ToolContext) -> None:
    path = write(context, "".join(f"2026-11-21 {hour:02}:00:00 ERROR no disk\n" for hour in range(24)))

    assert "Errors do not cluster: at most 1 of 24 in one hour" in str(log_transform(path, context=context))


def test_a_log_without_errors_or_levels_is_reported_as_such(context: ToolContext) -> None:
    assert log_transform(write(context, "hello\n"), context=context) == (
        "Lines: 1 (no timestamps)\nLevels: none found; 1 lines without a level\nNo errors."
    )
    assert log_transform(write(context, ""), context=context) == (
        "Lines: 0 (no timestamps)\nLevels: none found\nNo errors."
    )
    assert log_transform(write(context, ""), "tail", context=context) == "(the file is empty)"
    assert log_transform(write(context, "INFO a\n"), "errors", context=context) == "No ERROR or CRITICAL lines."


def test_levels_is_json_data(context: ToolContext) -> None:
    counts = log_transform(write(context, PLAIN), "levels", context=context)

    assert counts == {"DEBUG": 1, "INFO": 1, "WARNING": 1, "ERROR": 3, "CRITICAL": 1, "none": 2}
    assert json.loads(json.dumps(counts)) == counts


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("2026-11-21T10:00:00Z ERROR x", "ERROR"),
        ("[2026/11/21 10:00] [error] x", "ERROR"),
        ("<warning> x", "WARNING"),
        ('ts=2026-11-21T10:00:00Z level=warn msg="an ERROR"', "WARNING"),
        ('severity: "fatal" x', "CRITICAL"),
        ("\x1b[31mERROR\x1b[0m x", "ERROR"),
        ("INFO previous run ended in ERROR", "INFO"),
        ("NOTICE x", "INFO"),
        ("an error in lower case is prose", "none"),
        ("ERRORS: 5", "none"),
        ('{"level": "ERROR", broken', "ERROR"),
        ('{"level": 17, "msg": "ERROR"}', "none"),
        ('{"level": {}, "time": true}', "none"),
        ("[1, 2]", "none"),
        ("{" * 5000, "none"),
    ],
)
def test_levels_are_found_where_loggers_write_them(context: ToolContext, line: str, level: str) -> None:
    counts = log_transform(write(context, line), "levels", context=context)

    assert isinstance(counts, dict)
    assert [name for name, count in counts.items() if count] == [level]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('level=error msg="db \\"a\\" is gone" id=3', "db \\<text> is gone"),
        ("level=error msg=gone id=3", "gone"),
        ("[ERROR] 2026-11-21T10:00:00+01:00 - it's the host's 3rd", "it's the host's <n>rd"),
        ("ERROR job 123e4567-e89b-12d3-a456-426614174000 on 10.0.0.1:80", "job <id> on <n>"),
        ("ERROR", "(no message)"),
        ("ERROR feedface is a word, cafe1234 is not", "feedface is a word, <id> is not"),
        ('{"level": "error", "msg": {"a": 1}}', "{<text>: <n>}"),
        ('{"level": "error"}', "(no message)"),
    ],
)
def test_messages_are_grouped_by_their_constant_part(context: ToolContext, line: str, message: str) -> None:
    assert f"\n  1 x {message}\n" in str(log_transform(write(context, line), context=context))


def test_errors_are_the_last_ones_with_their_numbers(context: ToolContext) -> None:
    assert log_transform(write(context, PLAIN), "errors", limit=2, context=context) == (
        "The last 2 of 4 error lines:\n"
        "9: 2026-11-21 10:04:00,000 ERROR request 7f3a9c0d1e2b of 0xDEADBEEF failed\n"
        "10: 2026-11-21 12:05:00,000 FATAL out of memory"
    )


def test_tail_and_long_lines(context: ToolContext) -> None:
    path = write(context, "a\n" + "x" * 200_000 + "\r\nlast")

    assert log_transform(path, "tail", limit=2, context=context) == f"2: {'x' * 299}…\n3: last"


@pytest.mark.parametrize(("pattern", "found"), [("CONNECTION", "4"), (".*", ""), ("(", "5"), ("'db-2", "8")])
def test_grep_finds_literal_text_in_any_case(context: ToolContext, pattern: str, found: str) -> None:
    answer = str(log_transform(write(context, PLAIN), "grep", pattern, context=context))

    assert answer.startswith(f"{found}: " if found else "No lines contain '.*'.")


def test_grep_reports_the_number_of_matching_lines(context: ToolContext) -> None:
    assert log_transform(write(context, "a\nb\na\na\n"), "grep", "A", limit=2, context=context) == (
        "1: a\n3: a\n(3 lines contain the pattern; 2 are shown)"
    )


def test_only_the_end_of_a_very_large_log_is_read(context: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_LOG_BYTES", 20)
    path = write(context, "ERROR one\nERROR two\nERROR three\nINFO four\n")

    assert str(log_transform(path, "grep", "o", context=context)).startswith(
        "1: INFO four\n(only the last 50 MB of 0.0 MB"
    )
    counts = log_transform(path, "levels", context=context)
    assert isinstance(counts, dict)
    assert counts["ERROR"] == 0
    assert "only the last 50 MB" in str(counts["note"])


def test_rejections_name_a_fix(context: ToolContext) -> None:
    path = write(context, PLAIN)
    (context.base_path / "app.log.gz").write_bytes(b"\x1f\x8b\0\0")
    with pytest.raises(ToolError, match="grep needs a pattern"):
        log_transform(path, "grep", context=context)
    with pytest.raises(ToolError, match="limit must be between 1 and 1000"):
        log_transform(path, limit=0, context=context)
    with pytest.raises(ToolError, match="binary"):
        log_transform("app.log.gz", context=context)
    with pytest.raises(ToolError, match=r"did you mean app\.log"):
        log_transform("ap.log", context=context)
    with pytest.raises(ToolError, match="operation"):
        log_transform.bind({"path": path, "operation": "sum"})


@pytest.mark.hostile(15)
@pytest.mark.parametrize("line", ["'" * 60_000, "ERROR " + "a'" * 30_000, "ERROR " + "abcdef" * 10_000, "1." * 30_000])
def test_no_line_takes_long(context: ToolContext, line: str) -> None:
    path = write(context, f"{line}\n" * 5)
    started = time.process_time()

    log_transform(path, context=context)

    assert time.process_time() - started < 2


@cases(100)
@given(text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), lines=st.lists(st.text()))
def test_any_text_file_has_a_summary_and_consistent_counts(
    tmp_path_factory: pytest.TempPathFactory, text: str, lines: list[str]
) -> None:
    base = tmp_path_factory.getbasetemp()
    structured = [json.dumps({"level": line, "ts": line, "msg": line}) for line in lines]
    (base / "any.log").write_bytes("\n".join([text, *structured]).encode())
    context = ToolContext(run_id="r", call_id="c", agent="a", base_path=base)

    assert str(log_transform("any.log", context=context)).startswith("Lines: ")
    counts = log_transform("any.log", "levels", context=context)
    assert isinstance(counts, dict)
    assert sum(int(count) for count in counts.values()) >= len(lines)
