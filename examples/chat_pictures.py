"""Draws docs/images/chat-*.svg: `make chat-pictures`. Needs tmux.

A chat runs in a terminal of tmux and talks to a model server on loopback, which waits in the middle of an answer until
the screen is captured. The pictures of 80 and 120 columns show the screens one below the other: a tool in progress, an
answer that streams, an approval, a reload while the user types, and a long paste. Two more show only an approval, and
the approval of a plan, which the offline model makes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

from rich.console import Console
from rich.text import Text

from examples.terminal_picture import FONT, THEME

REPOSITORY = Path(__file__).resolve().parent.parent
IMAGES = REPOSITORY / "docs/images"
WIDTHS, ROWS = (80, 120), 26
SECONDS = 30.0
"""How long a screen may take to show what is expected."""
AGENT = """\
description: Answers questions about orders.
model: openai/shop
instructions: You work for a shop.
tools: [orders.lookup, orders.refund]
"""
PLUGIN = '''\
import asyncio
from pathlib import Path

from agentsd import ToolContext, tool


@tool(risk="low")
async def lookup(order: int, context: ToolContext) -> str:
    """Look up an order."""
    await context.progress(0.6, "asking the warehouse")
    while not Path("continue").exists():
        await asyncio.sleep(0.05)
    return f"order {order}: shipped on 2026-11-21"


@tool(risk="high")
def refund(order: int) -> str:
    """Refund an order."""
    return f"order {order} is refunded"
'''
PLANNER = """\
description: Reads files and writes reports.
model: offline
mode: plan
instructions: You keep the books of a small shop.
tools: [log_transform, write_file]
"""
SALES = """\
2026-11-02 09:14 INFO sold blue mug 12.50
2026-11-02 10:40 ERROR card refused
2026-11-02 11:05 INFO sold tea pot 48.00
"""
SHOP = {"agents.d/shop.yaml": AGENT, "plugins/orders.py": PLUGIN}
LOG_PLUGIN = (REPOSITORY / "plugins/log_transform.py").read_text("utf-8")
BOOKS = {"agents.d/bookkeeper.yaml": PLANNER, "plugins/log_transform.py": LOG_PLUGIN, "sales.log": SALES}
ANSWER = """\
Order **77** was shipped on `2026-11-21`:

1. It arrives within 3 days.
2. You can return it until the end of the year.

```python
for day in range(3):
    print(day)
```

Shall I do"""
REST = " anything else?"
LOG = "\n".join(f"2026-11-21 10:0{number} order 7{number} left the warehouse" for number in range(10))


class _Model(BaseHTTPRequestHandler):
    """Answers with a tool call for a user's message, and with a text for the result of a tool."""

    captured = Event()
    """Set when the answer in progress is captured."""

    def do_POST(self) -> None:
        messages = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        question = next(message["content"] for message in reversed(messages) if message["role"] == "user")
        tool = "orders.refund" if "refund" in question else "orders.lookup"
        if messages[-1]["role"] == "user":
            self._call(tool)
        elif tool == "orders.refund":
            self._say("The money is on its way.")
        else:
            self._say(ANSWER)
            self.captured.wait(SECONDS)
            self._say(REST)
        self._send({}, "stop" if messages[-1]["role"] == "tool" else "tool_calls")
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _say(self, text: str) -> None:
        for word in re.findall(r"\s*\S+", text):
            self._send({"content": word})

    def _call(self, tool: str) -> None:
        name = tool.replace(".", "__")
        function = {"name": name, "arguments": '{"order": 77}'}
        self._send({"tool_calls": [{"index": 0, "id": f"call_{name}", "type": "function", "function": function}]})

    def _send(self, delta: dict[str, Any], finish: str | None = None) -> None:
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "shop"}
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        self.wfile.write(f"data: {json.dumps(chunk | {'choices': [choice]})}\n\n".encode())
        self.wfile.flush()


class _Terminal:
    """A terminal of tmux, on a server of its own."""

    def __init__(self, columns: int, project: Path, url: str) -> None:
        self._socket = f"agentsd-pictures-{os.getpid()}"
        model = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "PYTHONPATH": str(REPOSITORY)}
        variables = [word for name, value in model.items() for word in ("-e", f"{name}={value}")]
        command = f"{sys.executable} -m framework.cli.main chat"
        size = ("-x", str(columns), "-y", str(ROWS))
        self.tmux("-f", "/dev/null", "new-session", "-d", *size, *variables, "-c", str(project), command)

    def tmux(self, *words: str) -> str:
        """Run a command of tmux and return its output."""
        done = subprocess.run(["tmux", "-L", self._socket, *words], check=True, capture_output=True, text=True)
        return done.stdout

    def keys(self, *names: str) -> None:
        """Press keys, by their names in tmux."""
        self.tmux("send-keys", *names)

    def screen_with(self, *texts: str) -> list[str]:
        """Return the lines of the screen, with colours, once it contains all texts; raises TimeoutError."""
        end = monotonic() + SECONDS
        while any(text not in (shown := self.tmux("capture-pane", "-p")) for text in texts):
            if monotonic() > end:
                raise TimeoutError(f"{texts} did not appear:\n{shown}")
            sleep(0.1)
        return self.tmux("capture-pane", "-p", "-e").rstrip().splitlines()


Scenes = Callable[[_Terminal, Path], Iterator[tuple[str, list[str]]]]
"""Plays a chat in a terminal with its project; yields captions and screens."""


def scenes(terminal: _Terminal, project: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the captions and the screens of a chat."""
    terminal.screen_with("you>")
    terminal.keys("-l", "where is order 77?")
    terminal.keys("Enter")
    yield "a tool in progress", terminal.screen_with("60%", "you>")
    (project / "continue").touch()
    terminal.screen_with("Shall I do")
    terminal.keys("-l", "the next message can be typed")
    yield "an answer that streams", terminal.screen_with("Shall I do", "writing", "can be typed")
    _Model.captured.set()
    terminal.screen_with("anything else?")
    terminal.keys("C-c")
    terminal.keys("-l", "refund it")
    terminal.keys("Enter")
    yield "an approval", terminal.screen_with("say what to change:")
    terminal.keys("-l", "a")
    terminal.keys("Enter")
    terminal.screen_with("on its way")
    terminal.keys("-l", "thank you, and what ab")
    (project / "agents.d/shop.yaml").write_text(AGENT.replace("a shop", "a bookshop"), "utf-8")
    yield "a reload while the user types", terminal.screen_with("generation 2 is live", "what ab")
    terminal.keys("C-c")
    terminal.keys("-l", "What does this say? ")
    terminal.tmux("set-buffer", LOG)
    terminal.tmux("paste-buffer", "-p")
    yield "a long paste", terminal.screen_with("[paste 1:")
    terminal.keys("C-c")


def plan_scenes(terminal: _Terminal, _project: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the screens of a chat in which a plan is approved."""
    terminal.screen_with("you>")
    terminal.keys("-l", "summarize sales.log then write it to report.md")
    terminal.keys("Enter")
    yield "a plan is approved before a step runs", terminal.screen_with("say what to change:")


def draw(screens: Mapping[str, Sequence[str]], columns: int) -> str:
    """Return the SVG of captions and screens. It loads no fonts from a server."""
    console = Console(record=True, width=columns, file=StringIO(), force_terminal=True)
    for caption, lines in screens.items():
        console.print(Text(f" {caption} ".center(columns, "─"), style="dim"))
        for line in lines:
            console.print(Text.from_ansi(line), highlight=False, no_wrap=True)
        console.print()
    svg = console.export_svg(title="agentsd chat", theme=THEME, unique_id=f"chat{columns}")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code, monospace", FONT)


def captured(columns: int, files: Mapping[str, str], play: Scenes) -> dict[str, list[str]]:
    """Run a chat about these files in a terminal of this width; return its screens by their captions."""
    _Model.captured.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    Thread(target=server.serve_forever, daemon=True).start()
    with TemporaryDirectory(prefix="agentsd-pictures-") as folder:
        project = Path(folder)
        for name, text in files.items():
            (project / name).parent.mkdir(exist_ok=True)
            (project / name).write_text(text, "utf-8")
        terminal = _Terminal(columns, project, f"http://127.0.0.1:{server.server_port}/v1")
        try:
            return dict(play(terminal, project))
        finally:
            terminal.tmux("kill-server")
            server.shutdown()


def main() -> None:
    """Write the pictures."""
    chats = {columns: captured(columns, SHOP, scenes) for columns in WIDTHS}
    narrow = min(WIDTHS)
    approval = {caption: lines for caption, lines in chats[narrow].items() if caption == "an approval"}
    pictures = {f"chat-{columns}": draw(screens, columns) for columns, screens in chats.items()} | {
        "chat-approval": draw(approval, narrow),
        "chat-plan": draw(captured(narrow, BOOKS, plan_scenes), narrow),
    }
    for name, svg in pictures.items():
        picture = IMAGES / f"{name}.svg"
        picture.write_text(svg, "utf-8")
        print(f"{picture.relative_to(REPOSITORY)}: {picture.stat().st_size} bytes")


if __name__ == "__main__":
    main()
