"""AG-UI's own client, an npm package, in a Node process that executes commands."""

from __future__ import annotations

import asyncio
import atexit
import json
from functools import cache
from itertools import count
from pathlib import Path
from shutil import copyfile
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from tests.support.editor import MODULES, PATIENCE, node

INSTALLED = (MODULES / "@ag-ui/client/package.json").exists() and node() is not None
_PROGRAM = Path(__file__).with_name("agui_client.mjs")


class AguiClient:
    """Runs commands of tests/support/agui_client.mjs, one at a time. A new one knows no threads and messages."""

    def __init__(self) -> None:
        self._id = uuid4().hex
        self._runs = count(1)

    async def __call__(self, thread: str, **command: Any) -> dict[str, Any]:
        """Run an agent once in a thread, and return what the client saw and knows afterwards."""
        command = {"owner": self._id, "thread": thread, "run": f"client-run-{next(self._runs)}", **command}
        process = _process()
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await asyncio.to_thread(_exchange, process, json.dumps(command))
        except BaseException:
            process.kill()  # its answer is not that of the next command
            _process.cache_clear()
            raise
        assert answer, "the client has ended"
        found: dict[str, Any] = json.loads(answer)
        return found


def _exchange(process: Popen[str], line: str) -> str:
    assert process.stdin
    assert process.stdout
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline()


@cache
def _process() -> Popen[str]:
    """Start the Node process, which the clients of all tests share; it ends with this process."""
    program = node()
    assert program
    folder = TemporaryDirectory()
    copy = Path(folder.name, _PROGRAM.name)
    copyfile(_PROGRAM, copy)
    copy.with_name("node_modules").symlink_to(MODULES)  # Node finds packages next to a program
    process = Popen([program, str(copy)], stdin=PIPE, stdout=PIPE, text=True, encoding="utf-8")

    def end() -> None:
        process.kill()
        process.communicate()
        folder.cleanup()

    atexit.register(end)
    return process
