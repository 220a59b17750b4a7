"""The editor: completion, problems as one types, applying, drafts, conflicts with other editors."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Locator, Page, expect

from tests.support.console import check_axe, open_page, run_in_browser, serve_console
from tests.support.projects import agent, write

SUPPORT, PROMPT = "agents.d/support.yaml", "prompts/hello.j2"
TEXT = agent(
    "support",
    model="offline",
    instructions="{template: hello.j2, vars: {tone: warm}}",
    skill_policy="{allow: [calculator]}  # what the desk needs",
    runtime_policy="\n  max_steps: 10",
)
FILES = {
    SUPPORT: TEXT,
    PROMPT: "Be {{ tone }}.\n",
    "plugins/say.py": "x = 1\n",
    "agentsd.yaml": "server: {allow_edit: true}\nreload: {quiet: 20ms, widening_grace: 40ms}\n",
}


def field(page: Page, path: str = SUPPORT) -> Locator:
    return page.get_by_role("textbox", name=path)


async def has_text(page: Page, text: str) -> None:
    """Wait until the field has this text."""
    await page.wait_for_function("text => document.querySelector('editor-page')?.text === text", arg=text)


async def paste_all(page: Page, text: str) -> None:
    """Replace the whole text by one from the clipboard."""
    await field(page).focus()
    await page.keyboard.press("Control+a")
    await field(page).evaluate(
        """(node, text) => {
            const clipboardData = new DataTransfer();
            clipboardData.setData("text/plain", text);
            node.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
        }""",
        text,
    )


async def at_end(page: Page) -> None:
    """Put the cursor at the end of the text."""
    await field(page).focus()
    await page.keyboard.press("Control+End")


def test_a_file_is_edited_with_completion_problems_and_one_key_to_apply(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serve_console(tmp_path, FILES, watch=True) as server,
            open_page(server, f"#/config/files/{SUPPORT}") as page,
        ):
            await has_text(page, TEXT)
            await expect(page.get_by_role("button", name="Apply")).to_be_disabled()
            await at_end(page)
            await page.keyboard.type("  max_too")
            option = page.get_by_role("option", name="max_tool_calls")
            await expect(option).to_have_attribute("aria-selected", "true")
            await expect(page.locator(".cm-completionInfo")).to_contain_text("Maximum number of tool calls")
            await check_axe(page)
            await page.keyboard.press("Enter")
            await page.keyboard.type("lots")
            await expect(page.locator(".cm-line.hit")).to_contain_text("max_tool_calls: lots")
            await expect(page.locator(".probs")).to_contain_text("9:19 must be a whole number")
            await expect(page.get_by_role("button", name="Apply")).to_be_disabled()
            for _ in "lots":
                await page.keyboard.press("Backspace")
            await page.keyboard.type("99")
            await expect(page.get_by_text("Would go live.")).to_be_visible()
            await expect(page.locator(".edside .change")).to_contain_text("limits.tool_calls: 20 → 99")
            assert (tmp_path / SUPPORT).read_text() == TEXT, "nothing is written while one types"
            await page.keyboard.press("Control+s")
            dialog = page.get_by_role("dialog", name=f"Apply {SUPPORT}")
            await expect(dialog).to_contain_text("It lets agents do more than now:")
            await dialog.get_by_role("button", name="Apply").click()
            await expect(page.locator(".foot")).to_contain_text("Generation 2 is live")
            assert (tmp_path / SUPPORT).read_text() == TEXT + "  max_tool_calls: 99"
            assert server.runtime.catalog.current.agents["support"].spec.runtime_policy.max_tool_calls == 99
            await expect(page.get_by_role("button", name="Apply")).to_be_disabled()

    run_in_browser(main())


def test_fixes_tools_and_templates_change_only_their_place(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serve_console(tmp_path, FILES, watch=True) as server,
            open_page(server, f"#/config/files/{SUPPORT}?line=5", dark=True, allowed=["status of 412"]) as page,
        ):
            await expect(page.locator(".cm-line.asked")).to_contain_text("instructions:")
            await expect(page.locator(".foot")).to_contain_text("line 5, column 1")
            await page.get_by_role("button", name="echo", exact=True).click()
            await has_text(page, TEXT.replace("[calculator]", "[calculator, echo]"))
            await page.get_by_role("button", name="calculator", exact=True).click()
            await has_text(page, TEXT.replace("[calculator]", "[echo]"))
            steps = page.get_by_role("textbox", name="max_steps")
            await steps.fill("5")
            await steps.press("Enter")
            changed = TEXT.replace("[calculator]", "[echo]").replace("max_steps: 10", "max_steps: 5")
            await has_text(page, changed)
            await at_end(page)
            await page.keyboard.type("fallback_model: []")
            await expect(page.get_by_role("button", name="Write fallback_models")).to_be_visible()
            await page.keyboard.press("Alt+Enter")
            await has_text(page, changed + "fallback_models: []")
            await expect(page.locator(".probs")).to_have_count(0)
            await page.get_by_role("button", name="Discard").click()
            await has_text(page, TEXT)
            await page.get_by_role("link", name="hello.j2").click()
            await field(page, PROMPT).focus()
            await page.keyboard.press("Control+End")
            await page.keyboard.type("{{ mess")
            await page.get_by_role("option", name="message").click()
            await page.keyboard.type(" }}")
            await has_text(page, "Be {{ tone }}.\n{{ message }}")
            await page.get_by_role("button", name="Apply").click()
            await expect(page.locator(".foot")).to_contain_text("Generation 2 is live")
            await page.get_by_role("link", name="say.py").click()
            await expect(page.get_by_text("read-only: plugins are code")).to_be_visible()
            assert not await field(page, "plugins/say.py").is_editable()
            await _create(page)
            assert server.runtime.catalog.current.agents["billing"].spec.skill_policy.allow == ()
            assert (tmp_path / "prompts/bye.j2").is_file()

    run_in_browser(main())


async def _create(page: Page) -> None:
    """Create an agent, not twice, and a template."""
    await page.get_by_role("button", name="New file").click()
    dialog = page.get_by_role("dialog", name="New file")
    await expect(dialog.get_by_label("Kind")).to_be_visible()
    await check_axe(page)
    await dialog.get_by_label("Name").fill("support")
    await page.keyboard.press("Enter")
    await expect(dialog.get_by_role("alert")).to_have_text(f"{SUPPORT} exists already.")
    await dialog.get_by_label("Name").fill("no spaces")
    await dialog.get_by_role("button", name="Create").click()
    await expect(dialog).to_be_visible()
    await dialog.get_by_label("Name").fill("billing")
    await page.keyboard.press("Enter")
    await expect(field(page, "agents.d/billing.yaml")).to_contain_text("description: Answers questions.")
    await page.get_by_role("button", name="New file").click()
    await dialog.get_by_label("Kind").select_option("template")
    await dialog.get_by_label("Name").fill("bye")
    await dialog.get_by_role("button", name="Create").click()
    await expect(page.locator(".tree-f [aria-current]")).to_contain_text("bye.j2")


def test_a_text_is_found_and_replaced_and_keys_of_the_page_do_nothing_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serve_console(tmp_path, FILES) as server,
            open_page(server, f"#/config/files/{SUPPORT}", dark=True) as page,
        ):
            await at_end(page)
            await page.keyboard.type("gc?")
            await page.keyboard.press("Control+f")
            await page.keyboard.type("warm")
            await page.keyboard.press("Enter")
            await expect(page.locator(".cm-searchMatch")).to_have_text("warm")
            await check_axe(page)
            await page.get_by_placeholder("Replace").fill("cold")
            await page.get_by_role("button", name="replace all").click()
            await page.keyboard.press("Escape")
            await has_text(page, TEXT.replace("warm", "cold") + "gc?")
            await at_end(page)
            await page.keyboard.press("Control+z")
            await page.keyboard.press("Control+z")
            await has_text(page, TEXT)

    run_in_browser(main())


def test_a_draft_outlives_the_page_and_an_edit_elsewhere_loses_nothing(tmp_path: Path) -> None:
    mine = TEXT.replace("The agent support.", "Mine.")
    theirs = TEXT.replace("The agent support.", "Theirs.")

    async def main() -> None:
        async with (
            serve_console(tmp_path, FILES, watch=True) as server,
            open_page(server, f"#/config/files/{SUPPORT}", allowed=["status of 412"]) as page,
        ):
            await paste_all(page, mine)
            await expect(page.get_by_text("Would go live.")).to_be_visible()
            await page.reload()
            await has_text(page, mine)
            write(tmp_path, {SUPPORT: theirs})
            await expect(page.get_by_text("This file has changed on the disk.")).to_be_visible()
            await has_text(page, mine)
            await field(page).press("Control+s")
            both = page.get_by_role("region", name="Both versions")
            await expect(both.get_by_role("group", name="On disk")).to_contain_text("description: Theirs.")
            await expect(both.get_by_role("group", name="Mine")).to_contain_text("description: Mine.")
            await check_axe(page)
            assert (tmp_path / SUPPORT).read_text() == theirs
            await both.get_by_role("button", name="Keep mine").click()
            await expect(page.get_by_text("Would go live.")).to_be_visible()
            await page.get_by_role("button", name="Apply").click()
            await expect(page.locator(".foot")).to_contain_text("is live")
            assert (tmp_path / SUPPORT).read_text() == mine
            write(tmp_path, {SUPPORT: theirs})
            await has_text(page, theirs)  # without edits of one's own it is read again

    run_in_browser(main())


def test_the_editor_fits_a_phone(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serve_console(tmp_path, FILES) as server,
            open_page(server, "#/config/files", width=360, height=740) as page,
        ):
            await has_text(page, TEXT)
            assert await page.evaluate("document.documentElement.scrollWidth") <= 360
            await page.get_by_role("button", name="What it would do").click()
            await expect(page.get_by_role("textbox", name="max_steps")).to_be_visible()
            await check_axe(page)

    run_in_browser(main())
