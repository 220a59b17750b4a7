"""Variables of the current run in templates: its message, history and HTTP limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from framework.types.http import HttpLimits
from framework.types.messages import Message

HTTP_TOOL = "http_request"
_SHOWN_DOMAINS = 20
CONVERSATION_VARIABLES = frozenset({"message", "history"})
"""Variables whose values differ between runs."""
RUN_VARIABLES = CONVERSATION_VARIABLES | {"http", "parallel_calls"}
RUN_VARIABLE_TEXTS: Mapping[str, str] = {
    "agent": "the agent: `name`, `description`",
    "history": "the earlier messages that are sent to the model, oldest first, each with `role` and `content`",
    "http": "limits of `http_request`: `domains`, `methods`, `timeout`; `none` if the agent does not have this tool",
    "limits": "the current limits, such as `limits.timeout`, in seconds",
    "locale": "the language",
    "message": "the current user message",
    "parallel_calls": "whether the model can call several tools in one turn",
    "tools": "the offered tools, each with `name`, `description`, `parameters`",
    "user": "the user; in instructions only",
}
"""Descriptions of the variables that every template of a run receives, for editors."""
PLAN_TEMPLATE = "plan.j2"
"""Template that asks for a plan, unless the agent names another."""
OWN_VARIABLE_TEXTS: Mapping[str, Mapping[str, str]] = {
    PLAN_TEMPLATE: {
        "feedback": "what a person wants changed in the last plan; empty if nobody was asked",
        "findings": "why the last plan is invalid, one text each; empty if it is not",
        "max_plan_steps": "how many steps the plan may have",
        "progress": "steps of the plan in progress that have begun, each with `id`, `status`, `description`",
    },
    "summary.j2": {
        "plan": "the executed plan: `goal`, and `steps`, each with `id`, `status`, `description`, `replaced`"
    },
    "compress.j2": {"requests": "the beginning of each user message that is summarized"},
    "earlier.j2": {"summary": "the summary of the beginning of the conversation: `text`, `events`, `facts`"},
    "error.j2": {
        "findings": "invalid arguments, each with `field`, `kind`, `problem`, `value`, `expected`, `fix`",
        "hint": "what to do; may be empty",
        "message": "why the call failed",
        "tool": "the tool that was called",
    },
}
"""Descriptions of the variables that only one of the runtime's own templates receives, by template."""


@dataclass(frozen=True, slots=True)
class RunVariables:
    """The values of one run. They are data: templates insert them without rendering them."""

    message: str = ""
    """The current user message."""
    history: Sequence[Message] = ()
    """Earlier messages of the conversation, as far as they are sent to the model."""
    http: HttpLimits | None = None
    """Limits of `http_request`; None if the agent does not have this tool."""
    parallel_calls: bool = True
    """Whether the model can call several tools in one turn."""

    def data(self) -> dict[str, Any]:
        """Return all variables by name, as plain data."""
        history = [{"role": message.role, "content": message.content} for message in self.history]
        return {"message": self.message, "history": history, **self.limits()}

    def limits(self) -> dict[str, Any]:
        """Return the variables that are equal for many runs."""
        if self.http is None:
            return {"http": None, "parallel_calls": self.parallel_calls}
        domains = self.http.domains
        more = len(domains) - _SHOWN_DOMAINS
        shown = [*domains[:_SHOWN_DOMAINS], *([f"{more} more"] if more > 0 else [])]
        http = {"domains": shown, "methods": list(self.http.methods), "timeout": self.http.timeout}
        return {"http": http, "parallel_calls": self.parallel_calls}


NO_RUN = RunVariables()
"""The values outside a run: no message, no history, no HTTP access."""


def run_samples(used: Collection[str]) -> Mapping[str, RunVariables]:
    """Return sample values by description; more than one only if the template uses variables of the run."""
    messages = (Message(role="user", content="text"), Message(role="assistant", content="text"))
    samples = {"": RunVariables("text", messages, HttpLimits(domains=("example.com",)))}
    if RUN_VARIABLES.isdisjoint(used):
        return samples
    return {**samples, ", in a new conversation": RunVariables("text")}
