"""The fleet page: processes and what differs between them, what waits and why, and how it is read."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Page, expect

from framework.store.store import Store
from tests.support.console import ConsoleServing, check_axe, open_page, press_in_turn, run_in_browser, serve_console
from tests.support.projects import agent
from tests.support.queues import request

FILES = {"agents.d/support.yaml": agent("support", model="offline")}
SAME = {"support": "3a30e9dd655deda6", "refunds": "77aa11bb22cc33dd"}
WORKER: dict[str, Any] = {"kind": "worker", "version": "1.1", "host": "node-1", "works": True, "agents": SAME}
REPORTS: dict[str, dict[str, Any]] = {
    "api-1": {**WORKER, "kind": "serve", "works": False},
    "worker-1": {**WORKER, "capacity": 1, "begun_per_second": 1.5},
    "worker-2": {**WORKER, "capacity": 50, "agents": {"support": "91f02d6c7b1e4a55"}, "problems": 2},
    "worker-3": {**WORKER, "version": "1.2", "capacity": 8, "queues": ["mail"]},
    "<b>worker-0</b>": {**WORKER, "capacity": 50},
}
FIGURES = {
    "Processes": "1 lost",
    "Running": "1of 59",
    "Begun per second": "1.5",
    "Waiting": "3",
    "Needs approval": "0",
}
LOST = "UPDATE agentsd_processes SET lease_until = 0, lease_boot = NULL WHERE name LIKE '%worker-0%'"


@asynccontextmanager
async def fleet(root: Path) -> AsyncIterator[tuple[ConsoleServing, list[Store]]]:
    """Serve a project whose store four live processes share, and one that was killed."""
    async with AsyncExitStack() as stack:
        url = f"sqlite:///{root}/state.db"
        server = await stack.enter_async_context(serve_console(root, FILES, store=url))
        stores = []
        for name, report in REPORTS.items():
            store = await Store.open(url, root, lease_seconds=600)  # none of them is lost while a page loads
            stack.push_async_callback(store.close)
            await store.keep_alive(name, report)
            stores.append(store)
        with sqlite3.connect(root / "state.db") as connection:
            connection.execute(LOST)
        connection.close()
        yield server, stores


def line(page: Page, name: str) -> Any:
    return page.locator("summary", has_text=name)


async def refresh(page: Page) -> None:
    """Make the page ask at once, as it does when it becomes visible."""
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_processes_and_what_waits_are_shown_and_followed(tmp_path: Path) -> None:
    async def main() -> None:
        async with fleet(tmp_path) as (server, stores), open_page(server, "#/agents") as page:
            for _ in range(3):
                await stores[0].enqueue(request(options={"agent": "support"}, conversation="c"))
            await stores[1].claim(1)
            handed_on = await stores[2].enqueue(request(options={"agent": "refunds"}))
            await stores[2].claim(1, run_id=handed_on)
            await stores[2].release_for_others(handed_on, 'has no tool "refund" (plugins/refund.py)', 0)
            await press_in_turn(page, "g", "p")
            await expect(page.locator(".rail [aria-current]")).to_contain_text("Fleet")
            for title, figure in FIGURES.items():
                await expect(page.locator(".kpis > div", has_text=title)).to_contain_text(figure)
            await _read(page, handed_on)
            await check_axe(page)
            await page.emulate_media(color_scheme="dark")
            await check_axe(page, rules=["color-contrast"])
            await stores[2].keep_alive("worker-2", {**REPORTS["worker-2"], "agents": SAME, "capacity": 70})
            await refresh(page)
            await expect(line(page, "worker-2")).to_contain_text("0 of 70")
            await expect(page.locator(".note.k-warn")).to_have_count(0)
            await expect(page.locator("details[open] summary")).to_contain_text("worker-2")
            await expect(page.locator("details[open] summary")).to_be_focused()

    run_in_browser(main())


async def _read(page: Page, handed_on: str) -> None:
    """Read what differs, the lines of the processes with the keyboard, and why runs wait."""
    await expect(page.locator(".note.k-info")).to_have_text(
        "The processes have different versions of agentsd: 1.1 on 3, 1.2 on 1."
    )
    differing = page.locator(".note.k-warn")
    await expect(differing).to_contain_text("2 agents differ between processes.")
    await expect(differing.locator("li")).to_have_text(
        [
            "77aa11bb on 3 of 4: api-1, worker-1, worker-3",
            "missing on 1 of 4: worker-2",
            "3a30e9dd on 3 of 4: api-1, worker-1, worker-3",
            "91f02d6c on 1 of 4: worker-2",
        ]
    )
    await expect(page.locator(".procs summary .who b")).to_have_text([*sorted(REPORTS)[1:], "<b>worker-0</b>"])
    await expect(line(page, "api-1")).to_contain_text("accepts runs, executes none")
    await expect(line(page, "worker-1").locator("progress.k-warn")).to_have_attribute("value", "1")
    await expect(line(page, "worker-2")).to_contain_text("support91f02d6c")
    await expect(line(page, "worker-2")).to_contain_text("2 problems")
    await expect(line(page, "worker-3")).to_contain_text("queues mail")
    await expect(line(page, "worker-0")).to_contain_text("lost")
    for key in ("j", "j", "j", "k", "j", "ArrowRight"):
        await page.keyboard.press(key)
    opened = page.locator("details[open]")
    await expect(opened.locator("summary")).to_be_focused()
    await expect(opened.locator("dd.k-warn")).to_have_text("91f02d6c")
    await expect(page.locator(".waits tbody tr")).to_have_count(2)
    await expect(page.locator(".waits")).to_contain_text("An earlier run of their conversation is open.")
    await expect(page.locator(".waits")).to_contain_text("Processes could not execute them and handed them on.")
    reasons = page.locator(".handed > li")
    await expect(reasons.get_by_role("link")).to_have_attribute("href", f"#/runs/{handed_on}")
    await expect(reasons).to_contain_text('has no tool "refund" (plugins/refund.py)')


def test_one_process_in_memory_says_so_and_a_phone_shows_all_in_chinese(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serve_console(tmp_path, FILES) as server,
            open_page(server, "#/fleet", width=360, height=740, language="zh") as page,
        ):
            await expect(page.get_by_role("heading", name="没有进程连接到此存储")).to_be_visible()
            await server.runtime.store.keep_alive("api-1", REPORTS["worker-2"])
            await refresh(page)
            await expect(line(page, "api-1")).to_contain_text("0 / 50")
            await expect(page.get_by_text("没有等待的运行。")).to_be_visible()
            await expect(page.get_by_text("仅在内存中保存运行")).to_be_visible()
            assert await page.evaluate("document.querySelector('.page').scrollWidth <= innerWidth")
            await check_axe(page)

    run_in_browser(main())


def test_triggers_are_shown_with_their_times_run_paused_and_resumed(tmp_path: Path) -> None:
    files = {
        **FILES,
        "triggers.d/morning.yaml": "agent: support\nmessage: report\n"
        'cron: "0 9 * * mon-fri"\ntimezone: Europe/Berlin\n',
        "triggers.d/cleanup-of-everything.yaml": "agent: support\nmessage: x\n"
        'cron: "*/15 0-6 1,15 * *"\ntimezone: America/Argentina/Buenos_Aires\n',
        "triggers.d/issues.yaml": "agent: support\nmessage: '{{ body.title }}'\n"
        f"webhook: {{verify: github, secret: {'s' * 12}}}\n",
    }

    async def main() -> None:
        url = f"sqlite:///{tmp_path}/state.db"
        async with serve_console(tmp_path, files, store=url) as server, open_page(server, "#/fleet") as page:
            morning, issues = (page.locator(".triggers tr", has_text=name) for name in ("morning", "issues"))
            await expect(morning.locator("time").first).to_have_attribute("title", re.compile(r"\d"))
            await expect(morning).to_contain_text("0 9 * * mon-fri Europe/Berlin")
            await page.get_by_role("button", name="Run now: morning").click()
            await expect(morning.locator("a.mono")).to_contain_text("run_")
            await page.get_by_role("button", name="Pause: issues").click()
            await expect(issues).to_contain_text("paused by local")
            await check_axe(page)
            await page.set_viewport_size({"width": 390, "height": 800})
            await page.get_by_role("button", name="Resume: issues").click()
            await expect(issues).not_to_contain_text("paused")
            for row in await page.locator(".triggers tbody tr").all():
                name, starts = await row.locator("th").bounding_box(), await row.locator("td").first.bounding_box()
                assert name is not None
                assert starts is not None
                assert name["y"] + name["height"] <= starts["y"], "they do not overlap on a phone"

    run_in_browser(main())
