"""Facts about a fleet, computed from the log of what its runs did, never from its store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from examples.scale_demo.log import Entry


@dataclass(frozen=True, slots=True)
class Death:
    """A signal that ended a process."""

    process: str
    at: float
    """Time of the log, in seconds."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What runs did. A run acts when it calls the model or begins a tool call."""

    answered: int
    """Number of runs whose last answer the model has sent."""
    repeated: tuple[str, ...]
    """Finished steps that began again, such as `c7.2 step 1`: a later step of the run had already begun."""
    interrupted: int
    """Number of steps that began again because their process died during them. That is allowed."""
    overlaps: tuple[str, ...]
    """Runs that acted before an earlier one of their conversation ended, or that acted in two processes at once."""
    disordered: tuple[str, ...]
    """Conversations whose runs did not begin in the order of their submission."""


def find_facts(entries: Sequence[Entry]) -> Facts:
    """Return the facts of a log whose entries are in the order of their times."""
    runs: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        runs[entry.run].append(entry)
    acts = {run: found for run, log in runs.items() if (found := [entry for entry in log if entry.is_act])}
    repeats = [(entry, is_finished) for found in acts.values() for entry, is_finished in _repeats(found)]
    conversations: dict[str, list[list[Entry]]] = defaultdict(list)
    for found in sorted(acts.values(), key=lambda found: found[0].at):
        conversations[found[0].conversation].append(found)
    return Facts(
        answered=sum(any(entry.what == "answered" for entry in log) for log in runs.values()),
        repeated=tuple(f"{entry.run} step {entry.step}" for entry, is_finished in repeats if is_finished),
        interrupted=sum(not is_finished for _, is_finished in repeats),
        overlaps=(*_in_conversations(conversations.values()), *_in_processes(acts.values())),
        disordered=tuple(
            name
            for name, found in conversations.items()
            if [run[0].turn for run in found] != sorted(run[0].turn for run in found)
        ),
    )


def _repeats(acts: Iterable[Entry]) -> Iterable[tuple[Entry, bool]]:
    """Yield tool calls that began again, each with whether it had finished before."""
    begun: set[int] = set()
    reached = 0  # a run asks for step n only after step n - 1 has finished and is stored
    for entry in acts:
        if entry.what == "begin":
            if entry.step in begun:
                yield entry, entry.step < reached
            begun.add(entry.step)
        reached = max(reached, entry.step)


def _in_conversations(conversations: Iterable[Sequence[Sequence[Entry]]]) -> Iterable[str]:
    for runs in conversations:
        for one, following in pairwise(runs):
            if following[0].at < one[-1].at:
                yield f"{following[0].run} began before {one[-1].run} ended"


def _in_processes(runs: Iterable[Sequence[Entry]]) -> Iterable[str]:
    for acts in runs:
        processes = [process for process, _ in groupby(entry.process for entry in acts)]
        if len(processes) != len(set(processes)):
            yield f"{acts[0].run} went back to a process: {', '.join(processes)}"


def hand_overs(entries: Iterable[Entry], accepted: Mapping[str, float]) -> list[float]:
    """Return the seconds between the end of a run and the first act of the next one, which was waiting for it.

    Args:
        entries: the log, in the order of its times.
        accepted: times at which the runs were accepted.
    """
    began: dict[str, float] = {}
    ended: dict[str, float] = {}
    for entry in entries:
        began.setdefault(entry.run, entry.at)
        if entry.what == "answered":
            ended[entry.run] = entry.at
    before = {run: f"{name}.{int(turn) - 1}" for run in began for name, _, turn in [run.rpartition(".")]}
    return [
        at - ended[before[run]]
        for run, at in began.items()
        if before[run] in ended and accepted.get(run, at) < ended[before[run]]
    ]


def starts(entries: Iterable[Entry], accepted: Mapping[str, float]) -> list[float]:
    """Return the seconds between the acceptance of a run and its first call of the model."""
    began: dict[str, float] = {}
    for entry in entries:
        began.setdefault(entry.run, entry.at)
    return [began[run] - at for run, at in accepted.items() if run in began]


def take_overs(entries: Sequence[Entry], death: Death) -> list[float]:
    """Return the seconds from the death of a process to the next act of each run that it was executing."""
    last: dict[str, Entry] = {}
    found: dict[str, float] = {}
    for entry in entries:
        if entry.at <= death.at:
            last[entry.run] = entry
        elif entry.is_act and entry.process != death.process:
            before = last.get(entry.run)
            if before and before.process == death.process:
                found.setdefault(entry.run, entry.at - death.at)
    return [*found.values()]
