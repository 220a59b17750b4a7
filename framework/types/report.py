"""What a run reports: its status, its warnings and what it used; and what the processes of a store report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from pydantic import ConfigDict, ValidationError

from framework.types.budget import ReachedBudget
from framework.types.frozen import Frozen
from framework.types.text import one_line, visible

Status = Literal["queued", "running", "completed", "stopped", "paused", "cancelled", "failed"]


WarningCode = Literal[
    "max_steps",
    "max_tool_calls",
    "max_total_tokens",
    "max_cost_usd",
    "cost_unknown",
    "budget",
    "max_repeated_calls",
    "context",
    "context_full",
    "window",
    "compressed",
    "compression",
    "truncated",
    "model_retry",
    "model_fallback",
    "thoughts_in_text",
    "no_finish_reason",
    "file_not_sent",
    "background",
    "tool_server",
    "missing_package",
    "routing",
    "arguments_repaired",
    "steps_not_done",
    "memory",
]

WARNINGS: Mapping[WarningCode, str] = {
    "max_steps": "80 % of this limit is used",
    "max_tool_calls": "80 % of this limit is used",
    "max_total_tokens": "80 % of this limit is used",
    "max_cost_usd": "80 % of this limit is used",
    "cost_unknown": "a cost limit applies, and calls of a model count as 0 because its price is unknown",
    "budget": "80 % of a shared budget is used",
    "max_repeated_calls": "a tool was called with the same arguments as often as this limit allows",
    "context": "80 % of the model's context window is used",
    "context_full": "a request does not fit into the model's context window; the run stops",
    "window": "the model sees only the last messages of the conversation (`conversation.window`)",
    "compressed": "a summary replaced the start of the conversation, or long tool results were cut in requests",
    "compression": "the conversation could not be summarized",
    "truncated": "the output limit (`max_tokens`) cut a model's answer",
    "model_retry": "a model call failed and is retried, or the run waits for an unavailable model",
    "model_fallback": "a model call failed and the next of `fallback_models` is called",
    "thoughts_in_text": "the text that a model wrote before a lone `</think>` is void: it was its thoughts",
    "no_finish_reason": "a model's server did not say why the answer ended; it was complete otherwise",
    "file_not_sent": "the model got the description of a file in its place",
    "background": "a resource or prompt of an MCP server is missing",
    "tool_server": "the agent runs without the tools of a server that is unavailable",
    "memory": "notes could not be compared by vectors, and were found by words",
    "missing_package": "a tool that the agent may call needs a package that is not installed",
    "routing": "a model could not select the agent or the executor: the default applies",
    "arguments_repaired": "the arguments of a tool call were repaired before the call",
    "steps_not_done": "a plan was completed without its failed and skipped steps",
}
"""Meaning of each code. The code of a limit is the key of the limit in the agent file."""

MAX_WARNINGS_PER_CODE = 20
"""Maximum number of warnings with one code that a run stores. Later ones are emitted as events only."""


class RunWarning(Frozen):
    """A warning of a run, also reported in the run's result."""

    code: str
    """Key of `WARNINGS`."""
    message: str
    """What happened."""
    path: tuple[str, ...] = ()
    """Keys of the sub-runs that lead to where it happened; empty for the run itself."""

    def __str__(self) -> str:
        return self.message


_REASON_CHARS = 300
"""Characters of the reason of a step that was not done, where it is shown in words."""


class Action(Frozen):
    """The action that the model chose in a step: a tool call or the final answer."""

    type: Literal["tool", "final"]
    """`tool` or `final`."""
    tool: str | None = None
    """Tool name."""
    args: dict[str, Any] | None = None
    """Arguments as executed."""


class TraceEntry(Frozen):
    """One entry of a run's trace: a tool call or the answer."""

    step: int
    """Number of the model turn."""
    agent: str
    """Name of the agent."""
    call_id: str = ""
    """Id of the tool call; empty for an answer."""
    thought: str = ""
    """Text that the model wrote before the action."""
    action: Action
    """Tool call or final answer."""
    observation: str | None = None
    """Text of the result as the model received it."""
    tool_output: Any = None
    """Complete result."""
    elapsed_ms: float = 0.0
    """Duration in milliseconds."""
    timestamp: datetime
    """When the call ended."""
    error: str | None = None
    """Error message, if the call failed."""
    repairs: tuple[str, ...] = ()
    """Repairs made to the arguments."""


class ToolStat(Frozen):
    """Number of calls of a tool and their total duration."""

    count: int = 0
    """Calls, including failed ones."""
    total_ms: float = 0.0
    """Total duration in milliseconds."""


class IncompleteStep(Frozen):
    """A step of a run's plan that was not done."""

    id: str
    """Id of the step."""
    description: str
    """What it was for."""
    status: Literal["failed", "skipped"]
    """`failed` or `skipped`."""
    reason: str = ""
    """Error of a failed step, or why it was skipped."""


def incomplete_text(steps: Sequence[IncompleteStep]) -> str:
    """Return which steps were not done, and why, in one line; empty if there are none."""
    each = (f"step {step.id} {step.status}: {visible(one_line(step.reason, _REASON_CHARS))}" for step in steps)
    return f"incomplete: {'; '.join(each)}" if steps else ""


class ErrorInfo(Frozen):
    """The error that a run failed with."""

    code: str
    """Stable code, such as `model_error`."""
    message: str
    """What happened and what to do."""
    retryable: bool = False
    """Whether the same request may succeed later."""

    def __str__(self) -> str:
        return self.message


class LimitUse(Frozen):
    """The limit that stopped a run."""

    limit: str
    """Key of the limit in the agent file, or `budget`."""
    used: float
    """How much was used."""
    allowed: float
    """How much was allowed."""
    place: str
    """Place where the limit is set: `file:line`, or the request."""
    budget: ReachedBudget | None = None
    """The shared budget, if it is one."""


class CallSummary(Frozen):
    """A tool call as reported in the result of a run."""

    id: str
    """Id of the call; calls of sub-agents have the ids of their parents before it, separated by `/`."""
    tool: str
    """Tool name."""
    arguments: dict[str, Any]
    """Arguments by name."""
    result: Any = None
    """The result, or the error message."""
    status: str
    """`success`, `error`, `cancelled` or `denied`."""
    elapsed_ms: float
    """Duration."""
    host: dict[str, Any] = {}
    """What the host of a skill says of the call: `trace_id` and `meta`, as far as it sent them."""


Inbound = Literal["ignore", "link", "parent"]
"""How runs use the trace context of the HTTP request that starts them."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The trace of the caller of a run that starts later."""

    traceparent: str
    """W3C trace context: `00-TRACE-SPAN-FLAGS`."""
    mode: Inbound
    """How the run uses it."""


AttributeValue = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """An event at one point in time of a span."""

    name: str
    at_ns: int
    """Unix time in nanoseconds."""
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpanLink:
    """A link to a related span, such as the one in which the run started before it paused."""

    trace_id: str
    span_id: str
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A finished span. Ids are hexadecimal and equal those of the embedding program's spans, if it records any."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    kind: Literal["internal", "client"]
    start_ns: int
    """Unix time in nanoseconds."""
    end_ns: int
    attributes: Attributes = field(default_factory=dict)
    error: str | None = None
    """`error.type` of a failed span, otherwise None."""
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()


WaitingReason = Literal["capacity", "no_worker", "conversation", "limit", "handed_on", "released"]
"""Why runs wait: for a process with free capacity (`capacity`), because no live process executes runs of this queue or
agent (`no_worker`), for another run of their conversation, for a limit, because a process handed them on, or because
the process that executed them has ended (`released`)."""


class ProcessDetails(Frozen):
    """What a process says about itself with each heartbeat. Unknown keys are those of a newer version."""

    model_config = ConfigDict(extra="ignore")

    kind: str = ""
    """`serve` or `worker`."""
    version: str = ""
    """Version of agentsd."""
    host: str = ""
    pid: int = 0
    works: bool = False
    """Whether it executes queued runs."""
    running: int = 0
    """Number of runs that it executes."""
    capacity: int = 0
    """Maximum number of runs that it executes at once; 0 if it executes none."""
    begun_per_second: float = 0.0
    """Runs that it started, per second over the last minute."""
    generation: int = 0
    """Number of its live generation. Each process counts its own."""
    problems: int = 0
    """Number of errors in its files."""
    queues: tuple[str, ...] | None = None
    """Named queues whose runs it executes. None: as `only_agents` says."""
    only_agents: tuple[str, ...] | None = None
    """Agents whose runs it executes. With neither this nor `queues`: every run."""
    agents: dict[str, str] = {}
    """Digest of each live agent: of its file, templates, tools, hooks and executor."""

    @classmethod
    def parse(cls, info: Mapping[str, Any]) -> ProcessDetails:
        """Return the details in a heartbeat; without those that this version cannot read."""
        known = {name: value for name, value in info.items() if name in cls.model_fields}
        try:
            return cls.model_validate(known)
        except ValidationError as error:
            unreadable = {str(problem["loc"][0]) for problem in error.errors() if problem["loc"]}
            return cls.model_validate({name: value for name, value in known.items() if name not in unreadable})


class FleetProcess(ProcessDetails):
    """A process that shares the store."""

    name: str
    alive: bool
    """Whether its lease is valid. The entry of a process that was killed is kept for an hour."""
    started_at: datetime
    seen_at: datetime
    """The time of its last heartbeat, on the database's clock."""


class WaitingRuns(Frozen):
    """Runs that wait for the same reason."""

    queue: str | None
    """Their named queue."""
    agent: str | None
    """Their agent. None: it is chosen when the run starts."""
    count: int
    oldest_seconds: float
    """How long the oldest of them has waited."""
    reason: WaitingReason
    limit: str | None = None
    """The limit that they wait for, such as `agent:support`, if that is the reason."""


class HandedOnRun(Frozen):
    """A run that processes could not execute and left to others."""

    run_id: str
    reasons: dict[str, str]
    """What each process lacked, by its name."""


class Backlog(Frozen):
    """The runs of a store that have not ended."""

    waiting: tuple[WaitingRuns, ...]
    """Runs that wait, by queue, agent and reason; the largest groups first."""
    handed_on: tuple[HandedOnRun, ...]
    """Runs that processes could not execute and left to others, oldest first."""
    paused: int
    """Number of runs that wait for a decision."""
    running: int
    """Number of runs that a process executes."""


class Fleet(Backlog):
    """The processes that share a store, and the runs that have not ended."""

    processes: tuple[FleetProcess, ...]
    """Live ones first, by name."""
    digests: dict[str, dict[str, int]]
    """Number of live processes with each digest of an agent. Several digests: they have different versions of it."""
