"""The stock of the shop. The warehouse answers slowly now and then, as real ones do."""

from __future__ import annotations

import asyncio

from agentsd import ToolContext, ToolError, tool

LEVELS = {"bowl": 128, "carafe": 0, "mug": 342, "plate": 77, "teapot": 19, "vase": 6}


@tool(risk="low", idempotent=True, timeout="400ms")
async def level(item: str, context: ToolContext) -> dict[str, object]:
    """Return how many pieces of an item are in stock.

    Args:
        item: the item, such as mug.
        context: the run.
    """
    if context.progress is not None:
        await context.progress(0.3, "asking the warehouse")
    if item == "kiln":  # is on a shelf that nobody counts
        await asyncio.sleep(5)
    if item not in LEVELS:
        raise ToolError(f"unknown item {item!r}; known: {', '.join(LEVELS)}")
    return {"item": item, "pieces": LEVELS[item], "more_on": "" if LEVELS[item] else "2026-12-04"}
