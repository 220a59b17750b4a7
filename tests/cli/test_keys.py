"""`agentsd keys new`: a key that is shown once, and its entry in agentsd.yaml."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest

from framework.config.api_keys import ApiKey
from framework.config.settings import Settings
from framework.server.identity import access_check
from framework.types.redact import redact
from tests.support.api_keys import request_with
from tests.support.commands import agentsd
from tests.support.projects import write

OPTIONS = [
    *("--name", "web", "--tenant", 'ac"me', "--user", "1", "--agents", "support, billing"),
    *("--roles", "chat,read", "--rate", "60/m", "--max-running", "5"),
]


def test_the_printed_entry_admits_the_printed_key(tmp_path: Path) -> None:
    done = agentsd("keys", "new", *OPTIONS, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    _, key, _, yaml = done.stdout.split("\n\n")
    assert [*tmp_path.iterdir()] == [], "the key is not stored"
    write(tmp_path, {"agentsd.yaml": yaml})
    (entry,) = Settings.load(tmp_path).server.api_keys
    assert isinstance(entry, ApiKey)
    identity = access_check(lambda: (entry,))(request_with({"authorization": f"Bearer {key}"}))
    assert (identity.name, identity.tenant, identity.user) == ("web", 'ac"me', "1")
    assert identity.agents == ("support", "billing")
    assert identity.roles == {"chat", "read"}
    assert (entry.rate, entry.max_running) == ("60/m", 5)
    assert key not in redact(f"it failed with {key}")
    assert key not in yaml


@pytest.mark.parametrize("name", ["0o17", "1e5", "0x1f", "null", "on", "2024-01-01", "12:30", "1_000", "-1", "~"])
def test_a_name_that_looks_like_another_value_is_printed_as_a_text(tmp_path: Path, name: str) -> None:
    done = agentsd("keys", "new", "--name", "web", "--user", name, "--tenant", name, cwd=tmp_path)
    write(tmp_path, {"agentsd.yaml": done.stdout.split("\n\n")[3]})
    (entry,) = Settings.load(tmp_path).server.api_keys
    assert isinstance(entry, ApiKey)
    assert (entry.user, entry.tenant) == (name, name)


def test_each_key_is_new_and_may_only_chat_by_default(tmp_path: Path) -> None:
    shown = [json.loads(agentsd("keys", "new", "--name", "web", "--json", cwd=tmp_path).stdout) for _ in range(2)]
    assert shown[0]["key"] != shown[1]["key"]
    for one in shown:
        digest = sha256(one["key"].encode()).hexdigest()
        assert one["entry"] == {"name": "web", "sha256": digest, "roles": ["chat"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "missing option '--name'"),
        (("--name", "a b"), "--name: must start with A-Za-z0-9"),
        (("--name", "local"), "--name: 'local' is reserved"),
        (("--name", "web", "--roles", "chat,root"), "--roles: must be 'chat', 'decide', 'read' or 'admin'"),
        (("--name", "web", "--roles", ""), "--roles: "),
        (("--name", "web", "--rate", "60"), "--rate: invalid rate: write a number"),
        (("--name", "web", "--max-running", "0"), "--max-running: "),
        (("--name", "web", "--tenant", ""), "--tenant: "),
        (("--name", "web", "--agents", "No Name"), "--agents: "),
    ],
)
def test_an_invalid_option_is_named_and_no_key_is_printed(
    tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    done = agentsd("keys", "new", *options, cwd=tmp_path)
    assert done.returncode != 0
    assert message in done.stderr
    assert done.stdout == ""
