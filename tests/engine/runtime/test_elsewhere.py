"""Pieces of texts may be lost, repeated, or come from an earlier execution of a run: no wrong text is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Runtime, events
from framework.engine.context.events import EventReader, TextDelta, read_piece, split
from framework.engine.runtime.follow import RemoteRun
from framework.engine.runtime.launcher import Launcher
from framework.store.types import NEW, Signal
from framework.testing import ScriptedModel
from tests.support.cases import cases
from tests.support.projects import agent, write

SLICES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(0, 12)), max_size=12)


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """The launcher of a runtime without runs."""
    root = write(tmp_path_factory.mktemp("project"), {"agents.d/a.yaml": agent("a")})
    opening = Runtime.open(root, models={"scripted": ScriptedModel()}, watch=False)
    with asyncio.Runner() as runner:
        yield runner.run(opening.__aenter__())._launcher
        runner.run(opening.__aexit__(None, None, None))


def piece(source: str, begin: int, text: str) -> Signal:
    whole = TextDelta(source, events.ContentReceived, 1, ("sub",), "msg.sub.1", begin, text)
    return Signal("deltas", "run_1", 3, whole.encode())


def shown(launcher: Launcher, signals: Sequence[Signal]) -> tuple[str, str, bool]:
    """Return the text that a follower has after these signals, that of a late one, and whether signals arrive."""
    hub = launcher.hub("run_1")
    reader, run = hub.reader(), RemoteRun(launcher, "run_1", 3)
    for signal in signals:
        run.receive(signal)
    return "".join(texts(reader)), "".join(texts(hub.reader())), run.is_answered


def texts(reader: EventReader) -> Iterator[str]:
    """Yield the deltas that have arrived."""
    while (event := reader.take()) is not None:
        assert isinstance(event, events.ContentReceived)
        assert (event.seq, event.path, event.message_id) == (0, ("sub",), "msg.sub.1")
        yield event.text


@cases(40)
@given(both=st.tuples(st.text(min_size=12, max_size=12), st.text(min_size=12, max_size=12)), slices=SLICES)
def test_what_is_shown_is_the_beginning_of_one_text(
    launcher: Launcher, both: tuple[str, str], slices: list[tuple[int, int, int]]
) -> None:
    signals = [piece(f"s{number}", begin, both[number][begin:end]) for number, begin, end in slices]
    seen, late, _ = shown(launcher, signals)
    assert any(text.startswith(seen) for text in both)
    assert any(text.startswith(late) for text in both)


def test_a_lost_piece_is_replaced_by_the_text_so_far(launcher: Launcher) -> None:
    lossy = [piece("a", 0, "one "), piece("a", 8, "three")]
    assert shown(launcher, lossy) == ("one ", "one ", False), "it asks for the text so far"
    repeated = [*lossy, piece("a", 0, "one two three"), piece("a", 4, "two "), piece("a", 13, " four")]
    assert shown(launcher, repeated) == ("one two three four", "one two three four", True)


def test_a_text_of_another_execution_is_not_appended(launcher: Launcher) -> None:
    signals = [piece("a", 0, "one "), piece("b", 0, "another text"), piece("a", 4, "two")]
    assert shown(launcher, signals) == ("one ", "", True)
    assert shown(launcher, signals[1:2]) == ("another text", "another text", True)


def test_signals_that_are_no_pieces_are_ignored(launcher: Launcher) -> None:
    bodies = ["", "x", "[]", "{}", "null", '["a","content",1,[],"msg",0]', '["a","picture",1,[],"msg",0,"x"]']
    signals = [Signal("deltas", "run_1", 3, body) for body in bodies]
    old = Signal("deltas", "run_1", 2, piece("a", 0, "old").body)
    assert shown(launcher, [*signals, old, Signal("listen", "run_1", body=NEW), piece("a", 0, "x")]) == ("x", "x", True)


@cases(20)
@given(st.text(max_size=30), st.integers(0, 9))
def test_pieces_fit_signals_and_can_be_read(text: str, begin: int) -> None:
    event = events.Thought(run_id="r", seq=0, generation=1, path=(), message_id="m", text=text * 100)
    pieces = list(split(event, "source", begin))
    assert "".join(one.text for one in pieces) == event.text
    assert [read_piece(one.encode()) for one in pieces] == pieces
    assert [one.begin for one in pieces] == [begin + at for at in range(0, len(event.text), 1000)]
