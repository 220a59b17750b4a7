"""A third-party model server: aimock, an npm package that supports all formats with one configuration."""

from __future__ import annotations

import json
import re
from asyncio import create_subprocess_exec, create_task, timeout
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.editor import MODULES, PATIENCE, node

PROGRAM = MODULES / "@copilotkit/aimock/dist/cli.js"
Fixture = Mapping[str, Any]
"""`match` (`userMessage`, `hasToolResult`), `response` (`content`, `toolCalls`, `error`, …) and how it is sent."""


@asynccontextmanager
async def aimock(folder: Path, fixtures: Sequence[Fixture]) -> AsyncIterator[str]:
    """Serve the fixtures on a free port; yield the address, without a path."""
    program = node()
    assert program
    file = folder / "fixtures.json"
    file.write_text(json.dumps({"fixtures": fixtures}), "utf-8")
    process = await create_subprocess_exec(program, str(PROGRAM), "--port", "0", "--fixtures", str(file), stdout=PIPE)
    assert process.stdout
    try:
        async with timeout(PATIENCE):
            while not (found := re.search(rb"listening on (http://\S+)", line := await process.stdout.readline())):
                assert line, "aimock ended before it listened"
        draining = create_task(process.stdout.read())  # a full pipe would block it
        yield found[1].decode()
        process.kill()
        await draining
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
