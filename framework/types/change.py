"""One change of a configuration, and which way it goes."""

from __future__ import annotations

from typing import Any, Literal

from framework.types.frozen import Frozen
from framework.types.text import shorten

ChangeEffect = Literal["widens", "tightens", "neutral"]
_MAX_VALUE_CHARS = 60
"""Length of a shown value."""


class Change(Frozen):
    """A key of an agent's file, or of `agentsd.yaml`, that says something else than before."""

    agent: str
    """The agent's name, or `agentsd.yaml`."""
    key: str
    """Such as `runtime_policy.max_steps`; empty when the whole agent came or went."""
    before: Any = None
    after: Any = None
    effect: ChangeEffect
    """Whether the agent may now do more, less, or neither."""

    def __str__(self) -> str:
        """One line for people."""
        if not self.key:
            return f"{self.agent}: {'added' if self.after else 'removed'} ({self.effect})"
        return f"{self.agent}: {self.key}: {_text(self.before)} -> {_text(self.after)} ({self.effect})"


def _text(value: Any) -> str:
    return shorten("none" if value is None else str(value), _MAX_VALUE_CHARS)
