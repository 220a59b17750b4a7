"""Ids of AG-UI messages, tool calls, sub-agents and interrupts, which are unique in a thread.

The ids of events are unique in their run only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from framework.types.state import CONFIRMATION_KINDS, Confirmation

_MARK = re.compile(r"[~?]|$")
"""What follows the call's id in the id of a confirmation about it."""


def message_key(run_id: str, message_id: str) -> str:
    """Return the AG-UI id of a message."""
    return f"{run_id}/{message_id}"


def tool_call_id(run_id: str, path: tuple[str, ...], call_id: str) -> str:
    """Return the AG-UI id of a tool call."""
    return "/".join((run_id, *path, call_id))


def subagent_id(run_id: str, path: tuple[str, ...]) -> str | None:
    """Return the AG-UI id of the sub-run with this path; None for the root run."""
    return "/".join((run_id, *path)) if path else None


def interrupt_id(run_id: str, confirmation_id: str) -> str:
    """Return the AG-UI id of a confirmation."""
    return f"{run_id}/{confirmation_id}"


def call_id_of(run_id: str, asked: Confirmation, calls: Iterable[str]) -> str | None:
    """Return the AG-UI id of the tool call that a confirmation is about; None if it is about a plan or a step.

    Args:
        run_id: the run that waits for the confirmation.
        asked: the confirmation. Its id begins with the call's, and may continue with digests after `~` or `?`.
        calls: AG-UI ids of the run's calls, which may contain `~` themselves.
    """
    if asked.kind != "tool" and not CONFIRMATION_KINDS[asked.kind].asked_by_tool:
        return None
    whole = interrupt_id(run_id, asked.id)
    return max((call for call in calls if _MARK.match(whole.removeprefix(call))), key=len, default=None)
