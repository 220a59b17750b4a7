"""Conversations of tenants and users, and queued runs, from the command line."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

from framework.store.store import Store
from tests.support.commands import agentsd
from tests.support.projects import agent, write
from tests.support.queues import begin, end, request


def stored(root: Path) -> Path:
    """Create a project with conversation c1 of the tenants a and b, c2 of tenant a, and a queued run in c2.

    Conversation c3 is one of the users ann and bob.
    """
    settings = "version: 1\nstore: {url: 'sqlite:///state.db'}\n"
    write(root, {"agents.d/one.yaml": agent("one", model="offline"), "agentsd.yaml": settings})

    async def fill(store: Store) -> None:
        for name, tenant in (("c1", "a"), ("c1", "b"), ("c2", "a")):
            await store.enqueue(request(f"{name} of {tenant}", name, tenant=tenant))
        for user in ("ann", "bob"):
            await store.enqueue(request(f"c3 of {user}", "c3", user=user))
        for one in await store.claim(5):
            await end(*await begin(store, one))
        await store.enqueue(request("later", "c2", tenant="a"))
        await store.close()

    async def main() -> None:
        await fill(await Store.open("sqlite:///state.db", root))

    asyncio.run(main())
    return root


def test_the_only_conversation_with_an_id_needs_no_tenant(tmp_path: Path) -> None:
    root = stored(tmp_path)
    shown = agentsd("conversations", "show", "c2", cwd=root).stdout
    assert "you: c2 of a" in shown
    assert "you: later\n  queued" in shown
    exported = agentsd("conversations", "export", "c2", cwd=root)
    assert [message["content"] for message in json.loads(exported.stdout)] == ["c2 of a", "answer to c2 of a"]
    assert "answer to" in agentsd("chat", "-c", "c2", cwd=root).stderr
    deleted = agentsd("conversations", "delete", "c2", cwd=root)
    assert deleted.stdout == "deleted c2 with 2 runs\n"


def test_an_id_of_several_tenants_needs_one(tmp_path: Path) -> None:
    root = stored(tmp_path)
    for command in ("show", "export", "delete"):
        asked = agentsd("conversations", command, "c1", cwd=root)
        assert asked.returncode == 2
        assert "conversation 'c1' exists in 2 tenants (a, b): name one with tenant= or --tenant" in asked.stderr
    shown = agentsd("conversations", "show", "c1", "--tenant", "b", "--json", cwd=root)
    data = json.loads(shown.stdout)
    assert (data["tenant"], [turn["message"] for turn in data["turns"]]) == ("b", ["c1 of b"])
    assert agentsd("conversations", "delete", "c1", "-t", "a", cwd=root).returncode == 0
    left = json.loads(agentsd("conversations", "list", "--json", "-t", "b", cwd=root).stdout)
    assert [(one["id"], one["tenant"]) for one in left] == [("c1", "b")]
    unknown = agentsd("conversations", "show", "c1", "-t", "z", cwd=root)
    assert "there is no conversation 'c1'" in unknown.stderr


def test_an_id_of_several_users_needs_one(tmp_path: Path) -> None:
    root = stored(tmp_path)
    for command in ("show", "export", "delete"):
        asked = agentsd("conversations", command, "c3", cwd=root)
        assert asked.returncode == 2
        assert "conversation 'c3' exists for 2 users (ann, bob): name one with user= or --user" in asked.stderr
    shown = agentsd("conversations", "show", "c3", "--user", "bob", "--json", cwd=root)
    data = json.loads(shown.stdout)
    assert (data["user"], [turn["message"] for turn in data["turns"]]) == ("bob", ["c3 of bob"])
    exported = agentsd("conversations", "export", "c3", "-u", "ann", cwd=root)
    assert json.loads(exported.stdout)[0]["content"] == "c3 of ann"
    assert agentsd("conversations", "delete", "c3", "-u", "ann", cwd=root).returncode == 0
    assert "c3 of bob" in agentsd("conversations", "show", "c3", cwd=root).stdout
    unknown = agentsd("conversations", "show", "c3", "-u", "eve", cwd=root)
    assert "there is no conversation 'c3'" in unknown.stderr


def test_a_conversation_of_one_of_several_users_is_continued_and_its_runs_are_listed(tmp_path: Path) -> None:
    root = stored(tmp_path)
    for command in (["run", "-c", "c3", "more"], ["chat", "-c", "c3"]):
        asked = agentsd(*command, cwd=root)
        assert "conversation 'c3' exists for 2 users (ann, bob): name one with user= or --user" in asked.stderr
    assert agentsd("run", "-c", "c3", "-u", "bob", "in a run", cwd=root).returncode == 0
    chat = agentsd("chat", "-c", "c3", "--user", "bob", cwd=root, stdin="in a chat\n/undo\nanew\n")
    assert "c3 of bob" in chat.stderr
    assert "c3 of ann" not in chat.stderr
    (copy,) = re.findall("continue it: agentsd chat --conversation (.+) --user bob", chat.stderr)
    runs = json.loads(agentsd("runs", "list", "--user", "bob", "--json", cwd=root).stdout)
    assert [(run["message"], run["conversation_id"]) for run in runs if run["conversation_id"] == "c3"] == [
        ("in a chat", "c3"),
        ("in a run", "c3"),
        ("c3 of bob", "c3"),
    ]
    assert {run["user"] for run in runs} == {"bob"}
    assert next(run["message"] for run in runs if run["conversation_id"] == copy) == "anew"
    assert agentsd("runs", "list", "--user", "eve", cwd=root).stdout == "no such runs are stored\n"


def test_a_queued_run_is_listed_shown_and_cancelled(tmp_path: Path) -> None:
    root = stored(tmp_path)
    (run,) = json.loads(agentsd("runs", "list", "--status", "queued", "--json", cwd=root).stdout)
    assert (run["message"], run["conversation_id"], run["status"]) == ("later", "c2", "queued")
    listed = agentsd("runs", "list", "--status", "queued", cwd=root).stdout
    assert listed.split()[1:3] == ["queued", "-"]
    assert agentsd("runs", "list", "--tenant", "b", cwd=root).stdout.count("\n") == 1
    shown = agentsd("runs", "show", "last", cwd=root).stdout
    assert shown.startswith(f"{run['run_id']}  queued\n  conversation c2")
    for command in ("replay", "export"):
        refused = agentsd("runs", command, *(["--as-test"] if command == "export" else []), "last", cwd=root)
        assert (refused.returncode, f"run {run['run_id']} is queued: it has not started" in refused.stderr) == (2, True)
    cancelled = agentsd("runs", "cancel", "last", cwd=root)
    assert (cancelled.returncode, cancelled.stdout) == (0, f"{run['run_id']} is cancelled\n")
