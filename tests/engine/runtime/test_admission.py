"""QueueAdmission to the queue: the limit, and the time after which a refused request may come again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from framework.engine.runtime.queue import SAMPLE_SECONDS, QueueAdmission
from framework.store.memory import MemoryStore
from framework.store.types import QueueSize
from framework.types.errors import QueueFull
from tests.support.queues import begin, end, request


class CountedStore(MemoryStore):
    """A store that counts how often its queue is counted."""

    counts = 0

    async def queue_size(self) -> QueueSize:
        self.counts += 1
        return await super().queue_size()


@dataclass
class Queue:
    """A queue with its admission, on a clock that the test moves."""

    store: CountedStore = field(default_factory=CountedStore)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.admission = QueueAdmission(self.store, lambda: self.now)

    async def submit(self, max_waiting: int) -> None:
        await self.admission.admit(max_waiting)
        await self.store.enqueue(request())

    async def begin(self, number: int) -> None:
        for one in await self.store.claim(number):
            await end(*await begin(self.store, one))

    async def refused(self, max_waiting: int) -> QueueFull:
        with pytest.raises(QueueFull) as caught:
            await self.submit(max_waiting)
        return caught.value


def on_queue(body: Callable[[Queue], Awaitable[None]]) -> None:
    async def main() -> None:
        await body(Queue())

    asyncio.run(main())


def test_requests_are_refused_while_as_many_runs_wait_as_may() -> None:
    async def body(queue: Queue) -> None:
        for _ in range(3):
            await queue.submit(3)
        error = await queue.refused(3)
        assert error.message == "3 runs wait, the maximum (work.max_waiting): retry later"
        assert (error.retry_after, error.retryable, error.code, error.http_status) == (None, True, "queue_full", 429)
        queue.now += 0.1
        await queue.begin(1)
        await queue.submit(3)
        await queue.submit(4)
        assert (await queue.store.queue_size()).waiting == 4

    on_queue(body)


def test_the_time_to_retry_follows_from_how_many_runs_began() -> None:
    async def body(queue: Queue) -> None:
        for _ in range(20):
            await queue.submit(20)
        for _ in range(10):  # two runs in five seconds
            queue.now += 5
            await queue.begin(2)
            await queue.submit(20)
            await queue.submit(20)
        waits = [(await queue.refused(20)).retry_after for _ in range(4)]
        assert waits == [3, 5, 8, 10], "each refused request is told to come after the others"
        assert (await queue.refused(20)).message.endswith("retry in 13 s")

    on_queue(body)


def test_the_time_to_retry_is_bounded() -> None:
    async def body(queue: Queue) -> None:
        await queue.submit(1)
        queue.now += 30
        assert (await queue.refused(1)).retry_after == 600, "nothing began"
        for _ in range(100):
            queue.now += 0.5
            await queue.begin(1)
            await queue.submit(1)
        assert (await queue.refused(1)).retry_after == 1

    on_queue(body)


def test_only_the_last_minute_counts() -> None:
    async def body(queue: Queue) -> None:
        for _ in range(100):
            queue.now += 1
            await queue.submit(1)
            await queue.begin(1)
        queue.now += 1
        await queue.submit(1)
        queue.now += 61
        await queue.refused(1)
        queue.now += 10
        assert (await queue.refused(1)).retry_after == 600

    on_queue(body)


def test_the_runs_are_counted_at_most_once_a_second() -> None:
    async def body(queue: Queue) -> None:
        for _ in range(50):
            await queue.submit(1000)
        assert queue.store.counts == 1
        queue.now += SAMPLE_SECONDS * 1.01
        async with asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(queue.submit(1000))
        assert queue.store.counts == 2
        for _ in range(50):
            await queue.refused(100)
        assert queue.store.counts == 2, "not for each refused request either"

    on_queue(body)
