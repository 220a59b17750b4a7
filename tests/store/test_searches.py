"""Searches for what was said: in every message of the user and the model, of runs and of conversations."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework.store.store import Store
from framework.store.types import Conversation, ConversationQuery, RunQuery
from framework.types.messages import Message, ToolCall
from framework.types.state import RunState
from tests.support.stores import with_store

SAID = (
    ("first", "a question about " + "x" * 300 + " Zebras", 'The answer is Okapi \\ "quoted".'),
    ("second", "zero \x00 byte", "\u4f60\u597d, 100% done_1"),
    ("third", "plain", "nothing"),
)


async def fill(store: Store) -> dict[str, str]:
    ids = {}
    for name, question, answer in SAID:
        messages = [Message(role="user", content=question)]
        state = RunState(agent="one", messages=messages, conversation_id=name)
        record = await store.start(state, Conversation(name), None)
        call = ToolCall(id="c1", tool="find", arguments={"arg_of_call": name})
        state.messages += [
            Message(role="assistant", tool_calls=(call,)),
            Message(role="tool", content="a secret of the tool", tool_call_id="c1", status="success"),
            Message(role="assistant", content=answer),
        ]
        state.status, state.finish_reason, state.output = "completed", "final", answer
        await record.write(state, last=True)
        ids[name] = state.run_id
    return ids


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("zebras", ["first"]),
        ("OKAPI", ["first"]),
        ('"quoted"', ["first"]),
        ("\u4f60\u597d", ["second"]),
        ("100% done_1", ["second"]),
        ("100%done", []),
        ("plain", ["third"]),
        ("tool_calls", []),
        ("content", []),
        ("secret of the tool", []),
    ],
)
def test_runs_and_conversations_are_found_by_what_was_said(any_url: str | None, text: str, found: list[str]) -> None:
    async def body(store: Store) -> None:
        ids = await fill(store)
        assert [one.run_id for one in await store.runs(RunQuery(search=text))] == [ids[name] for name in found]
        assert await store.count_runs(RunQuery(search=text)) == len(found)
        conversations = await store.conversations(ConversationQuery(search=text))
        assert sorted(one.id for one in conversations) == sorted(found)
        assert await store.conversations(ConversationQuery(search=text, tenant="other")) == []
        assert await store.runs(RunQuery(search=text, user="other")) == []

    with_store(body, any_url)


def test_what_was_said_is_looked_up_in_the_newest_runs_only(
    store_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def body(store: Store) -> None:
        monkeypatch.setattr("framework.store.schema.SEARCHED_TEXTS", 2)
        await fill(store)
        assert await store.runs(RunQuery(search="okapi")) == []
        assert len(await store.runs(RunQuery(search="nothing"))) == 1

    with_store(body, store_url)
