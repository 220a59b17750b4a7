"""Access control of the server, and the redaction of secrets."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from pydantic import SecretStr

from framework.config.overlay import SettingsSource
from framework.config.settings import ServerSettings, Settings
from framework.server.errors import AccessDenied, Unauthenticated
from framework.server.event_stream import MAX_EVENTS, ConfigFeed
from framework.server.identity import FULL_ACCESS, LOCAL, access_check
from framework.server.process import CannotListen, bind_socket
from framework.server.schemas import redact_changes
from framework.types.errors import ConfigError
from framework.types.events import ConfigReloaded
from framework.types.http import is_loopback, server_url
from framework.types.problem import Change, Problem
from tests.support.api_keys import KEY, OTHER, request_with
from tests.support.cases import each
from tests.support.loopback import LOOPBACK
from tests.support.paths import ROOT
from tests.support.projects import agent, write
from tests.support.served import PATIENCE, Served, served

PAGE = "https://app.example.com"
SECRET = "sk-abcdefghijklmnop"
ONE = {"agents.d/one.yaml": agent("one", model="offline")}
ROUTES = [
    ("GET", "/agent/config"),
    ("GET", "/agent/config/history"),
    ("GET", "/agent/config/history/1"),
    ("GET", "/agent/config/files"),
    ("GET", "/agent/config/files/agents.d/one.yaml"),
    ("PUT", "/agent/config/files/agents.d/one.yaml"),
    ("GET", "/agent/config/schema"),
    ("POST", "/agent/config/check"),
    ("POST", "/agent/config/rollback"),
    ("GET", "/agent/events"),
    ("GET", "/agent/agents"),
    ("GET", "/metrics"),
]


def no_keys() -> tuple[SecretStr, ...]:
    return ()


@pytest.mark.parametrize(
    ("client", "headers"),
    [
        ("127.0.0.1", {"host": "127.0.0.1:8321"}),
        ("127.8.9.10", {"host": "127.0.0.1"}),
        ("::1", {"host": "[::1]:8321"}),
        ("127.0.0.1", {"host": "LOCALHOST:8321"}),
        ("127.0.0.1", {"host": "localhost:8321", "origin": "http://localhost:8321"}),
        ("::ffff:127.0.0.1", {"host": "localhost"}),
        ("127.0.0.1", {"host": "localhost", "sec-fetch-site": "same-origin"}),
        ("127.0.0.1", {"host": "localhost", "sec-fetch-site": "none"}),
    ],
)
def test_without_keys_local_programs_have_access(client: str, headers: dict[str, str]) -> None:
    assert access_check(no_keys)(request_with(headers, client)) == LOCAL


@each(
    ("client", "headers", "message"),
    [
        ("192.0.2.1", {"host": "127.0.0.1"}, "requests from other machines"),
        ("localhost.example.com", {"host": "127.0.0.1"}, "requests from other machines"),
        (None, {"host": "127.0.0.1"}, "requests from other machines"),
        ("127.0.0.1", {"host": "evil.example.com:8321"}, "Host header"),
        ("127.0.0.1", {"host": "127.0.0.1.evil.example.com"}, "Host header"),
        ("127.0.0.1", {"host": "localhost.evil.example.com"}, "Host header"),
        ("127.0.0.1", {"host": "0.0.0.0:8321"}, "Host header"),
        ("127.0.0.1", {"host": ""}, "Host header"),
        ("127.0.0.1", {"host": "[::1"}, "Host header"),
        ("127.0.0.1", {"host": "evil.example.com@127.0.0.1"}, "Host header"),
        ("127.0.0.1", {"host": "evil.example.com#@127.0.0.1"}, "Host header"),
        ("127.0.0.1", {}, "Host header"),
        ("127.0.0.1", {"host": "localhost/evil"}, "Host header"),
        ("127.0.0.1", {"host": "localhost#evil"}, "Host header"),
        ("127.0.0.1", {"host": "localhost?evil"}, "Host header"),
        ("127.0.0.1", {"host": "local\thost"}, "Host header"),
        ("127.0.0.1", {"host": "localhost\\evil"}, "Host header"),
        ("127.0.0.1", {"host": "localhost:8321:1"}, "Host header"),
        ("127.0.0.1", {"host": "localhost:8321", "sec-fetch-site": "cross-site"}, "pages of other sites"),
        ("127.0.0.1", {"host": "localhost:8321", "sec-fetch-site": "same-site"}, "pages of other sites"),
        ("127.0.0.1", {"host": "127.0.0.1:8321", "origin": "http://evil.example.com"}, "pages of other sites"),
        ("127.0.0.1", {"host": "127.0.0.1:8321", "origin": "http://127.0.0.1:3000"}, "pages of other sites"),
        ("127.0.0.1", {"host": "127.0.0.1:8321", "origin": "null"}, "pages of other sites"),
    ],
)
def test_without_keys_other_clients_are_refused(client: str | None, headers: dict[str, str], message: str) -> None:
    with pytest.raises(AccessDenied, match=message):
        assert access_check(no_keys)(request_with(headers, client)) == LOCAL


def test_pages_of_origins_in_the_settings_count_as_programs_of_this_machine() -> None:
    check = access_check(no_keys, lambda: (PAGE,))
    page = {"host": "localhost:8321", "origin": PAGE, "sec-fetch-site": "cross-site"}
    assert check(request_with(page)) == LOCAL
    for wrong in ({**page, "origin": f"{PAGE}:8443"}, {**page, "host": "evil.example.com"}):
        with pytest.raises(AccessDenied):
            check(request_with(wrong))
    with pytest.raises(AccessDenied):
        check(request_with(page, "192.0.2.1"))
    with pytest.raises(AccessDenied):
        check(request_with([*page.items(), ("origin", "http://evil.example.com")]))
    with pytest.raises(Unauthenticated):
        access_check(lambda: (SecretStr(KEY),), lambda: (PAGE,))(request_with(page))


@pytest.mark.parametrize(
    ("origin", "problem"),
    [
        ("*", "name each origin"),
        ("null", "a scheme"),
        ("https://a.example.com/", "a scheme"),
        ("a.example.com", "a scheme"),
        ("https://a.example.com:443", "not the default one"),
        ("https://A.example.com", "a scheme"),
    ],
)
def test_an_origin_that_no_browser_sends_is_rejected(origin: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Settings.parse(SettingsSource(f"server: {{cors_origins: ['{origin}']}}".encode()))


def test_scripts_of_origins_in_the_settings_may_call_the_server(tmp_path: Path) -> None:
    settings = f"server: {{cors_origins: ['{PAGE}'], api_keys: [{KEY}]}}\n"
    preflight = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,x-stainless-os",
    }
    with served(write(tmp_path, {**ONE, "agentsd.yaml": settings})) as server:
        allowed = server.request("OPTIONS", "/v1/chat/completions", headers={"origin": PAGE, **preflight})
        other = server.request(
            "OPTIONS", "/v1/chat/completions", headers={"origin": "https://b.example.com", **preflight}
        )
        key = {"authorization": f"Bearer {KEY}"}
        listed = server.request("GET", "/v1/models", headers={"origin": PAGE, **key})
        keyless = server.request("GET", "/v1/models", headers={"origin": PAGE, "authorization": ""})
        plain = server.request("GET", "/v1/models", headers=key)
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "x-stainless-os" in allowed.headers["access-control-allow-headers"]
    assert other.status_code == 400
    assert "access-control-allow-origin" not in other.headers
    assert (listed.status_code, listed.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "x-agentsd-run-id" in listed.headers["access-control-expose-headers"]
    assert (keyless.status_code, keyless.headers["access-control-allow-origin"]) == (401, PAGE)
    assert "access-control-allow-origin" not in plain.headers
    assert "access-control-allow-credentials" not in listed.headers


def test_an_edit_of_the_origins_takes_effect_without_a_restart(tmp_path: Path) -> None:
    other, preflight = "https://b.example.com", {"access-control-request-method": "POST"}

    def allowed(server: Served, origin: str) -> str | None:
        response = server.request("OPTIONS", "/agent/chat", headers={"origin": origin, **preflight})
        return response.headers.get("access-control-allow-origin")

    def edit(origins: list[str]) -> None:
        generation = server.get("/agent/config")["generation"]
        text = f"server: {{cors_origins: {json.dumps(origins)}}}\nlocale: {'en' if origins else 'zh'}\n"
        with server.event_stream() as events:
            write(tmp_path, {"agentsd.yaml": text})
            event = next(events)
        assert (event["generation"], event["problems"]) == (generation + 1, [])

    with served(write(tmp_path, {**ONE, "agentsd.yaml": "locale: en\n"})) as server:
        assert (allowed(server, PAGE), allowed(server, other)) == (None, None)
        edit([PAGE, other])
        assert (allowed(server, PAGE), allowed(server, other)) == (PAGE, other)
        page = {"origin": PAGE, "sec-fetch-site": "cross-site"}
        assert server.request("GET", "/agent/config", headers=page).status_code == 200
        edit([other])
        assert (allowed(server, PAGE), allowed(server, other)) == (None, other)
        assert server.request("GET", "/agent/config", headers=page).status_code == 403
        edit([])
        assert allowed(server, other) is None


@pytest.mark.parametrize("authorization", [f"Bearer {KEY}", f"bearer {OTHER}", f"Bearer  {KEY} "])
def test_with_a_key_access_is_possible_from_anywhere(authorization: str) -> None:
    identify = access_check(lambda: (SecretStr(KEY), SecretStr(OTHER)))
    request = request_with({"authorization": authorization, "host": "agents.example.com"}, "192.0.2.1")
    assert identify(request) == FULL_ACCESS


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", KEY, f"Basic {KEY}", f"Bearer {KEY[:-1]}", f"Bearer {KEY}x", "Bearer \xff", "Bearer é"],
)
def test_with_keys_set_requests_without_one_are_refused_even_locally(authorization: str) -> None:
    with pytest.raises(Unauthenticated):
        access_check(lambda: (SecretStr(KEY),))(request_with({"authorization": authorization, "host": "localhost"}))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.1.2.3"])
def test_loopback_addresses_are_recognized(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.0.2.1", "example.com", "localhost.example.com", "127.0.0.1.nip.io"]
)
def test_other_addresses_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


# --- a real server


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that is reachable from other machines and requires a key."""
    bad, secretive = f"name: [  # {SECRET}\n", agent("secretive", model="offline", description=f"Has {SECRET}.")
    root = write(
        tmp_path_factory.mktemp("locked"), {**ONE, "agents.d/bad.yaml": bad, "agents.d/secretive.yaml": secretive}
    )
    environment = {"AGENTSD_SERVER__API_KEYS": f'["{KEY}", "{OTHER}"]'}
    with served(root, "--host", "0.0.0.0", key=KEY, environment=environment) as found:
        yield found


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("authorization", [None, f"Bearer {KEY}x", f"Basic {KEY}"])
def test_every_route_requires_a_key(locked: Served, method: str, path: str, authorization: str | None) -> None:
    headers = {"authorization": authorization} if authorization else {}
    response = httpx2.request(method, locked.url + path, headers=headers, timeout=PATIENCE, **LOOPBACK)
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert response.json()["error"]["code"] == "unauthenticated"
    assert locked.get("/agent/config")["generation"] == 1


def test_health_and_readiness_need_no_key_and_reveal_no_details(locked: Served) -> None:
    for path in ("/health", "/ready"):
        response = httpx2.get(locked.url + path, timeout=PATIENCE, **LOOPBACK)
        assert response.status_code == 200
        assert "bad.yaml" not in response.text
    assert locked.get("/ready")["problems"][0]["path"] == "agents.d/bad.yaml"


def test_no_response_contains_a_secret(locked: Served) -> None:
    for method, path in ROUTES:
        if path != "/agent/events":
            text = locked.request(method, path).text
            assert not any(secret in text for secret in (KEY, OTHER, SECRET)), path
    assert locked.get("/agent/agents")["agents"][1]["description"] == "Has ***."


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_pages_of_other_sites_are_refused_without_keys(still: Served, method: str, path: str) -> None:
    for headers in (
        {"host": "evil.example.com"},
        {"origin": "http://evil.example.com"},
        {"sec-fetch-site": "cross-site"},
    ):
        response = still.request(method, path, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (403, "access_denied")
    response = still.request("GET", "/ready", headers={"host": "evil.example.com"})
    assert (response.status_code, response.json()["problems"]) == (200, [])


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server without keys."""
    root = write(tmp_path_factory.mktemp("still"), {**ONE, "agents.d/bad.yaml": "name: [\n"})
    with served(root) as found:
        yield found


def test_a_client_behind_a_local_proxy_is_not_local(still: Served) -> None:
    assert still.request("GET", "/agent/config", headers={"x-forwarded-for": "192.0.2.1"}).status_code == 403
    spoofed = {"x-forwarded-for": "127.0.0.1, 192.0.2.1"}
    assert still.request("GET", "/agent/config", headers=spoofed).status_code == 403


def test_addresses_have_the_scheme_that_the_documented_proxy_passes_on(still: Served) -> None:
    assert "proxy_set_header X-Forwarded-Proto $scheme;" in (ROOT / "docs/serving-operations.md").read_text()
    card = still.get("/.well-known/agent-card.json", headers={"x-forwarded-proto": "https"})
    assert [one["url"].partition("://")[0] for one in card["supportedInterfaces"]] == ["https"] * 3


def test_a_removed_key_is_rejected_and_its_streams_end(tmp_path: Path) -> None:
    def settings(key: str) -> str:
        return f"server: {{api_keys: ['{key}']}}\n"

    write(tmp_path, {**ONE, "agentsd.yaml": settings(KEY)})
    with served(tmp_path, key=KEY) as server, server.event_stream() as events:
        write(tmp_path, {"agentsd.yaml": settings(OTHER)})
        assert list(events) == [], "the stream ends without the event"
        assert server.request("GET", "/agent/config").status_code == 401
        server.key = OTHER
        changes = server.get("/agent/config/history")["generations"][0]["changes"]
        assert [(change["key"], change["effect"]) for change in changes] == [("server.api_keys", "widens")]
        assert KEY not in str(changes)
        assert OTHER not in str(changes)
        write(tmp_path, {"agentsd.yaml": "server: {api_keys: [short]}\n"})
        server.key = KEY
        assert server.request("GET", "/agent/config").status_code == 401, "an invalid file grants no access"


def test_a_reachable_server_that_loses_its_keys_accepts_only_local_requests(tmp_path: Path) -> None:
    write(tmp_path, {**ONE, "agentsd.yaml": f"server: {{api_keys: ['{KEY}']}}\n"})
    with served(tmp_path, "--host", "0.0.0.0", key=KEY) as server:
        with server.event_stream() as events:
            write(tmp_path, {"agentsd.yaml": "server: {api_keys: []}\n"})
            next(events)
        server.key = None
        assert server.get("/agent/config")["generation"] == 2
        assert server.request("GET", "/agent/config", headers={"x-forwarded-for": "192.0.2.1"}).status_code == 403


@pytest.mark.parametrize(
    "keys", ["[hunter2]", "['']", "['${NOT_THERE:-}']", "['hunter2 hunter2 hunter2']", "['hunter2-ключ-ключ']", "[1]"]
)
def test_an_invalid_key_is_rejected_and_not_shown(tmp_path: Path, keys: str) -> None:
    write(tmp_path, {"agentsd.yaml": f"server: {{api_keys: {keys}}}\n"})
    with pytest.raises(ConfigError) as caught:
        Settings.load(tmp_path)
    assert "agentsd.yaml:1:" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("keys", [f'["{KEY}"', f'"{KEY}"', KEY, f'{{"a": "{KEY}"}}', '["short-secret"]'])
def test_a_variable_without_valid_keys_is_rejected_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    monkeypatch.setenv("AGENTSD_SERVER__API_KEYS", keys)
    with pytest.raises(ConfigError) as caught:
        Settings.load(tmp_path)
    assert "SERVER" in str(caught.value).upper()
    assert not any(secret in str(caught.value) for secret in (KEY, "short-secret"))


# --- units


def test_values_of_keys_named_like_secrets_are_masked() -> None:
    (change,) = redact_changes([Change(agent="a", key="metadata.api_key", before="x", after="y", effect="neutral")])
    assert (change.before, change.after) == ("***", "***")
    (change,) = redact_changes([Change(agent="a", key="inputs.password.default", after="hunter2", effect="neutral")])
    assert (change.before, change.after) == (None, "***")
    (change,) = redact_changes([Change(agent="a", key="instructions", after="Bearer abcdefghijkl", effect="neutral")])
    assert change.after == "Bearer ***"


def test_a_feed_keeps_the_last_events_and_ends_streams_when_it_closes() -> None:
    async def main() -> None:
        feed = ConfigFeed()
        waiting = asyncio.create_task(feed.wait_after(0))
        await asyncio.sleep(0)
        problem = Problem(path="a", message="api_key: hunter2hunter2")
        for number in range(MAX_EVENTS + 5):
            feed.add(ConfigReloaded(generation=number + 1, digest="d", problems=(problem,)))
        assert [item.number for item in await waiting] == [*range(6, MAX_EVENTS + 6)], "what is too old is gone"
        kept = await feed.wait_after(MAX_EVENTS)
        assert [item.number for item in kept] == [*range(MAX_EVENTS + 1, MAX_EVENTS + 6)]
        assert "hunter2" not in str(kept)
        assert feed.number_of(feed.id_of(kept[0])) == MAX_EVENTS + 1
        assert feed.number_of(None) == MAX_EVENTS + 5
        for strange in ("", "x", "-", f"{feed.id_of(kept[0])}9999", feed.id_of(kept[0]).replace("-", "-²"), "9" * 5000):
            assert feed.number_of(strange) in {0, MAX_EVENTS + 5}
        waiting = asyncio.create_task(feed.wait_after(MAX_EVENTS + 5))
        await asyncio.sleep(0)
        feed.close()
        assert await waiting == ()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("agents.example.com", "http://agents.example.com:80"),
    ],
)
def test_the_server_url_works_on_this_machine(host: str, url: str) -> None:
    assert server_url(host, 80) == url


def test_an_address_is_bound_once_and_released() -> None:
    with bind_socket(ServerSettings(port=0)) as bound:
        port = bound.getsockname()[1]
        with pytest.raises(CannotListen, match="is in use"), bind_socket(ServerSettings(port=port)):
            pass
    with bind_socket(ServerSettings(port=port)):
        pass


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a" * 200, "256.1.1.1", "192.0.2.1", "..", "é.invalid"])
def test_an_address_of_another_machine_is_reported(host: str) -> None:
    with (
        pytest.raises((ConfigError, CannotListen)) as caught,
        bind_socket(ServerSettings(host=host, api_keys=(SecretStr(KEY),))),
    ):
        pass
    assert host in str(caught.value)
    assert "is not an address of this machine" in str(caught.value)


def test_a_port_that_needs_rights_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    message = "port 80: permission denied; ports below 1024"
    with pytest.raises(CannotListen, match=message), bind_socket(ServerSettings(port=80)):
        pass


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6 here")
def test_other_machines_may_connect_once_keys_are_set() -> None:
    for host in ("0.0.0.0", "::"):
        with pytest.raises(ConfigError, match=r"set server\.api_keys"), bind_socket(ServerSettings(host=host, port=0)):
            pass
        with bind_socket(ServerSettings(host=host, port=0, api_keys=(SecretStr(KEY),))) as bound:
            assert bound.getsockname()[1]
