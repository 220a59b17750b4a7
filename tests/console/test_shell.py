"""The frame of the console: keyboard, palette, keys, connection, theme, language, what waits, and reloads."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

from playwright.async_api import Route, expect

from framework.llm.client import ScriptedModel, calls
from framework.types.messages import Message
from framework.types.state import RunState
from tests.support.api_keys import KEY, OTHER, key_entry
from tests.support.console import check_axe, open_page, press_in_turn, run_in_browser, serve_console
from tests.support.projects import agent, write

SUPPORT = "agents.d/support.yaml"
FILES = {SUPPORT: agent("support", model="offline", runtime_policy="{max_steps: 10}")}
QUICK = "reload: {quiet: 20ms, widening_grace: 40ms}\n"
CURRENT = ".rail [aria-current]"
STORED = "JSON.stringify(sessionStorage) + JSON.stringify(localStorage)"
REFUSED = r"status of 401|ERR_CONNECTION_REFUSED|ERR_EMPTY_RESPONSE|ERR_INCOMPLETE_CHUNKED_ENCODING"


def settings(*keys: str) -> str:
    entries = [
        key_entry(f"key-{number}", key, user="ann", roles=["chat", "read"]) for number, key in enumerate(keys, 1)
    ]
    return f"server: {{api_keys: {json.dumps(entries)}}}\n{QUICK}"


def test_everything_is_reached_by_keyboard(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve_console(tmp_path, FILES) as server, open_page(server, "#/runs") as page:
            await expect(page.locator(".live")).to_contain_text("g1")
            await page.keyboard.press("Tab")
            await expect(page.get_by_role("button", name="Skip to content")).to_be_focused()
            await page.keyboard.press("Enter")
            await expect(page.locator("main")).to_be_focused()
            for key, name in {"a": "Approvals", "g": "Agents", "f": "Config", "u": "Usage"}.items():
                await press_in_turn(page, "g", key)
                await expect(page.locator(CURRENT)).to_contain_text(name)
                await expect(page.locator("main")).to_be_focused()
                await expect(page).to_have_title(re.compile(f"{name} · agentsd"))
            await page.keyboard.press("?")
            shortcuts = page.get_by_role("dialog", name="Keyboard shortcuts")
            await expect(shortcuts.get_by_role("button", name="Close")).to_be_focused()
            await check_axe(page)
            await page.keyboard.press("Escape")
            await expect(shortcuts).to_have_count(0)
            await expect(page.locator("main")).to_be_focused()
            await press_in_turn(page, "g", "c")
            await expect(page.locator(CURRENT)).to_contain_text("Chat")

    run_in_browser(main())


def test_the_palette_finds_pages_agents_runs_and_actions(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve_console(tmp_path, FILES) as server, open_page(server, "#/usage") as page:
            result = await server.runtime.run("echo Where is parcel 55-2201?", agent="support")
            await expect(page.locator(".live")).to_contain_text("g1")
            await page.keyboard.press("Control+k")
            field = page.get_by_role("combobox", name="Search or run a command")
            await expect(field).to_be_focused()
            await expect(page.get_by_role("option", name="support")).to_be_visible()
            await check_axe(page)
            await page.keyboard.type("PARCEL run")
            await expect(page.get_by_role("option")).to_have_count(1)
            await expect(page.locator("mark").first).to_have_text("run")
            await page.keyboard.press("Enter")
            await expect(page).to_have_url(f"{server.url}/#/runs/{result.run_id}")
            await expect(page.get_by_role("heading", level=1)).to_have_text(result.run_id[:12])
            await page.keyboard.press("Control+k")
            await page.keyboard.type("nothing has this name")
            await expect(page.get_by_text("Nothing matches.")).to_be_visible()
            await field.fill("ag")
            await page.keyboard.press("ArrowDown")
            await page.keyboard.press("ArrowUp")
            await page.keyboard.press("Enter")
            await expect(page.locator(CURRENT)).to_contain_text("Agents")

    run_in_browser(main())


def test_the_palette_finds_runs_that_are_not_among_the_latest(tmp_path: Path) -> None:
    async def main() -> None:
        wanted = ""
        async with serve_console(tmp_path, FILES) as server:
            for number in range(52):  # the palette reads the latest 50 before anything is typed
                messages = [Message(role="user", content="Rare words" if not number else f"Message {number}")]
                state = RunState(agent="support", messages=messages, status="completed")
                wanted = wanted if number else state.run_id
                await server.runtime.store.start(state, None, None)
            async with open_page(server, "#/usage") as page:
                await expect(page.locator(".live")).to_contain_text("g1")
                await page.keyboard.press("Control+k")
                await expect(page.get_by_role("option", name="Message").first).to_be_visible()
                await page.keyboard.type("rare wo")
                await expect(page.get_by_role("option", name="Rare words")).to_be_visible()
                await page.keyboard.press("Enter")
                await expect(page).to_have_url(f"{server.url}/#/runs/{wanted}")

    run_in_browser(main())


def test_a_page_that_loads_replaces_the_one_before_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        go_on = asyncio.Event()

        async def hold(route: Route) -> None:
            await go_on.wait()
            await route.continue_()

        async with serve_console(tmp_path, FILES) as server, open_page(server, "#/runs") as page:
            await expect(page.locator("page-runs")).to_be_visible()
            await page.route("**/usage/page.js", hold)
            await page.get_by_role("link", name="Usage").click()
            await expect(page.locator("console-pages > .loading")).to_be_attached()
            await expect(page.locator("page-runs")).to_have_count(0)
            go_on.set()
            await expect(page.locator("page-usage")).to_be_visible()

    run_in_browser(main())


def test_a_key_is_asked_for_first_and_again_when_it_is_revoked(tmp_path: Path) -> None:
    async def main() -> None:
        files = {**FILES, "agentsd.yaml": settings(KEY)}
        async with (
            serve_console(tmp_path, files, watch=True) as server,
            open_page(server, "#/agents", allowed=[REFUSED]) as page,
        ):
            dialog = page.get_by_role("dialog", name="This server requires a key")
            field = dialog.get_by_label("Key")
            await expect(field).to_be_focused()
            await check_axe(page)
            await page.keyboard.press("Escape")
            for wrong, problem in {"two words": "without spaces", OTHER: "does not accept this key"}.items():
                await field.fill(wrong)
                await page.keyboard.press("Enter")
                await expect(dialog.get_by_role("alert")).to_contain_text(problem)
            assert await page.locator("page-agents").count() == 0, "a page waits for the key"
            await field.fill(KEY)
            await page.keyboard.press("Enter")
            await expect(page.locator("page-agents")).to_be_attached()
            await expect(dialog).to_have_count(0)
            await expect(page.get_by_role("button", name="Signed in as ann")).to_be_visible()

            write(tmp_path, {"agentsd.yaml": settings(OTHER)})
            dialog = page.get_by_role("dialog", name="This key is no longer accepted")
            await expect(dialog.get_by_label("Key")).to_be_focused()
            await expect(page.locator("page-agents")).to_be_attached()
            await dialog.get_by_label("Key").fill(OTHER)
            await dialog.get_by_label("Remember on this computer").check()
            await dialog.get_by_role("button", name="Continue").click()
            await expect(dialog).to_have_count(0)
            other = await page.context.new_page()
            await other.goto(f"{server.url}/#/agents")
            await expect(other.locator("page-agents")).to_be_attached()

            await page.goto(f"{server.url}/#/chat")
            await page.get_by_label("Message", exact=True).fill("my draft")
            assert "my draft" in await page.evaluate(STORED)
            await page.get_by_role("button", name="Signed in as ann").click()
            await page.get_by_role("menuitem", name="Sign out").click()
            for tab in (page, other):
                await expect(tab.get_by_role("dialog", name="This server requires a key")).to_be_visible()
                assert await tab.evaluate(STORED) == "{}{}", "drafts, chats and the key are removed"

    run_in_browser(main())


def test_pages_that_a_key_does_not_open_are_hidden(tmp_path: Path) -> None:
    async def main() -> None:
        entry = key_entry("reviewer", KEY, roles=["decide"])
        files = {**FILES, "agentsd.yaml": f"server: {{api_keys: {json.dumps([entry])}}}\n"}
        async with serve_console(tmp_path, files) as server, open_page(server, key=KEY) as page:
            await expect(page).to_have_url(f"{server.url}/#/approvals")
            await expect(page.locator(CURRENT)).to_contain_text("Approvals")
            await expect(page.locator("nav li a:visible")).to_have_count(1)
            await page.goto(f"{server.url}/#/usage")
            await expect(page.get_by_role("heading", name="This key does not open this page")).to_be_visible()
            await expect(page.locator("main")).to_contain_text("The key reviewer has the roles: decide.")
            await check_axe(page)

    run_in_browser(main())


def test_theme_and_language_are_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve_console(tmp_path, FILES) as server, open_page(server, "#/runs") as page:
            root = page.locator("html")
            for action in ("light and dark", "中文"):
                await page.get_by_role("button", name="Search or run a command").click()
                await page.keyboard.type(action)
                await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", level=1, name="运行")).to_be_visible()
            await expect(root).to_have_attribute("lang", "zh-CN")
            await page.reload()
            await expect(root).to_have_attribute("data-theme", "dark")
            await expect(page.get_by_role("heading", level=1, name="运行")).to_be_visible()
            await expect(page).to_have_title("运行 · agentsd")
            await page.set_viewport_size({"width": 360, "height": 740})
            await expect(page.get_by_role("heading", level=1, name="运行")).to_be_visible()
            await page.get_by_role("button", name="搜索或执行命令").click()
            await expect(page.get_by_role("combobox")).to_be_focused()
            await check_axe(page)

    run_in_browser(main())


def test_what_waits_is_counted_in_the_rail_and_the_title(tmp_path: Path) -> None:
    async def main() -> None:
        policy = '{allow: ["*"], ask: [{tool: calculator, reason: to see it}]}'
        model = ScriptedModel(script=lambda _: calls(("calculator", {"expression": "6*7"})))
        files = {SUPPORT: agent("support", skill_policy=policy)}
        async with serve_console(tmp_path, files, model) as server, open_page(server, "#/usage") as page:
            await expect(page).to_have_title("Usage · agentsd")
            result = await server.runtime.run("multiply", agent="support")
            await expect(page).to_have_title("(1) Usage · agentsd")
            await expect(page.get_by_role("link", name="Approvals")).to_contain_text("1 waits for a decision")
            await page.keyboard.press("Control+k")
            await page.get_by_role("option", name="Decide calculator: multiply").click()
            await expect(page).to_have_url(f"{server.url}/#/approvals/{result.run_id}/{result.pending[0].id}")
            await server.runtime.cancel(result.run_id)
            await expect(page).not_to_have_title("(1)")

    run_in_browser(main())


def test_edits_are_announced_with_what_they_change(tmp_path: Path) -> None:
    async def main() -> None:
        files = {**FILES, "agentsd.yaml": QUICK}
        async with serve_console(tmp_path, files, watch=True) as server, open_page(server, "#/usage") as page:
            await expect(page.locator(".live")).to_contain_text("g1")
            write(tmp_path, {SUPPORT: agent("support", model="offline", runtime_policy="{max_steps: 12}")})
            toast = page.locator(".toast")
            await toast.hover()  # it stays while the pointer is on it
            await expect(toast).to_contain_text("Generation 2 is live")
            await expect(toast).to_contain_text("max_steps")
            await expect(toast).to_contain_text("widens")
            await expect(page.locator(".live")).to_contain_text("g2")
            await check_axe(page)
            await toast.get_by_role("link", name="Open diff").click()
            await expect(page).to_have_url(f"{server.url}/#/config/2")
            await expect(toast).to_have_count(0)

            write(tmp_path, {SUPPORT: agent("support", model="offline", runtime_policy="{max_stepz: 12}")})
            alert = page.get_by_role("alert")
            await expect(alert).to_contain_text("max_stepz")
            await expect(alert.get_by_role("link", name="support.yaml")).to_be_visible()
            await expect(page.locator(".live")).to_contain_text("1 problem")
            await check_axe(page)
            write(tmp_path, {SUPPORT: agent("support", model="offline", runtime_policy="{max_steps: 9}")})
            await expect(page.locator(".toast")).to_contain_text("tightens")
            await expect(alert).to_have_count(0)
            await page.keyboard.press("Control+k")
            await expect(page.get_by_role("option", name="support")).to_be_visible()

    run_in_browser(main())
