"""Entries of `server.api_keys`: text and objects, their errors, and which of two entries permits more."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from framework.config.agents.diff import diff_settings
from framework.config.api_keys import ApiKey, Rate, narrow_keys, permits_more
from framework.config.settings import ServerSettings, Settings
from framework.types.errors import ConfigError
from tests.support.api_keys import KEY, OTHER, key_entry
from tests.support.cases import cases, each
from tests.support.projects import write

HASH = sha256(KEY.encode()).hexdigest()


def load(root: Path, *entries: Any) -> Settings:
    write(root, {"agentsd.yaml": f"server:\n  api_keys: {json.dumps(entries)}\n"})
    return Settings.load(root)


def api_key(**rights: Any) -> ApiKey:
    return ApiKey.model_validate(key_entry("web", KEY, **rights))


def test_an_entry_is_text_or_an_object_with_a_hash(tmp_path: Path) -> None:
    rights = {"tenant": "acme", "user": "alice", "agents": ["support"], "roles": ["read", "chat", "read"]}
    text, entry = load(
        tmp_path, OTHER, {**key_entry("web", KEY), **rights, "rate": "60/m", "max_running": 10}
    ).server.api_keys
    assert isinstance(text, SecretStr)
    assert isinstance(entry, ApiKey)
    assert (entry.name, entry.tenant, entry.user, entry.agents) == ("web", "acme", "alice", ("support",))
    assert (entry.roles, entry.rate, entry.max_running) == (("chat", "read"), "60/m", 10)
    assert entry.sha256.get_secret_value() == HASH
    assert HASH not in repr(entry)


def test_a_key_may_only_chat_by_default(tmp_path: Path) -> None:
    (entry,) = load(tmp_path, key_entry("web", KEY)).server.api_keys
    assert isinstance(entry, ApiKey)
    assert entry.roles == ("chat",)
    assert (entry.tenant, entry.user, entry.agents, entry.rate, entry.max_running) == (None, None, None, None, None)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "web"}, "the key 'sha256' is missing"),
        ({"sha256": HASH}, "the key 'name' is missing"),
        ({"name": "web", "sha256": "abc"}, "must be the SHA-256 of a key, 64 hexadecimal digits"),
        ({"name": "web", "sha256": KEY}, "create one with `agentsd keys new`"),
        ({"name": "web", "sha256": 5}, "must be text"),
        ({"name": "a b", "sha256": HASH}, "must start with A-Za-z0-9"),
        ({"name": "local", "sha256": HASH}, "'local' is reserved"),
        ({"name": "web", "sha256": HASH, "rate": "60"}, "invalid rate: write a number below 100000"),
        ({"name": "web", "sha256": HASH, "rate": "0/m"}, "invalid rate"),
        ({"name": "web", "sha256": HASH, "rate": "60 / m"}, "invalid rate"),
        ({"name": "web", "sha256": HASH, "max_running": 0}, "must be greater than or equal to 1"),
        ({"name": "web", "sha256": HASH, "roles": []}, "at least 1"),
        ({"name": "web", "sha256": HASH, "roles": ["chatt"]}, "did you mean 'chat'?"),
        ({"name": "web", "sha256": HASH, "roles": "chat"}, "must be a list"),
        ({"name": "web", "sha256": HASH, "tenant": ""}, "at least 1 character"),
        ({"name": "web", "sha256": HASH, "tenant": "a\u0000b"}, "printable"),
        ({"name": "web", "sha256": HASH, "tenent": "a"}, "did you mean 'tenant'?"),
        ({"name": "web", "sha256": HASH, "agents": ["No Name"]}, "must start with a-z"),
        (5, "must be text"),
        (None, "must be text"),
        (["x"], "must be text"),
    ],
)
def test_an_invalid_entry_is_reported_with_its_line(tmp_path: Path, entry: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, entry)
    assert message in str(caught.value)
    assert "agentsd.yaml:2:" in str(caught.value)
    assert not any(secret in str(caught.value) for secret in (KEY, HASH))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([key_entry("web", KEY), key_entry("web", OTHER)], "entries 1 and 2 have the same name: web"),
        ([key_entry("web", KEY), key_entry("app", KEY)], "entries 1 and 2 are the same key"),
        ([OTHER, KEY, key_entry("web", KEY)], "entries 2 and 3 are the same key"),
    ],
)
def test_two_entries_of_one_name_or_key_are_rejected(tmp_path: Path, entries: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, *entries)


def test_the_same_text_twice_is_one_key(tmp_path: Path) -> None:
    assert len(load(tmp_path, KEY, KEY).server.api_keys) == 2


def test_entries_can_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSD_SERVER__API_KEYS", json.dumps([OTHER, key_entry("web", KEY, tenant="acme")]))
    assert [type(entry) for entry in Settings.load(tmp_path).server.api_keys] == [SecretStr, ApiKey]


@pytest.mark.parametrize(
    ("text", "count", "seconds"), [("60/m", 60, 60), ("1/s", 1, 1), ("1000/h", 1000, 3600), ("5/d", 5, 86400)]
)
def test_a_rate_is_a_number_of_requests_in_a_period(text: str, count: int, seconds: float) -> None:
    assert Rate.parse(text) == Rate(count, seconds)


# --- which of two entries permits more


@each(
    ("before", "after", "more"),
    [
        ({}, {}, False),
        ({}, {"roles": ["chat", "admin"]}, True),
        ({"roles": ["chat", "admin"]}, {"roles": ["chat"]}, False),
        ({"agents": ["a"]}, {"agents": ["a", "b"]}, True),
        ({"agents": ["a"]}, {}, True),
        ({}, {"agents": ["a"]}, False),
        ({"rate": "60/m"}, {"rate": "61/m"}, True),
        ({"rate": "60/m"}, {}, True),
        ({"rate": "60/m"}, {"rate": "10/m"}, False),
        ({"rate": "1/s"}, {"rate": "59/m"}, False),
        ({"max_running": 1}, {"max_running": 2}, True),
        ({"max_running": 1}, {}, True),
        ({"max_running": 2}, {"max_running": 1}, False),
        ({"tenant": "a"}, {"tenant": "b"}, True),
        ({"tenant": "a"}, {}, True),
        ({}, {"tenant": "a"}, True),
        ({"user": "a"}, {}, True),
    ],
)
def test_an_edit_that_gives_a_key_more_rights_widens(before: Any, after: Any, more: bool) -> None:
    old, new = (api_key(**before),), (api_key(**after),)
    assert permits_more(old, new) is more
    settings = [Settings(server=ServerSettings(api_keys=keys)) for keys in (old, new)]
    effects = [change.effect for change in diff_settings(settings[0], settings[1])]
    assert effects == ([] if old == new else ["widens" if more else "tightens"])


def test_text_permits_more_than_any_object() -> None:
    every = api_key(roles=["chat", "decide", "read", "admin"])
    assert permits_more((every,), (SecretStr(KEY),))
    assert not permits_more((SecretStr(KEY),), (every,))
    assert narrow_keys((SecretStr(KEY),), (every,)) == narrow_keys((every,), (SecretStr(KEY),)) == (every,)


RIGHTS = st.fixed_dictionaries(
    {"roles": st.lists(st.sampled_from(["chat", "decide", "read", "admin"]), min_size=1)},
    optional={
        "tenant": st.sampled_from(["a", "b"]),
        "user": st.sampled_from(["a", "b"]),
        "agents": st.lists(st.sampled_from(["one", "two", "three"]), unique=True),
        "rate": st.sampled_from(["1/s", "59/m", "60/m", "100/h"]),
        "max_running": st.integers(1, 5),
    },
)


@given(one=RIGHTS, other=RIGHTS)
@cases(200)
def test_a_narrowed_key_permits_no_more_than_either_entry(one: Any, other: Any) -> None:
    first, second = api_key(**one), api_key(**other)
    for key in narrow_keys((first,), (second,)):
        assert not permits_more((first,), (key,))
        assert not permits_more((second,), (key,))


def test_changes_of_keys_show_no_hash() -> None:
    old, new = (Settings(server=ServerSettings(api_keys=(api_key(rate=rate),))) for rate in ("1/s", "2/s"))
    (change,) = diff_settings(old, new)
    assert HASH not in str(change)
    assert "web" in str(change)
