"""A headless Chromium, driven over a pipe by the DevTools protocol, for screenshots of pages."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from tests.support.backends import eventually

SETTLE = 2.0
"""Seconds that a page needs to draw; none of these pages signals when it is done."""
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "--window-size=1500,820",
)
_CLICK = "[...document.querySelectorAll('button')].filter(b => b.textContent.trim() === %s).forEach(b => b.click())"

_EDGE = """(() => { const th = [...document.querySelectorAll('th')].find(th => th.textContent.trim() === %s);
    const box = th.querySelector('.resizer').getBoundingClientRect();
    return JSON.stringify({x: box.x + box.width / 2, y: box.y + box.height / 2}) })()"""


class Page:
    """The one page of a browser."""

    def __init__(self, to: BinaryIO, back: BinaryIO) -> None:
        self._to, self._back, self._numbers = to, back, count(1)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def open(self, url: str, text: str) -> None:
        """Open a URL and wait until the page shows a text."""
        self._call("Page.navigate", self._session, url="about:blank")
        self._call("Page.navigate", self._session, url=url)
        shown = f"document.body.innerText.includes({json.dumps(text)})"
        eventually(lambda: self._evaluate(shown), f"{url} does not show {text!r}")
        time.sleep(SETTLE)

    def click(self, label: str) -> None:
        """Click every button with this label."""
        self._evaluate(_CLICK % json.dumps(label))
        time.sleep(SETTLE)

    def widen(self, column: str, pixels: int) -> None:
        """Drag the right edge of a table column to the right."""
        edge = json.loads(self._evaluate(_EDGE % json.dumps(column)))
        steps = [("mouseMoved", 0), ("mousePressed", 0), ("mouseMoved", pixels - 20), ("mouseMoved", pixels)]
        for kind, by in (*steps, ("mouseReleased", pixels)):
            x = edge["x"] + by
            where = {"type": kind, "x": x, "y": edge["y"], "button": "left", "buttons": 1, "clickCount": 1}
            self._call("Input.dispatchMouseEvent", self._session, **where)
        time.sleep(SETTLE)

    def picture(self, file: Path) -> None:
        """Write a screenshot as PNG."""
        file.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", self._session)["data"]))

    def _evaluate(self, expression: str) -> Any:
        response = self._call("Runtime.evaluate", self._session, expression=expression)
        return response["result"].get("value")

    def _call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while True:
            response = json.loads(self._read())
            if response.get("id") == number:
                assert "error" not in response, response
                result: dict[str, Any] = response["result"]
                return result

    def _read(self) -> bytes:
        read = bytearray()
        while (byte := self._back.read(1)) != b"\0":
            assert byte, "the browser has ended"
            read += byte
        return bytes(read)


@contextmanager
def browser() -> Iterator[Page]:
    """Start a browser with a new profile; end it with the context."""
    (to_read, to_write), (back_read, back_write) = os.pipe(), os.pipe()
    script = f'exec chromium "$@" 3<&{to_read} 4>&{back_write}'
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        words = ["bash", "-c", script, "chromium", *OPTIONS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(words, pass_fds=(to_read, back_write), stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(back_write)
        with os.fdopen(to_write, "wb") as to, os.fdopen(back_read, "rb", buffering=65_536) as back:
            try:
                yield Page(to, back)
            finally:
                process.terminate()
                process.wait(30)
