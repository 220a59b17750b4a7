"""The usage page: figures against the period before, charts with a read-out, a table of groups, states in the URL."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.async_api import Page, expect

from framework.store.memory import MemoryStore
from tests.support.clocks import MovableClock
from tests.support.console import check_axe, open_page, run_in_browser, serve_console
from tests.support.projects import agent
from tests.support.used_runs import UsedRun, add_runs, used

FILES = {"agents.d/support.yaml": agent("support", model="offline")}
DAY = 86_400.0


def runs(now: float) -> Iterator[UsedRun]:
    """Yield ten runs of the last minutes and five of last week, of two agents with three models."""
    big, small, local = used(2, 1000, 1.5, cached=400), used(1, 100, 0.25), used(1, 50, None)
    now -= 60  # the store's clock was read before
    for n in range(8):
        yield UsedRun(now - n, agent="support", generation=2, elapsed_ms=1000 * (n + 1), uses={"openai/big": big})
    yield UsedRun(
        now - 9, agent="support", generation=2, status="failed", reason="model_error", uses={"m/small": small}
    )
    yield UsedRun(now - 9, agent="planner", generation=2, uses={"m/small": small, "local/llama": local})
    for n in range(5):
        yield UsedRun(now - (8 + n) * DAY, agent="planner", generation=1, uses={"openai/big": big})


async def texts(page: Page, selector: str) -> list[str]:
    return [" ".join(text.split()) for text in await page.locator(selector).all_inner_texts()]


def test_figures_charts_and_groups_follow_the_period_and_the_address(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve_console(tmp_path, FILES, store=MemoryStore(clock=MovableClock())) as server:
            await add_runs(server.runtime.store, runs(time.time()))
            async with open_page(server, "#/usage") as page:
                await expect(page.get_by_text("compared with the 7 days before")).to_be_visible()
                runs_figure, tokens, cost, p50, p95, failed = await texts(page, ".kpis > div")
                assert runs_figure.startswith("Runs 10 +100 %")
                assert tokens.startswith("Tokens 16,500")
                assert cost.startswith("Cost ≥ $12.50 +67 %"), "a price is unknown"
                assert (p50.split()[1:3], p95.split()[1:3]) == (["4", "s"], ["8", "s"])
                assert failed.startswith("Failed 10 % +10")
                assert await texts(page, ".groups tbody th") == ["support", "planner"]
                await expect(page.locator(".legend", has_text="model_error")).to_be_visible()
                errors = await page.get_by_role("link", name="Show the runs").get_attribute("href")
                assert errors
                assert errors.startswith("#/runs?status=failed&since=")
                await expect(page.get_by_text("This server keeps its runs in memory")).to_be_visible()
                await _choose(page)
                await _read(page)

    run_in_browser(main())


async def _choose(page: Page) -> None:
    """Group by model, sort, follow a link and return, with everything in the address."""
    await page.get_by_role("button", name="Model", exact=True).click()
    await expect(page.locator(".groups tbody th").first).to_have_text("openai/big")
    assert await texts(page, ".groups tbody tr td:nth-child(4)") == ["$12.00", "$0.5", "–"]
    await page.get_by_role("button", name="Cost").click()
    await page.get_by_role("button", name="Cost").click()
    await expect(page.locator(".groups tbody th").first).to_have_text("local/llama")
    await expect(page.get_by_role("columnheader", name="Cost")).to_have_attribute("aria-sort", "ascending")
    await expect(page).to_have_url(re.compile(r"#/usage\?by=model&sort=-cost$"))
    await page.reload()
    await expect(page.locator(".groups tbody th").first).to_have_text("local/llama")
    await page.get_by_role("button", name="30 d").click()
    await page.get_by_role("button", name="Generation").click()
    await expect(page.locator(".groups tbody th")).to_contain_text(["g1 d0000000", "g2 d0000000"])
    await expect(page.locator(".chart .mark").first).to_be_attached()
    href = await page.get_by_role("link", name="g2 d0000000").get_attribute("href")
    assert href
    assert href.startswith("#/runs?digest=d000000000000002&since=")


async def _read(page: Page) -> None:
    """Read a chart with the keyboard, with the pointer, and as a table."""
    chart = page.get_by_role("group", name="Runs")
    await chart.focus()
    await page.keyboard.press("End")
    await expect(chart.locator(".readout")).to_be_visible()
    await expect(chart.get_by_role("status")).to_contain_text("failed, 1")
    await page.keyboard.press("ArrowLeft")
    await expect(chart.get_by_role("status")).to_contain_text("failed, 0")
    await page.keyboard.press("Escape")
    await expect(chart.locator(".readout")).to_be_hidden()
    latency = page.get_by_role("group", name="Latency")
    await latency.hover(position={"x": 300, "y": 60})
    await expect(latency.locator(".readout")).to_contain_text("p95")
    assert (await latency.locator("table th[scope=col]").all_inner_texts()) == ["Time", "p95", "p50"]
    assert await latency.locator("tbody tr").count() == 30


def test_an_empty_period_says_so_and_a_phone_shows_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve_console(tmp_path, FILES, store=MemoryStore(clock=MovableClock())) as server:
            await add_runs(server.runtime.store, [UsedRun(time.time() - 60 * DAY, agent="support", tenant="a")])
            async with open_page(server, "#/usage?period=24h", width=360, height=740, dark=True) as page:
                await expect(page.get_by_role("heading", name="No runs in this period")).to_be_visible()
                await check_axe(page)
                await page.get_by_role("button", name="Show 90 days").click()
                await expect(page.locator(".groups tbody th")).to_have_text("support")
                wide = "document.querySelector('.page').scrollWidth <= innerWidth"
                assert await page.evaluate(wide), "nothing is wider than the page"
                await check_axe(page)

    run_in_browser(main())
