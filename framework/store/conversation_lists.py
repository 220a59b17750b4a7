"""Entries and filters of lists of conversations."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from framework.store.paging import ConversationCursor
from framework.types.report import Status

SEARCHED_CONVERSATIONS = 10_000
"""Number of conversations in which texts are looked up. It bounds the time: titles have no index."""


@dataclass(frozen=True, slots=True)
class ConversationInfo:
    """One conversation, as shown in lists."""

    id: str
    agent: str | None
    turns: int
    created_at: float
    """Unix time in seconds, like the other times."""
    updated_at: float
    expires_at: float | None = None
    """When it may be deleted; None: never."""
    open_run: str | None = None
    user: str | None = None
    tenant: str | None = None
    title: str = ""
    """The beginning of the user's message of its first stored run."""
    status: Status | None = None
    """Status of its last stored run; None if all were deleted."""
    forked_from: str | None = None
    """Id of the conversation whose first turns were copied to this one."""

    @property
    def cursor(self) -> str:
        """Position in a list of conversations: pass it as `ConversationQuery.cursor` to get the next page."""
        return ConversationCursor(self.updated_at, self.id, self.tenant, self.user).encode()


@dataclass(frozen=True, slots=True)
class ConversationQuery:
    """Filter for a list of conversations, sorted by latest turn first. Unset fields match everything."""

    id: str | None = None
    """Several conversations may have this id, each of another tenant or user."""
    agent: str | None = None
    user: str | None = None
    tenant: str | None = None
    without_tenant: bool = False
    """Only conversations that have no tenant."""
    agents: Collection[str] | None = None
    """Only conversations that one of these agents answered last."""
    before: float | None = None
    """Only conversations whose latest turn is older than this Unix time."""
    search: str | None = None
    """Only conversations whose title, agent or id contains this, in any case of ASCII letters, among the latest
    `SEARCHED_CONVERSATIONS` that match the other filters; or with a run among the newest `SEARCHED_TEXTS` of the store
    in which any message of the user or the model contains it."""
    cursor: str | None = None
    """Only conversations after the one with this `ConversationInfo.cursor`. Used for paging."""
    limit: int | None = None
