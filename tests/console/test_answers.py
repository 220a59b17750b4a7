"""What a reader does with an answer: rate it, copy it, link to it, edit the question, fork, and compare two runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from framework import Tool, tool
from framework.llm.client import ModelRequest, ScriptedModel, calls
from framework.store.types import RunQuery
from tests.support.console import check_axe, open_page, run_in_browser, serve_console
from tests.support.projects import agent, write

FILES = {
    "agents.d/support.yaml": agent("support", skill_policy="{allow: [pay]}", instructions='{template: "support.j2"}'),
    "prompts/support.j2": "Help.",
}


def answer(request: ModelRequest) -> Any:
    asked = next(message.content for message in reversed(request.messages) if message.role == "user")
    if asked.startswith("pay") and request.messages[-1].role == "user":
        return calls(("pay", {"amount": int(asked.split()[1])}))
    return f"**Answer** to {asked}"


def paying(paid: list[int]) -> list[Tool]:
    @tool(risk="low", idempotent=False)
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    return [pay]


def turn(page: Page, text: str) -> Any:
    return page.locator(".turn").filter(has=page.locator(".me", has_text=re.compile(rf"^{text}$")))


def test_an_answer_is_rated_with_a_comment_and_found_by_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve_console(tmp_path, FILES, ScriptedModel(script=answer), tools=paying([])) as server:
            first = await server.runtime.run("one", agent="support", conversation="c")
            await server.runtime.run("two", agent="support", conversation="c")
            async with open_page(server, "#/chat/c") as page:
                down = turn(page, "one").get_by_label("Bad answer")
                await down.click()
                await page.get_by_label("Why? Optional").fill("the total is wrong")
                await check_axe(page)
                await page.keyboard.press("Control+Enter")
                await expect(page.get_by_role("dialog")).to_have_count(0)
                await expect(down).to_have_attribute("aria-pressed", "true")
                await down.click()
                await page.keyboard.press("Escape")
                await expect(page.get_by_role("dialog")).to_have_count(0)
                await turn(page, "one").get_by_label("More about this answer").click()
                await page.keyboard.press("Escape")
                await expect(page.get_by_role("menu")).to_have_count(0)
                (info,) = await server.runtime.store.runs(RunQuery(rating="down"))
                assert info.rating is not None
                assert (info.run_id, info.rating.comment) == (first.run_id, "the total is wrong")
                await page.goto(f"{server.url}/#/runs?rating=down")
                await expect(page.locator("tbody tr")).to_have_count(1)
                await page.locator("tbody a").first.click()
                await expect(page.locator(".run-talk")).to_contain_text("Bad answer")
                await expect(page.locator(".run-talk")).to_contain_text("the total is wrong")
                await page.locator(".run-talk").get_by_label("Bad answer").click()
                await page.get_by_role("button", name="Remove the rating").click()
                await expect(page.locator(".run-talk")).to_contain_text("not rated")
                assert await server.runtime.store.runs(RunQuery(rating="down")) == []

    run_in_browser(main())


def test_a_message_is_edited_and_sent_in_a_copy_of_the_conversation_before_it(tmp_path: Path) -> None:
    async def main() -> None:
        paid: list[int] = []
        store, model = f"sqlite:///{tmp_path}/state.db", ScriptedModel(script=answer)
        async with serve_console(tmp_path, FILES, model, tools=paying(paid), store=store) as server:
            for text in ("pay 5", "two", "three"):
                await server.runtime.run(text, agent="support", conversation="c")
            async with open_page(server, "#/chat/c") as page:
                await page.locator("#msg").fill("a draft")
                edit = turn(page, "two").get_by_label("Edit this message")
                await edit.click()
                await expect(page.locator("#msg")).to_have_value("two")
                await page.keyboard.press("Escape")
                await expect(page.locator("#msg")).to_have_value("a draft")
                await edit.click()
                await page.locator("#msg").fill("two, shorter")
                await page.keyboard.press("Enter")
                await expect(page.locator(".turn")).to_have_count(2)
                await expect(turn(page, "two, shorter").locator(".prose")).to_contain_text("Answer to two, shorter")
                await expect(turn(page, "pay 5").locator(".calls")).to_contain_text("pay")
                await expect(turn(page, "pay 5")).to_contain_text("The conversation was forked here")
                assert paid == [5]
                await page.goto(f"{server.url}/#/chat/c")
                await expect(page.locator(".turn")).to_have_count(3)
                await expect(page.locator("#msg")).to_have_value("a draft")
                await turn(page, "pay 5").get_by_label("Continue from here").click()
                await expect(page.locator(".turn")).to_have_count(1)
                assert "/chat/conv_" in page.url

    run_in_browser(main())


def test_a_link_to_a_message_loads_earlier_turns_and_marks_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve_console(tmp_path, FILES, ScriptedModel(script=answer), tools=paying([])) as server:
            runs = [await server.runtime.run(f"m{n}", agent="support", conversation="c") for n in range(25)]
            async with open_page(server, f"#/chat/c?message={runs[1].run_id}") as page:
                marked = page.locator(".turn.target")
                await expect(marked.locator(".me")).to_have_text("m1")
                await expect(marked).to_be_in_viewport()
                await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
                await turn(page, "m2").get_by_label("Copy a link to this message").click()
                copied = await page.evaluate("navigator.clipboard.readText()")
                assert copied == f"{server.url}/#/chat/c?message={runs[2].run_id}"
                await turn(page, "m2").get_by_label("Copy the answer as Markdown").click()
                assert await page.evaluate("navigator.clipboard.readText()") == "**Answer** to m2"
                await turn(page, "m2").get_by_label("More about this answer").click()
                await page.get_by_role("menuitem", name="Copy the answer as text").click()
                await expect(page.locator(".toast")).to_contain_text("Copied")
                assert await page.evaluate("navigator.clipboard.readText()") == "Answer to m2"
                await page.evaluate(f"location.hash = '#/chat/c?message={runs[24].run_id}'")
                await expect(marked.locator(".me")).to_have_text("m24")

    run_in_browser(main())


@pytest.mark.parametrize("way", ["list", "keys", "run"])
def test_two_runs_are_compared_with_their_answers_calls_figures_and_files(tmp_path: Path, way: str) -> None:
    async def main() -> None:
        store = f"sqlite:///{tmp_path}/state.db"
        model = ScriptedModel(script=answer)
        async with serve_console(tmp_path, FILES, model, tools=paying([]), store=store) as server:
            older = await server.runtime.run("pay 5", agent="support", conversation="c")
            write(tmp_path, {"prompts/support.j2": "Help.\nBe short."})
            await server.runtime.reload()
            newer = await server.runtime.run("pay 7", agent="support", conversation="c")
            async with open_page(server, "#/runs" if way != "run" else f"#/runs/{newer.run_id}") as page:
                if way == "run":
                    await page.locator(".run-head").get_by_label("More").click()
                    await page.get_by_role("menuitem", name="Compare with the turn before").click()
                elif way == "list":
                    await page.get_by_role("button", name="Compare").click()
                    await page.get_by_label("Compare pay 7").click()
                    await page.get_by_label("Compare pay 5").click()
                else:
                    await page.locator("tbody tr").first.wait_for()
                    for key in ("c", "j", "x", "j", "x"):
                        await page.keyboard.press(key)
                await expect(page).to_have_url(re.compile(f"#/compare/{older.run_id}/{newer.run_id}$"))
                await expect(page.locator(".calls-c tbody tr")).to_have_count(1)
                await expect(page.locator(".calls-c tbody tr")).to_contain_text("changed")
                await expect(page.locator(".run-file")).to_contain_text("prompts/support.j2")
                await expect(page.locator(".run-file .l.add")).to_have_text("+ Be short.")
                await page.get_by_role("tab", name="Differences").click()
                await expect(page.locator("#cmp-answers .l.add")).to_contain_text("pay 7")
                await check_axe(page)
                await page.keyboard.press("s")
                await expect(page).to_have_url(re.compile(f"#/compare/{newer.run_id}/{older.run_id}$"))

    run_in_browser(main())


def test_a_run_that_cannot_be_compared_says_why_and_is_tried_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve_console(tmp_path, FILES, ScriptedModel(script=answer), tools=paying([])) as server:
            one = await server.runtime.run("one", agent="support")
            async with open_page(server, f"#/compare/{one.run_id}/run_none", allowed=["404"]) as page:
                await expect(page.get_by_role("alert")).to_contain_text("there is no run 'run_none'")
                await expect(page.get_by_role("button", name="Try again")).to_be_visible()
                await page.goto(f"{server.url}/#/compare")
                await expect(page.locator(".empty")).to_contain_text("Two runs are needed")

    run_in_browser(main())
