"""The console in Chromium: time to the first view, and scrolling through a run of 5,000 events."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import NotMeasured, Row, Table
from framework import Runtime, tool
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn, calls

CHROMIUM = Path("/usr/bin/chromium")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking")
TURNS, CALLS = 320, 8
"""Turns and calls per turn of the long run: three events for each call."""
AGENT = """\
version: 1
name: looper
description: Calls a tool many times.
model: scripted
instructions: Call the tool.
skill_policy: {allow: [note]}
runtime_policy: {max_steps: 1000, max_tool_calls: 10000, max_total_tokens: 10000000, timeout: 10m}
"""
_FIRST_VIEW = """
new MutationObserver((_, observer) => {
    const page = document.querySelector("console-pages > *");
    if (!page || !page.childElementCount || !page.getBoundingClientRect().height) return;
    observer.disconnect();
    requestAnimationFrame(() => { window.firstView = performance.now(); });
}).observe(document, { subtree: true, childList: true });
"""
"""Notes when the page of the address has its first content, on the clock that begins with the navigation."""
_LOADED = """() => {
    const files = performance.getEntriesByType("resource").filter(entry => entry.name.includes("/console/"));
    const page = performance.getEntriesByType("navigation")[0];
    const bytes = files.reduce((sum, entry) => sum + entry.encodedBodySize, page.encodedBodySize);
    return { view: window.firstView, files: files.length + 1, bytes };
}"""
_SCROLL = """() => new Promise(done => {
    const long = [...document.querySelectorAll("*")].filter(e => e.scrollHeight > 3 * e.clientHeight && e.clientHeight)
        .sort((a, b) => b.scrollHeight - a.scrollHeight)[0];
    const frames = [];
    let last = performance.now();
    function step(now) {
        frames.push(now - last);
        last = now;
        long.scrollTop += 700;
        const ended = long.scrollTop + long.clientHeight >= long.scrollHeight - 1;
        if (ended || frames.length > 400) {
            frames.sort((a, b) => a - b);
            const nodes = document.querySelectorAll("*").length;
            done({ longest: frames.at(-1), median: frames[frames.length >> 1], frames: frames.length, nodes });
        } else requestAnimationFrame(step);
    }
    requestAnimationFrame(step);
})"""
"""Scrolls to the end of the longest list in steps of 700 pixels a frame."""


@tool(risk="low", idempotent=True)
async def note(text: str) -> str:
    """Note a text."""
    return f"noted: {text}"


def script(request: ModelRequest) -> Turn:
    """Call the tool in each turn, with another text each time."""
    turn = sum(message.role == "assistant" for message in request.messages)
    if turn == TURNS:
        return "done"
    return calls(*(("note", {"text": f"line {turn}.{number}"}) for number in range(CALLS)), prefix=f"t{turn}_")


async def long_run(root: Path) -> tuple[str, int]:
    """Execute the long run, and return its id and the number of its events."""
    (root / "agents.d").mkdir()
    (root / "agents.d/looper.yaml").write_text(AGENT, "utf-8")
    (root / "agentsd.yaml").write_text("server: {port: 0}\n", "utf-8")
    models, store = {"scripted": ScriptedModel(script=script)}, "sqlite:///.agentsd/state.db"
    async with Runtime.open(root, tools=[note], models=models, store=store, watch=False) as runtime:
        result = await runtime.run("go", agent="looper")
        return result.run_id, len(await runtime.store.events(result.run_id))


@contextmanager
def serving(root: Path) -> Iterator[str]:
    """Serve a project in its own process; yield the URL."""
    command = [sys.executable, "-m", "framework.cli.main", "serve", ".", "--allow-empty"]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, cwd=root, stdout=pipe, stderr=null, text=True) as process:
        assert process.stdout
        try:
            yield next(match[0] for line in process.stdout if (match := re.search(r"http://\S+:\d+", line)))
        finally:
            process.terminate()


def tables(*, quick: bool) -> Iterator[Table]:
    """Measure loads and scrolling. Raises NotMeasured without a browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        raise NotMeasured("playwright is not installed") from None
    if not CHROMIUM.exists():
        raise NotMeasured(f"there is no {CHROMIUM}")
    with TemporaryDirectory(prefix="agentsd-bench-") as folder:
        run_id, events = asyncio.run(long_run(Path(folder)))
        with serving(Path(folder)) as url, sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*OPTIONS])
            yield loads(browser, url, rounds=3 if quick else 12)
            yield scrolling(browser, f"{url}/#/runs/{run_id}?tab=events", events)
            browser.close()


def loads(browser: Any, url: str, rounds: int) -> Table:
    """Measure the times to the first view: of a new browser profile, and of one that was here before."""
    rows = {"an empty page": [_empty(browser, url) for _ in range(rounds)]}
    sizes: dict[str, str] = {}
    for path in ("#/chat", "#/runs", "#/agents"):
        for name in ("first visit", "reload"):
            measured = [_visit(browser, f"{url}/{path}", again=name == "reload") for _ in range(rounds)]
            rows[f"{path}, {name}"] = [one["view"] for one in measured]
            sizes[f"{path}, {name}"] = f"{measured[0]['files']} files, {measured[0]['bytes'] / 1024:.0f} KB compressed"
    baseline = median(rows["an empty page"])
    title = f"Console: from the navigation to the first content, median of {rounds}"
    found = [Row(name, median(row), median(row) / baseline, sizes.get(name, "")) for name, row in rows.items()]
    return Table(title, "ms", found)


def _empty(browser: Any, url: str) -> float:
    """Return the time to the end of loading the smallest document of the same server."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{url}/health")
    took: float = page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    context.close()
    return took


def _visit(browser: Any, url: str, *, again: bool) -> dict[str, Any]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.add_init_script(_FIRST_VIEW)
    page = context.new_page()
    page.goto(url)
    page.wait_for_function("() => window.firstView")
    if again:
        page.reload()
        page.wait_for_function("() => window.firstView")
    found: dict[str, Any] = page.evaluate(_LOADED)
    context.close()
    return found


def scrolling(browser: Any, url: str, events: int) -> Table:
    """Measure the frames of scrolling through the events of the long run."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(url)
    page.wait_for_function("() => [...document.querySelectorAll('*')].some(e => e.scrollHeight > 20 * innerHeight)")
    found = page.evaluate(_SCROLL)
    rows = [
        Row("median frame", found["median"], 1, f"{found['frames']} frames of 700 pixels"),
        Row("longest frame", found["longest"], found["longest"] / found["median"], f"{found['nodes']} elements"),
    ]
    page.close()
    return Table(f"Console: scrolling through {events:,} events of a run", "ms", rows)
