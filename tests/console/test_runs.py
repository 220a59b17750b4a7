"""The pages of runs: the list with its filters, one run with its tabs, and a run in progress."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from playwright.async_api import Page, expect

from framework import Edit, Runtime, Tool, ToolError, tool
from framework.engine.runtime.request import RunOptions
from framework.llm.client import ScriptedModel, calls
from framework.types.events import RunEvent, ToolFinished
from framework.types.messages import Message
from framework.types.report import SpanRecord
from framework.types.state import RunState
from tests.support.console import check_axe, open_page, run_in_browser, serve_console
from tests.support.projects import agent, write
from tests.support.submitted_runs import Gate

POLICY = '{allow: ["*"], ask: [{tool: refund, optional: true}]}'
FILES = {
    "agents.d/support.yaml": agent("support", skill_policy=POLICY, instructions='{template: "support.j2"}'),
    "agents.d/other.yaml": agent("other", skill_policy='{allow: ["*"]}', runtime_policy="{max_steps: 1}"),
    "prompts/support.j2": "Help.",
}
HOSTILE = "<script>alert(1)</script> <img src=x onerror=alert(1)> \u202egnp.exe"


def tools() -> list[Tool]:
    @tool(risk="low")
    async def find(order: str) -> dict[str, Any]:
        """Find an order."""
        return {"order": order, "price": 74.5}

    @tool(risk="low")
    async def fetch(path: str) -> str:
        """Fetch a page."""
        raise ToolError(f"{path} is {HOSTILE}")

    @tool(risk="low")
    async def refund(amount: float) -> str:
        """Pay money back."""
        return f"refunded {amount}"

    return [find, fetch, refund]


async def refunded(runtime: Runtime) -> None:
    """Make a run with two calls, one of which fails, and one that is approved with a change."""
    options: RunOptions = {"agent": "support", "user": "ann"}
    paused = await runtime.run("Refund order 10482", **options)
    decisions = {one.id: Edit(arguments={"amount": 74.5}) for one in paused.pending}
    await runtime.decide(paused.run_id, decisions, user="ann", by="ben")
    await runtime.result(paused.run_id, user="ann")


def row(page: Page, name: str) -> Any:
    return page.get_by_role("treeitem", name=name)


def test_a_run_is_found_and_read(tmp_path: Path) -> None:
    lookups = calls(("find", {"order": "1"}), ("fetch", {"path": "a"}))
    model = ScriptedModel(lookups, calls(("refund", {"amount": 89.0})), "Done, **Mia**.", "Hello.")

    async def main() -> None:
        store = f"sqlite:///{tmp_path}/state.db"
        async with serve_console(tmp_path, FILES, model, tools=tools(), store=store) as server:
            await refunded(server.runtime)
            await server.runtime.run("Where is parcel 7?", agent="support")
            denying = agent(
                "support", skill_policy="{allow: [find], ask: [refund]}", instructions='{template: "support.j2"}'
            )
            write(tmp_path, {"agents.d/support.yaml": denying})
            await server.runtime.reload()
            async with open_page(server, "#/runs") as page:
                await expect(page.locator("tbody tr")).to_have_count(2)
                await page.get_by_role("searchbox").fill("10482")
                await page.keyboard.press("Enter")
                await expect(page.locator("tbody tr")).to_have_count(1)
                await page.reload()
                await expect(page.locator("tbody tr")).to_have_count(1)
                await page.get_by_role("link", name="Refund order 10482").click()
                await _read_waterfall(page)
                await _read_other_tabs(page)
                await _replay_and_export(page)
                await page.goto(f"{server.url}/#/runs?user=nobody")
                await expect(page.get_by_text("No run fits these filters")).to_be_visible()
                await check_axe(page)
                await page.get_by_role("link", name="Clear 1 filter").click()
                await expect(page.locator("tbody tr")).to_have_count(2)

    run_in_browser(main())


async def _read_waterfall(page: Page) -> None:
    await expect(page.get_by_text(re.compile(r"refund approved by ben, .*, with 1 change")).first).to_be_visible()
    await expect(page.locator(".run-talk strong")).to_have_text("Mia")
    await expect(row(page, "fetch, tool")).to_contain_text("ToolError")
    assert await page.locator(".run-main").evaluate("(node) => node.scrollWidth <= node.clientWidth")
    await expect(page.locator(".wf-r[role=treeitem]")).to_have_count(16)
    await expect(page.locator(".insp")).to_contain_text("is <script>")
    await row(page, "find, tool").click()
    await page.keyboard.press("j")
    await page.keyboard.press("ArrowUp")
    await expect(row(page, "find, tool")).to_be_focused()
    await expect(page.locator(".insp")).to_contain_text('"order": "1"')
    await page.keyboard.press("ArrowLeft")
    await expect(row(page, "step 1")).to_be_focused()
    await page.keyboard.press("ArrowLeft")
    await expect(row(page, "find, tool")).to_have_count(0)
    await page.keyboard.press("ArrowRight")
    await row(page, "refund, tool").click()
    await expect(page.locator(".insp .del")).to_contain_text("89")
    await expect(page.locator(".insp .add")).to_contain_text("74.5")
    await expect(page.locator(".insp")).to_contain_text(re.compile(r"refund approved by ben, .*, with 1 change"))
    await page.reload()
    await expect(row(page, "refund, tool")).to_have_attribute("aria-selected", "true")


async def _read_other_tabs(page: Page) -> None:
    await page.get_by_role("tab", name="Tree").click()
    await expect(page.locator(".wf-r[role=treeitem]")).to_have_count(16)
    await expect(row(page, "fetch, tool")).to_contain_text('path="a"')
    await page.get_by_role("tab", name="Events").click()
    await page.reload()
    await expect(page.get_by_role("tab", name="Events")).to_have_attribute("aria-selected", "true")
    await page.get_by_role("button", name="tool_result 3", exact=True).click()
    await expect(page.locator(".ev")).to_have_count(3)
    await page.locator(".ev").last.click()
    await expect(page.locator(".ev-body")).to_contain_text('"result": "refunded 74.5"')
    await check_axe(page)
    await page.get_by_role("tab", name="Messages").click()
    await expect(page.locator(".msg strong")).to_have_text("Mia")
    await page.get_by_role("tab", name="Files").click()
    await expect(page.locator(".run-file .add")).to_contain_text("allow: [find]")
    await expect(page.get_by_text("the same", exact=True)).to_be_visible()


async def _replay_and_export(page: Page) -> None:
    await page.get_by_role("button", name="Replay under g2").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("denied: the policy forbids this call")
    await check_axe(page)
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="As a test case").click()
    await expect(dialog).to_contain_text("agents.d/support.test.yaml")
    await expect(dialog).to_contain_text("called_exactly:")
    await check_axe(page)
    async with page.expect_download() as download:
        await dialog.get_by_role("link", name="Download").click()
    saved = await download.value
    assert saved.suggested_filename == "support.test.yaml"
    await page.keyboard.press("Escape")


def test_a_run_in_progress_is_followed(tmp_path: Path) -> None:
    async def main() -> None:
        gate, model = Gate(), ScriptedModel("first", calls(("hold", {})), "All done.")
        async with serve_console(tmp_path, FILES, model, tools=gate.tools()) as server:
            await server.runtime.run("One", agent="support")
            async with open_page(server, "#/runs", width=360, height=740) as page:
                await expect(page.locator("tbody tr")).to_have_count(1)
                submitted = await server.runtime.submit("Two", agent="support")
                await gate.began.wait()
                await page.get_by_role("button", name="1 new run").click()
                await expect(page.locator("tbody tr").first).to_contain_text("running")
                await page.get_by_role("link", name="Two").click()
                await expect(page.locator(".note.k-accent")).to_contain_text("hold")
                await check_axe(page)
                gate.opened.set()
                await server.runtime.result(submitted.run_id)
                await expect(page.locator(".run-head")).to_contain_text("completed")
                await expect(page.locator(".note.k-accent")).to_have_count(0)
                await page.get_by_role("tab", name="Messages").click()
                await expect(page.locator(".msgs").get_by_text("All done.")).to_be_visible()
                fits = "(node) => node.scrollWidth <= node.clientWidth"
                assert await page.locator(".run-main").evaluate(fits)
                assert await page.locator("html").evaluate(fits)

    run_in_browser(main())


def test_a_script_is_shown_as_code_above_its_calls(tmp_path: Path) -> None:
    code = 'for order in ("1", "2"):\n    print(find(order)["price"])'

    async def main() -> None:
        model, store = ScriptedModel(calls(("run_script", {"code": code})), "Done."), f"sqlite:///{tmp_path}/state.db"
        files = {"agents.d/support.yaml": agent("support", executor="code")}
        async with serve_console(tmp_path, files, model, tools=tools(), store=store) as server:
            ended = await server.runtime.run("Prices", agent="support")
            async with open_page(server, f"#/runs/{ended.run_id}") as page:
                await row(page, "run_script, tool").click()
                await expect(page.locator(".insp pre").first).to_have_text(code)
                await expect(page.locator(".insp")).to_contain_text("74.5")
                await row(page, "find, tool").last.click()
                await expect(page.locator(".insp")).to_contain_text('"order": "2"')

    run_in_browser(main())


def test_runs_that_wait_stop_or_do_not_exist_say_what_to_do(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel(calls(("refund", {"amount": 1})), calls(("find", {"order": "1"})), "x")
        store = f"sqlite:///{tmp_path}/state.db"
        async with serve_console(tmp_path, FILES, model, tools=tools(), store=store) as server:
            paused = await server.runtime.run(HOSTILE, agent="support")
            stopped = await server.runtime.run("Go on", agent="other")
            async with open_page(server, f"#/runs/{paused.run_id}", dark=True, allowed=["404"]) as page:
                await expect(page.get_by_role("heading", name="<script>")).to_be_visible()
                await expect(page.locator(".note.k-human")).to_contain_text("Waits for a decision: refund")
                await expect(page.locator(".insp")).to_contain_text("support.yaml")
                await check_axe(page)
                await page.get_by_role("button", name="Cancel the run").click()
                await page.get_by_role("dialog").get_by_role("button", name="Cancel the run").click()
                await expect(page.locator(".run-head")).to_contain_text("cancelled")
                await page.goto(f"{server.url}/#/runs/{stopped.run_id}")
                await expect(page.locator(".note.k-warn").first).to_contain_text("The limit was reached: 1 of 1.")
                await expect(page.locator(".note.k-warn .place")).to_have_text("other.yaml:7")
                await page.get_by_role("tab", name="Files").click()
                await expect(page.locator(".run-file")).to_have_count(1)
                await page.goto(f"{server.url}/#/runs/run_unknown")
                await expect(page.get_by_text("There is no such run")).to_be_visible()
                await check_axe(page)

    run_in_browser(main())


def test_a_tab_loads_only_what_it_shows_and_a_trace_in_pages(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve_console(tmp_path, FILES, store=f"sqlite:///{tmp_path}/state.db") as server:
            run_id = await save_long_run(server.runtime, 1200)
            async with open_page(server, "#/runs/run_unknown", allowed=["404"]) as page:
                title = page.get_by_role("heading", name="There is no such run")
                action = page.locator(".empty").get_by_role("link", name="Runs")
                top = "(node) => node.getBoundingClientRect().top"
                assert await action.evaluate(top) - await title.evaluate(top) < 100  # they stand together
                asked: list[str] = []
                page.on("request", lambda request: asked.append(request.url.partition(f"/runs/{run_id}")[2]))
                await page.goto(f"{server.url}/#/runs/{run_id}?tab=messages")
                await expect(page.locator(".msg")).to_have_count(1)
                await page.get_by_role("tab", name="Files").click()
                await expect(page.locator(".insp")).to_be_hidden()
                await expect(page.get_by_text("The files of this run are not stored")).to_be_visible()
                assert [url for url in asked if url.startswith(("/trace", "/events"))] == []
                await page.get_by_role("tab", name="Waterfall").click()
                await expect(page.locator(".insp")).to_be_visible()
                await expect(page.locator("run-detail:not(.loading)")).to_be_visible()
                await page.get_by_role("treeitem").first.focus()
                await page.keyboard.press("End")
                await expect(page.locator(".wl").get_by_text("find1199", exact=True)).to_be_visible()
                traces = [url for url in asked if url.startswith("/trace")]
                assert traces == ["/trace?limit=500", "/trace?after=s498&limit=10000"]

    run_in_browser(main())


async def save_long_run(runtime: Runtime, size: int) -> str:
    """Save a run with many events and spans, and return its id."""
    state = RunState(agent="support", messages=[Message(role="user", content="Long")], status="completed")
    record = await runtime.store.start(state, None, None)
    head = {"run_id": state.run_id, "generation": 1}
    result = {"tool": "find", "status": "success", "result": "x", "elapsed_ms": 1.0}
    found: list[RunEvent] = [ToolFinished(**head, **result, seq=n + 1, id=f"c{n}") for n in range(size)]
    began = int(time.time() * 1e9)
    step = 1_000_000

    def span(name: str, key: str, parent: str | None, start: int, end: int) -> SpanRecord:
        return SpanRecord(name, "t", key, parent, "internal", began + start * step, began + end * step)

    root = span("invoke_workflow a", "root", None, 0, size)
    rest = [span(f"execute_tool find{n}", f"s{n}", "root", n, n + 1) for n in range(size)]
    state.seq, state.finish_reason = size, "final"
    await record.write(state, found, [root, *rest], last=True)  # type: ignore[arg-type]
    return state.run_id


def test_only_rows_in_view_of_a_long_run_are_in_the_page(tmp_path: Path) -> None:
    """A row of each of 5,000 events and spans can be reached, and few of them are in the page at any time."""
    frame = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    counted = "Math.max(...[...document.querySelectorAll('.wl')].map((list) => list.childElementCount))"

    async def main() -> None:
        async with serve_console(tmp_path, FILES, store=f"sqlite:///{tmp_path}/state.db") as server:
            run_id = await save_long_run(server.runtime, 5000)
            async with open_page(server, f"#/runs/{run_id}?tab=events") as page:
                await expect(page.get_by_role("button", name="All 5,000")).to_be_visible()
                for tab, last in (("Events", "5000"), ("Waterfall", "find4999")):
                    await page.get_by_role("tab", name=tab).click()
                    await expect(page.locator("run-detail:not(.loading)")).to_be_visible()
                    most = 0
                    for share in (0, 0.25, 0.5, 0.75, 1):
                        await page.locator(".run-main").evaluate(
                            f"node => node.scrollTop = node.scrollHeight * {share}"
                        )
                        await page.evaluate(frame)
                        most = max(most, await page.evaluate(counted))
                    assert 20 < most < 80
                    await expect(page.locator(".wl").get_by_text(last, exact=True)).to_be_visible()
                await page.keyboard.press("k")
                await expect(page.locator(".wf-r[aria-selected=true]")).to_be_visible()

    run_in_browser(main())
