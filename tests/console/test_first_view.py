"""What a browser loads for the first view: few requests, short chains, and on a reload nothing but the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from playwright.async_api import Page, expect

from tests.support.console import open_page, run_in_browser, serve_console
from tests.support.projects import agent

FILES = {"agents.d/support.yaml": agent("support", model="offline")}
FILES_OF_A_PAGE = ["agents/page.js", "chunk.js", "main.js", "styles.css"]
_ENTRIES = """() => performance.getEntriesByType("resource").filter(entry => /console.*(js|css)$/.test(entry.name))
    .map(entry => ({ name: entry.name.replace(/.*\\/console\\/[0-9a-f]+\\//, ""), bytes: entry.transferSize }))"""


async def loaded(page: Page, name: str) -> list[dict[str, Any]]:
    """Return the assets that the page has loaded, once it shows something."""
    await expect(page.locator(f"page-{name}")).to_be_attached()
    # The browser lists a file after it has executed it.
    await page.wait_for_function(f"least => ({_ENTRIES})().length >= least", arg=len(FILES_OF_A_PAGE))
    entries: list[dict[str, Any]] = await page.evaluate(_ENTRIES)
    return entries


def test_a_visit_loads_each_file_once_and_a_reload_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve_console(tmp_path, FILES) as server, open_page(server, "#/agents", first=True) as page:
            first = await loaded(page, "agents")
            names = [entry["name"] for entry in first]
            assert sorted(re.sub(r"-[A-Z0-9]+\.", ".", name) for name in names) == FILES_OF_A_PAGE
            await page.reload()
            again = await loaded(page, "agents")
            assert {entry["name"] for entry in again} >= set(names)
            assert [entry for entry in again if entry["bytes"]] == []

    run_in_browser(main())
