"""Processes killed at random moments lose nothing and repeat no finished call."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from framework.store.store import Store
from framework.store.types import NoteQuery
from framework.types.memory import Note
from framework.types.state import RunState
from tests.support import crashing_lives, lives
from tests.support.cases import FACTOR
from tests.support.forks import FORKS
from tests.support.stores import LONG_ON_POSTGRESQL

KILLS = 3 * FACTOR
"""Number of kills per database."""


@dataclass
class Observed:
    """Observations from outside the processes."""

    kills: int = 0
    events: set[tuple[str, int, str]] = field(default_factory=set)
    """Events that a listener received."""
    repeated: list[str] = field(default_factory=list)
    """Calls that were executed although their result was saved."""


def live_until(events: int | None, url: str, root: Path, log: Path, seen: Observed) -> bool:
    """Run one process and kill it after a number of events. Return whether it was killed."""
    ours, theirs = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=lives.live, args=(url, root, log, theirs))
    process.start()
    theirs.close()
    killed, received = False, 0
    with ours:
        while True:
            try:
                seen.events.add(ours.recv())
            except (EOFError, OSError):
                break
            received += 1
            if events is not None and received == events:
                process.kill()
                killed = True
    process.join()
    assert killed or process.exitcode == 0
    return killed


def finished_calls(states: list[RunState]) -> Iterator[str]:
    """Yield the calls whose result is saved."""
    for state in states:
        done = (record.call.arguments for record in state.calls.values() if record.result is not None)
        yield from (arguments["n"] for arguments in done if "n" in arguments)
        yield from finished_calls(list(state.children.values()))


async def states_of(store: Store) -> list[RunState]:
    return [await store.load_run(info.run_id) for info in await store.runs()]


def run_until_done(url: str, root: Path, kills: int, random: Random) -> Observed:
    """Start and kill processes until all conversations are complete."""
    seen, log = Observed(), root / "log"
    log.touch()

    async def saved_calls() -> set[str]:
        store = await Store.open(url, root)
        try:
            return set(finished_calls(await states_of(store)))
        finally:
            await store.close()

    while seen.kills < kills:
        before, made = asyncio.run(saved_calls()), len(log.read_text().splitlines())
        killed = live_until(random.randint(1, 40), url, root, log, seen)
        again = {line.split()[1] for line in log.read_text().splitlines()[made:]}
        seen.repeated += sorted(again & before)
        if not killed:
            break
        seen.kills += 1
    assert not live_until(None, url, root, log, seen)
    return seen


async def check(url: str, root: Path, seen: Observed) -> None:
    """Check that every turn ran once, in order, and that its events are saved."""
    store = await Store.open(url, root)
    for name in lives.CONVERSATIONS:
        conversation = await store.conversation(name)
        said = [message.content for message in conversation.messages if message.role == "user"]
        assert said == [f"{name} {n}" for n in range(1, lives.TURNS + 1)]
        assert (conversation.turns, conversation.open_run) == (lives.TURNS, None)
    infos = await store.runs()
    assert {info.status for info in infos} == {"completed"}
    kept = {(e["run_id"], e["seq"], e["event"]) for info in infos for e in await store.events(info.run_id)}
    for info in infos:
        numbers = sorted(seq for run_id, seq, _ in kept if run_id == info.run_id)
        assert numbers == list(range(1, len(numbers) + 1)), "one event each, without a gap"
    assert seen.events <= kept, "every received event is saved"
    assert sum(name == "handoff" for _, _, name in kept) == 1, "the conversation moves once, and stays"
    check_plans_and_notes(await states_of(store), await store.notes.list(NoteQuery()))
    paid = Counter(line for line in (root / "log").read_text().splitlines() if line.startswith("pay "))
    assert set(paid.values()) <= {1}, "never twice, unasked"
    assert not [line for line in paid if "never" in line]
    await store.close()


def check_plans_and_notes(states: list[RunState], saved: Sequence[Note]) -> None:
    """Check that each step of a fixed plan ended once, and that each run saved its note, and had the earlier ones."""
    for state in states:
        if state.agent == "follower":
            assert state.plan is not None
            assert {step.id: step.status for step in state.plan.steps} == lives.STEP_STATUSES
            assert len(state.plan.steps) == len(lives.STEP_STATUSES)
    texts = [lives.note(f"m1 {turn}") for turn in range(1, lives.TURNS + 1)]
    assert sorted(note.text for note in saved) == texts, "once each"
    kept = {state.messages[0].content: state.recalled or [] for state in states if state.agent == "keeper"}
    for turn in range(lives.TURNS):
        assert sorted(note.text for note in kept[f"m1 {turn + 1}"]) == texts[:turn]


@LONG_ON_POSTGRESQL
def test_killed_processes_lose_nothing_and_repeat_no_finished_call(
    new_store: Callable[[], str], tmp_path: Path
) -> None:
    total, random = 0, Random(7)
    while total < KILLS:
        root = lives.project(tmp_path / f"work-{total}")
        url = new_store()
        seen = run_until_done(url, root, min(10, KILLS - total), random)
        asyncio.run(check(url, root, seen))
        assert seen.repeated == []
        total += seen.kills
        if "sqlite" in url:
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
                assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@LONG_ON_POSTGRESQL
def test_a_run_that_ends_its_processes_makes_no_other_run_fail(new_store: Callable[[], str], tmp_path: Path) -> None:
    root, log, url = crashing_lives.project(tmp_path), tmp_path / "log", new_store()
    codes = [1]
    while codes[-1] == 1:
        process = FORKS.Process(target=crashing_lives.live, args=(url, root, log, len(codes) == 1))
        process.start()
        process.join()
        codes.append(process.exitcode or 0)

    async def ended() -> list[str]:
        store = await Store.open(url, root)
        try:
            return [f"{info.message} {info.status} {info.finish_reason}" for info in await store.runs()]
        finally:
            await store.close()

    others = ["work completed final"] * crashing_lives.INNOCENT
    assert asyncio.run(ended()) == ["crash failed crashed", *others]
    assert codes == [1, *[1] * crashing_lives.ends(log), 0]
    assert 5 <= crashing_lives.ends(log) <= 10, "at least twice beside the others, and three times alone"
