"""The reports of the shop, kept in memory."""

from __future__ import annotations

from agentsd import tool

REPORTS: dict[str, str] = {}


@tool(risk="high")
def write(name: str, text: str) -> str:
    """Write a report for the staff.

    Args:
        name: the file name, such as week-47.md.
        text: Markdown.
    """
    REPORTS[name] = text
    return f"wrote {len(text)} characters to reports/{name}"
