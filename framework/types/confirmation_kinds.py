"""The kinds of confirmations: what a person is asked for, and which decisions answer it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ConfirmationKind = Literal["tool", "plan", "question", "ask_user", "step"]
STEP_PREFIX = "failed-"
"""Begins the last part of the id of each confirmation about a failed step."""


@dataclass(frozen=True, slots=True)
class KindTraits:
    """What is the same for all confirmations of a kind."""

    awaits: Literal["approval", "an answer", "a choice"]
    """What the run waits for."""
    asked_by_tool: bool = False
    """A tool asks it while it runs, and gets the answer."""
    can_approve: bool = True
    """Approving or editing it means something; otherwise it is answered or rejected."""

    @property
    def is_question(self) -> bool:
        """Whether it wants an answer rather than an approval."""
        return self.awaits != "approval"


CONFIRMATION_KINDS: Mapping[ConfirmationKind, KindTraits] = {
    "tool": KindTraits("approval"),  # may a tool be called
    "plan": KindTraits("approval"),  # may a plan be executed
    "question": KindTraits("an answer", asked_by_tool=True),  # what a tool asks
    "ask_user": KindTraits("an answer", asked_by_tool=True, can_approve=False),  # what the model asks
    "step": KindTraits("a choice", can_approve=False),  # what to do about a failed step of a plan
}


def subject_of(kind: ConfirmationKind, tool: str) -> str:
    """What a confirmation is about, as test cases name it: the tool, `plan`, or `step` for a failed step."""
    return kind if kind in ("plan", "step") else tool


def is_about_step(confirmation_id: str) -> bool:
    """Whether a confirmation asks what to do about a failed step of a plan."""
    return confirmation_id.rpartition("/")[2].startswith(STEP_PREFIX)
