"""Executes runs with checkpoints: `python -m benchmarks.peers.durable_worker NAME DATABASE LOG LAST`.

The model and the tool append a line to the file LOG at each call, before their result can have a checkpoint. The tool's
call number LAST never ends, so that a process can be killed in a run; with 0, all calls end. Each line of standard
input names the keys of runs, or of one run to resume. An error ends the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any, TextIO, cast

from benchmarks.peers.environment import peer
from benchmarks.peers.job import ANSWER, Durable, DurablePeer


async def execute(agent: Durable, request: dict[str, Any]) -> dict[str, Any]:
    """Execute the requested runs one after another, and return the seconds of each."""
    if key := request.get("resume"):
        return {"seconds": [await timed(agent.resume(key))]}
    keys: Sequence[str] = request["run"]
    return {"seconds": [await timed(agent.run(key)) for key in keys]}


async def timed(run: Any) -> float:
    """Return the seconds of a run. Raises ValueError if its answer is not the expected one."""
    started = perf_counter()
    answer = await run
    if answer != ANSWER:
        raise ValueError(f"answered {str(answer)[:80]!r}")
    return perf_counter() - started


async def main(name: str, database: str, log: str, last: int, results: TextIO) -> None:
    """Execute requests until the end of the input."""
    calls = list[int]()
    lines = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def note(n: int) -> str:
        """Return a note of the number."""
        calls.append(n)
        if len(calls) == last:
            await asyncio.Event().wait()
        os.write(lines, f"note {n}\n".encode())
        return f"noted {n}"

    def asked() -> None:
        os.write(lines, b"model\n")

    module = cast("DurablePeer", peer(name))
    async with module.durable(database, note, asked) as agent:
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                result = await execute(agent, json.loads(line))
            except Exception as error:  # noqa: BLE001 - reported to the benchmark, which leaves this peer out
                result = {"error": f"{type(error).__name__}: {error}"[:500]}
            print(json.dumps(result), file=results, flush=True)
            if "error" in result:
                return


if __name__ == "__main__":
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), results))
