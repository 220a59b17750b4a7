"""A change of a configuration key and its effect on permissions."""

from __future__ import annotations

from typing import Any, Literal

from framework.types.frozen import Frozen
from framework.types.text import shorten

ChangeEffect = Literal["widens", "tightens", "neutral"]
_MAX_VALUE_CHARS = 60
"""Maximum length of a value in the text of a change."""


class Change(Frozen):
    """A changed key of an agent file or of `agentsd.yaml`."""

    agent: str
    """Name of the agent, or `agentsd.yaml`."""
    key: str
    """Key such as `runtime_policy.max_steps`; empty if the whole agent was added or removed."""
    before: Any = None
    """Previous value."""
    after: Any = None
    """New value."""
    effect: ChangeEffect
    """Whether the agent has more permissions (`widens`), fewer (`tightens`), or the same (`neutral`)."""

    def __str__(self) -> str:
        """Return the change as one line of text."""
        if not self.key:
            return f"{self.agent}: {'added' if self.after else 'removed'} ({self.effect})"
        return f"{self.agent}: {self.key}: {_text(self.before)} -> {_text(self.after)} ({self.effect})"


def _text(value: Any) -> str:
    return shorten("none" if value is None else str(value), _MAX_VALUE_CHARS)
