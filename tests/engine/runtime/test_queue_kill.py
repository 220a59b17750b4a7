"""Submitted runs survive `kill -9` at any moment, and the turns of a conversation keep their order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import get_args

import pytest

from framework.store.store import Store
from framework.store.types import RunInfo
from framework.types.messages import Message
from framework.types.state import RunRequest
from tests.support import queue_workers
from tests.support.cases import FACTOR
from tests.support.forks import FORKS
from tests.support.queue_workers import Place, project
from tests.support.stores import LONG_ON_POSTGRESQL
from tests.support.waiting import until

PATIENCE = 60
"""Timeout in seconds, for waits that should be short."""
CONVERSATIONS, TURNS = [f"c{number}" for number in range(6)], 4
KILLS = 3 * FACTOR


def start(target: Callable[..., None], *arguments: object) -> tuple[BaseProcess, Connection]:
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=target, args=(*arguments, theirs))
    process.start()
    theirs.close()
    return process, ours


@contextmanager
def worker(url: str, root: Path, log: Path) -> Iterator[BaseProcess]:
    """Run a worker; stop it at the end if it was not killed."""
    process, connection = start(queue_workers.work, url, root, log)
    try:
        assert connection.recv() == "ready"
        yield process
    finally:
        with suppress(BrokenPipeError):  # it was killed, possibly just now
            connection.send("stop")
        process.join(PATIENCE)
        connection.close()


async def until_ended(store: Store) -> list[RunInfo]:
    """Return all runs, once every one has ended."""

    async def look() -> list[RunInfo]:
        runs = list(await store.runs())
        return [] if any(info.status in ("queued", "running") for info in runs) else runs

    runs: list[RunInfo] = await until(look, "every run has ended")
    return runs


@LONG_ON_POSTGRESQL
@pytest.mark.parametrize("place", get_args(Place))
def test_a_run_whose_process_is_killed_before_its_first_step_completes_once(
    tmp_path: Path, store_url: str, place: Place
) -> None:
    root, log = project(tmp_path, routed_by_model=place == "routing"), tmp_path / "log"
    process, connection = start(queue_workers.submit_and_hang, store_url, root, log, place)
    reported = {connection.recv()} if place == "submitted" else {connection.recv(), connection.recv()}
    assert place == "submitted" or place in reported
    process.kill()
    process.join()
    connection.close()

    async def main() -> None:
        store = await Store.open(store_url, root)
        (info,) = await until_ended(store)
        assert (info.status, info.run_id in reported, info.turn) == ("completed", True, 1)
        assert (await store.load_run(info.run_id)).output == "answer to m"
        numbers = [event["seq"] for event in await store.events(info.run_id)]
        assert numbers == list(range(1, len(numbers) + 1))
        await store.close()

    with worker(store_url, root, log):
        asyncio.run(main())
    assert log.read_text() == "m begin\nm end\n"


@LONG_ON_POSTGRESQL
def test_turns_keep_their_order_over_two_processes_that_are_killed(tmp_path: Path, store_url: str) -> None:
    root, log, random = project(tmp_path), tmp_path / "log", Random(5)

    async def enqueue() -> None:
        store = await Store.open(store_url, root)
        for turn in range(TURNS):
            for conversation in CONVERSATIONS:
                message = Message(role="user", content=f"{conversation} {turn}")
                await store.enqueue(RunRequest(message=message, conversation_id=conversation, queue=True))
        await store.close()

    async def finish() -> list[RunInfo]:
        store = await Store.open(store_url, root)
        infos = await until_ended(store)
        await store.close()
        return infos

    asyncio.run(enqueue())
    with worker(store_url, root, log):  # beside the one that is killed
        for _ in range(KILLS):
            with worker(store_url, root, log) as killed:
                killed.join(random.uniform(0, 0.2))
                killed.kill()
        infos = asyncio.run(finish())
    assert {info.status for info in infos} == {"completed"}
    turns = {(info.conversation_id, info.turn): info.message for info in infos}
    assert turns == {(c, turn + 1): f"{c} {turn}" for turn in range(TURNS) for c in CONVERSATIONS}
    lines = log.read_text().splitlines()
    for conversation in CONVERSATIONS:
        own = [line for line, _ in groupby(line for line in lines if line.startswith(f"{conversation} "))]
        assert own == [f"{conversation} {turn} {what}" for turn in range(TURNS) for what in ("begin", "end")]
