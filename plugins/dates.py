"""Date and time for agents. A plugin is a plain Python file: its `@tool` functions are available once it is saved."""

from __future__ import annotations

from datetime import date, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from agentsd import ToolError, tool


@tool(risk="low", idempotent=True)
def now(timezone: str = "UTC") -> str:
    """Current date and time (现在几点) in a time zone.

    Args:
        timezone: IANA name, such as Europe/Berlin or Asia/Shanghai.
    """
    try:
        return datetime.now(ZoneInfo(timezone)).isoformat(timespec="seconds")
    except (ZoneInfoNotFoundError, ValueError):
        raise ToolError(f"there is no time zone {timezone!r}: use an IANA name, such as Europe/Berlin") from None


@tool(risk="low", idempotent=True)
def days_between(start: str, end: str) -> int:
    """Number of days between two dates (相差天数); negative when the second comes first.

    Args:
        start: a date like 2026-01-31
        end: a date like 2026-12-24
    """
    try:
        return (date.fromisoformat(end) - date.fromisoformat(start)).days
    except ValueError as error:
        raise ToolError(f"invalid date: {error}; write dates like 2026-01-31") from None
