"""What templates may use of the run that is rendered for: its message, its history, and what its tools may reach."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from framework.types.http import HttpLimits
from framework.types.messages import Message

HTTP_TOOL = "http_request"
_SHOWN_DOMAINS = 20
CONVERSATION_VARIABLES = frozenset({"message", "history"})
"""Variables that differ from run to run."""
RUN_VARIABLES = CONVERSATION_VARIABLES | {"http"}


@dataclass(frozen=True, slots=True)
class RunVariables:
    """The values of one run. They are data: a template inserts them and never renders them."""

    message: str = ""
    """The current user message."""
    history: Sequence[Message] = ()
    """Earlier messages of the conversation that are sent to the model."""
    http: HttpLimits | None = None
    """What `http_request` may reach; none if the agent is not offered it."""

    def data(self) -> dict[str, Any]:
        """All variables by name, as plain data."""
        history = [{"role": message.role, "content": message.content} for message in self.history]
        return {"message": self.message, "history": history, **self.limits()}

    def limits(self) -> dict[str, Any]:
        """Those that are the same for many runs."""
        if self.http is None:
            return {"http": None}
        domains = self.http.domains
        more = len(domains) - _SHOWN_DOMAINS
        shown = [*domains[:_SHOWN_DOMAINS], *([f"{more} more"] if more > 0 else [])]
        return {"http": {"domains": shown, "methods": list(self.http.methods), "timeout": self.http.timeout}}


NO_RUN = RunVariables()
"""Outside a run: nothing was said, and nothing may be reached."""


def run_samples(used: Collection[str]) -> Mapping[str, RunVariables]:
    """Sample values by what they stand for; several only if a template uses what differs."""
    said = (Message(role="user", content="text"), Message(role="assistant", content="text"))
    samples = {"": RunVariables("text", said, HttpLimits(domains=("example.com",)))}
    if RUN_VARIABLES.isdisjoint(used):
        return samples
    return {**samples, ", in a new conversation": RunVariables("text")}
