"""Cursors of lists: positions that stay valid while rows are added or removed."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import astuple, dataclass

from framework.types.errors import RequestError


@dataclass(frozen=True, slots=True)
class ConversationCursor:
    """The sort key of a conversation: lists contain the latest turn first."""

    updated_at: float
    id: str
    tenant: str | None
    user: str | None = None

    def encode(self) -> str:
        """Return the cursor as text for URLs."""
        return urlsafe_b64encode(json.dumps(astuple(self)).encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> ConversationCursor:
        """Return the cursor from its text; raises RequestError if it is not one."""
        try:
            match json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4))):
                case [float(updated_at), str(conversation_id), str() | None as tenant, str() | None as user]:
                    return cls(updated_at, conversation_id, tenant, user)
        except ValueError:  # not base64, or not JSON
            pass
        raise RequestError("cursor: not a cursor of this list; begin again without it", param="cursor")


def unknown_position(run_id: str) -> RequestError:
    """Return the error for a list of runs that begins at a run which is not in it."""
    return RequestError(f"before: this list has no run {run_id!r}; begin again without it", param="before")
