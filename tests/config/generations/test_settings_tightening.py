"""Restrictions in `agentsd.yaml` take effect although it, or another file of the edit, is invalid."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest
import yaml

from framework import Runtime
from framework.config.api_keys import ApiKey
from framework.config.generations.generation import Generation
from framework.config.generations.reload_effects import RELOAD_EFFECTS, TIGHTENABLE_KEYS
from framework.config.settings import Settings
from framework.config.yaml.parse import get_dotted
from framework.server.errors import Unauthenticated
from framework.server.identity import access_check
from tests.support.api_keys import key_entry, request_with
from tests.support.cases import FACTOR
from tests.support.projects import agent, write

FILE = "agentsd.yaml"
ONE, TWO, THREE = (letter * 20 for letter in "abc")
STRICTER: dict[str, tuple[Any, Any]] = {
    "tools.unprotected": (["a", "b"], ["a"]),
    "tools.write_below": (["a", "b"], ["a"]),
    "tools.http.domains": (["x.com", "y.com"], ["y.com"]),
    "tools.http.methods": (["GET", "POST"], ["GET"]),
    "tools.http.private_networks": (["10.0.0.0/8", "192.168.0.0/16"], ["10.0.0.0/8"]),
    "tools.http.max_redirects": (3, 1),
    "tools.http.max_bytes": (1000, 10),
    "tools.http.timeout": (20.0, 2.0),
    "tools.sandbox.program": ("bubblewrap", "none"),
    "tools.sandbox.read": (["a", "b"], ["a"]),
    "tools.sandbox.write": ("a", None),
    "tools.sandbox.network": (True, False),
    "tools.sandbox.env": (["A", "B"], ["A"]),
    "tools.sandbox.timeout": (30.0, 3.0),
    "tools.sandbox.memory_mb": (1024, 16),
    "tools.sandbox.processes": (64, 2),
    "tools.sandbox.disk_mb": (100, 1),
    "telemetry.content": ("full", "redacted"),
    "telemetry.inbound": ("parent", "ignore"),
    "grants.offer": (["run", "user"], ["run"]),
    "grants.max_ttl": (86_400.0, 3_600.0),
    "grants.never": ([], [{"tool": "pay", "when": {"amount": "> 5"}, "risk": "high"}]),
    "server.api_keys": ([ONE, TWO], [TWO]),
    "server.allow_edit": (True, False),
    "server.cors_origins": (["https://a.example.com", "https://b.example.com"], ["https://b.example.com"]),
    "server.a2a_push_hosts": (["*.example.com", "127.0.0.1:8080"], ["hooks.example.com"]),
}
"""For each setting a value, and a stricter one."""
BROKEN = {
    "in the same file": {},
    "in the same section": {},
    "in an agent's file": {"agents.d/two.yaml": agent("two", model="offline", max_stepz="1")},
}


def broken_settings(keys: Collection[str]) -> list[tuple[str, str]]:
    """Return settings, each with one kind of broken file; with all kinds in `make test-long`."""
    return [*zip(sorted(keys), cycle(BROKEN))] if FACTOR == 1 else [*product(sorted(keys), BROKEN)]


def text(key: str, value: Any, extra: str = "") -> str:
    """Return `agentsd.yaml` with one setting."""
    *above, last = key.split(".")
    data: Any = {last: value}
    for part in reversed(above):
        data = {part: data}
    if extra == "in the same section":
        data.setdefault(key.partition(".")[0], {})["made_up_by_nobody"] = 1
    end = {"in the same file": "locael: en\n", "in an agent's file": "reload: {mode: strict}\n"}.get(extra, "")
    return f"{yaml.safe_dump(data)}{end}"


def edited(root: Path, before: str, after: dict[str, str]) -> tuple[Generation, str]:
    """Return the settings after an edit, and its problems as text."""
    two = {"agents.d/one.yaml": agent("one", model="offline"), "agents.d/two.yaml": agent("two", model="offline")}
    write(root, {**two, FILE: before})

    async def main() -> tuple[Generation, str]:
        async with Runtime.open(root, watch=False) as runtime:
            assert all("sandbox cannot be used" in one.message for one in runtime.catalog.problems)
            write(root, after)
            generation = await runtime.reload()
            problems = runtime.catalog.problems
            assert any(problem.severity == "error" for problem in problems)
            return generation, "\n".join(map(str, problems))

    return asyncio.run(main())


def value(settings: Settings, key: str) -> Any:
    """Return a setting as plain data, including secrets."""
    found = get_dotted(settings.model_dump(), key)
    if isinstance(found, tuple):
        return [item.get_secret_value() if hasattr(item, "get_secret_value") else item for item in found]
    return found


def test_every_hot_setting_can_be_tightened_by_an_invalid_file() -> None:
    assert {key for key, effect in RELOAD_EFFECTS.items() if effect == "hot"} <= {*TIGHTENABLE_KEYS}
    others = {*TIGHTENABLE_KEYS} - {*STRICTER} - {"budgets"}  # named by the project, see below
    assert others == {"tools.base_path"}, "another base path is neither stricter nor wider"


@pytest.mark.parametrize("broken", ["locael: en", "", "  other: {per: day}"])
@pytest.mark.parametrize(
    ("saved", "effective"),
    [
        ("{max_cost_usd: 1, per: day}", (None, 1.0)),
        ("{max_cost_usd: 9, per: day}", (None, 5.0)),
        ("{max_cost_usd: 9, max_total_tokens: 10, per: day}", (10, 5.0)),
        ("{max_cost_usd: 1, per: tenant}", (None, 5.0)),
        ("{max_total_tokens: 10, max_cost_usd: -1, per: day}", (10, 5.0)),
        (None, (None, 5.0)),
    ],
)
def test_only_lower_limits_of_budgets_in_an_invalid_file_take_effect(
    tmp_path: Path, saved: str | None, effective: tuple[int | None, float], broken: str
) -> None:
    before = "budgets:\n  team: {max_cost_usd: 5, per: day}\n"
    lines = ["budgets:", f"  team: {saved}" if saved else "  more: {max_cost_usd: 1, per: day}", broken or "locael: en"]
    generation, _ = edited(tmp_path, before, {FILE: "\n".join(lines) + "\n"})
    (team,) = generation.budgets.values()
    found = generation.settings.budgets["team"]
    assert (found.max_total_tokens, found.max_cost_usd, found.per) == (*effective, ("day",))
    assert team.budget == found
    place = "agentsd.yaml:2"
    assert set(team.places.values()) == {place}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("key", STRICTER)
def test_a_stricter_setting_takes_effect_although_the_edit_is_invalid(tmp_path: Path, key: str, broken: str) -> None:
    wide, strict = STRICTER[key]
    strict_mode = broken if broken == "in an agent's file" else ""
    edit = {FILE: text(key, strict, broken), **BROKEN[broken]}
    live, problems = edited(tmp_path, text(key, wide, strict_mode), edit)

    assert value(live.settings, key) == strict
    assert "only the restrictions in this file are in effect" in problems


@pytest.mark.parametrize(
    ("key", "broken"), broken_settings(STRICTER.keys() - {"tools.write_below", "server.api_keys", "grants.offer"})
)
def test_a_setting_that_is_removed_has_its_default_if_that_is_stricter(tmp_path: Path, key: str, broken: str) -> None:
    default = value(Settings.model_construct(), key)
    http = {
        "grants.max_ttl": 90 * 86_400.0,
        "tools.http.max_redirects": 9,
        "tools.http.max_bytes": 10**7,
        "tools.http.timeout": 60.0,
    }
    sandbox = {"timeout": 60.0, "memory_mb": 4096, "processes": 99, "disk_mb": 999}
    wide = (http | {f"tools.sandbox.{name}": more for name, more in sandbox.items()}).get(key)
    strict_mode = broken if broken == "in an agent's file" else ""
    before = text(key, wide or STRICTER[key][0], strict_mode)
    edit = {FILE: text("telemetry.service_name", "agentsd", broken), **BROKEN[broken]}
    live, _ = edited(tmp_path, before, edit)

    assert value(live.settings, key) in (default, [*default] if isinstance(default, tuple) else default, "none")


@pytest.mark.parametrize(("key", "broken"), broken_settings(STRICTER))
def test_a_wider_setting_waits_and_is_reported(tmp_path: Path, key: str, broken: str) -> None:
    wide, strict = STRICTER[key]
    strict_mode = broken if broken == "in an agent's file" else ""
    edit = {FILE: text(key, wide, broken), **BROKEN[broken]}
    live, problems = edited(tmp_path, text(key, strict, strict_mode), edit)

    assert value(live.settings, key) == strict
    assert f"{key} is NOT in effect as saved" in problems


def test_the_short_form_of_the_sandbox_is_a_restriction_too(tmp_path: Path) -> None:
    before = text("tools.sandbox", {"program": "bubblewrap", "network": True})
    live, _ = edited(tmp_path, before, {FILE: text("tools.sandbox", "none", "in the same file")})
    assert (live.settings.tools.sandbox.program, live.settings.tools.sandbox.network) == ("none", False)


@pytest.mark.parametrize("given", ["model: [", "server: {]"])
def test_a_settings_file_that_is_not_yaml_restricts_nothing_and_is_reported(tmp_path: Path, given: str) -> None:
    live, problems = edited(tmp_path, text("server.api_keys", [ONE, TWO]), {FILE: given})

    assert value(live.settings, "server.api_keys") == [ONE, TWO]
    assert problems.count("the restrictions in this file are NOT in effect") == 1


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("servre: {api_keys: [%s]}\n", "servre"),
        ("server: {api_kyes: [%s]}\n", "server.api_kyes"),
        ("server: [%s]\n", "server"),
        ("server: {api_keys: [%s, short]}\nlocael: en\n", "server.api_keys.1"),
    ],
)
def test_invalid_settings_are_named(tmp_path: Path, file: str, named: str) -> None:
    live, problems = edited(tmp_path, text("server.api_keys", [ONE]), {FILE: file % ONE})

    assert value(live.settings, "server.api_keys") == [ONE]
    assert f"{named} is NOT in effect: it is invalid" in problems
    warnings = [line for line in problems.splitlines() if "NOT in effect" in line]
    assert ONE not in "".join(warnings), "what is written is not shown"


def test_when_an_invalid_file_replaces_all_keys_no_key_is_accepted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edit = {FILE: text("server.api_keys", [TWO, THREE], "in the same file")}
    live, problems = edited(tmp_path, text("server.api_keys", [ONE]), edit)

    identify = access_check(lambda: live.settings.server.api_keys)
    for authorization in (f"Bearer {ONE}", f"Bearer {TWO}", "Bearer ", ""):
        with pytest.raises(Unauthenticated):
            identify(request_with({"authorization": authorization}))
    assert "until then the server accepts no key at all" in problems
    assert "until then the server accepts no key at all" in caplog.text


def test_the_first_keys_are_required_immediately(tmp_path: Path) -> None:
    live, _ = edited(tmp_path, "locale: en\n", {FILE: text("server.api_keys", [ONE], "in the same file")})

    assert value(live.settings, "server.api_keys") == [ONE]


def test_a_setting_from_the_environment_is_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSD_SERVER__API_KEYS", f'["{ONE}", "{TWO}"]')
    monkeypatch.setenv("AGENTSD_TOOLS__HTTP__MAX_BYTES", "500")
    edit = {FILE: f"server: {{api_keys: [{TWO}]}}\ntools: {{http: {{max_bytes: 5, max_redirects: 1}}}}\nlocael: en\n"}
    live, _ = edited(tmp_path, "locale: en\n", edit)

    assert value(live.settings, "server.api_keys") == [ONE, TWO]
    assert (live.settings.tools.http.max_bytes, live.settings.tools.http.max_redirects) == (500, 1)


def key_settings(*entries: Any) -> str:
    return f"{yaml.safe_dump({'server': {'api_keys': list(entries)}})}"


def test_a_key_loses_rights_beside_an_error_and_gains_none(tmp_path: Path) -> None:
    both, chat, other = (
        key_entry("web", ONE, roles=["chat", "admin"], rate="10/m"),
        key_entry("web", ONE, roles=["chat", "read"], rate="5/m"),
        key_entry("new", THREE),
    )
    live, problems = edited(tmp_path, key_settings(both), {FILE: key_settings(chat, other) + "locael: en\n"})

    (key,) = live.settings.server.api_keys
    assert isinstance(key, ApiKey)
    assert (key.roles, key.rate) == (("chat",), "5/m")
    assert "only its restrictions apply" in problems
    assert not any(entry["sha256"] in problems for entry in (both, other))


@pytest.mark.parametrize("change", [{"tenant": "b"}, {"user": "alice"}, {"roles": ["read"]}])
def test_a_key_with_other_data_or_no_common_role_is_refused_until_the_file_is_valid(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    before, after = key_entry("web", ONE, tenant="a"), key_entry("web", ONE, **{"tenant": "a", **change})
    live, problems = edited(tmp_path, key_settings(before), {FILE: key_settings(after) + "locael: en\n"})

    with pytest.raises(Unauthenticated):
        access_check(lambda: live.settings.server.api_keys)(request_with({"authorization": f"Bearer {ONE}"}))
    assert "until then the server accepts no key at all" in problems


def test_a_removed_key_is_refused_although_two_others_have_one_name(tmp_path: Path) -> None:
    before = key_settings(key_entry("web", ONE), key_entry("app", TWO))
    after = key_settings(key_entry("app", TWO), key_entry("app", THREE))
    live, problems = edited(tmp_path, before, {FILE: after})

    assert [key.name for key in live.settings.server.api_keys if isinstance(key, ApiKey)] == ["app"]
    assert "entries 1 and 2 have the same name: app" in problems
    identify = access_check(lambda: live.settings.server.api_keys)
    assert identify(request_with({"authorization": f"Bearer {TWO}"})).name == "app"
    for removed in (ONE, THREE):
        with pytest.raises(Unauthenticated):
            identify(request_with({"authorization": f"Bearer {removed}"}))
