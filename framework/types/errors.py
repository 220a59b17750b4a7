"""The error tree, and the outcome that every surface shows for each error."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self, get_args

from framework.types.text import did_you_mean

if TYPE_CHECKING:
    from framework.types.budget import ReachedBudget
    from framework.types.messages import Usage
    from framework.types.problem import Problem
    from framework.types.report import LimitUse, Status
    from framework.types.state import Confirmation, RunResult


class AgentsdError(Exception):
    """Base class of all errors. `code` is short and stable; the message states the cause and the fix."""

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500
    retryable: bool = False

    @property
    def message(self) -> str:
        """The message without a list of problems."""
        return str(self.args[0]) if self.args else self.code


class ConfigError(AgentsdError):
    """Invalid files or settings. Correct every place in `problems`; `agentsd check` shows them with their lines."""

    code = "config_invalid"

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join([self.message, *(str(problem) for problem in self.problems)])


class AgentBroken(ConfigError):
    """The agent that would get the message has errors in its file, so no agent gets it. Correct the file.

    Args:
        message: names the agent, and why the message is for it.
        names: the agents at fault.
        problems: the errors in their files.
    """

    code = "agent_broken"
    http_status = 503

    def __init__(self, message: str, names: Sequence[str], problems: Sequence[Problem]) -> None:
        super().__init__(message, problems)
        self.names = tuple(names)


class RequestError(AgentsdError):
    """An invalid request. Correct what the message names.

    `param` is the option or the field of the request that is at fault, if it is only one.
    """

    code = "bad_request"
    http_status = 400

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class AgentNotFound(RequestError):
    """No agent has this name. Use one of the names in the message; `agentsd agents list` lists them."""

    code = "agent_not_found"
    http_status = 404

    def __init__(self, name: str, known: Sequence[str], broken: Sequence[Problem] = ()) -> None:
        self.name, self.known = name, tuple(sorted(known))
        why = f" (problems in the files, the first: {broken[0].place}: {broken[0].message})" if broken else ""
        super().__init__(f"no agent named {name!r}{did_you_mean(name, self.known)}{why}", param="agent")


class RunNotFound(RequestError):
    """No run has this id, or it belongs to another user. `agentsd runs list` lists the ids."""

    code = "run_not_found"
    http_status = 404


class ConversationNotFound(RequestError):
    """This user has no conversation with this id. `agentsd conversations list` lists all conversations."""

    code = "conversation_not_found"
    http_status = 404


class GenerationNotFound(RequestError):
    """No generation with this number is stored. Use one of those that the message lists."""

    code = "generation_not_found"
    http_status = 404


class ApprovalRequired(RequestError):
    """A tool call outside a run needs a person's approval. Make it in a run: only runs can wait for one."""

    code = "approval_required"
    http_status = 409


class ConversationBusy(RequestError):
    """The conversation has a run that is in progress, waits for a decision or was interrupted. End that run first.

    Args:
        message: names the run and the fix.
        run_id: id of the run, if known.
        interrupted: whether the process of the run ended before the run did. Only `resume` continues such a run.
    """

    code = "conversation_busy"
    http_status = 409

    def __init__(self, message: str, *, run_id: str = "", interrupted: bool = False) -> None:
        super().__init__(message)
        self.run_id, self.interrupted = run_id, interrupted


class QueueFull(RequestError):
    """Too many runs wait in the queue: of the conversation, or of the whole store. Try again later.

    Args:
        message: which limit is reached, and what to do.
        retry_after: seconds after which a request may be accepted; None if unknown.
    """

    code = "queue_full"
    http_status = 429
    retryable = True

    def __init__(self, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class IdempotencyConflict(RequestError):
    """The idempotency key was used for a different request within the last 24 hours. Send a new key."""

    code = "idempotency_conflict"
    http_status = 409


class TriggerNotFound(RequestError):
    """The project has no trigger with this name. Use one of those that the message lists."""

    code = "trigger_not_found"
    http_status = 404


class TriggerBusy(RequestError):
    """The last run of the trigger has not ended, and it starts one run at a time. See `overlap` in its file."""

    code = "trigger_busy"
    http_status = 409
    retryable = True


class TriggerPaused(RequestError):
    """The trigger is paused. Resume it with `agentsd triggers resume`."""

    code = "trigger_paused"
    http_status = 503
    retryable = True


class RunBusy(RequestError):
    """The run is already in progress, here or in another process. Follow it, or wait until it ends."""

    code = "run_busy"
    http_status = 409


class DecisionRefused(RequestError):
    """The decision was already made, came too late, or is not pending. Load the run to see what it waits for."""

    code = "decision_refused"
    http_status = 409


class ModelError(AgentsdError):
    """A model call failed: the provider failed, refused the request, or returned an invalid answer.

    The message says whether to correct the key, the name of the model or the request, or to try again later.

    Args:
        message: the cause and the fix.
        retryable: whether the same request to the same model may succeed later.
        retry_after: delay before a retry that the provider requests, in seconds.
        unavailable: whether the model is unavailable for any request, so that a fallback may succeed. None: same as
            `retryable or permanent`.
        permanent: whether no request to the model can succeed before its key, its name or its account changes. The
            run then calls only its fallbacks.
        scarce: whether this process had no open files or memory left for it. A stored run is then released.
        correction: what to tell the model before the request is repeated, if its own answer was at fault.
        too_long: whether the conversation exceeds the model's context window.
        window: the size of this window in tokens, if the provider states it.
    """

    code = "model_error"
    http_status = 502

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        unavailable: bool | None = None,
        permanent: bool = False,
        scarce: bool = False,
        correction: str = "",
        too_long: bool = False,
        window: int | None = None,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.scarce = scarce
        self.correction = correction
        self.too_long, self.window = too_long, window
        self.retry_after = retry_after
        self.unavailable = retryable or permanent if unavailable is None else unavailable
        self.permanent = permanent
        self.usage: Usage | None = None
        """Tokens and cost of the failed call, if the provider reported them."""
        self.has_started = False
        """Whether a part of the answer had arrived."""
        self.message_id: str | None = None
        """Id of the message of the failed attempt, as used in events; None if no model was called."""
        self.error_type: str = self.code
        """`error.type` in traces and metrics: the HTTP status, such as `500`, or the class of the failure."""

    def of_type(self, error_type: str) -> Self:
        """Set `error_type`, which must be one of few values and never a message, and return the error."""
        self.error_type = error_type
        return self

    def for_message(self, message_id: str | None) -> Self:
        """Set `message_id` and return the error."""
        self.message_id = message_id
        return self


class ModelRefused(ModelError):
    """The model or the provider's content filter refused the request. Change the request; a retry does not help."""

    code = "refused"
    http_status = 200


class StepFailed(AgentsdError):
    """A plan step failed permanently: `plan.on_failure` is `fail`, the user stopped, or no new plan replaced it.

    The message names the step and its error. Correct that, or set `plan.on_failure` to `replan` or `ask`.
    """

    code = "step_failed"
    http_status = 502


class ToolError(AgentsdError):
    """A tool call failed. Raise it in a tool; the model receives the message, and may correct its call."""

    code = "tool_error"


class Refused(AgentsdError):
    """A hook refused the run or the call. Raise it in a hook, with a message that says what is accepted."""

    code = "refused"


class PolicyDenied(AgentsdError):
    """The policy denied a tool call. Change the rule at `place`, or do without the call.

    `rule` names the deciding rule, `place` its `file:line`.
    """

    code = "policy_denied"
    http_status = 403

    def __init__(self, message: str, *, rule: str, place: str) -> None:
        super().__init__(message)
        self.rule, self.place = rule, place


class LimitExceeded(AgentsdError):
    """A limit stopped the run. Set a higher limit where the message says, or divide the task.

    `limit` is its key in the agent file, `result` the result up to that point.
    For a shared budget, `limit` is `budget`, and `budget` says which one.
    """

    code = "limit_exceeded"
    http_status = 200

    def __init__(
        self, limit: str, *, used: float, allowed: float, place: str = "", budget: ReachedBudget | None = None
    ) -> None:
        self.limit, self.used, self.allowed, self.place, self.budget = limit, used, allowed, place, budget
        self.result: RunResult | None = None
        where = f" (set at {place})" if place else ""
        subject = f"budget {budget.name}" if budget else limit
        amount = budget.describe(used, allowed) if budget else f"{used:.10g} of {allowed:.10g}"
        super().__init__(f"{subject} reached: {amount}{where}")

    @classmethod
    def of(cls, stop: LimitUse) -> Self:
        """Return the error for a limit that has stopped a run."""
        return cls(stop.limit, used=stop.used, allowed=stop.allowed, place=stop.place, budget=stop.budget)


class StoreError(AgentsdError):
    """The store could not read or write a record. The message has the cause: access, space, or the connection."""

    code = "store_error"
    http_status = 503


class RunTaken(StoreError):
    """Another process has taken over the run. This process can no longer write to it; follow the run instead."""

    code = "run_taken"


class StoreLost(StoreError):
    """This process cannot use the store any more, for a reason that only a new process can mend. Restart it."""

    code = "store_lost"


class StoreTooNew(StoreError):
    """The store was written by a newer, incompatible version of agentsd. Install that version or a newer one."""

    code = "store_too_new"


class ClockRefused(StoreError):
    """Nothing is deleted, because the clock may be wrong by more than a day. Correct it, or confirm it."""

    code = "clock_refused"


class RunBlocked(AgentsdError):
    """The run starts or continues later, by itself: as many runs are in progress as `work.max_running` allows. Wait.

    Args:
        message: names the run and the limit.
        key: the limit, such as `agent:support`.
    """

    code = "run_blocked"
    http_status = 503

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


class RunSuspended(AgentsdError):
    """The runtime was closed while the run was in progress. Resume it: `runtime.resume`, or `agentsd runs resume`."""

    code = "run_suspended"
    http_status = 503


_SCARCITY = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def is_scarcity(error: BaseException | None) -> bool:
    """Return whether an error, or one that it followed, says that open files or memory have run out."""
    pending, seen = [error], set[int]()
    while pending:
        if (one := pending.pop()) is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, MemoryError) or (isinstance(one, OSError) and one.errno in _SCARCITY):
            return True
        if isinstance(one, ModelError) and one.scarce:
            return True
        pending += [one.__cause__, one.__context__, *(one.exceptions if isinstance(one, BaseExceptionGroup) else ())]
    return False


class Paused(BaseException):
    """The run waits for decisions of a person, listed in `confirmations`."""

    def __init__(self, confirmations: Sequence[Confirmation]) -> None:
        super().__init__(f"{len(confirmations)} confirmation(s) pending")
        self.confirmations = tuple(confirmations)


class ConversationMoved(BaseException):
    """The agent has handed its conversation over: another agent continues the run."""


Limit = Literal[
    "max_steps",
    "max_tool_calls",
    "max_total_tokens",
    "max_cost_usd",
    "timeout",
    "max_repeated_calls",
    "max_corrections",
    "max_replans",
    "context_full",
    "budget",
    "length",
    "refused",
]
"""Limits that stop a run. The `finish_reason` of a stopped run is the key of the limit in the agent file."""

EXIT_NEGATIVE = 1
EXIT_USAGE = 2
EXIT_APPROVAL = 3
EXIT_CONFIG = 78
EXIT_CANCELLED = 130
EXIT_CODES: Mapping[int, str] = {
    0: "success: answered, allowed, all cases passed, no differences",
    EXIT_NEGATIVE: "failure: stopped by a limit, failed, denied, a case failed, differences found",
    EXIT_USAGE: "invalid command line, or it names something that does not exist",
    EXIT_APPROVAL: "a person must approve",
    EXIT_CONFIG: "invalid files or settings",
    EXIT_CANCELLED: "cancelled with Ctrl-C or `agentsd runs cancel`",
}
"""Exit codes of all commands and their meaning. docs/reference/outcomes.md contains the same table."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run as each interface reports it."""

    status: Status
    http_status: int
    exit_code: int
    span_error: str | None
    """`error.type` of the span; None leaves the span's status unset."""


OUTCOMES: dict[str, Outcome] = {
    "final": Outcome("completed", 200, 0, None),
    **{limit: Outcome("stopped", 200, EXIT_NEGATIVE, limit) for limit in get_args(Limit)},
    "confirmation": Outcome("paused", 202, EXIT_APPROVAL, None),
    "cancelled": Outcome("cancelled", 200, EXIT_CANCELLED, "cancelled"),
}
"""Outcomes by `finish_reason`. Any other reason is the code of an error: see `outcome_for`."""


def outcome_for(finish_reason: str, error_http_status: int = 500) -> Outcome:
    """Return the outcome for a finish reason. A reason without an entry is the code of an error: the run failed."""
    return OUTCOMES.get(finish_reason) or Outcome("failed", error_http_status, EXIT_NEGATIVE, finish_reason)


def exit_code_of(error: AgentsdError) -> int:
    """Return the exit code of a command that fails with this error."""
    match error:
        case ConfigError():
            return EXIT_CONFIG
        case ApprovalRequired():
            return EXIT_APPROVAL
        case RequestError():
            return EXIT_USAGE
    return EXIT_NEGATIVE
