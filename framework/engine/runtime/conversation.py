"""Loads conversations for their callers."""

from __future__ import annotations

from framework.engine.runtime.request import Caller
from framework.store.conversation_lists import ConversationQuery
from framework.store.protocol import Conversation, Store
from framework.types.errors import ConversationNotFound, RequestError


async def load_conversation(store: Store, conversation_id: str, caller: Caller) -> Conversation:
    """Return a conversation that the caller can access, or a new one if the caller's tenant has none with this id.

    If the host serves a single user, and the caller names no tenant, the conversation may be any tenant's.

    Raises:
        ConversationNotFound: it belongs to another user.
        RequestError: several tenants have one with this id.
    """
    conversation = await store.conversation(conversation_id, caller.tenant)
    if not conversation.is_stored and caller.single_user and caller.tenant is None:
        conversation = await _any_tenants_conversation(store, conversation)
    if conversation.is_stored and not caller.can_access(conversation.user, conversation.tenant):
        problem = f"this user has no conversation {conversation_id!r}"
        raise ConversationNotFound(f"{problem}: pass the user and tenant that started it", param="conversation")
    return conversation


async def _any_tenants_conversation(store: Store, new: Conversation) -> Conversation:
    """Return the only conversation with this id, or the new one if there is none."""
    tenants = [info.tenant for info in await store.conversations(ConversationQuery(id=new.id))]
    if len(tenants) > 1:
        listed = ", ".join(sorted(map(str, tenants)))
        raise RequestError(
            f"conversation {new.id!r} exists in {len(tenants)} tenants ({listed}): name one with tenant= or --tenant"
        )
    return await store.conversation(new.id, tenants[0]) if tenants else new
