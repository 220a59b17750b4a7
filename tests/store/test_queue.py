"""Queued runs, in every store: their order, claims, idempotency keys and ends."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework.store.memory import MemoryStore
from framework.store.queue import IDEMPOTENCY_SECONDS, MAX_WAITING_RUNS
from framework.store.store import Store
from framework.store.types import Conversation, Pruned, RunQuery, RunRecord
from framework.types.errors import ConversationBusy, IdempotencyConflict, QueueFull, RunBusy, RunNotFound, RunTaken
from framework.types.events import ContentReceived
from framework.types.messages import Message
from framework.types.state import IdempotencyKey, RunRequest, RunState
from tests.support import queues
from tests.support.cases import cases
from tests.support.clocks import clock_of
from tests.support.forks import FORKS
from tests.support.queues import begin, cancel, end, request
from tests.support.stores import with_store

KEY = IdempotencyKey("ann", "key", "digest")
CONVERSATIONS = (None, "c", "d")


async def ids(store: Store, *statuses: str) -> list[str]:
    return [info.run_id for info in await store.runs() if not statuses or info.status in statuses]


# --- order and claims, by generated operations


@dataclass
class Model:
    """What a store must do, in plain Python."""

    queue: list[RunRequest] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    attempts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    abandoned: set[str] = field(default_factory=set)
    open: dict[str | None, tuple[RunState, RunRecord]] = field(default_factory=dict)
    said: dict[str | None, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Messages of the runs that began, by conversation."""
    asked: dict[str | None, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Messages that were enqueued and not cancelled, by conversation."""

    def waiting(self, conversation: str | None) -> list[RunRequest]:
        return [one for one in self.queue if one.conversation_id == conversation]

    def claimable(self) -> list[str]:
        return [one.run_id for one in self.queue if one.run_id not in self.held and self._is_next(one)]

    def _is_next(self, one: RunRequest) -> bool:
        conversation = one.conversation_id
        return conversation is None or (conversation not in self.open and self.waiting(conversation)[0] == one)


class Driver:
    """Applies generated operations to a store and to the model."""

    def __init__(self, store: Store, mortal: Store | None, data: st.DataObject) -> None:
        self.store, self.mortal, self.data, self.model = store, mortal, data, Model()
        """`mortal` is the store of processes that end with their claims: its leases last no time."""

    async def enqueue(self) -> None:
        conversation, may_wait = self.data.draw(st.sampled_from(CONVERSATIONS)), self.data.draw(st.booleans())
        text = str(sum(map(len, self.model.asked.values())))
        one = request(text, conversation, queue=may_wait)
        is_busy = conversation is not None and (conversation in self.model.open or self.model.waiting(conversation))
        if is_busy and not may_wait:
            with pytest.raises(ConversationBusy):
                await self.store.enqueue(one)
            return
        assert await self.store.enqueue(one) == one.run_id
        self.model.queue.append(one)
        self.model.asked[conversation].append(text)

    async def claim(self) -> None:
        limit, expected = self.data.draw(st.integers(0, 4)), self.model.claimable()
        run_id = self.data.draw(st.sampled_from([None, *(one.run_id for one in self.model.queue)]))
        if run_id is not None:
            expected = [one for one in expected if one == run_id]
        await self._claimed(self.store, await self.store.claim(limit, run_id=run_id), expected[:limit])
        self.model.held.update(expected[:limit])

    async def claim_and_die(self) -> None:
        if self.mortal is not None:
            expected = self.model.claimable()[:2]
            await self._claimed(self.mortal, await self.mortal.claim(2), expected)
            self.model.abandoned.update(expected)

    async def _claimed(self, store: Store, claimed: object, expected: list[str]) -> None:
        assert isinstance(claimed, list | tuple)
        assert [one.run_id for one in claimed] == expected
        for one in claimed:
            self.model.attempts[one.run_id] += one.run_id in self.model.abandoned
            assert one.attempts == self.model.attempts[one.run_id]
        self.model.abandoned -= set(expected)

    async def unclaim(self) -> None:
        if self.model.held:
            held = [one.run_id for one in self.model.queue if one.run_id in self.model.held]  # ids are random
            run_id = self.data.draw(st.sampled_from(held))
            await self.store.unclaim([run_id, "run_unknown"])
            self.model.held.discard(run_id)

    async def begin(self) -> None:
        if not (claimed := [one for one in self.model.queue if one.run_id in self.model.held]):
            return
        one = self.data.draw(st.sampled_from(claimed))
        state, record = await begin(self.store, one)
        self.model.queue.remove(one)
        self.model.held.discard(one.run_id)
        self.model.said[one.conversation_id].append(one.message.content)
        if one.conversation_id is None:
            await end(state, record)
        else:
            self.model.open[one.conversation_id] = state, record

    async def begin_directly(self) -> None:
        conversation = self.data.draw(st.sampled_from(CONVERSATIONS[1:]))
        state = RunState(agent="one", messages=[Message(role="user", content="now")], conversation_id=conversation)
        found = await self.store.conversation(conversation)
        if conversation in self.model.open or self.model.waiting(conversation):
            with pytest.raises(ConversationBusy):
                await self.store.start(state, found, None)
        else:
            self.model.open[conversation] = state, await self.store.start(state, found, None)

    async def end(self) -> None:
        if self.model.open:
            state, record = self.model.open.pop(self.data.draw(st.sampled_from(sorted(map(str, self.model.open)))))
            await end(state, record)

    async def cancel(self) -> None:
        if free := [one for one in self.model.queue if one.run_id not in self.model.held]:
            one = self.data.draw(st.sampled_from(free))
            await cancel(self.store, one.run_id)
            self.model.queue.remove(one)
            self.model.asked[one.conversation_id].remove(one.message.content)

    async def finish(self) -> None:
        """Let every run that waits begin, in order, and check what was said."""
        await self.store.unclaim(list(self.model.held))
        for state, record in self.model.open.values():
            await end(state, record)
        while claimed := await self.store.claim(10):
            for one in claimed:
                await end(*await begin(self.store, one))
                self.model.said[one.conversation_id].append(one.message.content)
        assert await ids(self.store, "queued", "running") == []
        for conversation in CONVERSATIONS[1:]:
            assert self.model.said[conversation] == self.model.asked[conversation]
            if (await self.store.conversation(conversation)).is_stored:
                await self.store.delete_conversation(conversation)
        assert await self.store.conversations() == []


OPERATIONS = ("enqueue", "enqueue", "claim", "claim_and_die", "unclaim", "begin", "begin_directly", "end", "cancel")


async def check_order(data: st.DataObject, store: Store, mortal: Store | None) -> None:
    driver = Driver(store, mortal, data)
    for _ in range(data.draw(st.integers(1, 25 if mortal is None else 15))):
        await getattr(driver, data.draw(st.sampled_from(OPERATIONS)))()
        waiting = {name: len(driver.model.waiting(name)) for name in CONVERSATIONS[1:]}
        assert waiting == {name: (await store.conversation(name)).waiting for name in waiting}
    await driver.finish()


@cases(12)
@given(data=st.data())
def test_runs_queued_in_memory_begin_in_order_and_once(data: st.DataObject) -> None:
    with_store(lambda store: check_order(data, store, None), None)


@settings(cases(6), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_runs_queued_in_a_database_begin_in_order_and_once(store_url: str, data: st.DataObject) -> None:
    async def body(store: Store) -> None:
        mortal = await Store.open(store_url, Path("/"), lease_seconds=0.0)
        await queues.clear(mortal)  # a failed example leaves its runs
        await check_order(data, store, mortal)
        await mortal.close()

    with_store(body, store_url)


# --- several processes


def received(pipe: Connection) -> list[tuple[str, str]]:
    with pipe:
        messages = []
        while True:
            try:
                messages.append(pipe.recv())
            except (EOFError, OSError):
                return messages


def test_processes_that_work_through_a_queue_begin_each_run_once_and_in_order(store_url: str) -> None:
    async def fill(store: Store) -> None:
        for number in range(8):
            for name in ("c", "d", "e", "f"):
                await store.enqueue(request(str(number), name))

    with_store(fill, store_url)
    killed = FORKS.Process(target=queues.claim_and_die, args=(store_url,))
    killed.start()
    killed.join()
    pipes = []
    for _ in range(3):
        ours, theirs = FORKS.Pipe(duplex=False)
        FORKS.Process(target=queues.work_through, args=(store_url, theirs)).start()
        theirs.close()
        pipes.append(ours)
    begun = [message for pipe in pipes for message in received(pipe)]
    assert sorted(begun) == [(name, str(number)) for name in "cdef" for number in range(8)]

    async def check(store: Store) -> None:
        for name in "cdef":
            said = [message.content for message in (await store.conversation(name)).messages if message.role == "user"]
            assert said == [str(number) for number in range(8)]

    with_store(check, store_url)


def test_a_run_whose_claimer_was_killed_can_be_claimed_again(store_url: str) -> None:
    async def body(store: Store) -> None:
        one = request("hello", "c", options={"agent": "one"})
        await store.enqueue(one)
        for number in range(1, 4):
            killed = FORKS.Process(target=queues.claim_and_die, args=(store_url,))
            killed.start()
            killed.join()
            while not (claimed := await store.claim(1)):  # the lease of a process elsewhere must expire first
                pass
            assert claimed == [one.model_copy(update={"attempts": number})]
            (info,) = await store.runs()
            assert (info.status, info.held, info.attempts) == ("queued", True, number)
            await store.unclaim([one.run_id])

    with_store(body, store_url)


def test_requests_with_one_idempotency_key_from_several_processes_are_one_run(store_url: str) -> None:
    with_store(lambda store: store.close(), store_url)
    pipes = []
    for _ in range(3):
        ours, theirs = FORKS.Pipe(duplex=False)
        FORKS.Process(target=queues.enqueue_with_keys, args=(store_url, 10, theirs)).start()
        theirs.close()
        pipes.append(ours)
    answers = [received(pipe) for pipe in pipes]
    assert answers[0] == answers[1] == answers[2]
    assert len(answers[0]) == 10

    async def check(store: Store) -> None:
        assert sorted(await ids(store)) == sorted(run_id for _, run_id in answers[0])

    with_store(check, store_url)


# --- a request


def test_a_queued_run_is_loaded_and_listed(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        owner = {"user": "ann", "tenant": "a"}
        one = request("x" * 500 + "\x00ü", "c", options={"agent": "one", "metadata": {"k": [1]}}, **owner)
        await store.enqueue(one)
        state = await store.load_run(one.run_id)
        assert (state.status, state.agent, state.messages, state.history) == ("queued", "one", [one.message], [])
        assert (state.user, state.tenant, state.conversation_id, state.metadata) == ("ann", "a", "c", {"k": [1]})
        (info,) = await store.runs(RunQuery(statuses=["queued"], conversation_id="c", tenant="a"))
        assert (info.agent, info.message, info.turn, info.held) == ("one", "x" * 200, 0, False)
        assert not info.orphaned
        assert [*await store.events(one.run_id), *await store.spans(one.run_id)] == []
        conversation = await store.conversation("c", "a", "ann")
        assert (conversation.waiting, conversation.turns, conversation.user) == (1, 0, "ann")
        assert conversation.is_stored
        (claimed,) = await store.claim(5)
        assert claimed == one
        assert await store.renew([one.run_id]) == {one.run_id: False}
        state, record = await begin(store, claimed)
        assert (await store.load_run(one.run_id)).status == "running"
        await end(state, record)
        (info,) = await store.runs()
        assert (info.status, info.turn, info.attempts) == ("completed", 1, 0)
        found = await store.conversation("c", "a", "ann")
        assert [message.role for message in found.messages] == ["user", "assistant"]
        assert (found.waiting, found.turns, found.user, found.open_run) == (0, 1, "ann", None)

    with_store(body, any_url)


def test_the_21st_waiting_run_is_rejected(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        for number in range(MAX_WAITING_RUNS):
            await store.enqueue(request(str(number), "c"))
        with pytest.raises(QueueFull, match="'c' has 20 waiting runs, the maximum: wait for one to start") as full:
            await store.enqueue(request("21", "c"), idempotency=KEY)
        assert (full.value.http_status, full.value.retryable) == (429, True)
        await store.enqueue(request("another", "d"))
        (first, _) = await store.claim(5)
        await begin(store, first)
        await store.enqueue(request("21", "c"), idempotency=KEY)  # the rejected request did not use up the key
        with pytest.raises(QueueFull):
            await store.enqueue(request("22", "c"))

    with_store(body, any_url)


def test_a_request_that_may_not_wait_is_rejected_while_the_conversation_is_busy(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        first = request("1", "c", queue=False)
        await store.enqueue(first)
        with pytest.raises(ConversationBusy, match="'c' is busy: 1 of its runs wait; set `queue`"):
            await store.enqueue(request("2", "c", queue=False))
        await begin(store, (await store.claim(1))[0])
        with pytest.raises(ConversationBusy, match=f"run {first.run_id} is open") as busy:
            await store.enqueue(request("2", "c", queue=False))
        assert busy.value.run_id == first.run_id
        assert await ids(store) == [first.run_id]

    with_store(body, any_url)


def test_a_run_waits_for_the_open_run_of_its_conversation(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        one, two, elsewhere = request("1", "c"), request("2", "c"), request("3", "d")
        await store.enqueue(one)
        state, record = await begin(store, (await store.claim(1))[0])
        await store.enqueue(two)
        await store.enqueue(elsewhere)
        assert await store.claim(1, run_id=two.run_id) == []
        assert [each.run_id for each in await store.claim(5)] == [elsewhere.run_id]
        state.status = "paused"
        await record.write(state, last=True)
        assert await store.claim(5) == []
        await end(state, await store.acquire(await store.load_run(one.run_id), {}))
        direct = RunState(agent="one", messages=[Message(role="user", content="now")], conversation_id="c")
        with pytest.raises(ConversationBusy, match="another run of it started first or waits"):
            await store.start(direct, await store.conversation("c"), None)
        (claimed,) = await store.claim(5)
        with pytest.raises(ConversationBusy):
            await store.start(direct, await store.conversation("c"), None)
        await end(*await begin(store, claimed))
        await store.start(direct, await store.conversation("c"), None)

    with_store(body, any_url)


def test_a_run_that_another_process_claimed_cannot_begin(store_url: str) -> None:
    async def body(store: Store) -> None:
        one = request()
        await store.enqueue(one)
        with pytest.raises(RunTaken):
            await begin(store, one)
        mortal = await Store.open(store_url, Path("/"), lease_seconds=0.0)
        await mortal.claim(1)
        (claimed,) = await store.claim(1)
        with pytest.raises(RunTaken):
            await begin(mortal, one)
        await begin(store, claimed)
        await mortal.close()

    with_store(body, store_url)


# --- idempotency keys


def test_a_repeated_request_returns_the_first_run_for_24_hours(
    any_url: str | None,
) -> None:
    async def body(store: Store) -> None:
        first = await store.enqueue(request("1", "c"), idempotency=KEY)
        assert await store.enqueue(request("1", "c"), idempotency=KEY) == first
        with pytest.raises(IdempotencyConflict, match="use a new key for a new request"):
            await store.enqueue(request("2"), idempotency=IdempotencyKey("ann", "key", "another"))
        others = [("bob", "key"), ("ann", "yek"), ("annk", "ey"), ("", "annkey"), ("ann", "k\x00ey\x1f" * 2000)]
        runs = [await store.enqueue(request(), idempotency=IdempotencyKey(*one, "digest")) for one in others]
        assert len({first, *runs}) == 6
        clock_of(store).ahead = IDEMPOTENCY_SECONDS - 60
        await store.prune(None, store.now())
        assert await store.enqueue(request("1", "c"), idempotency=KEY) == first
        clock_of(store).ahead = IDEMPOTENCY_SECONDS + 60
        second = await store.enqueue(request("2"), idempotency=IdempotencyKey("ann", "key", "another"))
        assert second not in (first, *runs)
        await store.prune(None, store.now(), trust_clock=True)
        assert await store.enqueue(request("3"), idempotency=IdempotencyKey("ann", "key", "another")) == second

    with_store(body, any_url)


def test_the_key_of_a_deleted_run_is_deleted_with_it(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        first = await store.enqueue(request("1", "c"), idempotency=KEY)
        assert await store.delete_conversation("c") == 1
        with pytest.raises(RunNotFound):
            await store.load_run(first)
        assert await store.enqueue(request("1", "c"), idempotency=KEY) != first

    with_store(body, any_url)


# --- ends of queued runs


def test_a_queued_run_that_is_cancelled_ends_like_any_run(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        one, two, three = (request(text, "c") for text in "123")
        for each in (one, two, three):
            await store.enqueue(each)
        await end(*await begin(store, (await store.claim(1))[0]))
        state = await store.load_run(two.run_id)
        record = await store.acquire(state, {})
        assert (await store.runs(RunQuery(statuses=["queued"])))[0].held
        assert await store.claim(5) == [], "three waits for two, which is being ended"
        state.status, state.finish_reason, state.seq = "cancelled", "cancelled", 1
        event = ContentReceived(run_id=state.run_id, seq=1, generation=0, message_id="m", text="gone")
        await record.write(state, [event], last=True)
        assert [one["text"] for one in await store.events(two.run_id)] == ["gone"]
        (info,) = await store.runs(RunQuery(statuses=["cancelled"]))
        assert (info.run_id, info.held, info.turn, info.conversation_id) == (two.run_id, False, 0, "c")
        loaded = await store.load_run(two.run_id)
        assert (loaded.status, loaded.messages, loaded.history) == ("cancelled", [two.message], [])
        found = await store.conversation("c")
        assert (found.turns, found.waiting, [message.content for message in found.messages]) == (
            1, 1, ["1", "answer to 1"]
        )  # fmt: skip
        assert [each.run_id for each in await store.claim(5)] == [three.run_id]

    with_store(body, any_url)


def test_a_conversation_without_turns_is_removed_with_its_last_queued_run(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        one, two = request("1", "c", user="ann"), request("2", "c", user="ann")
        await store.enqueue(one)
        await store.enqueue(two)
        await cancel(store, one.run_id)
        assert (await store.conversation("c", user="ann")).waiting == 1
        await cancel(store, two.run_id)
        assert await store.conversation("c", user="ann") == Conversation("c", user="ann")
        assert await store.conversations() == []
        assert [info.status for info in await store.runs()] == ["cancelled", "cancelled"]
        later = time.time() + 60
        assert await store.prune(later, later) == Pruned(2, 0)
        assert await store.runs() == []

    with_store(body, any_url)


def test_a_claimed_run_is_told_of_its_cancellation(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        one = request("1", "c")
        await store.enqueue(one)
        assert not await store.request_cancel(one.run_id), "nobody holds it"
        (claimed,) = await store.claim(1)
        with pytest.raises(RunBusy):
            await cancel(store, one.run_id)
        assert await store.request_cancel(one.run_id)
        assert await store.renew([one.run_id]) == {one.run_id: True}
        state, record = await begin(store, claimed)
        assert record.cancel_requested
        await end(state, record, "cancelled")
        assert (await store.conversation("c")).messages == ()

    with_store(body, any_url)


def test_waiting_runs_keep_an_expired_conversation_and_are_deleted_with_it(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        await store.enqueue(request("1", "c"))
        state, record = await begin(store, (await store.claim(1))[0])
        state.conversation_ttl = 0.001
        two = request("2", "c")
        await store.enqueue(two)
        await end(state, record)
        later = time.time() + 60
        assert await store.prune(None, later) == Pruned(0, 0)
        assert (await store.conversation("c")).turns == 1
        (claimed,) = await store.claim(1)
        with pytest.raises(ConversationBusy):
            await store.delete_conversation("c")
        await store.unclaim([claimed.run_id])
        assert await store.delete_conversation("c") == 2
        assert await ids(store) == []
        await store.enqueue(request("1", "c"))
        state, record = await begin(store, (await store.claim(1))[0])
        state.conversation_ttl = 0.0
        await end(state, record)
        await store.enqueue(request("2", "c"))
        assert (await store.conversation("c")).turns == 0, "the expired one is deleted, though it was not loaded"

    with_store(body, any_url)


def test_a_store_in_memory_keeps_queued_runs_and_the_events_that_are_written() -> None:
    async def main() -> None:
        store = MemoryStore(keep_runs=2)
        waiting = [request(str(number)) for number in range(3)]
        for one in waiting:
            await store.enqueue(one, idempotency=IdempotencyKey("ann", one.run_id, "d"))
        assert await ids(store) == [one.run_id for one in waiting]
        (claimed,) = await store.claim(1)
        state, record = await begin(store, claimed)
        texts = [ContentReceived(run_id=state.run_id, seq=n, generation=1, message_id="m", text=str(n)) for n in (1, 2)]
        await record.write(state, texts[:1])
        await record.write(state, texts[1:])
        events = await store.events(state.run_id, after=1)
        assert [(event["event"], event["seq"], event["text"]) for event in events] == [("content", 2, "2")]
        await end(state, record)
        await store.enqueue(request("4"))
        assert claimed.run_id not in await ids(store), "only runs that have ended are dropped"
        again = await store.enqueue(request("5"), idempotency=IdempotencyKey("ann", claimed.run_id, "d"))
        assert again != claimed.run_id

    asyncio.run(main())
