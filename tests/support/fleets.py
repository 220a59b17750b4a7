"""Fleets of `agentsd serve --no-work` and `agentsd worker` processes, which are forks with the imports done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, STDOUT

from anyio.from_thread import start_blocking_portal

from examples.scale_demo.facts import Facts, find_facts
from examples.scale_demo.fleet import Fleet, Launch, Process
from examples.scale_demo.load import Client
from examples.scale_demo.log import Log
from examples.scale_demo.model import model_server
from tests.support.forks import Fork

PATIENCE = 60
"""Timeout in seconds, for waits that should be short."""


def fork(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Process:
    """Start `agentsd` as a fork."""
    return Fork(arguments, cwd=folder, env=environment, stdout=PIPE, stderr=STDOUT, text=True)  # type: ignore[return-value]


@contextmanager
def fleet_on(root: Path, url: str, start: Launch = fork) -> Iterator[Fleet]:
    """Yield a fleet without processes, whose model server runs in a thread; end its processes at the end."""
    log = Log(root / "log")
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(model_server(log)) as model:
        fleet = Fleet(root, url=url, model=model, log=root / "log", start=start)
        try:
            yield fleet
        finally:
            portal.call(fleet.close)
    log.close()


async def check(fleet: Fleet, client: Client) -> None:
    """Check that the runs of a client complete, each step once, one run at a time in a conversation, and in order."""
    await client.until_ended(PATIENCE)
    ids = client.submitted.ids.values()
    ends = Counter((run["status"], run["finish_reason"]) for run in await client.runs() if run["run_id"] in ids)
    found = facts_of(fleet, client)
    assert (ends, found.answered) == ({("completed", "final"): len(ids)}, len(ids)), (ends, found)
    assert (found.repeated, found.overlaps, found.disordered) == ((), (), ()), found


def facts_of(fleet: Fleet, client: Client) -> Facts:
    """Return the facts about the runs of a client."""
    return find_facts([entry for entry in fleet.entries if entry.run in client.submitted.ids])
