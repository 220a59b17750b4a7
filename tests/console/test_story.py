"""Every page with the data of the demo: accessible in both themes, and usable on a phone and by keyboard alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from examples.console_demo.model import HURRIED
from examples.console_demo.serving import ShopServer, serve_shop
from framework.store.types import RunInfo
from tests.support.console import check_axe, open_page, press_in_turn, run_in_browser, settle

PHONE = 360
TABS = ("waterfall", "tree", "events", "messages", "files")
_TOO_WIDE = """() => {
    const wide = document.documentElement.scrollWidth > innerWidth || document.body.scrollWidth > innerWidth;
    return wide ? [...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1)
        .map(e => e.outerHTML.slice(0, 120)).slice(0, 5) : [];
}"""
"""Returns the elements that make the page scroll sideways."""
_FOCUS = """() => {
    const e = document.activeElement;
    return { name: e.getAttribute("aria-label") || e.textContent.trim(), tag: e.tagName,
        outline: getComputedStyle(e).outlineStyle, inMain: Boolean(e.closest("main")) };
}"""


def paths(runs: Sequence[RunInfo]) -> list[str]:
    """Return the address of each page in its states."""

    def first(text: str, status: str = "") -> RunInfo:
        return next(run for run in reversed(runs) if text in run.message and status in {"", run.status})

    refund, plan, failed = first("arrived broken", "paused"), first("week 74"), first("carriers")
    return [
        "#/chat",
        f"#/chat/{refund.conversation_id}",
        f"#/chat/{plan.conversation_id}",
        "#/approvals",
        f"#/approvals/{refund.run_id}",
        f"#/approvals/{first('week 47', 'paused').run_id}",
        "#/runs",
        *(f"#/runs/{plan.run_id}?tab={tab}" for tab in TABS),
        f"#/runs/{failed.run_id}",
        "#/agents/support",
        "#/agents/stock",
        "#/config",
        "#/config/files/agents.d/support.yaml?line=17",
        "#/usage",
    ]


async def visit(server: ShopServer, page: Page, path: str) -> None:
    """Open an address, and wait until the page shows it."""
    await page.goto(f"{server.url}/{path}")
    await settle(page)
    await expect(page.get_by_text("This could not be loaded.")).to_have_count(0)


@pytest.mark.timeout(240)
def test_every_page_is_accessible_fits_a_phone_and_is_used_by_keyboard(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve_shop(tmp_path / "shop", visits=14, pace=HURRIED) as shop, open_page(shop, "#/chat") as page:
            for path in paths(await shop.runtime.store.runs()):
                await _check(shop, page, path)
            for key, name in (("c", "chat"), ("r", "runs"), ("g", "agents"), ("u", "usage")):
                await _reach(page, key, name)

    run_in_browser(main())


async def _check(shop: ShopServer, page: Page, path: str) -> None:
    """Check a page in both themes, and that nothing of it is wider than a phone."""
    await page.emulate_media(color_scheme="light")
    await visit(shop, page, path)
    await check_axe(page)
    await page.emulate_media(color_scheme="dark")
    await check_axe(page, rules=["color-contrast"])
    await page.set_viewport_size({"width": PHONE, "height": 740})
    await settle(page)
    assert await page.evaluate(_TOO_WIDE) == [], path
    await page.set_viewport_size({"width": 1440, "height": 900})


async def _reach(page: Page, key: str, name: str) -> None:
    """Open a page by its keys, and go through what can have the focus."""
    await page.keyboard.press("Escape")
    await press_in_turn(page, "g", key)
    await expect(page.locator(f"page-{name}")).to_be_attached()
    await settle(page)
    await page.evaluate("() => document.activeElement.blur()")
    stops = [await _next_focus(page) for _ in range(40)]
    assert any(stop["inMain"] for stop in stops), f"nothing of {name} gets the focus"
    unnamed = [stop for stop in stops if not stop["name"] and stop["tag"] in {"A", "BUTTON"}]
    assert unnamed == []
    hidden = [stop for stop in stops if stop["outline"] == "none" and stop["tag"] in {"A", "BUTTON"}]
    assert hidden == [], "the focus is always visible"


async def _next_focus(page: Page) -> dict[str, object]:
    await page.keyboard.press("Tab")
    found: dict[str, object] = await page.evaluate(_FOCUS)
    return found
