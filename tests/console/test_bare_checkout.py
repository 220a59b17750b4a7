"""The console as modules of a checkout, without a build: plain text for Markdown, and it says so."""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.async_api import expect

from framework.testing import ScriptedModel
from tests.support.console import check_axe, open_page, run_in_browser, serve_console
from tests.support.node_modules import CONSOLE
from tests.support.projects import agent

ANSWER = "# Title\n\nAn answer with **marks**,\n  [a link](https://x.example) and `code`."
FILES = {
    "agents.d/support.yaml": agent("support"),
    "agentsd.yaml": "server: {console: false, allow_edit: true}\n",  # the test serves another one
}


def modules(folder: Path) -> Path:
    """Return a copy of the console without its build."""
    shutil.copytree(CONSOLE, folder / "modules", ignore=shutil.ignore_patterns("built", "__pycache__"))
    return folder / "modules"


def test_a_console_that_is_not_built_shows_texts_as_they_are(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel(ANSWER)
        async with serve_console(tmp_path / "project", FILES, model, console=modules(tmp_path)) as server:
            result = await server.runtime.run("hello", agent="support", conversation="one")
            async with open_page(server, "#/chat/one") as page:
                answer = page.locator(".prose")
                await expect(answer).to_have_text(ANSWER)
                assert (
                    await answer.evaluate("node => getComputedStyle(node.firstElementChild).whiteSpace") == "pre-wrap"
                )
                assert await answer.locator("a, strong, code").count() == 0
                await page.keyboard.press("Escape")
                await page.locator("body").press("?")
                await expect(page.get_by_role("dialog")).to_contain_text("This console is not built")
                await check_axe(page)
                await page.goto(f"{server.url}/#/runs/{result.run_id}")
                await expect(page.locator(".run-talk")).to_contain_text("**marks**")

    run_in_browser(main())


def test_its_editor_is_a_plain_field_that_checks_and_applies(tmp_path: Path) -> None:
    path = "agents.d/support.yaml"

    async def main() -> None:
        files = {**FILES, path: agent("support", model="offline")}
        async with (
            serve_console(tmp_path / "project", files, console=modules(tmp_path), watch=True) as server,
            open_page(server, f"#/config/files/{path}?line=3") as page,
        ):
            field = page.get_by_role("textbox", name=path)
            await expect(field).to_have_value(files[path])
            await expect(page.locator(".foot")).to_contain_text("line 3, column 1")
            await field.fill(files[path].replace("The agent support.", "Mine."))
            await expect(page.get_by_text("Would go live.")).to_be_visible()
            await check_axe(page)
            await page.keyboard.press("Control+s")
            await expect(page.locator(".foot")).to_contain_text("Generation 2 is live")
            assert "Mine." in (tmp_path / "project" / path).read_text()

    run_in_browser(main())
