"""`/agent/fleet`: the processes of the store, and the runs that wait, as far as they exist for the key."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from framework import Runtime
from framework.server import Identity, router
from tests.support.queues import request

OWNERS: Sequence[dict[str, Any]] = (
    {},
    {"tenant": "acme", "user": "ann"},
    {"tenant": "acme", "user": "bob"},
    {"tenant": "globex"},
)
REPORT = {"kind": "worker", "works": True, "capacity": 5, "agents": {"one": "d1", "two": "d2"}}


async def asked(root: Path, identities: Sequence[Identity]) -> list[Any]:
    """Return the fleet as each identity sees it, of a store with a run of each owner that was handed on."""
    async with Runtime.open(root, watch=False) as runtime:
        await runtime.store.keep_alive("w", REPORT)
        for owner in OWNERS:
            run_id = await runtime.store.enqueue(request(options={"agent": "one"}, **owner))
            await runtime.store.claim(1, run_id=run_id)
            await runtime.store.release_for_others(run_id, f"has no agent of {owner}", 0)
        remaining = list(identities)
        app = FastAPI()
        app.router.routes.extend(router(runtime, identify=lambda _: remaining[0]).routes)
        transport = httpx2.ASGITransport(app, client=("192.0.2.7", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
            found = []
            while remaining:
                response = await http.get("/agent/fleet")
                assert response.status_code == 200, response.text
                found.append(response.json())
                del remaining[0]
            return found


def test_a_key_sees_what_waits_of_its_own_runs_only(tmp_path: Path) -> None:
    identities = {
        4: Identity("owner", single_user=True),
        2: Identity("acme", tenant="acme"),
        1: Identity("ann", tenant="acme", user="ann"),
        0: Identity("other", tenant="acme", agents=("two",)),
    }
    found = asyncio.run(asked(tmp_path, list(identities.values())))
    for count, body in zip(identities, found, strict=True):
        assert sum(group["count"] for group in body["waiting"]) == len(body["handed_on"]) == count
    assert "globex" not in str(found[1:])
    assert "bob" not in str(found[2:])
    assert found[3]["processes"][0]["agents"] == {"two": "d2"}
    assert found[3]["digests"] == {"two": {"d2": 1}}


def test_a_key_without_the_role_sees_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with Runtime.open(tmp_path, watch=False) as runtime:
            app = FastAPI()
            app.router.routes.extend(
                router(runtime, identify=lambda _: Identity("chat", roles=frozenset(("chat",)))).routes
            )
            transport = httpx2.ASGITransport(app, client=("192.0.2.7", 1))
            async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
                response = await http.get("/agent/fleet")
                assert response.status_code == 403
                assert "lacks the role 'read'" in response.json()["error"]["message"]

    asyncio.run(main())


@pytest.mark.parametrize("query", [{"tenant": "globex"}, {"user": "bob"}])
def test_a_query_does_not_widen_what_a_key_sees(tmp_path: Path, query: dict[str, str]) -> None:
    async def main() -> None:
        async with Runtime.open(tmp_path, watch=False) as runtime:
            await runtime.store.enqueue(request(tenant="globex", user="bob"))
            app = FastAPI()
            app.router.routes.extend(
                router(runtime, identify=lambda _: Identity("acme", tenant="acme", user="ann")).routes
            )
            transport = httpx2.ASGITransport(app, client=("192.0.2.7", 1))
            async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
                assert (await http.get("/agent/fleet", params=query)).json()["waiting"] == []

    asyncio.run(main())
