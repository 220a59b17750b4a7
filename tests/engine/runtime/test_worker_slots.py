"""Places of a process, while runs are looked for that may need them."""

from __future__ import annotations

import asyncio

import pytest

from framework.engine.runtime.background import WorkerSlots


@pytest.mark.parametrize("found", [0, 1, 2])
def test_whether_a_place_is_free_is_known_after_a_look(found: int) -> None:
    async def main() -> None:
        slots = WorkerSlots(2)
        with slots.all_free() as number:
            assert (number, slots.free, slots.taken) == (2, 0, 0), "nothing is found yet"
            known = asyncio.create_task(slots.known())
            await asyncio.sleep(0)
            assert not known.done()
            slots.release(number - found)
        await known
        assert (slots.free, slots.taken) == (2 - found, found)
        await slots.known()

    asyncio.run(main())


def test_nobody_waits_for_a_look_after_the_end() -> None:
    async def main() -> None:
        slots = WorkerSlots(1)
        with slots.all_free():
            known = asyncio.create_task(slots.known())
            await asyncio.sleep(0)
            slots.close()
            await known

    asyncio.run(main())


def test_no_more_slots_are_acquired_than_are_free() -> None:
    slots = WorkerSlots(2)
    assert [slots.acquire(), slots.acquire(), slots.acquire()] == [1, 1, 0]
    slots.release()
    assert (slots.acquire(5), slots.taken, slots.free) == (1, 2, 0)
