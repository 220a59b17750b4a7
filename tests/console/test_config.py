"""The page of the configuration: what is live, what waits on the disk, history, checks, rollbacks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from playwright.async_api import expect

from tests.support.api_keys import KEY, key_entry
from tests.support.console import check_axe, open_page, run_in_browser, serve_console
from tests.support.projects import agent, write

SUPPORT, WRITER = "agents.d/support.yaml", "agents.d/writer.yaml"
QUICK = "reload: {quiet: 20ms, widening_grace: 40ms}\n"


def support(steps: int = 10) -> str:
    return agent("support", model="offline", runtime_policy=f"{{max_steps: {steps}}}")


FILES = {SUPPORT: support(), WRITER: agent("writer", model="offline"), "agentsd.yaml": QUICK}


def test_an_edit_goes_live_and_is_rolled_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve_console(tmp_path, FILES, watch=True) as server, open_page(server, "#/config") as page:
            await expect(page.get_by_role("heading", name="Generation 1")).to_be_visible()
            await expect(page.get_by_role("button", name="Roll back")).to_have_count(0)
            write(tmp_path, {SUPPORT: support(20)})
            await expect(page.get_by_role("heading", name="Generation 2")).to_be_visible()
            await expect(page.locator(".gen.is-live")).to_contain_text("support: limits.steps: 10 → 20")
            await expect(page.locator(".change")).to_contain_text("widens")
            await expect(page.locator(".filediff .add b").first).to_have_text("20")
            write(tmp_path, {SUPPORT: support(3)})
            await expect(page.get_by_role("heading", name="Generation 3")).to_be_visible()
            await page.keyboard.press("j")
            await expect(page.get_by_role("heading", name="Generation 2")).to_be_visible()
            await page.get_by_role("button", name="Roll back to 2").click()
            dialog = page.get_by_role("dialog", name="Roll back to 2")
            await expect(dialog).to_contain_text("It lets agents do more than now:")
            await expect(dialog).to_contain_text("support: limits.steps: 3 → 20")
            await check_axe(page)
            await dialog.get_by_role("button", name="Cancel").click()
            assert server.runtime.catalog.current.number == 3
            await page.get_by_role("button", name="Roll back to 2").click()
            await dialog.get_by_role("button", name="Roll back to 2").click()
            await expect(page.get_by_role("heading", name="Generation 4")).to_be_visible()
            await expect(page.locator(".gen.is-live")).to_contain_text("back to what 2 was")
            await expect(page.locator(".gen.is-live")).to_contain_text("held")
            await expect(page.get_by_text("the files on disk are ignored")).to_be_visible()
            await page.locator("a.gen", has_text="On disk").click()
            await expect(page.get_by_text("Held after a rollback")).to_be_visible()
            await expect(page.locator(".filediff .add")).to_contain_text("max_steps: 3")
            assert server.runtime.catalog.current.agents["support"].spec.runtime_policy.max_steps == 20

    run_in_browser(main())


def test_a_broken_file_is_a_problem_until_it_is_repaired(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serve_console(tmp_path, FILES, watch=True) as server,
            open_page(server, "#/config", dark=True) as page,
        ):
            await expect(page.get_by_role("heading", name="Generation 1")).to_be_visible()
            write(tmp_path, {WRITER: agent("writer", model="offline", max_stepz="3")})
            disk = page.locator("a.gen", has_text="On disk")
            await expect(disk).to_contain_text("1 file differs from what is live")
            await expect(disk).to_contain_text("1 problem")
            await expect(page.locator(".doc .problem")).to_contain_text("unknown key 'max_stepz'")
            await expect(page.get_by_text("1 agent keeps its last good version")).to_be_visible()
            await page.get_by_role("button", name="Check files").click()
            await expect(page.get_by_role("heading", name="Files on disk")).to_be_visible()
            await expect(page.get_by_role("status").filter(has_text="Not all files are valid")).to_be_visible()
            await expect(page.locator(".filediff .add")).to_contain_text("max_stepz")
            await check_axe(page, ".cfg")  # a message of the frame shows the same problem
            write(tmp_path, {WRITER: agent("writer", model="offline", description="Repaired.")})
            await expect(disk).to_have_count(0)
            await expect(page.locator(".gen.is-live")).to_contain_text("writer: description")

    run_in_browser(main())


def test_without_the_role_admin_nothing_can_be_changed_and_phones_show_one_column(tmp_path: Path) -> None:
    entries = [key_entry("reader", "reader-key-0123456789", roles=["read"]), KEY]
    files = {**FILES, "agentsd.yaml": f"server: {{api_keys: {json.dumps(entries)}, allow_edit: true}}\n{QUICK}"}

    async def main() -> None:
        async with serve_console(tmp_path, files, watch=True) as server:
            async with asyncio.timeout(20):
                write(tmp_path, {SUPPORT: support(20)})
                await server.runtime.wait_generation(2)
            key = "reader-key-0123456789"
            async with open_page(server, "#/config", width=360, height=740, key=key, language="zh") as page:
                await expect(page.locator(".gen")).to_have_count(2)
                await expect(page.locator(".doc")).to_be_hidden()
                await expect(page.locator(".side button")).to_have_count(0)
                await page.locator(".gen").last.click()
                await expect(page.get_by_role("heading", name="第 1 版")).to_be_visible()
                await expect(page.locator(".gen").first).to_be_hidden()
                await expect(page.get_by_role("button", name="回滚")).to_have_count(0)
                assert await page.evaluate("document.documentElement.scrollWidth") <= 360
                await check_axe(page)
                await page.get_by_role("link", name="返回").click()
                await expect(page.locator(".gen").first).to_be_visible()
            async with open_page(server, f"#/config/files/{SUPPORT}", key=key) as page:
                await expect(page.get_by_text("read-only: Your key lacks the role admin.")).to_be_visible()
                assert not await page.get_by_role("textbox", name=SUPPORT).is_editable()

    run_in_browser(main())
