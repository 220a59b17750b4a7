"""What a browser loads for the first view: few requests, short chains, and on a reload nothing but the page."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any

import pytest
from playwright.async_api import Page, expect

from framework.server.console import ConsoleFiles
from tests.support.console import open_page, run_in_browser, serve_console
from tests.support.node_modules import CONSOLE
from tests.support.projects import agent

FILES = {"agents.d/support.yaml": agent("support", model="offline")}
PAGES = ("chat", "approvals", "runs", "agents", "config", "fleet", "usage")
FILES_OF_A_PAGE = ["agents/page.js", "main.js", "styles.css"]
COMMENTS = re.compile(r"/\*.*?\*/", re.DOTALL)
MODULE = re.compile(r"\b(\d+):(?:\(async|\(\()")
"""A module in a script, as a function, by its number."""
STATIC = re.compile(r"""^import\b[^"'();]*["'](\.\.?/[^"']+)["']""", re.MULTILINE)
_ENTRIES = """() => performance.getEntriesByType("resource").filter(entry => /console.*(js|css)$/.test(entry.name))
    .map(entry => ({ name: entry.name.replace(/.*\\/console\\/[0-9a-f]+\\//, ""), bytes: entry.transferSize }))"""


async def loaded(page: Page, name: str) -> list[dict[str, Any]]:
    """Return the assets that the page has loaded, once it shows something."""
    await expect(page.locator(f"page-{name}")).to_be_attached()
    entries: list[dict[str, Any]] = await page.evaluate(_ENTRIES)
    return entries


def test_a_visit_loads_each_file_once_and_a_reload_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve_console(tmp_path, FILES) as server, open_page(server, "#/agents") as page:
            first = await loaded(page, "agents")
            names = [entry["name"] for entry in first]
            assert sorted(names) == FILES_OF_A_PAGE
            await page.reload()
            again = await loaded(page, "agents")
            assert {entry["name"] for entry in again} >= set(names)
            assert [entry for entry in again if entry["bytes"]] == []

    run_in_browser(main())


@pytest.mark.parametrize("name", PAGES)
def test_the_script_of_a_page_contains_all_that_it_imports(name: str) -> None:
    """None of its modules is found only when the one that imports it has arrived."""
    contents = {path.relative_to(CONSOLE).as_posix(): path.read_bytes() for path in CONSOLE.rglob("*.js")}
    assets = ConsoleFiles.of({**contents, "index.html": (CONSOLE / "index.html").read_bytes()}).assets
    paths = sorted(contents)
    at_once, later = (
        {paths[int(number)] for number in MODULE.findall(assets[one].content.decode())}
        for one in ("main.js", f"{name}/page.js")
    )
    assert at_once == imports_of("main.js")
    assert later == imports_of(f"{name}/page.js") - at_once


def imports_of(name: str) -> set[str]:
    """Return a module with all that it imports at once, in any number of steps."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        if (module := waiting.pop()) not in found:
            found.add(module)
            text = COMMENTS.sub("", (CONSOLE / module).read_text("utf-8"))
            waiting += [normpath(join(dirname(module), target)) for target in STATIC.findall(text)]
    return found
