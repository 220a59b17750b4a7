"""Keeps calls of a tool below the rate that it declares, over all runs of the process."""

from __future__ import annotations

from aiolimiter import AsyncLimiter

from framework.tools.tool import Tool


class Throttle:
    """One limiter a tool; a tool whose rate changed gets a new one."""

    def __init__(self) -> None:
        self._limiters: dict[tuple[str, float, float], AsyncLimiter] = {}

    async def wait(self, tool: Tool) -> bool:
        """Wait until the tool may be called, at once if it declares no rate; says whether that took any time."""
        if tool.rate is None:
            return False
        calls, seconds = tool.rate
        limiter = self._limiters.setdefault((tool.name, calls, seconds), AsyncLimiter(calls, seconds))
        at_once = limiter.has_capacity()
        await limiter.acquire()
        return not at_once
