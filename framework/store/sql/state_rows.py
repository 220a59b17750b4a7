"""Splits a run's state into rows, so that a step writes only what has changed. Pure functions over RunState.

The `head` row never changes after the run has begun. Everything that grows (messages, calls, the trace, sub-runs) has
separate rows; the rest is one small `state` row. A row that is written again replaces the earlier one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

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
        "copied_from",
        "user",
        "tenant",
        "locale",
        "inputs",
        "metadata",
        "base_path",
        "limits",
        "model_settings",
        "caller_instructions",
        "output_schema",
    }
)
_DECISIONS: TypeAdapter[dict[str, Decision]] = TypeAdapter(dict[str, Decision])
_GROWING = frozenset({"history", "messages", "calls", "trace", "children", "plan", "session", "decisions", "version"})


class StateRow(NamedTuple):
    """One row of a run's state."""

    path: str
    """Path of the sub-run as a JSON list; empty for the root run."""
    kind: RowKind
    n: int
    """Position among the rows of its kind."""
    body: str
    """JSON."""


@dataclass(slots=True)
class _Written:
    """The parts of a run or sub-run that were written so far."""

    messages: list[BaseModel] = field(default_factory=list)
    trace: list[BaseModel] = field(default_factory=list)
    calls: dict[str, CallRecord] = field(default_factory=dict)
    plan: Plan | None = None
    session: str = "{}"
    decisions: bytes = b"{}"
    state: str = ""


class StateDiff:
    """Tracks the written parts of a run, and returns the rows that changed since the last write."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, ...], _Written] = {}

    def changes(self, state: RunState) -> list[StateRow]:
        """Return the rows that changed since the last call, including sub-runs. The root `state` row always counts."""
        path = orjson.dumps(state.path).decode() if state.path else ""
        rows: list[StateRow] = []
        written = self._written.get(state.path)
        if written is None:
            written = self._written[state.path] = _Written()
            rows.append(StateRow(path, "head", 0, _json(state, include=set(_HEAD))))
        rows += _appended(path, "message", written.messages, state.messages)
        rows += _appended(path, "trace", written.trace, state.trace)
        for n, (key, record) in enumerate(state.calls.items()):
            if written.calls.get(key) is not record:
                written.calls[key] = record
                rows.append(StateRow(path, "call", n, _json(record)))
        if state.plan is not written.plan:
            written.plan = state.plan
            rows.append(StateRow(path, "plan", 0, _json(state.plan) if state.plan else "null"))
        if (state.session or written.session != "{}") and (session := json.dumps(state.session)) != written.session:
            written.session = session
            rows.append(StateRow(path, "session", 0, session))
        if state.decisions and (decisions := _DECISIONS.dump_json(state.decisions)) != written.decisions:
            written.decisions = decisions
            rows.append(StateRow(path, "decisions", 0, decisions.decode()))
        rest = _json(state, exclude=_REST)
        if rest != written.state or not state.path:
            written.state = rest
            rows.append(StateRow(path, "state", 0, rest))
        for child in state.children.values():
            rows += self.changes(child)
        return rows


_REST = set(_HEAD | _GROWING)  # pydantic accepts no frozenset


def history_rows(state: RunState) -> list[StateRow]:
    """Return the rows of the history that the caller passed with a run."""
    return [StateRow("", "history", n, _json(message)) for n, message in enumerate(state.history)]


def is_progress(row: StateRow) -> bool:
    """Return whether the row means progress of the run: a message, or the result of a call."""
    return row.kind in ("message", "trace")


def assemble_state(parts: Iterable[tuple[str, RowKind, str]], history: Sequence[str], version: int) -> RunState:
    """Rebuild a run's state from its rows; raises ValueError if rows are missing or damaged.

    Args:
        parts: path, kind and body of each row, in order within each kind.
        history: for a run in a conversation, the earlier messages as JSON.
        version: the version of the run's record.
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
    """Join the JSON texts of a run's rows. They are not parsed, because not every parser keeps every number."""
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
    own_fields = (bodies[kind][0].strip()[1:-1] for kind in ("head", "state"))
    return "{" + ",".join([*filter(None, own_fields), _json_object(fields.items())[1:-1]]) + "}"


def _json_array(bodies: Iterable[str]) -> str:
    return f"[{','.join(bodies)}]"


def _json_object(members: Iterable[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{orjson.dumps(key).decode()}:{body}" for key, body in members) + "}"


def _appended(path: str, kind: RowKind, written: list[BaseModel], now: Sequence[BaseModel]) -> list[StateRow]:
    """Return rows for items appended since the last write, and for the last written item if it was replaced."""
    start = len(written)
    if start and now[start - 1] is not written[-1]:
        start -= 1
    if start == len(now):
        return []
    written[start:] = now[start:]
    return [StateRow(path, kind, n, _json(now[n])) for n in range(start, len(now))]


def _json(model: BaseModel, **options: Any) -> str:
    """Return `model.model_dump_json(exclude_defaults=True)`, which itself takes as long as the serializer it calls."""
    text: bytes = type(model).__pydantic_serializer__.to_json(model, exclude_defaults=True, **options)
    return text.decode()
