"""The layout of pages: boxes of named elements as stored, nothing clipped, nothing over other texts.

`LAYOUTS=write pytest tests/console/test_layout.py` stores the boxes of today: look at the pages first.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from framework import Runtime, Tool, ToolError, tool
from framework.llm.client import ModelRequest, ScriptedModel, calls
from framework.types.errors import ModelError
from tests.support.console import check_axe, open_page, run_in_browser, serve_console, settle
from tests.support.layout import measured, wrong
from tests.support.projects import agent

STORED = Path(__file__).with_name("layouts.json")
"""Boxes by page and width: x, y, width and height in pixels, by the selector of the element."""
TOLERANCE = 12
"""Pixels that a box may differ: fonts and figures are not the same everywhere."""
HEIGHTS = {1440: 900, 390: 844}
FRAME = (".rail", ".bar", "main")
PAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "chat": ("#/chat?new=1", ".starter", (".thread > header", ".empty h2", ".box")),
    "chat-answer": (
        "#/chat/{done}",
        ".prose p",
        (".side", ".thread > header", ".me", ".who", ".who b", ".calls", ".prose", ".box", ".insp"),
    ),
    "chat-approval": ("#/chat/{paused}", ".ask .form", (".ask", ".ask > header", ".ask footer", ".box")),
    "approvals": (
        "#/approvals/{paused}",
        "approval-card ~ .pair .said",
        (".side", ".item", ".doc-head", ".ask", ".ask footer", ".pair"),
    ),
    "runs": ("#/runs", "tbody tr", (".filters", ".filters .seg", "table", "tbody tr")),
    "run": ("#/runs/{done}", ".wf-r rect", (".run-head h2", ".figs", ".run-talk", ".tabs", ".wf", ".legend")),
    "run-failed": ("#/runs/{failed}", ".wf-r rect", (".run-head h2", ".figs", ".note", ".tabs", ".wf")),
    "run-missing": ("#/runs/run_none", ".empty h2", (".empty h2", ".empty .btn")),
    "compare": (
        "#/compare/{done}/{failed}",
        ".cmp tbody tr",
        (".two .card", ".table.cmp", "#cmp-answers", ".calls-c", ".calls-c .tag"),
    ),
    "permissions": ("#/agents/support", ".pol tbody tr", (".top", ".tabs", ".pol-h .input", ".pol-h .seg", ".pol")),
    "prompt": ("#/agents/support?tab=prompt", ".prompt", (".tabs", ".prompt-size", ".prompt")),
    "config": (
        "#/config/files/agents.d/support.yaml",
        ".src .cm-line",
        (".tree-f", ".edpane", ".edpane > header", ".src"),
    ),
    "usage": ("#/usage", ".groups tbody tr", (".filters", ".figs", ".charts > *", ".card:has(.groups)")),
}
"""Address, what is there once the page has loaded, and what is measured. A page is named by what it shows."""
POLICY = '{allow: ["*"], ask: [{tool: refund, when: {amount: "> 50"}, reason: money leaves the shop}], deny: [drop]}'
FILES = {
    "agents.d/support.yaml": agent(
        "support",
        description="Answers customers about orders, deliveries, returns and refunds.",
        skill_policy=POLICY,
        routing="{keywords: [order]}",
        instructions='{template: "support.j2"}',
    ),
    "agents.d/writer.yaml": agent("writer", description="Writes letters to customers, short and friendly."),
    "prompts/support.j2": "You answer customers of a shop.\nLook up what you do not know.",
}


def tools() -> list[Tool]:
    @tool(risk="low")
    async def find(order: str) -> dict[str, Any]:
        """Find an order."""
        return {"order": order, "customer": "Ida Berg", "paid": 74.5}

    @tool(risk="low")
    async def fetch(path: str) -> str:
        """Fetch a page."""
        raise ToolError(f"there is no page {path!r}")

    @tool(risk="medium")
    async def refund(order: str, amount: float) -> str:
        """Pay an amount back to the customer of an order."""
        return f"refunded {amount}"

    @tool(risk="high")
    async def drop(order: str) -> str:
        """Delete an order."""
        return order

    return [find, fetch, refund, drop]


def answer(request: ModelRequest) -> Any:
    asked = next(message.content for message in reversed(request.messages) if message.role == "user")
    begins = request.messages[-1].role == "user"
    if "carriers" in asked:
        raise ModelError("the model server answered 503: the queue is full; try again later")
    if begins:
        lookups = ("find", {"order": "20533"}), ("fetch", {"path": "returns.md"})
        return calls(("refund", {"order": "20533", "amount": 89.0})) if "Refund" in asked else calls(*lookups)
    return "Order **20533** is on its way to Ida Berg:\n\n| Part | Euros |\n|---|--:|\n| Teapot | 74.50 |"


async def runs_of(runtime: Runtime) -> dict[str, str]:
    """Make the runs that pages show, and return their ids by name. Their conversations have these names, too."""
    messages = {
        "done": "Where is order 20533 of Ida Berg, and what has been paid for it?",
        "failed": "Compare the carriers of the order parcels to Norway",
        "paused": "Ida Berg writes that order 20533 arrived broken. Refund it and write to her.",
    }
    return {
        name: (await runtime.run(text, agent="support", user="ann", conversation=name)).run_id
        for name, text in messages.items()
    }


@pytest.mark.parametrize("width", HEIGHTS)
def test_pages_look_as_before_in_both_themes(tmp_path: Path, width: int) -> None:
    async def main() -> None:
        store = f"sqlite:///{tmp_path}/state.db"
        async with serve_console(tmp_path, FILES, ScriptedModel(script=answer), tools=tools(), store=store) as server:
            ids = await runs_of(server.runtime)
            problems = []
            async with open_page(server, width=width, height=HEIGHTS[width], allowed=["404"]) as page:
                for name, (_, _, selectors) in PAGES.items():
                    await page.emulate_media(color_scheme="light", reduced_motion="reduce")
                    await page.goto(f"{server.url}/{address_of(name, ids)}")
                    await shown(page, name)
                    problems += await different(page, f"{name}-{width}", selectors)
                    await page.emulate_media(color_scheme="dark", reduced_motion="reduce")
                    problems += await different(page, f"{name}-{width}", selectors, "dark ")
                    if width == 1440:
                        await check_axe(page, rules=["color-contrast"])
            assert problems == [], "\n".join(problems)

    run_in_browser(main())


def address_of(name: str, ids: dict[str, str]) -> str:
    """Return the address of a page: chats are named by their conversations, runs by their ids."""
    return PAGES[name][0].format(**{key: key if name.startswith("chat") else value for key, value in ids.items()})


async def shown(page: Page, name: str) -> None:
    """Wait until a page shows what it has loaded."""
    await expect(page.locator(PAGES[name][1]).first).to_be_visible()
    await settle(page)


async def different(page: Page, name: str, selectors: tuple[str, ...], theme: str = "") -> list[str]:
    """Return what is wrong with a page, and how it differs from the boxes that are stored."""
    stored = json.loads(STORED.read_text("utf-8")) if STORED.exists() else {}
    boxes = await measured(page, (*FRAME, *selectors))
    found = [f"{theme}{name}: {problem}" for problem in await wrong(page)]
    if os.environ.get("LAYOUTS") == "write":
        lines = [f'  "{key}": {json.dumps(value)}' for key, value in sorted({**stored, name: boxes}.items())]
        STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
        return found
    for selector, box in stored.get(name, {}).items():
        now = boxes.get(selector)
        if now is None or box is None or max(abs(a - b) for a, b in zip(box, now, strict=True)) > TOLERANCE:
            found += [f"{theme}{name}: {selector} was at {box} and is at {now}"] if now != box else []
    return found + [f"{theme}{name}: {selector} is not stored" for selector in boxes.keys() - stored.get(name, {})]


BROKEN = {
    "chat-answer": (".who { display: grid; }", ".who was at"),
    "permissions": (
        ".pol-h .seg { width: 90px; flex-wrap: nowrap; overflow-x: auto; scrollbar-width: none; }",
        "is cut",
    ),
    "run": (".run-head h2 { margin-bottom: -20px; }", "overlaps"),
    "run-failed": (".note { position: fixed; left: 900px; width: 900px; }", "outside of the window"),
}
"""Style that breaks a page, and what is said of it."""


LONG = "a_name_that_is_as_long_as_those_of_real_tools_can_be"
SQUEEZED = """([column, box]) => {
    const shown = (selector) => [...document.querySelectorAll(selector)].filter((each) => each.clientWidth);
    const narrow = shown(column).filter((each) => each.clientWidth < 88).map(() => `narrow ${column}`);
    return [...narrow, ...shown(box).filter((each) => each.scrollWidth > each.clientWidth).map(() => `cut ${box}`)];
}"""


@pytest.mark.parametrize("width", HEIGHTS)
def test_a_long_name_squeezes_no_column_and_hides_nothing(tmp_path: Path, width: int) -> None:
    async def main() -> None:
        files = {f"agents.d/{LONG}.yaml": agent(LONG, skill_policy='{allow: ["*"]}', model="offline")}

        @tool(name=LONG, risk="low")
        async def named() -> str:
            """Do nothing."""
            return ""

        async with serve_console(tmp_path, files, tools=[named]) as server:
            run = (await server.runtime.run("hello", agent=LONG, user=f"{LONG}-{LONG}-{LONG}")).run_id
            for address, column, box in (
                ("#/runs", ".runs .w", ".wrapper .card"),
                (f"#/agents/{LONG}", ".pol td.rule", ".scrollx, .cols .card header"),
                (f"#/config/files/agents.d/{LONG}.yaml", ".chips", ".chips"),
                (f"#/runs/{run}", ".run-facts", ".run-facts, .run-main"),
            ):
                async with open_page(server, address, width=width, height=HEIGHTS[width]) as page:
                    await page.locator(column).first.wait_for(state="attached")
                    await settle(page)
                    assert await page.evaluate(SQUEEZED, [column, box]) == []

    run_in_browser(main())


def test_an_element_that_moves_is_cut_or_overlaps_is_found(tmp_path: Path) -> None:
    async def main() -> None:
        store = f"sqlite:///{tmp_path}/state.db"
        async with serve_console(tmp_path, FILES, ScriptedModel(script=answer), tools=tools(), store=store) as server:
            ids = await runs_of(server.runtime)
            for name, (style, said) in BROKEN.items():
                async with open_page(server, address_of(name, ids)) as page:
                    await shown(page, name)
                    await page.evaluate(
                        "css => document.styleSheets[0].insertRule(css, 0)", style.replace(";", " !important;")
                    )
                    found = await different(page, f"{name}-1440", PAGES[name][2])
                    assert any(said in problem for problem in found), (name, found)

    run_in_browser(main())
