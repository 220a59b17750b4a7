"""`/agent/usage`: figures of the runs that exist for the key, and nothing of others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx2
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from framework import Runtime
from framework.server import Identity, router
from framework.store.memory import MemoryStore
from framework.store.types import RunQuery
from framework.store.usage import GROUPINGS, Period
from tests.support.cases import cases
from tests.support.clocks import MovableClock
from tests.support.used_runs import UsedRun, add_runs, expected, used

BASE = datetime(2026, 10, 24, tzinfo=UTC).timestamp()
SINCE, UNTIL = "2026-10-24T00:00:00Z", "2026-10-25T00:00:00Z"


async def asked(root: Path, identity: Identity, stored: list[UsedRun], *queries: Mapping[str, str]) -> list[Any]:
    """Return the status and the body of each response."""
    async with Runtime.open(root, store=MemoryStore(clock=MovableClock()), watch=False) as runtime:
        await add_runs(runtime.store, stored)
        app = FastAPI()
        app.router.routes.extend(router(runtime, identify=lambda _: identity).routes)  # cheaper than `include_router`
        transport = httpx2.ASGITransport(app, client=("192.0.2.7", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
            responses = [await http.get("/agent/usage", params=query) for query in queries]
            return [(response.status_code, response.json()) for response in responses]


identities = st.builds(
    Identity,
    st.just("key"),
    tenant=st.sampled_from([None, "a", "b"]),
    user=st.sampled_from([None, "ann"]),
    agents=st.sampled_from([None, ("one",), ("two", "three")]),
    single_user=st.booleans(),
)
runs = st.builds(
    UsedRun,
    at=st.integers(-86_400, 2 * 86_400).map(lambda seconds: BASE + seconds),
    agent=st.sampled_from(["one", "two"]),
    tenant=st.sampled_from([None, "a", "b"]),
    user=st.sampled_from([None, "ann", "bob"]),
    uses=st.dictionaries(st.sampled_from(["m1", "m2"]), st.builds(used, st.just(1), st.integers(1, 9), st.just(0.5))),
)


@cases(4)
@given(identity=identities, stored=st.lists(runs, max_size=10), user=st.sampled_from([None, "bob"]))
def test_a_key_gets_figures_of_its_own_runs_only(
    tmp_path_factory: pytest.TempPathFactory, identity: Identity, stored: list[UsedRun], user: str | None
) -> None:
    only = {"user": user} if user else {}
    queries = [{"since": SINCE, "until": UNTIL, "by": by, **only} for by in GROUPINGS]
    owner = RunQuery(
        tenant=identity.tenant,
        user=identity.user or user,
        agents=identity.agents,
        without_tenant=identity.tenant is None and not identity.single_user,
    )
    period = Period.of(BASE, BASE + 86_400, "1h", ZoneInfo("UTC"))
    found = asyncio.run(asked(tmp_path_factory.mktemp("usage"), identity, stored, *queries))
    for by, (status, body) in zip(GROUPINGS, found, strict=True):
        assert status == 200, body
        naive = expected(stored, owner, by, period)
        assert (body["total"]["runs"], body["previous"]["runs"]) == (naive["total"]["runs"], naive["previous"]["runs"])
        assert body["total"]["tokens"]["total"] == naive["total"]["tokens"][0]
        groups = {group["key"]: (group["runs"], group["cost_usd"]) for group in body["groups"]}
        assert groups == {key: (one["runs"], one["cost"]) for key, one in naive["groups"].items()}
        assert [step["runs"] for step in body["over_time"]] == [one["runs"] for one in naive["steps"].values()]
        charted = [group["over_time"]["runs"] for group in body["groups"] if group["over_time"]]
        assert all(len(series) == 24 for series in charted)


def test_the_period_is_by_default_the_last_30_days_and_its_step_fits(tmp_path: Path) -> None:
    queries: list[Mapping[str, str]] = [
        {},
        {"since": SINCE, "until": "2026-10-31T00:00:00Z"},
        {"since": SINCE, "until": UNTIL, "tz": "Asia/Kolkata", "step": "1d"},
    ]
    days, week, local = (body for _, body in asyncio.run(asked(tmp_path, Identity("key"), [], *queries)))
    since, until = (datetime.fromisoformat(days[name]) for name in ("since", "until"))
    assert (days["step"], (until - since).days) == ("1d", 30)
    assert (week["step"], len(week["over_time"])) == ("3h", 56)
    assert [step["at"] for step in local["over_time"]] == ["2026-10-23T18:30:00Z", "2026-10-24T18:30:00Z"]
    assert (days["total"]["cost_usd"], days["total"]["latency"]["p50_ms"]) == (0.0, None)


INVALID: list[tuple[Mapping[str, str], str, str]] = [
    ({"since": UNTIL, "until": SINCE}, "since", "the period must begin before it ends"),
    ({"since": "2999-01-01T00:00:00Z"}, "since", "the period must begin before it ends"),
    ({"since": "0001-01-01T00:00:00Z"}, "since", "0001-01-01T00:00:00+00:00 is not between 1971 and 9998"),
    ({"until": "9999-12-31T23:59:59-14:00"}, "until", "is not between 1971 and 9998"),
    ({"since": "2026-10-24T00:00:00"}, "since", "timezone"),
    ({"since": "yesterday"}, "since", "datetime"),
    ({"since": "2020-01-01T00:00:00Z", "until": UNTIL, "step": "1h"}, "step", "more than 1000 steps of 1h"),
    ({"since": "1980-01-01T00:00:00Z", "until": UNTIL}, "step", "choose a longer step, or a later since"),
    ({"tz": "Mars/Olympus"}, "tz", "unknown time zone 'Mars/Olympus'; use a name such as Europe/Berlin"),
    ({"tz": "America"}, "tz", "unknown time zone 'America'"),
    ({"tz": "../../etc/passwd"}, "tz", "unknown time zone"),
    ({"tz": "x" * 150}, "tz", "unknown time zone"),
    ({"tz": "a\x00b"}, "tz", "must contain printable characters only"),
    ({"by": "colour"}, "by", "'agent', 'model', 'generation', 'user' or 'status'"),
    ({"step": "5m"}, "step", "'1h', '3h' or '1d'"),
]


def test_invalid_queries_name_the_parameter(tmp_path: Path) -> None:
    found = asyncio.run(asked(tmp_path, Identity("key"), [], *(query for query, _, _ in INVALID)))
    for (query, param, message), (status, body) in zip(INVALID, found, strict=True):
        assert (status, body["error"]["param"]) == (400, param), (query, body)
        assert message in body["error"]["message"], query
