"""Slow and failing answers: each page says that it loads, shows nothing stale, and tries again when asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Route, expect

from framework.llm.client import ScriptedModel
from tests.support.console import open_page, run_in_browser, serve_console
from tests.support.projects import agent

FILES = {"agents.d/one.yaml": agent("one")}
PAGES = {
    "runs": ("#/runs", "**/agent/runs?**", "tbody tr"),
    "run": ("#/runs/{run}", "**/agent/runs/run_*", ".run-head"),
    "compare": ("#/compare/{run}/{run}", "**/agent/runs/run_*", ".cmp"),
    "agents": ("#/agents/one", "**/agent/agents/one", ".doc .top"),
    "usage": ("#/usage", "**/agent/usage?**", ".figs"),
    "fleet": ("#/fleet", "**/agent/fleet", ".empty h2"),
    "config": ("#/config", "**/agent/config/history", ".gen"),
    "chat": ("#/chat/c", "**/agent/runs?**", ".turn"),
}
"""Address, the requests that are held or fail, and what is there in the end."""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_that_it_loads_and_tries_a_failure_again(tmp_path: Path, name: str) -> None:
    address, requests, content = PAGES[name]

    async def main() -> None:
        async with serve_console(tmp_path, FILES, ScriptedModel("hello")) as server:
            run = await server.runtime.run("hi", agent="one", conversation="c")
            async with open_page(server, allowed=["status of 503"]) as page:
                go_on, fails = asyncio.Event(), True

                async def hold(route: Route) -> None:
                    await go_on.wait()
                    error = {"error": {"code": "server_busy", "message": "too busy", "type": "x", "param": None}}
                    await (route.fulfill(status=503, json=error) if fails else route.continue_())

                await page.route(requests, hold)
                await page.goto(f"{server.url}/{address.format(run=run.run_id)}")
                await expect(page.locator(".wait").first).to_contain_text("Loading")
                go_on.set()
                again = page.get_by_role("button", name="Try again")
                alert = page.get_by_role("alert").filter(has=again).first  # a toast may say the same
                await expect(alert).to_contain_text("too busy")
                fails = False
                await alert.get_by_role("button").click()
                await expect(page.locator(content).first).to_be_visible()
                await expect(page.locator(".wait:visible")).to_have_count(0)
                await expect(page.get_by_role("alert")).to_have_count(0)

    run_in_browser(main())
