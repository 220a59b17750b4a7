"""A run's state in parts, so that a step writes only what has changed: pure functions over RunState.

The head never changes after the run has begun. The rest is small, but for what grows: messages, calls, the trace and
sub-runs, which are parts of their own. A part that is written again takes the place of the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
from pydantic import BaseModel, TypeAdapter

from framework.types.plan import Plan
from framework.types.state import CallRecord, Decision, RunState

Kind = Literal["message", "call", "trace", "plan", "session", "decisions", "history", "head", "state"]

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
class Part:
    """One row."""

    path: str
    """The sub-run it belongs to, as a JSON list; empty: the root run."""
    kind: Kind
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
    session: bytes = b"{}"
    decisions: bytes = b"{}"
    state: str = ""


class Differ:
    """Remembers what was written of a run, and says what is to be written now."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, ...], _Written] = {}

    def changes(self, state: RunState) -> list[Part]:
        """What has changed since the last time, sub-runs included; the root's own `state` is always part of it."""
        return list(self._changes(state))

    def skip(self, state: RunState) -> None:
        """Take a state as written: it was just loaded."""
        for _ in self._changes(state):
            pass

    def _changes(self, state: RunState) -> Iterator[Part]:
        path = orjson.dumps(state.path).decode() if state.path else ""
        written = self._written.get(state.path)
        if written is None:
            written = self._written[state.path] = _Written()
            yield Part(path, "head", 0, head_of(state))
        yield from _grown(path, "message", written.messages, state.messages)
        yield from _grown(path, "trace", written.trace, state.trace)
        for n, (key, record) in enumerate(state.calls.items()):
            if written.calls.get(key) is not record:
                written.calls[key] = record
                yield Part(path, "call", n, _json(record))
        if state.plan is not written.plan:
            written.plan = state.plan
            yield Part(path, "plan", 0, _json(state.plan) if state.plan else "null")
        if (state.session or written.session != b"{}") and (kept := orjson.dumps(state.session)) != written.session:
            written.session = kept
            yield Part(path, "session", 0, kept.decode())
        if state.decisions and (decisions := _DECISIONS.dump_json(state.decisions)) != written.decisions:
            written.decisions = decisions
            yield Part(path, "decisions", 0, decisions.decode())
        rest = state.model_dump_json(exclude=_REST, exclude_defaults=True)
        if rest != written.state or not state.path:
            written.state = rest
            yield Part(path, "state", 0, rest)
        for child in state.children.values():
            yield from self._changes(child)


_REST = set(_HEAD | _GROWING)  # pydantic wants a set


def head_of(state: RunState) -> str:
    """What never changes in a run."""
    return state.model_dump_json(include=set(_HEAD), exclude_defaults=True)


def history_of(state: RunState) -> list[Part]:
    """The messages that a caller handed in with a run."""
    return [Part("", "history", n, _json(message)) for n, message in enumerate(state.history)]


def is_progress(part: Part) -> bool:
    """Does the run come further with this: a message, or the result of a call?"""
    return part.kind in ("message", "trace")


def whole(parts: Iterable[tuple[str, Kind, str]], history: Sequence[str], version: int) -> RunState:
    """Put a run together again; raises ValueError where something is missing or cannot be read.

    Args:
        parts: path, kind and body; those of a kind in their order.
        history: of a run in a conversation, the messages before it.
        version: the record's number.
    """
    runs: dict[str, dict[str, list[str]]] = {}
    for path, kind, body in parts:
        runs.setdefault(path, {}).setdefault(kind, []).append(body)
    states = {path: _state(of_kind) for path, of_kind in runs.items()}
    for path in sorted(filter(None, states), key=lambda path: len(orjson.loads(path))):
        *above, key = orjson.loads(path)
        parent = states[orjson.dumps(above).decode() if above else ""]
        parent["children"][key] = states[path]
    root = states[""]
    root["version"] = version
    if history:
        summed_up = (root.get("summary") or {}).get("upto", 0)
        root["history"] = [orjson.loads(message) for message in history[summed_up:]]
    return RunState.model_validate_json(orjson.dumps(root))


def _state(bodies: Mapping[str, list[str]]) -> dict[str, Any]:
    def many(kind: Kind) -> list[Any]:
        return [orjson.loads(body) for body in bodies.get(kind, ())]

    def one(kind: Kind, missing: Any = None) -> Any:
        return orjson.loads(bodies[kind][0]) if kind in bodies else missing

    return {
        **one("head"),
        **one("state"),
        "messages": many("message"),
        "history": many("history"),
        "trace": many("trace"),
        "calls": {record["call"]["id"]: record for record in many("call")},
        "plan": one("plan"),
        "session": one("session", {}),
        "decisions": one("decisions", {}),
        "children": {},
    }


def _grown(path: str, kind: Kind, written: list[BaseModel], now: Sequence[BaseModel]) -> Iterator[Part]:
    """What was added at the end; the last one of before may have been replaced."""
    start = len(written)
    if start and now[start - 1] is not written[-1]:
        start -= 1
    for n in range(start, len(now)):
        yield Part(path, kind, n, _json(now[n]))
    written[start:] = now[start:]


def _json(model: BaseModel) -> str:
    return model.model_dump_json(exclude_defaults=True)
