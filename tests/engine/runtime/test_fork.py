"""Forks of conversations: what is copied, that nothing is executed, and what the originals keep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from framework import ConversationBusy, RequestError, Runtime
from framework.store.memory import MemoryStore
from framework.store.types import EMPTY_FORK_SECONDS, Conversation, ConversationQuery, RunQuery
from framework.store.usage import Period
from framework.testing import ScriptedModel, Turn, calls
from framework.tools.tool import tool
from framework.types.errors import ConversationNotFound, ModelError
from framework.types.state import RunResult
from tests.support.projects import agent, write


@dataclass
class Talk:
    """A conversation of ann: a tool call, a failed turn, and an answer; and what the tool did."""

    runtime: Runtime
    model: ScriptedModel
    runs: list[RunResult]
    paid: list[int]

    async def texts(self, conversation: str) -> list[str]:
        found = await self.runtime.store.conversation(conversation, None, "ann")
        return [message.content for message in found.messages]


@asynccontextmanager
async def talk(root: Path, url: str | None) -> AsyncIterator[Talk]:
    paid: list[int] = []

    @tool(idempotent=False)
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    write(root, {"agents.d/one.yaml": agent("one", skill_policy="{allow: [pay]}")})
    turns: list[Turn] = [
        calls(("pay", {"amount": 5})),
        "paid",
        ModelError("broken", retryable=False),
        "second",
        "edited",
        "again",
    ]
    model = ScriptedModel(*turns)
    store = MemoryStore(keep_spans=True) if url is None else url
    async with Runtime.open(root, tools=[pay], models={"scripted": model}, store=store, watch=False) as runtime:
        runs = [await runtime.run(text, conversation="c", user="ann") for text in ("pay 5", "fail", "two")]
        assert [run.status for run in runs] == ["completed", "failed", "completed"]
        yield Talk(runtime, model, runs, paid)


def test_an_edited_message_is_sent_after_a_copy_of_the_turns_before_it(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        async with talk(tmp_path, local_url) as one:
            store = one.runtime.store
            fork = await one.runtime.fork("c", before=one.runs[2].run_id, new_id="f", user="ann")
            assert (fork.id, fork.turns, fork.forked_from, fork.agent) == ("f", 1, "c", "one")
            before = await one.texts("c")
            assert await one.texts("f") == before[:4] == ["pay 5", "", "paid 5", "paid"]
            edited = await one.runtime.run("two, but shorter", conversation="f", user="ann")
            assert (edited.output, one.paid) == ("edited", [5]), "the call of the history was not executed again"
            sent = [message.content for message in one.model.requests[-1].messages if message.role != "system"]
            assert sent == ["pay 5", "", "paid 5", "paid", "two, but shorter"]
            assert await one.texts("c") == before
            copied, own = await store.runs(RunQuery.of_conversation(fork))
            assert (copied.copied_from, copied.turn, copied.status) == (one.runs[0].run_id, 1, "completed")
            assert (own.copied_from, own.turn) == (None, 2)
            copy, original = await store.load_run(copied.run_id), await store.load_run(one.runs[0].run_id)
            assert (copy.messages, copy.calls, copy.output) == (original.messages, original.calls, original.output)
            events = await store.events(copied.run_id)
            assert {event["run_id"] for event in events} == {copied.run_id}
            strip = [{key: value for key, value in event.items() if key != "run_id"} for event in events]
            assert strip == [
                {key: value for key, value in event.items() if key != "run_id"}
                for event in await store.events(original.run_id)
            ]
            (listed,) = await store.conversations(ConversationQuery(id="f"))
            assert listed.forked_from == "c"

    asyncio.run(main())


def test_a_fork_after_a_run_keeps_its_answer_and_lists_and_figures_count_no_copy(
    tmp_path: Path, local_url: str | None
) -> None:
    async def main() -> None:
        async with talk(tmp_path, local_url) as one:
            store = one.runtime.store
            fork = await one.runtime.fork("c", after=one.runs[2].run_id, user="ann")
            assert fork.id.startswith("conv_")
            assert fork.turns == 2
            assert await one.texts(fork.id) == await one.texts("c")
            ids = [run.run_id for run in one.runs]
            assert [info.run_id for info in await store.runs()] == ids
            assert await store.count_runs(RunQuery()) == 3
            now = store.now()
            report = await store.usage(RunQuery(), "agent", Period.of(now - 60, now + 60, "1h", UTC))
            assert report.total.counts.runs == 3
            again = await one.runtime.fork(
                fork.id, after=(await store.runs(RunQuery.of_conversation(fork)))[0].run_id, user="ann"
            )
            assert (again.turns, again.forked_from) == (1, fork.id)
            assert await store.delete_conversation(fork.id, None, "ann") == 2
            assert len(await one.texts(again.id)) == 4
            assert len(await one.texts("c")) == 6

    asyncio.run(main())


def test_a_fork_before_the_first_message_names_its_origin_and_begins_with_the_next_run(
    tmp_path: Path, local_url: str | None
) -> None:
    async def main() -> None:
        async with talk(tmp_path, local_url) as one:
            fork = await one.runtime.fork("c", before=one.runs[0].run_id, new_id="f", user="ann")
            assert (fork.turns, fork.messages) == (0, ())
            assert (await one.runtime.run("hello", conversation="f", user="ann")).output == "edited"
            found = await one.runtime.store.conversation("f", None, "ann")
            assert (found.turns, found.forked_from) == (1, "c")
            (listed,) = await one.runtime.store.conversations(ConversationQuery(id="f"))
            assert (listed.expires_at or 0) > one.runtime.store.now() + 7 * EMPTY_FORK_SECONDS, "kept as any other now"

    asyncio.run(main())


def test_a_number_of_messages_cuts_a_turn_at_an_answer_only(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        async with talk(tmp_path, local_url) as one:
            await one.runtime.fork("c", messages=4, new_id="f4", user="ann")
            assert await one.texts("f4") == ["pay 5", "", "paid 5", "paid"]
            for count, problem in ((1, "must be an answer"), (2, "no answer up to"), (5, "answer"), (7, "fewer")):
                with pytest.raises(RequestError, match=problem):
                    await one.runtime.fork("c", messages=count, user="ann")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({}, RequestError, "needs one place"),
        ({"before": "run_x"}, RequestError, "before: the conversation has no run that has started 'run_x'"),
        ({"after": "FAILED"}, RequestError, "after: the conversation has no answered run"),
        ({"before": "a", "after": "b"}, RequestError, "needs one place"),
        ({"messages": 4, "new_id": "c"}, ConversationBusy, "exists already"),
        ({"messages": 4, "user": "bob"}, ConversationNotFound, "no conversation 'c'"),
    ],
)
def test_a_wrong_place_an_id_in_use_and_another_user_are_refused(
    tmp_path: Path, local_url: str | None, options: dict[str, Any], error: type[Exception], problem: str
) -> None:
    async def main() -> None:
        async with talk(tmp_path, local_url) as one:
            given: dict[str, Any] = {
                key: one.runs[1].run_id if value == "FAILED" else value for key, value in options.items()
            }
            with pytest.raises(error, match=problem):
                await one.runtime.fork("c", **{"user": "ann"} | given)
            assert [info.id for info in await one.runtime.store.conversations()] == ["c"]

    asyncio.run(main())


def test_turns_whose_runs_a_store_in_memory_has_dropped_are_copied_with_their_messages(tmp_path: Path) -> None:
    async def main() -> None:
        write(tmp_path, {"agents.d/one.yaml": agent("one")})
        store, model = MemoryStore(keep_runs=2), ScriptedModel("a", "b", "c")
        async with Runtime.open(tmp_path, models={"scripted": model}, store=store, watch=False) as runtime:
            runs = [await runtime.run(text, conversation="c") for text in ("1", "2", "3")]
            assert not await store.events(runs[0].run_id), "only its messages are left"
            fork = await runtime.fork("c", before=runs[2].run_id)
            assert [message.content for message in fork.messages] == ["1", "a", "2", "b"]
            assert isinstance(await store.conversation(fork.id), Conversation)
            assert len(await store.runs(RunQuery.of_conversation(fork))) == 2

    asyncio.run(main())


def test_a_fork_of_pruned_turns_keeps_the_values_of_the_conversation(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        write(tmp_path, {"agents.d/one.yaml": agent("one", skill_policy="{allow: [session_set]}")})
        model = ScriptedModel(calls(("session_set", {"key": "colour", "value": "red"})), "set", "two")
        store = MemoryStore() if local_url is None else local_url
        async with Runtime.open(tmp_path, models={"scripted": model}, store=store, watch=False) as runtime:
            for text in ("set it", "two"):
                last = await runtime.run(text, conversation="c")
            await runtime.store.prune(runtime.store.now() + 1, runtime.store.now())
            fork = await runtime.fork("c", before=last.run_id)
            assert ([message.content for message in fork.messages][-1], fork.session) == ("set", {"colour": "red"})

    asyncio.run(main())
