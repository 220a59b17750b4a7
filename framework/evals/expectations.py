"""Compares what the runs of a case did with its expectations: one Check per expectation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from framework.types import events
from framework.types.case import Expect
from framework.types.events import Event
from framework.types.messages import REFUSED_STATUSES
from framework.types.plan import PlanStep
from framework.types.state import RunResult, subject_of
from framework.types.text import LinearPattern, one_line

MAX_LINE_CHARS = 160
"""Length of texts in messages and lines of transcripts."""
_MAX_LINES = 50


@dataclass(frozen=True, slots=True)
class Check:
    """One expectation, and whether it was met."""

    key: str
    """The key of `expect`, or `run` if the case itself could not be completed."""
    passed: bool
    message: str
    """`expected called [a], got [b]`."""


@dataclass(slots=True)
class Evidence:
    """Observations from the runs of a case, in order, sub-agents included."""

    offered: Sequence[str] = ()
    called: dict[tuple[object, ...], str] = field(default_factory=dict)
    """Tools called, by run, sub-run and call id: a call that resumes after a pause counts once."""
    requested: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    """Every tool that was called, needed a confirmation or was denied, with its arguments."""
    denied: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    failed_calls: int = 0
    steps: int = 0
    plan: tuple[PlanStep, ...] = ()
    result: RunResult | None = None
    """Result of the last run."""
    transcript: list[str] = field(default_factory=list)
    """What happened, one line each: messages, calls with what became of them, answers."""

    def observe(self, event: Event) -> None:
        """Record an event of a run."""
        if (line := _line(event)) and len(self.transcript) < _MAX_LINES:
            self.transcript.append(line)
        match event:
            case events.ToolStarted(run_id=run, path=path, id=call, tool=tool, arguments=arguments, progress=None):
                self.called[run, path, call] = tool
                self.requested.append((tool, arguments))
            case events.ToolFinished(tool=tool, status=status):
                self.failed_calls += status == "error"
                if status in REFUSED_STATUSES:
                    self.denied.append(tool)
            case events.ConfirmationRequested(kind=kind, tool=tool, arguments=arguments):
                self.asked.append(subject_of(kind, tool))
                self.requested.append((tool, arguments))
            case events.PlanProposed(steps=steps):
                self.plan = steps

    def add_result(self, result: RunResult) -> None:
        """Record the result of a run, with its calls, also those that were not executed."""
        self.result = result
        self.steps += result.steps
        self.requested.extend((call.tool, call.arguments) for call in result.tool_calls)
        subjects = ", ".join(subject_of(one.kind, one.tool) for one in result.pending)
        waiting = f", waits for a decision on {subjects}" if subjects else ""
        output = f": {one_line(result.output, MAX_LINE_CHARS)}" if result.output else ""
        self.transcript.append(f"{result.status} ({result.finish_reason}{waiting}){output}")

    def fate(self, pattern: str) -> str:
        """Return what became of the calls of a tool: `denied`, `asked` or `called`; empty if there were none."""
        fates = (("denied", self.denied), ("asked", self.asked), ("called", [*self.called.values()]))
        return next((text for text, names in fates if _any_matches(names, pattern)), "")


def checks(expect: Expect, evidence: Evidence) -> Iterator[Check]:
    """Yield a Check for each expectation that the case states."""
    yield from _membership_checks(expect, evidence)
    yield from _order_checks(expect, evidence)
    for tool, arguments in expect.arguments.items():
        yield _arguments_check(tool, arguments, evidence)
    if evidence.result is not None:
        yield from _ending_checks(expect, evidence, evidence.result)


def _membership_checks(expect: Expect, evidence: Evidence) -> Iterator[Check]:
    called = list(evidence.called.values())
    for key, got in (("offered", evidence.offered), ("denied", evidence.denied), ("asked", evidence.asked)):
        patterns = getattr(expect, key)
        if patterns is not None:
            passed = all(_any_matches(got, pattern) for pattern in patterns) if patterns else not got
            yield _list_check(key, passed, patterns, list(dict.fromkeys(got)), evidence)
    for key, got in (("not_offered", evidence.offered), ("not_called", called)):
        patterns = getattr(expect, key)
        if patterns is not None:
            passed = not any(_any_matches(got, pattern) for pattern in patterns)
            yield _list_check(key, passed, patterns, got)


def _order_checks(expect: Expect, evidence: Evidence) -> Iterator[Check]:
    called = list(evidence.called.values())
    if expect.called is not None:
        passed = _in_order(expect.called, [{tool} for tool in called]) if expect.called else not called
        yield _list_check("called", passed, expect.called, called, evidence)
    if expect.called_exactly is not None:
        passed = _exactly(expect.called_exactly, called)
        yield _list_check("called_exactly", passed, expect.called_exactly, called, evidence)
    if expect.plan is not None:
        names = [{step.id, *([step.tool] if step.tool else [])} for step in evidence.plan]
        passed = _in_order(expect.plan, names) if expect.plan else not names
        yield _list_check("plan", passed, expect.plan, [step.tool or step.id for step in evidence.plan])


def _ending_checks(expect: Expect, evidence: Evidence, result: RunResult) -> Iterator[Check]:
    for text in expect.output or ():
        yield Check(
            "output", text in result.output, f"expected output with {_shown(text)}, got {_shown(result.output)}"
        )
    if (pattern := expect.output_matches) is not None:
        message = f"expected output_matches {_shown(pattern)}, got {_shown(result.output)}"
        yield Check("output_matches", LinearPattern(pattern).is_in(result.output), message)
    why = f" ({one_line(result.error.message, MAX_LINE_CHARS)})" if result.error else ""
    for key, expected, got in (
        ("status", expect.status, result.status),
        ("finish_reason", expect.finish_reason, result.finish_reason),
    ):
        if expected is not None:
            yield Check(key, expected == got, f"expected {key} {expected}, got {got}{why}")
    if expect.status is None and expect.finish_reason is None:
        yield Check("run", result.status != "failed", f"the run failed: {result.finish_reason}{why}")
    if (limit := expect.max_steps_used) is not None:
        yield Check("max_steps_used", evidence.steps <= limit, f"expected max_steps_used {limit}, got {evidence.steps}")


def _list_check(
    key: str, passed: bool, patterns: Sequence[str], got: Sequence[str], evidence: Evidence | None = None
) -> Check:
    """Return the check of a list of tools; with `evidence`, the message says what became of the missing ones."""
    message = f"expected {key} [{', '.join(patterns)}], got [{one_line(', '.join(got), MAX_LINE_CHARS)}]"
    missing = [pattern for pattern in patterns if not _any_matches(got, pattern)] if key != "offered" else []
    happened = [(pattern, evidence.fate(pattern)) for pattern in missing] if evidence else []
    fates = ", ".join(f"{pattern} was {fate}" for pattern, fate in happened if fate)
    return Check(key, passed, f"{message}; {fates}" if fates else message)


def _line(event: Event) -> str:
    """Return the line of a transcript for an event; empty for events that it leaves out."""
    match event:
        case events.ToolStarted(tool=tool, arguments=arguments, progress=None):
            return f"call {tool} {_shown(arguments)}"
        case events.ToolFinished(tool=tool, status=status, result=result, error=error):
            return f"{status} {tool}: {one_line(error or result, MAX_LINE_CHARS)}"
        case events.ConfirmationRequested(kind=kind, tool=tool, arguments=arguments, reason=reason, rule=rule):
            why = one_line(reason or rule, MAX_LINE_CHARS)
            return f"asked {subject_of(kind, tool)} {_shown(arguments)}: {why}"
        case events.PlanProposed(steps=steps):
            return f"plan {', '.join(step.tool or step.id for step in steps)}"
    return ""


def _arguments_check(tool: str, expected: Mapping[str, Any], evidence: Evidence) -> Check:
    actual = [arguments for name, arguments in evidence.requested if fnmatchcase(name, tool)]
    passed = any(all(key in one and _same(value, one[key]) for key, value in expected.items()) for one in actual)
    got = _shown(actual[-1]) if actual else "no such call"
    return Check("arguments", passed, f"expected arguments of {tool} {_shown(expected)}, got {got}")


def _same(expected: Any, got: Any) -> bool:
    """Return whether two JSON values are equal; an expected text may be a glob."""
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    return bool(expected == got) or (isinstance(expected, str) and isinstance(got, str) and fnmatchcase(got, expected))


def _any_matches(names: Sequence[str], pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _in_order(patterns: Sequence[str], entries: Sequence[set[str]]) -> bool:
    """Return whether each pattern matches an entry after the one that the previous pattern matched."""
    rest = iter(entries)
    return all(any(_any_matches(sorted(names), pattern) for names in rest) for pattern in patterns)


def _exactly(patterns: Sequence[str], names: Sequence[str]) -> bool:
    pairs = zip(patterns, names, strict=False)
    return len(patterns) == len(names) and all(fnmatchcase(name, pattern) for pattern, name in pairs)


def _shown(value: Any) -> str:
    return one_line(json.dumps(value, ensure_ascii=False, default=str), MAX_LINE_CHARS)
