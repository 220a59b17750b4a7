"""Ratings of runs, in every store."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from framework.store.store import Store
from framework.store.types import Conversation, RunQuery
from framework.types.errors import RunNotFound
from framework.types.messages import Message
from framework.types.state import Rating, RunState
from tests.support.stores import with_store

AT = datetime(2026, 11, 27, 12, tzinfo=UTC)


def test_a_rating_is_stored_replaced_filtered_and_deleted_with_its_run(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        ids = []
        for name in ("c1", "c2"):
            state = RunState(agent="one", messages=[Message(role="user", content="go")], conversation_id=name)
            record = await store.start(state, Conversation(name), None)
            if name == "c1":  # a run in progress can be rated, and keeps the rating when it ends
                await store.rate(state.run_id, Rating(value="up", at=AT))
            state.messages.append(Message(role="assistant", content="done"))
            state.status, state.finish_reason, state.output = "completed", "final", "done"
            await record.write(state, last=True)
            ids.append(state.run_id)
        (info,) = await store.runs(RunQuery(rating="up"))
        assert (info.run_id, info.rating) == (ids[0], Rating(value="up", at=AT))
        worse = Rating(value="down", comment="the total\x00 is wrong: \u4e0d\u5bf9", by="ann", at=AT)
        await store.rate(ids[0], worse)
        assert await store.runs(RunQuery(rating="up")) == []
        assert await store.count_runs(RunQuery(rating="down")) == 1
        first, second = await store.runs()
        assert first.rating is not None
        assert (first.rating.comment.replace("\ufffd", "\x00"), first.rating.by) == (worse.comment, "ann")
        assert second.rating is None
        await store.rate(ids[0], None)
        assert [one.rating for one in await store.runs()] == [None, None]
        with pytest.raises(RunNotFound, match="there is no run 'run_x'"):
            await store.rate("run_x", worse)
        await store.rate(ids[1], worse)
        await store.delete_conversation("c2")
        assert await store.runs(RunQuery(rating="down")) == []

    with_store(body, any_url)
