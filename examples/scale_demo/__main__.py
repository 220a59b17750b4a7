"""Runs the demo: `make demo-scale`, or `python -m examples.scale_demo --help`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.scale_demo.fleet import Fleet
from examples.scale_demo.load import Client, client_of, conversations
from examples.scale_demo.log import Log
from examples.scale_demo.model import model_server
from examples.scale_demo.postgres import server
from examples.scale_demo.project import edit_agent
from examples.scale_demo.results import Story, print_table, rows_of
from examples.scale_demo.scenario import digests, end_one, kill_under_load, start_seconds

LEASE = 6.0
"""Default of `store.lease`, in seconds."""
LONE_RUNS = 40
TURNS = 5
"""Runs of a conversation."""
CONCURRENCY = 50
"""Runs that a worker executes at once."""
SLOW_RUNS = 12
"""Runs that are in progress when a worker gets its last signals."""


async def demo(folder: Path, url: str, runs: int) -> bool:
    """Run the demo on an empty database, and print what happens; return whether the runs ended as promised."""
    path = folder / "log"
    log = Log(path)
    async with model_server(log) as model:
        fleet = Fleet(folder, url=url, model=model, log=path)
        try:
            fleet.add("api")
            for name in ("worker-1", "worker-2"):
                fleet.add(name, "--concurrency", str(CONCURRENCY))
            await fleet.ready()
            _say(f"an API at {fleet.api.url} and two workers are ready")
            async with client_of(fleet.api.url) as client:
                story = await _tell(fleet, client, runs)
                rows = rows_of(story, fleet.entries, client.submitted, await client.until_ended(10))
        finally:
            await fleet.close()
            log.close()
    print_table(rows)
    return all(row.verdict != "BROKEN" for row in rows)


async def _tell(fleet: Fleet, client: Client, runs: int) -> Story:
    lone = await start_seconds(fleet, client, LONE_RUNS)
    _say(
        f"{LONE_RUNS} lone runs have ended; now {runs} runs in {runs // TURNS} conversations, and a kill -9 each second"
    )
    edited = fleet.workers[0]
    edit_agent(edited.folder)
    _say(f"the agent was edited in the folder of {edited.name} only")
    load = conversations(runs, max(1, runs // TURNS))
    kills = await kill_under_load(fleet, client, load, every=1, seconds=80, say=_say)
    versions = ", ".join(f"{number} with {digest}" for digest, number in (await digests(client)).items())
    _say(f"runs by digest of their agent: {versions}")
    _say(f"{SLOW_RUNS} slow runs; SIGTERM to the worker that executes most of them")
    ended = await end_one(fleet, client, "term", signal.SIGTERM, SLOW_RUNS)
    _say(f"{SLOW_RUNS} slow runs; kill -9 to the worker that executes most of them")
    killed = await end_one(fleet, client, "kill", signal.SIGKILL, SLOW_RUNS)
    return Story(kills, lone, ended, killed, LEASE)


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    """Run the demo on a temporary server; return the exit code."""
    parser = argparse.ArgumentParser(prog="scale_demo", description="A fleet under load, kills and edits.")
    parser.add_argument("--runs", type=int, default=500, help="number of runs under kills; default: 500")
    parser.add_argument("--database", help="URL of an empty PostgreSQL database; default: a temporary server")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="agentsd-fleet-")))
        try:
            url = options.database or stack.enter_context(server()).url
        except LookupError as missing:
            print(missing)
            return 1
        return 0 if asyncio.run(demo(folder, url, options.runs)) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up as Ctrl-C does
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print()
        sys.exit(130)
