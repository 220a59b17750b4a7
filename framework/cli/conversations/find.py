"""Finds the conversation that a command names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from framework.cli.records import RECENT
from framework.engine.runtime.conversation import load_conversation
from framework.engine.runtime.request import Caller
from framework.store.types import Conversation, ConversationQuery
from framework.types.errors import RequestError
from framework.types.text import did_you_mean

if TYPE_CHECKING:
    from framework.store.store import Store


async def find_conversation(
    store: Store, conversation: str, tenant: str | None = None, user: str | None = None
) -> Conversation:
    """Load a stored conversation, of any tenant and user by default.

    Raises:
        RequestError: it does not exist, with the closest ids, or several owners have it.
    """
    found = await load_conversation(store, conversation, Caller(tenant=tenant, user=user, single_user=True))
    if found.is_stored:
        return found
    known = [info.id for info in await store.conversations(ConversationQuery(limit=RECENT))]
    raise RequestError(f"there is no conversation {conversation!r}{did_you_mean(conversation, known)}")
