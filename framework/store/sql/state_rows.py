"""A run's state in parts, so that a step writes only what has changed: pure functions over RunState.

The head never changes after the run has begun. The rest is small, but for what grows: messages, calls, the trace and
sub-runs, which are parts of their own. A part that is written again takes the place of the one before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import orjson
from pydantic import BaseModel, TypeAdapter

from framework.types.plan import Plan
from framework.types.state import CallRecord, Decision, RunState

RowKind = Literal["message", "call", "trace", "plan", "session", "decisions", "history", "head", "state"]

_HEAD = frozenset(
    {
        "schema_version",
        "run_id",
        "path",
        "agent",
        "generation",
        "digest",
        "blueprint",
        "conversation_id",
        "conversation_ttl",
        "user",
        "tenant",
        "locale",
        "inputs",
        "metadata",
        "base_path",
        "limits",
        "model_settings",
        "output_schema",
    }
)
_DECISIONS: TypeAdapter[dict[str, Decision]] = TypeAdapter(dict[str, Decision])
_GROWING = frozenset({"history", "messages", "calls", "trace", "children", "plan", "session", "decisions", "version"})


@dataclass(frozen=True, slots=True)
class StateRow:
    """One row."""

    path: str
    """The sub-run it belongs to, as a JSON list; empty: the root run."""
    kind: RowKind
    n: int
    """Its place among those of its kind."""
    body: str
    """JSON."""


@dataclass(slots=True)
class _Written:
    """What of a run, or of a sub-run, was written so far."""

    messages: list[BaseModel] = field(default_factory=list)
    trace: list[BaseModel] = field(default_factory=list)
    calls: dict[str, CallRecord] = field(default_factory=dict)
    plan: Plan | None = None
    session: str = "{}"
    decisions: bytes = b"{}"
    state: str = ""


class StateDiff:
    """Remembers what was written of a run, and says what is to be written now."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, ...], _Written] = {}

    def changes(self, state: RunState) -> list[StateRow]:
        """What has changed since the last time, sub-runs included; the root's own `state` is always part of it."""
        return list(self._changes(state))

    def mark_written(self, state: RunState) -> None:
        """Take a state as written: it was just loaded."""
        for _ in self._changes(state):
            pass

    def _changes(self, state: RunState) -> Iterator[StateRow]:
        path = orjson.dumps(state.path).decode() if state.path else ""
        written = self._written.get(state.path)
        if written is None:
            written = self._written[state.path] = _Written()
            yield StateRow(path, "head", 0, head_json(state))
        yield from _appended(path, "message", written.messages, state.messages)
        yield from _appended(path, "trace", written.trace, state.trace)
        for n, (key, record) in enumerate(state.calls.items()):
            if written.calls.get(key) is not record:
                written.calls[key] = record
                yield StateRow(path, "call", n, _json(record))
        if state.plan is not written.plan:
            written.plan = state.plan
            yield StateRow(path, "plan", 0, _json(state.plan) if state.plan else "null")
        if (state.session or written.session != "{}") and (kept := json.dumps(state.session)) != written.session:
            written.session = kept
            yield StateRow(path, "session", 0, kept)
        if state.decisions and (decisions := _DECISIONS.dump_json(state.decisions)) != written.decisions:
            written.decisions = decisions
            yield StateRow(path, "decisions", 0, decisions.decode())
        rest = state.model_dump_json(exclude=_REST, exclude_defaults=True)
        if rest != written.state or not state.path:
            written.state = rest
            yield StateRow(path, "state", 0, rest)
        for child in state.children.values():
            yield from self._changes(child)


_REST = set(_HEAD | _GROWING)  # pydantic wants a set


def head_json(state: RunState) -> str:
    """What never changes in a run."""
    return state.model_dump_json(include=set(_HEAD), exclude_defaults=True)


def history_rows(state: RunState) -> list[StateRow]:
    """The messages that a caller handed in with a run."""
    return [StateRow("", "history", n, _json(message)) for n, message in enumerate(state.history)]


def is_progress(part: StateRow) -> bool:
    """Does the run come further with this: a message, or the result of a call?"""
    return part.kind in ("message", "trace")


def assemble(parts: Iterable[tuple[str, RowKind, str]], history: Sequence[str], version: int) -> RunState:
    """Put a run together again; raises ValueError where something is missing or cannot be read.

    Args:
        parts: path, kind and body; those of a kind in their order.
        history: of a run in a conversation, the messages before it.
        version: the record's number.
    """
    runs: dict[str, dict[str, list[str]]] = {}
    for path, kind, body in parts:
        runs.setdefault(path, {}).setdefault(kind, []).append(body)
    below: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(filter(None, runs), key=lambda path: -len(orjson.loads(path))):
        *above, key = orjson.loads(path)
        text = _run_json(runs[path], below.get(path, ()), {})
        below.setdefault(orjson.dumps(above).decode() if above else "", []).append((key, text))
    rest = {"version": str(version)}
    if history:
        summary = orjson.loads(runs[""]["state"][0]).get("summary") or {}
        rest["history"] = _json_array(history[summary.get("upto", 0) :])
    return RunState.model_validate_json(_run_json(runs[""], below.get("", ()), rest))


def _run_json(bodies: Mapping[str, list[str]], children: Iterable[tuple[str, str]], rest: Mapping[str, str]) -> str:
    """A run as JSON, of what was written of it: the texts themselves, since no reader in between takes every number."""
    calls = ((orjson.loads(body)["call"]["id"], body) for body in bodies.get("call", ()))
    fields = {
        "messages": _json_array(bodies.get("message", ())),
        "history": _json_array(bodies.get("history", ())),
        "trace": _json_array(bodies.get("trace", ())),
        "calls": _json_object(calls),
        "plan": bodies.get("plan", ["null"])[0],
        "session": bodies.get("session", ["{}"])[0],
        "decisions": bodies.get("decisions", ["{}"])[0],
        "children": _json_object(children),
        **rest,
    }
    known = (bodies[kind][0].strip()[1:-1] for kind in ("head", "state"))
    return "{" + ",".join([*filter(None, known), _json_object(fields.items())[1:-1]]) + "}"


def _json_array(bodies: Iterable[str]) -> str:
    return f"[{','.join(bodies)}]"


def _json_object(members: Iterable[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{orjson.dumps(key).decode()}:{body}" for key, body in members) + "}"


def _appended(path: str, kind: RowKind, written: list[BaseModel], now: Sequence[BaseModel]) -> Iterator[StateRow]:
    """What was added at the end; the last one of before may have been replaced."""
    start = len(written)
    if start and now[start - 1] is not written[-1]:
        start -= 1
    for n in range(start, len(now)):
        yield StateRow(path, kind, n, _json(now[n]))
    written[start:] = now[start:]


def _json(model: BaseModel) -> str:
    return model.model_dump_json(exclude_defaults=True)
