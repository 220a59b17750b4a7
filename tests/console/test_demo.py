"""The demo of the console: its two weeks have every kind of run, and what waits can be decided."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from examples.console_demo.model import HURRIED
from examples.console_demo.serving import ShopServer, serve_shop
from framework.store.types import RunQuery
from framework.types.state import Edit, Reject


async def _check_answers(shop: ShopServer) -> None:
    """Ask what the tools know, and compare the answers with what they return."""
    runtime = shop.runtime
    order: Any = (await runtime.call_tool("support", "orders.find", {"order": "20420"})).output
    answered = await runtime.run("Where is order 20420?", agent="support")
    assert [order[key] for key in ("item", "customer", "state") if order[key] not in answered.output] == []
    lines: Any = (await runtime.call_tool("support", "docs.search", {"query": "margin broken"})).output
    assert {line["path"] for line in lines} == {"help/returns.md"}  # not those for the staff
    for path in ("help/internal/margins.md", "help/x/../internal//margins.md"):
        assert (await runtime.call_tool("support", "docs.read", {"path": path})).status == "denied"
    asked = await runtime.run("Tom Reyes writes that order 20441 arrived broken. Refund it and write.", agent="support")
    (question,) = asked.pending
    refused = await runtime.resume(asked.run_id, {question.id: Reject(reason="the photo shows an old crack")})
    assert "20441 is not refunded: the photo shows an old crack" in refused.output


def test_the_demo_has_two_weeks_of_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve_shop(tmp_path / "shop", visits=14, pace=HURRIED) as shop:
            runs = await shop.runtime.store.runs(RunQuery(newest_first=True))
            assert shop.runs == len(runs) > 20
            assert {run.status for run in runs} >= {"completed", "paused", "failed", "stopped"}
            assert {run.finish_reason for run in runs} >= {"final", "model_error", "max_steps", "confirmation"}
            assert max(run.generation for run in runs) == 5
            assert [run.created_at for run in runs] == sorted((run.created_at for run in runs), reverse=True)
            assert 8 * 86400 < time.time() - runs[-1].created_at < 15 * 86400
            generation = shop.runtime.catalog.current
            assert (generation.number, [problem.path for problem in shop.runtime.catalog.problems][:1]) == (
                6,
                ["agents.d/stock.yaml"],
            )
            assert [problem.message for problem in shop.runtime.catalog.problems if "bypasses" in problem.message] == []
            await _check_answers(shop)
            page = await shop.runtime.call_tool("support", "docs.read", {"path": "help/returns.md"})
            assert page.output == (tmp_path / "shop/help/returns.md").read_text("utf-8")
            refund, question, plan = [run for run in runs if run.status == "paused"][:3]  # an older one expires
            assert [run.agent for run in (refund, question, plan)] == ["support", "support", "planner"]
            (asked,) = await shop.runtime.pending(refund.run_id, user=refund.user)
            lower = Edit(arguments={**asked.arguments, "amount": 89.0})
            result = await shop.runtime.resume(refund.run_id, {asked.id: lower}, user=refund.user)
            assert (result.status, result.generation) == ("completed", 5)

    asyncio.run(main())
