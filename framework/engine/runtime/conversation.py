"""Loads conversations for their callers."""

from __future__ import annotations

from collections.abc import Sequence

from framework.engine.runtime.request import Caller
from framework.store.conversation_lists import ConversationQuery
from framework.store.protocol import Conversation, Store
from framework.types.errors import RequestError


async def load_conversation(store: Store, conversation_id: str, caller: Caller) -> Conversation:
    """Return the caller's conversation with this id, or a new one.

    A conversation is its caller's alone: those of other users and tenants with this id are others. If the host serves a
    single user, a caller without one of its own gets the only one with this id, of the user and tenant if it names one.

    Raises:
        RequestError: several users or tenants have one with this id, and the caller none.
    """
    own = await store.conversation(conversation_id, caller.tenant, caller.user)
    if own.is_stored or not caller.single_user:
        return own
    query = ConversationQuery(id=conversation_id, tenant=caller.tenant, user=caller.user)
    owners = [(info.tenant, info.user) for info in await store.conversations(query)]
    if len(owners) > 1:
        raise several_owners(conversation_id, owners)
    return await store.conversation(conversation_id, *owners[0]) if owners else own


def several_owners(conversation_id: str, owners: Sequence[tuple[str | None, str | None]]) -> RequestError:
    """Return the error for a conversation's id that several tenants or users have, none of which is named."""
    tenants, users = ({*map(str, names)} for names in zip(*owners, strict=True))
    kind, names = ("tenant", tenants) if len(tenants) > 1 else ("user", users)
    exists = f"conversation {conversation_id!r} exists {'in' if kind == 'tenant' else 'for'} {len(names)} {kind}s"
    return RequestError(f"{exists} ({', '.join(sorted(names))}): name one with {kind}= or --{kind}", param=kind)
