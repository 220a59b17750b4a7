"""The smallest tool there is: it shows that calls arrive and results come back."""

from __future__ import annotations

from framework.tools.tool import tool


@tool(risk="low", idempotent=True)
def echo(text: str) -> str:
    """Give back the text unchanged.

    Args:
        text: What to give back.
    """
    return text
