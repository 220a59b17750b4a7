"""Events of runs and configuration reloads; `wire` converts them to the JSON that every stream carries.

Each event of a run contains the run's id, a sequence number, the generation, and `path`, the sub-runs that lead to
where it happened. Deltas of a text (`Thought`, `ContentReceived`) have no number (`seq` is 0) and may be merged; the
numbered event of the same message contains the whole text. Every stream ends with
exactly one `StreamEnd`: `RunFinished`, or `RunPaused`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from framework.types.frozen import Frozen
from framework.types.messages import Usage
from framework.types.plan import PlanChange, PlanStep, Preflight, StepStatus, TodoItem
from framework.types.problem import Change, Problem
from framework.types.report import IncompleteStep, Status
from framework.types.state import Confirmation
from framework.types.text import fix_surrogates


class RunEvent(Frozen):
    """The fields that all events of a run have."""

    run_id: str
    """Id of the run; of the root run for events of its sub-runs."""
    seq: int
    """Number of the event in the run, from 1; 0 for deltas of a text."""
    generation: int
    """Number of the configuration generation that the run uses."""
    path: tuple[str, ...] = ()
    """Keys of the sub-runs that lead to where the event happened; empty for the root run."""


class Routed(RunEvent):
    """The agent for the request was selected."""

    agent: str
    """Name of the agent."""
    reason: str
    """Why it was selected."""
    confidence: float
    """Confidence of the selection, from 0 to 1."""
    executor: str | None = None
    """Executor, if a model selected it."""
    digest: str = ""
    """Digest of the generation's files: the same in every process. Empty in events of older versions."""


class HandedOff(RunEvent):
    """An agent handed the conversation over to another one, which answers this message and the next ones."""

    agent: str
    """Name of the agent that answers from now on."""
    origin: str
    """Name of the agent that handed the conversation over."""


class Thought(RunEvent):
    """Reasoning of the model, and the text of a message that is followed by tool calls; a delta, or the whole text."""

    message_id: str
    """Id of the message that the text belongs to."""
    text: str
    """The text."""
    reasoning_chars: int | None = None
    """Number of characters at the start of the whole text that are reasoning; the rest is the text of the message.
    None in deltas, which contain reasoning only, and in events of older versions."""


class ContentReceived(RunEvent):
    """Text of a message that may be the answer: a delta, or the whole text of an answer.

    The text of a message that turns out to request tool calls has deltas only; its numbered event is a `Thought`.
    """

    message_id: str
    """Id of the message that the text belongs to."""
    text: str
    """The text."""


class ToolRequested(RunEvent):
    """The model requests a tool call: it is about to start, or a person is asked first."""

    id: str
    """Id of the call, unique within its run."""
    tool: str
    """Name of the tool."""
    arguments: dict[str, Any]
    """Arguments of the call."""
    status: Literal["pending", "running"] = "pending"
    """`pending` until the tool is called, then `running`. Each call that is executed has both, in this order."""
    progress: float | None = None
    """Progress reported by the tool, from 0 to 1."""
    message: str | None = None
    """Progress message reported by the tool."""


class ToolStarted(ToolRequested):
    """A tool call started, or the tool reports progress."""

    status: Literal["pending", "running"] = "running"


class ToolFinished(RunEvent):
    """A tool call finished."""

    id: str
    """Id of the call."""
    tool: str
    """Name of the tool."""
    status: Literal["success", "error", "cancelled", "denied"]
    """`denied` by a rule or a hook, `cancelled` by a person."""
    result: str
    """Text of the result as the model receives it."""
    error: str | None = None
    """Why the call did not succeed."""
    decision: Literal["respond"] | None = None
    """`respond` if the tool was not executed: the result is the text of a person."""
    elapsed_ms: float
    """Duration in milliseconds."""


class Warned(RunEvent):
    """A warning: for example a limit is nearly reached, a call is repeated, or a model call is retried."""

    code: str
    """A key of `framework.types.report.WARNINGS`."""
    message: str
    """The warning, for people."""
    message_id: str | None = None
    """Message id of a failed model call. Content received with this id is void; the next attempt uses another id."""


class PlanProposed(RunEvent):
    """The model, or the agent's file, proposed a plan or a new revision of it; or a loop added its items."""

    revision: int
    """Number of the revision."""
    goal: str
    """Goal of the plan."""
    hash: str
    """Digest of the plan. An approval applies to this digest only."""
    steps: tuple[PlanStep, ...]
    """Steps of the plan."""
    changes: tuple[PlanChange, ...] = ()
    """Differences from the previous revision."""
    preflight: Preflight | None = None
    """Policy decision for each step, and an estimate."""


class PlanStepChanged(RunEvent):
    """The status of a plan step changed."""

    id: str
    """Id of the step."""
    description: str
    """Description of the step."""
    status: StepStatus
    """New status."""
    result: str | None = None
    """Result of the step, if it has one."""


class TodoChanged(RunEvent):
    """The to-do list of the conversation changed."""

    items: tuple[TodoItem, ...]
    """The complete list."""


class ConfirmationRequested(Confirmation, RunEvent):
    """A person must decide. The run pauses; its last event has the status `paused`."""


class GrantUsed(RunEvent):
    """A remembered approval permits a call that a rule asks about."""

    id: str
    """Id of the call."""
    tool: str
    """Name of the tool."""
    grant: str
    """Id of the grant; `agentsd grants revoke ID` ends it."""
    covers: str
    """What the grant covers, such as `orders.refund when amount <= 20`."""
    origin: str
    """Who approved it, when and in which run."""
    rule: str
    """The rule that asks, with its `file:line`."""
    confirmation_id: str
    """Id of the confirmation that would have been requested."""


class RunFailed(RunEvent):
    """The run failed. `RunFinished` follows."""

    code: str
    """Code of the error."""
    message: str
    """The error, for people."""
    retryable: bool = False
    """Whether the same request may succeed later."""


class StreamEnd(RunEvent):
    """The last event of every stream, `done` on the wire: `RunPaused` if its status is `paused`, else `RunFinished`."""

    status: Status
    """Final status; `paused` while a person must decide."""
    finish_reason: str
    """`final`, `confirmation`, `cancelled`, the key of a limit, or the code of an error."""
    output: str
    """Text of the answer."""
    truncated: bool = False
    """Whether the output limit (`max_tokens`) cut the answer, so that `output` is incomplete."""
    incomplete: tuple[IncompleteStep, ...] = ()
    """Steps of the plan that were not done, although the run may be `completed`."""
    message_id: str | None = None
    """Id of the message that contains the answer."""
    tokens_used: int = 0
    """Total number of tokens."""
    usage: Usage = Usage()
    """Tokens and cost of all model calls."""
    trace_id: str | None = None
    """Id of the trace, if one was recorded."""
    digest: str = ""
    """Digest of the generation's files: the same in every process. Empty in events of older versions."""


class RunFinished(StreamEnd):
    """The run has ended."""

    status: Literal["completed", "stopped", "cancelled", "failed"]


class RunPaused(StreamEnd):
    """The run waits for a decision, and continues after it. Its stream ends, unless its reader waits for that."""

    status: Literal["paused"] = "paused"


class ConfigReloaded(Frozen):
    """A new configuration generation took effect."""

    generation: int
    """Number of the new generation."""
    digest: str
    """Digest of its files."""
    added: tuple[str, ...] = ()
    """Names of new agents."""
    changed: tuple[str, ...] = ()
    """Names of changed agents."""
    removed: tuple[str, ...] = ()
    """Names of removed agents."""
    changes: tuple[Change, ...] = ()
    """Changed keys, each with its effect on permissions."""
    problems: tuple[Problem, ...] = ()
    """Problems and warnings of the new generation."""


class ConfigRejected(Frozen):
    """Changed files were rejected; the previous versions remain active."""

    generation: int
    """Number of the active generation. If only some files are invalid, it is a new generation with the last valid
    versions of those files. If the whole edit was rejected (strict mode, the gate, agentsd.yaml), it is unchanged."""
    problems: tuple[Problem, ...]
    """Why the files were rejected."""


Event = (
    Routed | HandedOff | Thought | ContentReceived | ToolRequested | ToolStarted | ToolFinished | Warned | PlanProposed
    | PlanStepChanged | TodoChanged | ConfirmationRequested | GrantUsed | RunFailed | RunFinished | RunPaused
)  # fmt: skip

WIRE_NAMES: dict[type[Frozen], str] = {
    Routed: "route",
    HandedOff: "handoff",
    Thought: "thinking",
    ContentReceived: "content",
    ToolRequested: "tool_call",
    ToolStarted: "tool_call",
    ToolFinished: "tool_result",
    Warned: "warning",
    PlanProposed: "plan",
    PlanStepChanged: "plan_step",
    TodoChanged: "todo",
    ConfirmationRequested: "confirm_required",
    GrantUsed: "grant_used",
    RunFailed: "error",
    RunPaused: "done",
    RunFinished: "done",
    ConfigReloaded: "config_reloaded",
    ConfigRejected: "config_rejected",
}


def wire(event: Event | ConfigReloaded | ConfigRejected) -> dict[str, Any]:
    """Return the event as JSON data: `{"event": NAME, …payload}`."""
    return {"event": WIRE_NAMES[type(event)], **event.model_dump(mode="json", exclude_none=True)}


def dump_json(model: BaseModel, **options: Any) -> str:
    """Return a model as JSON. Lone surrogates, as in names of files, cannot be encoded: they are replaced.

    Raises:
        PydanticSerializationError: a value is no JSON data.
    """
    try:
        return model.model_dump_json(**options)
    except PydanticSerializationError:
        text = json.dumps(model.model_dump(**options), default=to_jsonable_python, ensure_ascii=False)
        data = json.loads(fix_surrogates(text), parse_constant=lambda _: None)
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def wire_json(event: Event) -> str:
    """Return the JSON of `wire(event)`, without the detour over Python objects. It is one line."""
    return f'{{"event":"{WIRE_NAMES[type(event)]}",{dump_json(event, exclude_none=True)[1:]}'


def read_event(data: Mapping[str, Any]) -> Event:
    """Return the event of a run that `wire` converted to JSON data. Keys that a newer version added are ignored.

    Raises:
        ValueError: the data is not an event of a run.
    """
    name = data.get("event")
    kind = _BY_STATUS.get((name, data.get("status"))) or _RUN_EVENTS.get(str(name))
    if kind is None:
        raise ValueError(f"not an event of a run: {name!r}; known: {', '.join(sorted(_RUN_EVENTS))}")
    known = {key: data[key] for key in kind.model_fields if key in data}
    return kind.model_validate(known)  # type: ignore[return-value]  # every RunEvent is an Event


_RUN_EVENTS = {name: kind for kind, name in WIRE_NAMES.items() if issubclass(kind, RunEvent)}
_BY_STATUS: dict[tuple[object, object], type[RunEvent]] = {
    ("tool_call", "pending"): ToolRequested,
    ("done", "paused"): RunPaused,
}
