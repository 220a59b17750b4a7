"""Every error says whose fault it is.

    AgentsdError
    ├── ConfigError          the author of a file; carries the Problems
    ├── RequestError         the caller
    │   ├── AgentNotFound    names the agents there are
    │   ├── RunNotFound
    │   ├── ApprovalRequired a call outside a run that a human must approve
    │   ├── RunBusy          the run is already in progress
    │   ├── DecisionRefused  it was decided before, or too late
    │   ├── GenerationNotFound
    │   └── ConversationBusy a run of this conversation is in progress, waits for a decision or was interrupted
    ├── ModelError           the provider; `retryable` or not, `unavailable` or not
    ├── StepFailed           a step of a plan failed, and nothing was planned in its place
    ├── ToolError            a tool; told to the model, never to the caller as a traceback
    ├── PolicyDenied         the policy; names the rule and its `file:line`
    ├── LimitExceeded        a limit; names it, its use and its place in the file
    ├── StoreError           the store
    │   ├── RunTaken         another process has taken the run over
    │   └── StoreTooNew      a newer version has written it
    └── RunSuspended         nobody: the runtime was closed, the run can be resumed

`Paused` is not an error: it is how a run that waits for a human leaves the executor. It derives from
`BaseException`, so that no `except Exception` in a plugin can swallow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    from framework.types.messages import Usage
    from framework.types.problem import Problem
    from framework.types.state import Confirmation, RunResult


from framework.types.text import did_you_mean


class AgentsdError(Exception):
    """The root of the tree. `code` is stable and short; the message says what to do."""

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500
    retryable: bool = False

    @property
    def message(self) -> str:
        """The text alone."""
        return str(self.args[0]) if self.args else self.code


class ConfigError(AgentsdError):
    """Files that cannot be used. `problems` lists all of them, not only the first."""

    code = "config_invalid"

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join([self.message, *(str(problem) for problem in self.problems)])


class RequestError(AgentsdError):
    """The caller asked for something that cannot be done."""

    code = "bad_request"
    http_status = 400


class AgentNotFound(RequestError):
    """No agent of that name; the message lists those there are."""

    code = "agent_not_found"
    http_status = 404

    def __init__(self, name: str, known: Sequence[str], broken: Sequence[Problem] = ()) -> None:
        self.name, self.known = name, tuple(sorted(known))
        why = f" (problems in the files, the first: {broken[0].place}: {broken[0].message})" if broken else ""
        super().__init__(f"there is no agent named {name!r}{did_you_mean(name, self.known)}{why}")


class RunNotFound(RequestError):
    """No run of that id."""

    code = "run_not_found"
    http_status = 404


class GenerationNotFound(RequestError):
    """No generation of that number is kept; the message lists those that are."""

    code = "generation_not_found"
    http_status = 404


class ApprovalRequired(RequestError):
    """A call outside a run needs a human's approval, which only a run can wait for."""

    code = "approval_required"
    http_status = 409


class ConversationBusy(RequestError):
    """The conversation has a run that is in progress, waits for a decision or was interrupted.

    Args:
        message: which run, and what to do.
        run_id: the run, where it is known.
        interrupted: the run's process ended without it: `resume` continues it, and waiting does not help.
    """

    code = "conversation_busy"
    http_status = 409

    def __init__(self, message: str, *, run_id: str = "", interrupted: bool = False) -> None:
        super().__init__(message)
        self.run_id, self.interrupted = run_id, interrupted


class RunBusy(RequestError):
    """The run is already in progress, here or in another process."""

    code = "run_busy"
    http_status = 409


class DecisionRefused(RequestError):
    """A decision that cannot count any more: it was made before, came too late, or nothing waits for it."""

    code = "decision_refused"
    http_status = 409


class ModelError(AgentsdError):
    """The model's provider failed, refused or answered something unusable.

    Args:
        message: what went wrong, and what to do.
        retryable: the same request to the same model may succeed a little later.
        retry_after: seconds after which the provider wants to be asked again, if it says so.
        unavailable: the model cannot be had, whatever it is asked: another one may answer. None: as `retryable`.
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
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after
        self.unavailable = retryable if unavailable is None else unavailable
        self.usage: Usage | None = None
        """What the failed answer has cost, where the provider said so."""
        self.message_id: str | None = None
        """Id, in events, of the message that the failed attempt was to produce; None if no model was called."""

    def for_message(self, message_id: str | None) -> Self:
        """Set `message_id` and return the error."""
        self.message_id = message_id
        return self


class ModelRefused(ModelError):
    """The model, or its provider's content filter, does not answer this request; asking again would change nothing."""

    code = "refused"
    http_status = 200


class StepFailed(AgentsdError):
    """A step of a plan failed for good: `plan.on_failure` is `fail`, the user stopped, or nothing replaced it."""

    code = "step_failed"
    http_status = 502


class ToolError(AgentsdError):
    """A tool could not do what it was asked; raise it in a tool to tell the model why."""

    code = "tool_error"


class Refused(AgentsdError):
    """A guard says no; raise it in a hook, with what the caller is to be told."""

    code = "refused"


class PolicyDenied(AgentsdError):
    """The policy forbids the call. `rule` names the deciding rule, `place` its `file:line`."""

    code = "policy_denied"
    http_status = 403

    def __init__(self, message: str, *, rule: str, place: str) -> None:
        super().__init__(message)
        self.rule, self.place = rule, place


class LimitExceeded(AgentsdError):
    """A limit stopped the run. `limit` is its key in the agent file, `result` what there was by then."""

    code = "limit_exceeded"
    http_status = 200

    def __init__(self, limit: str, *, used: float, allowed: float, place: str = "") -> None:
        self.limit, self.used, self.allowed, self.place = limit, used, allowed, place
        self.result: RunResult | None = None
        where = f" (set at {place})" if place else ""
        super().__init__(f"{limit} reached: {used:.10g} of {allowed:.10g}{where}")


class StoreError(AgentsdError):
    """The store could not keep or give back a record."""

    code = "store_error"


class RunTaken(StoreError):
    """Another process has taken the run over: this one may write nothing of it any more."""

    code = "run_taken"


class StoreTooNew(StoreError):
    """A newer version of agentsd has written the store; this one would not understand it."""

    code = "store_too_new"


class RunSuspended(AgentsdError):
    """The runtime was closed while the run went on. It is on record as it was, and can be resumed."""

    code = "run_suspended"
    http_status = 503


class Paused(BaseException):
    """The run waits for a human: `confirmations` say what for."""

    def __init__(self, confirmations: Sequence[Confirmation]) -> None:
        super().__init__(f"{len(confirmations)} confirmation(s) asked")
        self.confirmations = tuple(confirmations)
