"""Writes a picture of every page of the console, light, dark and on a phone: `make screenshots`.

The pages show the shop of `examples/console_demo`. `python -m examples.console_screenshots --help` lists the options.
It needs Debian's Chromium (`apt-get install chromium`).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.async_api import Browser, Page, async_playwright
from playwright.async_api import Error as PlaywrightError

from examples.console_demo.serving import STORE, ShopServer, serve_shop
from framework.store.store import Store
from framework.store.types import RunInfo

CHROMIUM = "/usr/bin/chromium"
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking")
THEMES = ("light", "dark")
SIZES = {"desk": (1440, 900), "laptop": (1024, 768), "phone": (390, 844), "readme": (1180, 720)}
_QUIET_MS = 1000
_ANSWERING_MS = 3500
"""Time in which the model of the demo has called its tools and written a part of its answer."""
_SETTLED = """quiet => new Promise(done => {
    let timer = setTimeout(done, quiet);
    const observer = new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(done, quiet); });
    observer.observe(document.body, { subtree: true, childList: true, characterData: true });
    setTimeout(done, 5000);
})"""
"""Waits until the page has not changed for a while; running clocks end the wait after five seconds."""


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture: an address, and what is done there before it is taken."""

    name: str
    path: str
    keys: tuple[str, ...] = ()
    """Keys that are pressed, one after the other."""
    message: str = ""
    """A message that is sent in the chat, and answered in part when the picture is taken."""


async def shots_of(shop: ShopServer) -> list[Shot]:
    """Return the pictures of all pages; their addresses depend on the stored runs."""
    runs = [*await shop.runtime.store.runs()][::-1]
    refund = _first(runs, "support", "arrived broken", "paused")
    done = _first(runs, "support", "arrived broken", "completed")
    plan, failed = _first(runs, "planner", "week 74"), _first(runs, "support", "carriers")
    waiting = _first(runs, "planner", "week 47", "paused")
    return [
        Shot("chat", "#/chat"),
        Shot("chat-approval", f"#/chat/{refund.conversation_id}"),
        Shot("chat-answer", f"#/chat/{done.conversation_id}"),
        Shot("chat-plan", f"#/chat/{plan.conversation_id}"),
        Shot("chat-chinese", f"#/chat/{_first(runs, 'support', '退货').conversation_id}"),
        Shot("chat-streaming", "#/chat", message="Checkout got slow at half past one. What do the logs say?"),
        Shot("approvals", "#/approvals"),
        Shot("approvals-refund", f"#/approvals/{refund.run_id}"),
        Shot("approvals-plan", f"#/approvals/{waiting.run_id}"),
        Shot("runs", "#/runs"),
        *(
            Shot(f"run-{tab}", f"#/runs/{done.run_id}?tab={tab}")
            for tab in ("waterfall", "tree", "events", "messages", "files")
        ),
        Shot("run-plan", f"#/runs/{plan.run_id}"),
        Shot("run-failed", f"#/runs/{failed.run_id}"),
        Shot("run-missing", "#/runs/run_none"),
        Shot("agents", "#/agents/support"),
        Shot("agents-prompt", "#/agents/support?tab=prompt"),
        Shot("agents-problem", "#/agents/stock"),
        Shot("config", "#/config"),
        Shot("fleet", "#/fleet"),
        Shot("config-editor", "#/config/files/agents.d/support.yaml?line=17"),
        Shot("usage", "#/usage"),
        Shot("palette", "#/runs", keys=("Control+k",)),
        Shot("keys", "#/runs", keys=("?",)),
    ]


async def report_fleet(shop: ShopServer, stores: AsyncExitStack) -> None:
    """Report three processes to the store of the shop, as they do themselves: one has other files."""
    digests = {name: agent.digest for name, agent in shop.runtime.catalog.current.agents.items()}
    common = {"version": "0.2.0", "generation": 6, "agents": digests, "begun_per_second": 0.4}
    worker = {**common, "kind": "worker", "works": True, "capacity": 50}
    reports = {
        "api": {**common, "kind": "serve", "host": "shop-1", "begun_per_second": 0},
        "worker-1": {**worker, "host": "shop-2"},
        "worker-2": {**worker, "host": "shop-3", "agents": {**digests, "support": "91f02d6c7b1e4a55"}},
    }
    for name, report in reports.items():
        store = await Store.open(STORE, shop.project)
        stores.push_async_callback(store.close)
        await store.keep_alive(name, report)


def _first(runs: Sequence[RunInfo], agent: str, text: str, status: str = "") -> RunInfo:
    return next(run for run in runs if run.agent == agent and text in run.message and status in ("", run.status))


async def take(browser: Browser, shop: ShopServer, shot: Shot, file: Path, theme: str, size: str, locale: str) -> int:
    """Write one picture, and return its size in bytes."""
    async with _page(browser, theme, size, locale) as page:
        await page.goto(f"{shop.url}/{shot.path}")
        await page.evaluate(_SETTLED, _QUIET_MS)
        for key in shot.keys:
            await page.keyboard.press(key)
            await page.evaluate(_SETTLED, _QUIET_MS)
        if shot.message:
            await page.locator("textarea").first.fill(shot.message)
            await page.keyboard.press("Enter")
            await page.wait_for_timeout(_ANSWERING_MS)
        return len(await page.screenshot(path=file))


@asynccontextmanager
async def _page(browser: Browser, theme: str, size: str, locale: str) -> AsyncIterator[Page]:
    width, height = SIZES[size]
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if theme == "dark" else "light",
        locale=locale,
        reduced_motion="reduce",  # nothing is half faded in
        has_touch=size == "phone",
    )
    try:
        yield await context.new_page()
    finally:
        await context.close()


async def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(prog="console_screenshots", description="Take pictures of the console.")
    parser.add_argument("--to", type=Path, default=Path("build/screenshots"), help="default: build/screenshots")
    parser.add_argument("--only", default="", help="names of pictures, such as runs,usage; default: all")
    parser.add_argument("--theme", choices=THEMES, help="default: both")
    parser.add_argument("--size", choices=SIZES, help="default: desk and phone")
    parser.add_argument("--locale", default="en-US", help="language of the console, such as zh-CN; default: en-US")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    options.to.mkdir(parents=True, exist_ok=True)
    names = set(filter(None, options.only.split(",")))
    themes, sizes = [options.theme] if options.theme else THEMES, [options.size] if options.size else ["desk", "phone"]
    with TemporaryDirectory(prefix="agentsd-shop-") as folder:
        async with (
            serve_shop(Path(folder, "shop")) as shop,
            AsyncExitStack() as stores,
            async_playwright() as driver,
        ):
            await report_fleet(shop, stores)
            shots = await shots_of(shop)
            if unknown := names - {shot.name for shot in shots}:
                parser.error(
                    f"unknown pictures: {', '.join(sorted(unknown))}; known: {', '.join(s.name for s in shots)}"
                )
            browser = await driver.chromium.launch(executable_path=CHROMIUM, args=[*OPTIONS])
            for shot, theme, size in product(shots, themes, sizes):
                if not names or shot.name in names:
                    file = options.to / f"{shot.name}-{theme}{'' if size == 'desk' else f'-{size}'}.png"
                    try:
                        size_kb = await take(browser, shop, shot, file, theme, size, options.locale) // 1000
                        print(f"{file}: {size_kb} kB", flush=True)
                    except PlaywrightError as error:  # the others are taken nevertheless
                        print(f"{file}: failed: {error.message}", flush=True)
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
