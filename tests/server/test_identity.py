"""Identities: which key a request sends, and what it may see and do."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from starlette.requests import HTTPConnection

from framework import Runtime
from framework.config.api_keys import ROLES, ApiKey, Rate
from framework.server import router
from framework.server.errors import AccessDenied, Unauthenticated, error_body
from framework.server.identity import (
    FULL_ACCESS,
    Identity,
    access_check,
    agent_for,
    check_access,
    identity_of,
    is_current,
    require,
)
from framework.server.process import create_app
from framework.telemetry.metrics import ServerMetrics
from framework.types.errors import AgentNotFound, RequestError
from framework.types.redact import MASK
from tests.support.api_keys import KEY, OTHER, key_entry, request_with
from tests.support.loopback import LOOPBACK
from tests.support.projects import agent, write
from tests.support.served import PATIENCE, Served, served
from tests.support.server_routes import ServerRoute, server_routes

OPEN = {
    "/health",
    "/ready",
    "/",
    "/console/{digest}/{path:path}",
    "/oauth/callback",
    "/hooks/{hook}",
}  # or by signature
AGENTS = {f"agents.d/{name}.yaml": agent(name, model="offline") for name in ("one", "two")}
KEYS = {role: f"{role}-key-0123456789" for role in ROLES}
LIMITED = "limited-key-0123456789"
RATED = "rated-key-0123456789"


def all_routes(tmp_path: Path) -> list[ServerRoute]:
    """Return the routes of `agentsd serve`."""

    async def main() -> list[ServerRoute]:
        async with Runtime.open(tmp_path, watch=False) as runtime:
            return [*server_routes(create_app(runtime, ServerMetrics()).routes)]

    return asyncio.run(main())


def key_check(*entries: dict[str, Any]) -> Any:
    keys = tuple(ApiKey.model_validate(entry) for entry in entries)
    return access_check(lambda: keys)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


# --- which key a request sends


def test_a_key_has_the_rights_of_its_entry() -> None:
    rights: dict[str, Any] = {"tenant": "acme", "user": "alice", "agents": ["one"], "roles": ["chat", "read"]}
    check = key_check(key_entry("web", KEY, **rights, rate="60/m", max_running=3), key_entry("app", OTHER))
    assert check(request_with(bearer(KEY))) == Identity(
        "web", "acme", "alice", ("one",), frozenset(("chat", "read")), Rate(60, 60.0), 3
    )
    assert check(request_with(bearer(OTHER))) == Identity("app", roles=frozenset(("chat",)))


def test_text_has_full_access() -> None:
    keys = (SecretStr(KEY),)
    identity = access_check(lambda: keys)(request_with(bearer(KEY)))
    assert identity == FULL_ACCESS
    assert (identity.roles, identity.tenant, identity.single_user) == (frozenset(ROLES), None, True)


@pytest.mark.parametrize(
    ("headers", "query", "message"),
    [
        ([], "", "missing or invalid key"),
        ([("authorization", f"Bearer {KEY}"), ("authorization", f"Bearer {KEY}")], "", "several Authorization headers"),
        ([("authorization", f"Bearer {KEY}"), ("Authorization", "Bearer x")], "", "several Authorization headers"),
        ([("authorization", f"Bearer {KEY}, Bearer {KEY}")], "", "missing or invalid key"),
        ([("authorization", f"Bearer\t{KEY}")], "", "missing or invalid key"),
        ([("authorization", f"Bearer {KEY}\xa0\xff")], "", "missing or invalid key"),
        ([("authorization", "Bearer " + "\xff" * 60000)], "", "missing or invalid key"),
        ([("x-api-key", KEY)], "", "missing or invalid key"),
        ([], f"api_key={KEY}", "keys in the URL are not accepted"),
        ([], f"access_token={KEY}", "keys in the URL are not accepted"),
        ([("authorization", "Bearer x")], f"key={KEY}", "missing or invalid key"),
    ],
)
def test_other_requests_have_no_identity(headers: list[tuple[str, str]], query: str, message: str) -> None:
    with pytest.raises(Unauthenticated, match=message) as caught:
        key_check(key_entry("web", KEY))(request_with(headers, query=query))
    assert KEY not in str(caught.value)
    assert MASK not in error_body(caught.value)["error"]["message"], "the advice is readable"


def test_a_hash_is_not_a_key() -> None:
    entry = key_entry("web", KEY)
    with pytest.raises(Unauthenticated):
        key_check(entry)(request_with(bearer(entry["sha256"])))


def test_every_key_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bool] = []

    def counted(one: bytes, other: bytes) -> bool:
        compared.append(one == other)
        return compared[-1]

    monkeypatch.setattr("framework.server.identity.compare_digest", counted)
    names = [f"key-{number}-0123456789" for number in range(20)]
    check = key_check(*(key_entry(f"k{number}", name) for number, name in enumerate(names)))
    for name in (names[0], names[10], names[-1]):
        check(request_with(bearer(name)))
    with pytest.raises(Unauthenticated):
        check(request_with(bearer("none")))
    assert len(compared) == 4 * 20


def test_an_identity_is_current_until_the_rights_of_its_key_change() -> None:
    keys = [(ApiKey.model_validate(key_entry("web", KEY, tenant="a")),)]
    request = request_with(bearer(KEY))
    check_access(access_check(lambda: keys[-1]), request)
    assert is_current(request)
    keys.append((ApiKey.model_validate(key_entry("renamed", KEY, tenant="a", rate="1/s")),))
    assert is_current(request)
    keys.append((ApiKey.model_validate(key_entry("web", KEY, tenant="b")),))
    assert not is_current(request)
    keys.append((ApiKey.model_validate(key_entry("web", OTHER, tenant="a")),))
    assert not is_current(request)


def test_a_request_that_no_check_has_admitted_has_no_identity() -> None:
    with pytest.raises(AccessDenied, match="no access check has admitted it"):
        identity_of(request_with({}))


# --- what it may see and do


@pytest.mark.parametrize(
    ("identity", "tenant", "user", "agent", "visible"),
    [
        (Identity("k", tenant="a"), "a", None, None, True),
        (Identity("k", tenant="a"), "a", "alice", None, True),
        (Identity("k", tenant="a"), "b", None, None, False),
        (Identity("k", tenant="a"), None, None, None, False),
        (Identity("k", tenant="a", user="alice"), "a", "alice", None, True),
        (Identity("k", tenant="a", user="alice"), "a", "bob", None, False),
        (Identity("k", tenant="a", user="alice"), "a", None, None, False),
        (Identity("k"), None, "alice", None, True),
        (Identity("k"), "a", None, None, False),
        (Identity("k", agents=("one",)), None, None, "one", True),
        (Identity("k", agents=("one",)), None, None, "two", False),
        (Identity("k", agents=("one",)), None, None, "", False),
        (FULL_ACCESS, "a", "alice", "two", True),
    ],
)
def test_data_is_visible_to_its_tenant_and_user(
    identity: Identity, tenant: str | None, user: str | None, agent: str | None, visible: bool
) -> None:
    assert identity.can_access(tenant=tenant, user=user, agent=agent) is visible


def test_a_fixed_user_is_that_of_each_run() -> None:
    assert Identity("k", user="alice").user_of("bob") == "alice"
    assert Identity("k").user_of("bob") == "bob"
    assert Identity("k").user_of(None) is None


def test_a_limited_key_names_its_agent_unless_it_has_only_one() -> None:
    known = {"one", "two", "three"}
    assert agent_for(Identity("k"), None, known) is None
    assert agent_for(Identity("k"), "nosuch", known) == "nosuch", "the runtime reports it"
    assert agent_for(Identity("k", agents=("one",)), None, known) == "one"
    assert agent_for(Identity("k", agents=("one", "two")), "two", known) == "two"
    with pytest.raises(RequestError, match=r"name one: one, two$"):
        agent_for(Identity("k", agents=("one", "two", "gone")), None, known)
    for agents, requested in ((("one",), "two"), (("one",), "nosuch"), (("gone",), None), ((), "one")):
        with pytest.raises(AgentNotFound) as caught:
            agent_for(Identity("k", agents=agents), requested, known)
        assert not {"two", "three"} & {*caught.value.known}


def test_a_role_is_required_by_name() -> None:
    require(Identity("k", roles=frozenset(("read",))), "read")
    with pytest.raises(AccessDenied, match="'k' lacks the role 'admin'"):
        require(Identity("k", roles=frozenset(("read",))), "admin")
    with pytest.raises(AccessDenied, match="limited to some agents"):
        require(Identity("k", agents=("one",)), "read", all_agents=True)


# --- the routes


def test_every_route_needs_one_role(tmp_path: Path) -> None:
    routes = all_routes(write(tmp_path, AGENTS))
    assert len(routes) > 8
    for route in routes:
        assert len(route.roles) == (0 if route.path in OPEN else 1), route


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with one key for each role, one with full access, and one that is limited to an agent."""
    entries = [key_entry(role, key, roles=[role]) for role, key in KEYS.items()]
    limited = key_entry("limited", LIMITED, agents=["two"], roles=[*ROLES])
    rated = key_entry("rated", RATED, user="ann", tenant="acme", agents=["two"], rate="1000/h", max_running=3)
    settings = f"server: {{api_keys: {json.dumps([*entries, limited, rated, OTHER])}}}\n"
    root = write(tmp_path_factory.mktemp("locked"), {**AGENTS, "agentsd.yaml": settings})
    with served(root, key=OTHER) as found:
        yield found


def send(server: Served, route: ServerRoute, key: str) -> httpx2.Response:
    """Send a request to a route, with made-up ids, and read the status and at most a part of the response."""
    url = server.url + re.sub(r"\{[^}]+\}", "nosuch", route.path)
    with httpx2.stream(route.method, url, headers=bearer(key), timeout=PATIENCE, **LOOPBACK) as response:
        if response.status_code >= 400:
            response.read()
        return response


def test_a_route_is_open_to_its_role_only(locked: Served, tmp_path: Path) -> None:
    for route in all_routes(write(tmp_path, AGENTS)):
        for role, key in KEYS.items():
            response = send(locked, route, key)
            expected = route.path in OPEN or role in route.roles[0].roles
            assert (response.status_code != 403) is expected, (str(route), role, response.status_code)
            assert response.status_code < 500
            if not expected:
                assert response.json()["error"]["code"] == "access_denied"


def test_each_key_learns_its_own_rights(locked: Served) -> None:
    server = {"version": version("agentsd"), "allow_edit": False, "stored": True}
    none = {"user": None, "tenant": None, "agents": None, "limits": {"rate": None, "max_running": None}}
    for role, key in KEYS.items():
        locked.key = key
        assert locked.get("/agent/me") == {**none, "name": role, "roles": [role], "server": server}
    locked.key = OTHER
    assert locked.get("/agent/me") == {**none, "name": "full-access", "roles": [*ROLES], "server": server}
    locked.key = RATED
    rights = {"user": "ann", "tenant": "acme", "agents": ["two"], "limits": {"rate": "1000/h", "max_running": 3}}
    assert locked.get("/agent/me") == {**rights, "name": "rated", "roles": ["chat"], "server": server}
    assert httpx2.get(locked.url + "/agent/me", timeout=PATIENCE, **LOOPBACK).status_code == 401


@pytest.mark.parametrize("text", ["1/s", "60/m", "1000/h", "99999/d"])
def test_a_rate_is_shown_as_it_is_written(text: str) -> None:
    assert str(Rate.parse(text)) == text


def test_a_key_that_is_limited_to_an_agent_sees_no_other(locked: Served, tmp_path: Path) -> None:
    locked.key = LIMITED
    assert [one["name"] for one in locked.get("/agent/agents")["agents"]] == ["two"]
    for route in all_routes(write(tmp_path, AGENTS)):
        if route.path not in OPEN and route.roles[0].all_agents:
            assert send(locked, route, LIMITED).status_code == 403, route
    locked.key = OTHER
    assert [one["name"] for one in locked.get("/agent/agents")["agents"]] == ["one", "two"]


# --- the routes in an app of one's own


def call(app: FastAPI, path: str, headers: dict[str, str]) -> httpx2.Response:
    async def main() -> httpx2.Response:
        transport = httpx2.ASGITransport(app, client=("192.0.2.7", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(main())


def test_an_app_identifies_its_clients_itself(tmp_path: Path) -> None:
    def identify(connection: HTTPConnection) -> Identity:
        match connection.headers.get("x-user"):
            case None:
                raise Unauthenticated("log in first")
            case user:
                return Identity("app", user=user, agents=("one",), roles=frozenset(("read",)))

    async def build() -> FastAPI:
        async with Runtime.open(write(tmp_path, AGENTS), watch=False) as runtime:
            app = FastAPI()
            app.router.routes.extend(router(runtime, identify=identify).routes)
            return app

    app = asyncio.run(build())
    response = call(app, "/agent/agents", {"x-user": "alice"})
    assert [one["name"] for one in response.json()["agents"]] == ["one"]
    assert call(app, "/agent/config", {"x-user": "alice"}).status_code == 403
    refused = call(app, "/agent/agents", {})
    assert (refused.status_code, refused.json()["error"]["message"]) == (401, "log in first")


def test_an_unguarded_router_gives_full_access(tmp_path: Path) -> None:
    async def build() -> FastAPI:
        async with Runtime.open(write(tmp_path, AGENTS), watch=False) as runtime:
            app = FastAPI()
            app.router.routes.extend(router(runtime, guarded=False).routes)
            return app

    assert len(call(asyncio.run(build()), "/agent/config", {}).json()["agents"]) == 2
