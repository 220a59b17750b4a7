"""Sources of tools whose descriptions are read again: until they are closed, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from framework.tools.openapi.source import ApiSource
from framework.tools.remote_sources import SkillSource
from framework.tools.tool_source import OnChange, RefreshedSource
from framework.types.tool_servers import OpenApi, SkillHost

CLOSED = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    "create",
    [
        lambda changed: SkillSource("x", SkillHost(url=CLOSED, discover=True), changed),
        lambda changed: ApiSource("x", OpenApi(document=f"{CLOSED}/openapi.json", base_url=CLOSED), changed),
    ],
    ids=["skill host", "API"],
)
def test_a_source_that_is_closed_while_it_starts_reads_nothing_later(
    create: Callable[[OnChange], RefreshedSource],
) -> None:
    async def main() -> None:
        source = create(lambda: None)
        starting = asyncio.create_task(source.start())
        await asyncio.sleep(0)
        await source.close()
        await starting
        assert source.name not in {task.get_name() for task in asyncio.all_tasks()}

    asyncio.run(main())


class Odd(RefreshedSource):
    """A source whose first two descriptions cause an error that its code does not expect."""

    readings = 0

    async def _look(self) -> bool:
        self.readings += 1
        if self.readings <= 2:
            raise RecursionError(f"reading {self.readings}")
        self.faults = ()
        return True


def test_an_unexpected_error_is_a_fault_and_the_description_is_read_again() -> None:
    async def main() -> None:
        reported: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()
        source = Odd("odd", lambda: reported.put_nowait(source.faults), refresh=60.0, first_retry=0.01)
        await source.start()
        assert source.faults == ("odd cannot be read: RecursionError: reading 1",)
        async with asyncio.timeout(30):
            assert await reported.get() == ("odd cannot be read: RecursionError: reading 2",)
            assert await reported.get() == ()
        await source.close()

    asyncio.run(main())
