"""Limits of each key: requests in any period, runs in progress, open streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import APIRouter, FastAPI, HTTPException, Request
from hypothesis import given
from hypothesis import strategies as st

from framework import Runtime, tool
from framework.config.api_keys import Rate
from framework.config.settings import ServerSettings
from framework.server.errors import RateLimited, ServerBusy, TooManyRuns, TooManyStreams
from framework.server.identity import (
    FULL_ACCESS,
    LOCAL,
    SMALL_BODY_BYTES,
    BodiesInFlight,
    Identity,
    KeyLimits,
    RateWindow,
)
from framework.server.request_handling import MessageRoute, error_response, served_state
from framework.server.routes import server_state
from framework.store.memory import MemoryStore
from framework.testing import ScriptedModel, calls
from framework.types.errors import ConversationBusy, ModelError
from tests.support.cases import cases
from tests.support.projects import agent, write

WAITS = st.lists(st.floats(0, 90, allow_nan=False), max_size=200)


def limits_at(times: Callable[[], float] = lambda: 0.0, **settings: int) -> KeyLimits:
    return KeyLimits(MemoryStore(), ServerSettings.model_validate(settings), times)


# --- requests


@given(count=st.integers(1, 12), seconds=st.sampled_from([1.0, 60.0]), waits=WAITS)
@cases(300)
def test_no_period_has_more_requests_than_the_rate(count: int, seconds: float, waits: Sequence[float]) -> None:
    window, now, admitted = RateWindow(Rate(count, seconds)), 0.0, list[float]()
    for wait in waits:
        now += wait
        if not window.admit(now):
            admitted.append(now)
    for first, last in zip(admitted, admitted[count:], strict=False):
        assert last - first > seconds - 1e-9, "sums of waits are rounded"
    assert not waits or admitted


@given(count=st.integers(1, 12), seconds=st.sampled_from([1.0, 60.0, 86400.0]), waits=WAITS)
@cases(300)
def test_after_the_wait_that_is_announced_a_request_is_admitted(
    count: int, seconds: float, waits: Sequence[float]
) -> None:
    window, now = RateWindow(Rate(count, seconds)), 1e6
    for wait in waits:
        now += wait / 10
        if announced := window.admit(now):
            assert 1 <= announced <= seconds + 1
            now += announced
            assert window.admit(now) == 0


def test_a_rejected_request_does_not_count() -> None:
    window = RateWindow(Rate(2, 60.0))
    assert [window.admit(now) for now in (0.0, 1.0, 2.0, 59.0)] == [0, 0, 59, 2]
    assert [window.admit(now) for now in (60.0, 60.5, 61.0)] == [0, 1, 0]


def test_an_edit_of_a_rate_counts_the_requests_before_it() -> None:
    limits = limits_at()
    limits.check_rate(Identity("k", rate=Rate(5, 60.0)))
    limits.check_rate(Identity("k", rate=Rate(5, 60.0)))
    with pytest.raises(RateLimited, match="'k' sends too many requests: retry in 61 s") as caught:
        limits.check_rate(Identity("k", rate=Rate(2, 60.0)))
    assert caught.value.retry_after == 61
    limits.check_rate(Identity("k", rate=Rate(3, 60.0)))


def test_keys_are_counted_separately_and_without_a_rate_not_at_all() -> None:
    limits = limits_at()
    for name in ("a", "b"):
        limits.check_rate(Identity(name, rate=Rate(1, 60.0)))
    with pytest.raises(RateLimited):
        limits.check_rate(Identity("a", rate=Rate(1, 60.0)))
    for _ in range(1000):
        limits.check_rate(FULL_ACCESS)


def test_names_without_a_recent_request_are_forgotten() -> None:
    now = [0.0]
    limits = limits_at(lambda: now[0])
    for number in range(5000):
        now[0] += 1.0
        limits.check_rate(Identity(f"user-{number}", rate=Rate(1, 10.0)))
    assert len(limits._windows) <= 1000


# --- runs


ONE_RUN = Identity("k", max_running=1)


async def is_full(limits: KeyLimits) -> bool:
    try:
        async with limits.starting(ONE_RUN):
            return False
    except TooManyRuns as error:
        return error.retry_after > 0


@pytest.mark.parametrize("ending", ["completes", "pauses", "fails", "is cancelled", "is left"])
def test_a_run_counts_until_it_ends_or_pauses(tmp_path: Path, ending: str) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    @tool(risk="low")
    async def wait() -> str:
        """Wait for the test."""
        began.set()
        await go.wait()
        return "done"

    @tool(risk="low")
    async def pay() -> str:
        """Pay."""
        return "paid"

    last: Any = {"pauses": calls(("pay", {})), "fails": ModelError("broken")}.get(ending, "done")
    policy = "{ask: [{tool: pay, reason: money}], allow: [wait, pay]}"
    root = write(tmp_path, {"agents.d/one.yaml": agent("one", skill_policy=policy)})
    models = {"scripted": ScriptedModel(calls(("wait", {})), last)}

    async def main() -> None:
        async with Runtime.open(root, tools=[wait, pay], models=models, watch=False) as runtime:
            limits = KeyLimits(runtime.store, ServerSettings())
            async with runtime.stream("go", agent="one") as stream:
                async with limits.starting(ONE_RUN) as started:
                    assert await is_full(limits), "a request that is starting a run counts"
                    started((await anext(aiter(stream))).run_id)
                await began.wait()
                assert await is_full(limits)
                if ending == "is cancelled":
                    await runtime.cancel(stream.run_id)
                elif ending != "is left":
                    go.set()
                if ending != "is left":
                    await stream.result()
            assert not await is_full(limits)
            assert not limits._runs["k"].started

    asyncio.run(main())


def test_a_start_that_fails_does_not_count_any_more() -> None:
    async def main() -> None:
        limits = limits_at()
        with suppress(ConversationBusy):
            async with limits.starting(ONE_RUN):
                raise ConversationBusy("c")
        assert not await is_full(limits)

    asyncio.run(main())


def test_of_concurrent_starts_no_more_than_the_limit_are_admitted() -> None:
    async def main() -> None:
        limits, go, admitted = limits_at(), asyncio.Event(), list[int]()

        async def start(number: int) -> None:
            async with limits.starting(Identity("k", max_running=3)):
                admitted.append(number)
                await go.wait()

        tasks = [asyncio.create_task(start(number)) for number in range(20)]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 17:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert {type(task.exception()) for task in done} == {TooManyRuns}
        assert len(admitted) == 3
        go.set()
        await asyncio.wait(tasks)

    asyncio.run(main())


def test_a_request_that_starts_nothing_does_not_count_for_the_rate() -> None:
    async def main() -> None:
        limits, identity = limits_at(), Identity("k", rate=Rate(3, 60.0), max_running=1)
        for _ in range(10):
            with suppress(ConversationBusy):
                async with limits.starting(identity):
                    raise ConversationBusy("c")
        async with limits.starting(identity):
            for _ in range(10):
                with pytest.raises(TooManyRuns):
                    async with limits.starting(identity):
                        pass
        async with limits.starting(identity):
            pass
        async with limits.starting(identity):
            pass
        with pytest.raises(RateLimited):
            async with limits.starting(identity):
                pass

    asyncio.run(main())


def test_a_start_counts_as_a_request() -> None:
    async def main() -> None:
        limits, identity = limits_at(), Identity("k", rate=Rate(1, 60.0))
        async with limits.starting(identity):
            pass
        with pytest.raises(RateLimited):
            async with limits.starting(identity):
                pass

    asyncio.run(main())


# --- streams


def test_streams_are_limited_by_key_and_in_total() -> None:
    limits, names = limits_at(max_streams=5, max_streams_per_key=2), ("a", "b", "c")
    with ExitStack() as streams:
        for name in names[:2]:
            for _ in range(2):
                streams.enter_context(limits.admit_stream(Identity(name)))
            with pytest.raises(RateLimited, match="has 2 event streams open"):
                limits.admit_stream(Identity(name))
        streams.enter_context(limits.admit_stream(Identity("c")))
        with pytest.raises(TooManyStreams, match="5 are open"):
            limits.admit_stream(Identity("d"))
    for name in names:
        limits.admit_stream(Identity(name)).close()


def test_a_stream_that_fails_does_not_count_any_more() -> None:
    limits = limits_at(max_streams_per_key=1)
    with suppress(ZeroDivisionError), limits.admit_stream(Identity("a")):
        raise ZeroDivisionError
    limits.admit_stream(Identity("a")).close()


def test_a_stream_counts_before_its_response_begins_and_until_that_is_closed() -> None:
    limits = limits_at(max_streams_per_key=1)
    with limits.admit_stream(Identity("a")) as admitted:
        with pytest.raises(RateLimited):
            limits.admit_stream(Identity("a"))
        response = admitted.pop_all()
    with pytest.raises(RateLimited):
        limits.admit_stream(Identity("a"))
    response.close()
    limits.admit_stream(Identity("a")).close()


def test_large_bodies_are_admitted_by_their_size_together() -> None:
    bodies = BodiesInFlight(limit=3 * SMALL_BODY_BYTES)
    for _ in range(100):
        bodies.grow(0, SMALL_BODY_BYTES)  # small ones are always accepted
    first = 2 * SMALL_BODY_BYTES
    bodies.grow(0, SMALL_BODY_BYTES)
    bodies.grow(SMALL_BODY_BYTES, first)
    with pytest.raises(ServerBusy, match="try again"):
        bodies.grow(0, SMALL_BODY_BYTES + 1)
    bodies.end(first)
    bodies.grow(0, 3 * SMALL_BODY_BYTES)


def test_a_request_whose_body_finds_no_room_is_told_to_come_again(tmp_path: Path) -> None:
    routes = APIRouter(route_class=MessageRoute)

    @routes.post("/large")
    async def large(request: Request) -> int:
        return len(await request.body())

    @routes.post("/parsed")
    async def parsed(request: Request) -> int:
        text, bodies = await request.json(), served_state(request).service.limits.bodies
        bodies.grow(0, SMALL_BODY_BYTES * 2)  # a body that was parsed does not count while it is answered
        bodies.end(SMALL_BODY_BYTES * 2)
        return len(text)

    async def main() -> httpx2.Response:
        async with Runtime.open(tmp_path, watch=False) as runtime:
            app, state = FastAPI(), server_state(runtime, lambda _: LOCAL)
            state.service.limits.bodies = BodiesInFlight(limit=2 * SMALL_BODY_BYTES)
            app.router.routes.extend(route.serving(state) for route in routes.routes if isinstance(route, MessageRoute))
            transport = httpx2.ASGITransport(app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
                assert (await client.post("/large", content=b" " * SMALL_BODY_BYTES)).status_code == 200
                assert (await client.post("/parsed", json="x" * SMALL_BODY_BYTES)).text == str(SMALL_BODY_BYTES)
                assert (await client.post("/large", content=b" " * 2 * SMALL_BODY_BYTES)).status_code == 200
                return await client.post("/large", content=b" " * (2 * SMALL_BODY_BYTES + 1))

    refused = asyncio.run(main())
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert refused.json()["error"]["code"] == "server_busy"


def test_a_request_for_which_no_memory_is_left_can_be_repeated() -> None:
    """FastAPI reports it as a mistake in the body."""
    request = Request({"type": "http", "method": "POST", "path": "/agent/runs", "headers": []})
    parsing = HTTPException(400, "There was an error parsing the body")
    parsing.__cause__ = MemoryError()
    for error in (MemoryError(), parsing):
        refused = error_response(error, request)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert b"server_busy" in refused.body
