"""The console of a server in this event loop, in a headless Chromium: its pages, and checks of their accessibility."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Playwright,
    Request,
    Response,
    WebError,
    async_playwright,
    expect,
)
from playwright.async_api import TimeoutError as PlaywrightTimeout

from framework.llm.client import ModelClient
from tests.support.built_console import built_console
from tests.support.projects import write
from tests.support.serving import Serving, serving_everything
from tests.support.waiting import wait_until

CHROMIUM = Path("/usr/bin/chromium")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
    "--remote-debugging-port=0",
    # Pages are not drawn, which takes most of the time of a page that changes often. Their layout is the same.
    "--blink-settings=acceleratedCompositingEnabled=false",
    # Pages of a profile share a process, which its first tab keeps: starting one takes half a second of CPU time.
    "--renderer-process-limit=1",
    "--disable-site-isolation-trials",
    "--disable-features=IsolateOrigins,site-per-process",
)
PATIENCE = 20.0
"""Timeout of whatever a test expects of a page, in seconds."""
_REPORT_VIOLATIONS = """
addEventListener("securitypolicyviolation", e => console.error(
    `CSP violation: ${e.violatedDirective} ${e.blockedURI} ${e.sourceFile}:${e.lineNumber} ${e.sample}`));
"""
_END_ANIMATIONS = "for (const a of document.getAnimations()) if (a.effect.getTiming().iterations < Infinity) a.finish()"

_PRESS = """keys => {
    for (const key of keys)
        document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
}"""

_SETTLED = """({ quiet, most }) => new Promise(done => {
    let timer = setTimeout(done, quiet);
    const changed = () => { clearTimeout(timer); timer = setTimeout(done, quiet); };
    new MutationObserver(changed).observe(document.body, { subtree: true, childList: true });
    setTimeout(done, most);  // clocks and streams never rest
})"""


class HasUrl(Protocol):
    """A running server: `Serving`, or `Served` for one in a process of its own."""

    @property
    def url(self) -> str: ...


@dataclass
class ConsoleServing(Serving):
    """A server with its project."""

    project: Path


@asynccontextmanager
async def serve_console(
    root: Path, files: Mapping[str, str], model: ModelClient | None = None, **options: Any
) -> AsyncIterator[ConsoleServing]:
    """Write a project and serve it with the console until the context ends.

    Args:
        root: the folder of the project.
        files: its files by path (`tests.support.projects.agent`).
        model: the model `scripted` of the agents. Agents with `model: offline` need none.
        **options: options of `Runtime.open`, such as `watch=True` for a test that edits files, `tools` or `store`, and
            `console` for a console that is not built.
    """
    if "console" not in options:
        built_console()
    models = {"scripted": model} if model else None
    async with serving_everything(write(root, files), **{"models": models, **options}) as found:
        yield ConsoleServing(found.url, found.runtime, root)


@asynccontextmanager
async def open_page(
    server: HasUrl,
    path: str = "",
    *,
    dark: bool = False,
    width: int = 1440,
    height: int = 900,
    language: str = "en",
    key: str | None = None,
    allowed: Sequence[str] = (),
    first: bool = False,
) -> AsyncIterator[Page]:
    """Open the console at a path such as `#/runs` in a tab whose server has stored nothing in this browser.

    At the end, the test fails if anything went wrong in this page or in another tab of `page.context`: an error in the
    browser's console, an exception, a violation of the content security policy, an asset that is missing, a request
    to another host or with a key in its URL. The profile is used again by later tests, without what was stored in it.

    Args:
        server: the server.
        path: the part of the URL after `/`.
        dark: use the dark theme.
        width: of the window, in pixels; 360 for a phone.
        height: of the window, in pixels.
        language: `en` or `zh`.
        key: the key, as if it had been entered before.
        allowed: patterns of errors that the test provokes, such as `status of 409`.
        first: take a new profile, whose process has loaded no page.
    """
    if first:
        await _BROWSER.forget(await _BROWSER.profile(language, touch=width < 760))
    context = await _BROWSER.profile(language, touch=width < 760)
    errors = _Errors(urlsplit(server.url).netloc, key, allowed)
    with errors.watching(context):
        try:
            page = await context.new_page()
            await page.set_viewport_size({"width": width, "height": height})
            await page.emulate_media(color_scheme="dark" if dark else "light")
            if key:
                stored = f"localStorage.setItem('agentsd.key', {json.dumps(key)})"
                await page.add_init_script(f"if (location.protocol === 'http:') {stored}")
            await page.goto(f"{server.url}/{path}")
            yield page
            await _empty(context, page, server.url)
        except BaseException:
            await _BROWSER.forget(context)
            raise
    assert errors.found == [], "\n".join(errors.found)


async def _empty(context: BrowserContext, page: Page, url: str) -> None:
    """Close the tabs of a profile, and delete what a server has stored in it: the next server may get the same port."""
    for tab in context.pages[1:]:
        if tab != page:
            await tab.close()
    await page.goto("about:blank")  # which stores nothing, unlike a page that is left
    session = await context.new_cdp_session(page)
    await session.send("Storage.clearDataForOrigin", {"origin": url, "storageTypes": "all"})
    await session.send("Network.clearBrowserCache")
    await context.clear_permissions()
    await page.close()


def run_in_browser(main: Coroutine[Any, Any, None]) -> None:
    """Run a test that opens pages. All of them share an event loop, with one connection to the browser."""
    _BROWSER.runner.run(main, context=copy_context())


async def press_in_turn(page: Page, *keys: str) -> None:
    """Press the keys of one shortcut, such as `g c`, at the same moment: the page forgets a first key after a while."""
    await page.evaluate(_PRESS, keys)


async def settle(page: Page) -> None:
    """Wait until the page shows what it has loaded: its elements have not changed for a while."""
    await page.wait_for_function("() => document.querySelector('console-pages > *')")
    await page.evaluate(_SETTLED, {"quiet": 250, "most": 4000})


async def check_axe(page: Page, context: str | None = None, rules: Sequence[str] = ()) -> None:
    """Fail if axe-core finds a problem in the page.

    Args:
        page: the page.
        context: a CSS selector of the part that is checked. Default: the whole page.
        rules: the rules that are checked, such as `color-contrast`. Default: all.
    """
    await page.evaluate(_END_ANIMATIONS)  # what fades in has too little contrast meanwhile
    options: dict[str, Any] = {"resultTypes": ["violations"], **({"runOnly": [*rules]} if rules else {})}
    if not await page.evaluate("Boolean(window.axe)"):
        await page.evaluate(AXE_SCRIPT)
    results = await page.evaluate("([context, options]) => axe.run(context ?? document, options)", [context, options])
    found = [
        f"{violation['id']} ({violation['impact']}): {violation['help']}\n    {node['html'][:200]}\n    "
        + node["failureSummary"].replace("\n", "\n    ")
        for violation in results["violations"]
        for node in violation["nodes"]
    ]
    assert not found, f"{page.url}\n" + "\n".join(found)


@dataclass
class _Errors:
    """What went wrong in the tabs of a browser profile."""

    host: str
    key: str | None
    allowed: Sequence[str]
    found: list[str] = field(default_factory=list)

    @contextmanager
    def watching(self, context: BrowserContext) -> Iterator[None]:
        """Collect the errors of a profile until the block ends."""
        listeners: dict[Any, Any] = {
            "console": self._on_console,
            "weberror": self._on_exception,
            "request": self._on_request,
            "requestfailed": self._on_failure,
            "response": self._on_response,
        }
        for event, listener in listeners.items():
            context.on(event, listener)
        try:
            yield
        finally:
            for event, listener in listeners.items():
                context.remove_listener(event, listener)

    def _on_exception(self, error: WebError) -> None:
        self._add(f"exception: {error.error}")

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            place = message.location
            self._add(f"console: {message.text} ({place['url']}:{place['lineNumber']})")

    def _on_request(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme not in {"data", "blob"} and url.netloc != self.host:
            self._add(f"request to another host: {request.url}")
        if self.key and self.key in request.url:
            self._add(f"a key in a URL: {request.url}")

    def _on_failure(self, request: Request) -> None:
        is_ended_here = request.failure == "net::ERR_ABORTED"  # by a reload, for example
        if request.resource_type not in {"fetch", "xhr"} and not is_ended_here:  # pages end their streams themselves
            self._add(f"failed: {request.url} {request.failure}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400 and response.request.resource_type not in {"fetch", "xhr"}:
            self._add(f"{response.status}: {response.url}")

    def _add(self, text: str) -> None:
        if not any(re.search(pattern, text) for pattern in self.allowed):
            self.found.append(text)


class _Browser:
    """The Chromium of this process. It is started once it is needed, and ends when its pipe closes with the process."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        """Runs the tests that open pages: a connection belongs to one event loop."""
        self._driver: Playwright | None = None
        self._connected: Browser | None = None
        self._profiles: dict[tuple[str, bool], BrowserContext] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._endpoint = ""
        self._closing = ExitStack()
        atexit.register(self.end)

    async def connected(self) -> Browser:
        """Return the connection to it. One that accepts connections but never answers, seen under load, is replaced."""
        if self._connected is None or not self._connected.is_connected():
            endpoint = self._endpoint_of_running()
            self._driver = self._driver or await async_playwright().start()
            connect = self._driver.chromium.connect_over_cdp
            try:
                self._connected = await connect(endpoint, timeout=PATIENCE * 500)
            except PlaywrightTimeout:
                self.end()
                self._connected = await connect(self._endpoint_of_running(), timeout=PATIENCE * 1000)
        return self._connected

    async def profile(self, language: str, *, touch: bool) -> BrowserContext:
        """Return a profile that tests use in turn, with an empty first tab, whose process is that of all pages."""
        connected = await self.connected()
        if (found := self._profiles.get((language, touch))) and found.browser is connected:
            return found
        locale = {"en": "en-US", "zh": "zh-CN"}[language]
        context = await connected.new_context(locale=locale, timezone_id="UTC", has_touch=touch)
        context.set_default_timeout(PATIENCE * 1000)
        expect.set_options(timeout=PATIENCE * 1000)
        await context.add_init_script(_REPORT_VIOLATIONS)
        await context.new_page()
        self._profiles[language, touch] = context
        return context

    async def forget(self, context: BrowserContext) -> None:
        """Close a profile that a failed test has left in an unknown state."""
        self._profiles = {key: profile for key, profile in self._profiles.items() if profile is not context}
        await context.close()

    def _endpoint_of_running(self) -> str:
        """Return the URL of its DevTools protocol; skips the test where there is no Chromium."""
        if not CHROMIUM.exists():
            pytest.skip("no /usr/bin/chromium: `apt-get install chromium` installs it")
        if self._process is None or self._process.poll() is not None:
            self._start()
        return self._endpoint

    def end(self) -> None:
        """Close the pipe, which ends the browser, and delete its profile."""
        self._closing.close()
        self._process = None

    def _start(self) -> None:
        self._closing.close()
        temporary = TemporaryDirectory(prefix="agentsd-chromium-", ignore_cleanup_errors=True)
        profile = self._closing.enter_context(temporary)
        (to_read, to_write), (back_read, back_write) = os.pipe(), os.pipe()
        script = f'exec {CHROMIUM} "$@" 3<&{to_read} 4>&{back_write}'
        words = ["bash", "-c", script, "chromium", *OPTIONS, f"--user-data-dir={profile}"]
        environment = {**os.environ, "TZ": "UTC", "HOME": profile}
        process = subprocess.Popen(words, pass_fds=(to_read, back_write), stderr=subprocess.DEVNULL, env=environment)
        os.close(to_read)
        os.close(back_write)
        self._closing.callback(_wait_or_kill, process)
        self._closing.callback(os.close, back_read)
        self._closing.callback(os.close, to_write)
        self._process, self._endpoint = process, _wait_for_endpoint(process, Path(profile))


def _wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for_endpoint(process: subprocess.Popen[bytes], profile: Path) -> str:
    """Return the URL that a browser writes into its profile once it listens."""
    file = profile / "DevToolsActivePort"

    def look() -> list[str] | None:
        assert process.poll() is None, f"Chromium did not start (exit code {process.poll()})"
        lines = file.read_text("utf-8").split() if file.exists() else []
        return lines if len(lines) == 2 else None

    port, path = wait_until(look, "Chromium writes its port")
    return f"ws://127.0.0.1:{port}{path}"


_BROWSER = _Browser()
