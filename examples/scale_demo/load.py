"""Load for a fleet: submits runs to its API, and asks for their ends."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from examples.scale_demo.model import Work

PAGE = 100


@dataclass(frozen=True, slots=True)
class Submissions:
    """When runs were submitted, by `CONVERSATION.TURN`; in the time of the log, in seconds."""

    sent: dict[str, float] = field(default_factory=dict)
    accepted: dict[str, float] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    """Their ids."""


class Client:
    """A client of the API."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url
        self.submitted = Submissions()

    async def submit(self, work: Work, **options: str | bool) -> str:
        """Submit a run to its conversation, and return its id. Repeat the request until there is an answer."""
        conversation = work.run.rpartition(".")[0]
        body = {"message": work.message, "agent": "stepper", "conversation_id": conversation, "queue": True, **options}
        self.submitted.sent[work.run] = time.monotonic()
        while (run_id := await self._try_submit(body, work.run)) is None:  # noqa: ASYNC110 - the server comes back
            await asyncio.sleep(0.1)
        self.submitted.accepted[work.run] = time.monotonic()
        self.submitted.ids[work.run] = run_id
        return run_id

    async def _try_submit(self, body: Mapping[str, object], key: str) -> str | None:
        """Submit a run once for its idempotency key; return None if the API, or its database, is unavailable."""
        request = self._session.post(f"{self._url}/agent/runs", json=body, headers={"Idempotency-Key": key})
        try:
            async with request as response:
                answer = await response.json()
        except aiohttp.ClientError:
            return None
        if response.status == 503:
            return None
        if response.status != 202:
            raise RuntimeError(f"the API answered {response.status}: {answer}")
        return str(answer["run_id"])

    async def submit_all(self, works: Sequence[Sequence[Work]], at_once: int = 8) -> None:
        """Submit the runs of conversations, each in its order, and as many conversations at once."""
        waiting = iter(works)

        async def converse() -> None:
            for conversation in waiting:
                for work in conversation:
                    await self.submit(work)

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(converse())

    async def get(self, path: str, **query: str | int) -> dict[str, object]:
        """Return the answer to a GET request."""
        async with self._session.get(self._url + path, params=query) as response:
            found: dict[str, object] = await response.json()
            if response.status != 200:
                raise RuntimeError(f"the API answered {response.status}: {found}")
            return found

    async def post(self, path: str, body: Mapping[str, object]) -> int:
        """Send a POST request, and return the status of the answer."""
        async with self._session.post(self._url + path, json=body) as response:
            return response.status

    async def runs(self) -> list[dict[str, object]]:
        """Return all runs."""
        found: list[dict[str, object]] = []
        query: dict[str, str | int] = {"limit": PAGE}
        while True:
            page = await self.get("/agent/runs", **query)
            found += page["runs"]  # type: ignore[arg-type]  # a list of objects, by the API's description
            if page["next"] is None:
                return found
            query["before"] = str(page["next"])

    async def open_runs(self) -> int:
        """Return how many runs have not ended, up to a page."""
        async with self._session.get(
            f"{self._url}/agent/runs", params=[("limit", PAGE), *(("status", one) for one in ("queued", "running"))]
        ) as response:
            return len((await response.json())["runs"])

    async def until_ended(self, seconds: float) -> Counter[str]:
        """Wait until no run is queued or in progress; return the number of runs by status.

        After `seconds`, return what there is.
        """
        try:
            async with asyncio.timeout(seconds):
                while await self.open_runs():  # noqa: ASYNC110 - another process ends them
                    await asyncio.sleep(0.1)
        except TimeoutError:
            pass
        return Counter(str(run["status"]) for run in await self.runs())


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Client]:
    """Open a client of the API at a URL."""
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        yield Client(session, url)


def conversations(
    runs: int,
    number: int,
    *,
    name: str = "c",
    steps: int = 3,
    model_seconds: float = 0.1,
    tool_seconds: float = 0.05,
) -> list[list[Work]]:
    """Return the work of `runs` runs in `number` conversations, whose names begin with `name`."""
    turns = [range(1, len(range(one, runs, number)) + 1) for one in range(number)]
    return [
        [Work(f"{name}{one}.{turn}", steps, model_seconds, tool_seconds) for turn in own]
        for one, own in enumerate(turns)
    ]
