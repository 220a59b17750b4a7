"""AG-UI's own client, an npm package, in a Node process that executes commands."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from shutil import copyfile
from typing import Any

from tests.support.editor import MODULES, PATIENCE, node

INSTALLED = (MODULES / "@ag-ui/client/package.json").exists() and node() is not None
_PROGRAM = Path(__file__).with_name("agui_client.mjs")


class AguiClient:
    """Runs commands of tests/support/agui_client.mjs, one at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._runs = count(1)

    async def __call__(self, thread: str, **command: Any) -> dict[str, Any]:
        """Run an agent once in a thread, and return what the client saw and knows afterwards."""
        line = json.dumps({"thread": thread, "run": f"client-run-{next(self._runs)}", **command})
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(line.encode() + b"\n")
        async with asyncio.timeout(PATIENCE):
            answer = await self._process.stdout.readline()
        assert answer, "the client has ended"
        found: dict[str, Any] = json.loads(answer)
        return found


@asynccontextmanager
async def agui_client(folder: Path) -> AsyncIterator[AguiClient]:
    """Start a client; its program is copied into `folder`, from where Node finds the installed packages."""
    program = node()
    assert program
    copyfile(_PROGRAM, folder / _PROGRAM.name)
    (folder / "node_modules").symlink_to(MODULES)
    process = await asyncio.create_subprocess_exec(
        program, str(folder / _PROGRAM.name), stdin=PIPE, stdout=PIPE, limit=2**26
    )
    try:
        yield AguiClient(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
