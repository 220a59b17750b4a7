"""Kinds of confirmations, and the decisions that each accepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ConfirmationKind = Literal["tool", "plan", "question", "ask_user", "step"]
STEP_PREFIX = "failed-"
"""Prefix of the last part of the id of confirmations about failed plan steps."""


@dataclass(frozen=True, slots=True)
class KindTraits:
    """The properties that all confirmations of one kind share."""

    awaits: Literal["approval", "an answer", "a choice"]
    """Kind of reply that the run waits for."""
    asked_by_tool: bool = False
    """Whether a running tool asks the question and receives the answer."""
    can_approve: bool = True
    """Whether `approve` and `edit` are accepted. Otherwise only answers and rejections are."""

    @property
    def is_question(self) -> bool:
        """Whether the run waits for an answer rather than an approval."""
        return self.awaits != "approval"


CONFIRMATION_KINDS: Mapping[ConfirmationKind, KindTraits] = {
    "tool": KindTraits("approval"),  # call a tool
    "plan": KindTraits("approval"),  # execute a plan
    "question": KindTraits("an answer", asked_by_tool=True),  # question of a tool
    "ask_user": KindTraits("an answer", asked_by_tool=True, can_approve=False),  # question of the model
    "step": KindTraits("a choice", can_approve=False),  # retry, skip or stop after a failed plan step
}


def subject_of(kind: ConfirmationKind, tool: str) -> str:
    """Return the subject of a confirmation as test cases name it: the tool, `plan`, or `step` for a failed step."""
    return kind if kind in ("plan", "step") else tool


def is_about_step(confirmation_id: str) -> bool:
    """Return whether a confirmation is about a failed plan step."""
    return confirmation_id.rpartition("/")[2].startswith(STEP_PREFIX)
