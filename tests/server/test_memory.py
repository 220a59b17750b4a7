"""`/agent/memory`: which notes a key lists, and which it forgets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from framework.llm.client import ScriptedModel, calls
from framework.store.types import NoteQuery
from tests.support.api_keys import key_entry
from tests.support.projects import agent, write
from tests.support.runs_http import RunClient, client_of

KEYS = {name: f"{name}-key-0123456789" for name in ("all", "ann", "ben", "b", "reader", "other")}


def project(root: Path) -> Path:
    every = ["chat", "read", "admin"]
    entries = [
        key_entry("all", KEYS["all"], tenant="t", roles=every),
        key_entry("ann", KEYS["ann"], tenant="t", user="ann", roles=["chat", "read"]),
        key_entry("ben", KEYS["ben"], tenant="t", user="ben", roles=every),
        key_entry("b", KEYS["b"], tenant="t", agents=["b"], roles=every),
        key_entry("reader", KEYS["reader"], tenant="t", roles=["read"]),
        key_entry("other", KEYS["other"], tenant="u", roles=every),
    ]
    agents = {
        f"agents.d/{name}.yaml": agent(name, memory=f"{{scope: {scope}, write: allow}}")
        for name, scope in (("a", "user"), ("b", "tenant"))
    }
    return write(root, {**agents, "agentsd.yaml": f"server: {{api_keys: {json.dumps(entries)}}}\n"})


def texts(found: dict[str, Sequence[dict[str, str]]]) -> list[str]:
    return [note["text"] for note in found["notes"]]


def test_notes_are_listed_shown_and_forgotten_by_the_keys_that_may(tmp_path: Path) -> None:
    said = [("a", "ann"), ("b", "ann"), ("a", "ben"), ("b", "ben")]
    turns = [turn for name, user in said for turn in (calls(("memory.save", {"text": f"{name} {user}"})), "ok")]

    async def main() -> None:
        async with client_of(project(tmp_path), ScriptedModel(*turns), key=KEYS["all"]) as client:
            key = {name: {"authorization": f"Bearer {key}"} for name, key in KEYS.items()}
            for name, user in said:
                await client.post("chat", {"message": "save", "agent": name, "user": user})
            first = await client.get("memory", params={"limit": 3})
            assert texts(first) == ["b ben", "a ben", "b ann"]
            assert texts(await client.get("memory", params={"cursor": first["next"]})) == ["a ann"]
            assert texts(await client.get("memory", params={"user": "ann", "agent": "a"})) == ["a ann"]
            assert texts(await client.get("memory", params={"q": "BEN", "scope": "tenant"})) == ["b ben"]
            assert (await client.error("GET", "memory", 400, params={"cursor": "x"}))["param"] == "cursor"
            sees = {
                "ann": ["b ann", "a ann"], "b": ["b ben", "b ann"], "reader": ["b ben", "a ben", "b ann", "a ann"],
                "other": [],
            }  # fmt: skip
            for name, expected in sees.items():
                assert texts(await client.get("memory", headers=key[name])) == expected, name
            ids = {note["text"]: note["id"] for note in (await client.get("memory"))["notes"]}
            shown = await client.get(f"memory/{ids['b ann']}", headers=key["ann"])
            assert (shown["scope"], shown["agent"], shown["user"], shown["untrusted"]) == ("tenant", "b", "ann", False)
            await check_refusals(client, key, ids)
            assert await client.delete(f"memory/{ids['a ann']}") == {"forgotten": 1}
            await client.error("DELETE", f"memory/{ids['a ann']}", 404)
            assert await client.delete("memory?user=ben") == {"forgotten": 2}
            assert texts(await client.get("memory")) == ["b ann"]

    asyncio.run(main())


async def check_refusals(client: RunClient, key: dict[str, dict[str, str]], ids: dict[str, str]) -> None:
    """Check that no key sees or deletes notes of others."""
    for name, path in (("ann", "a ben"), ("b", "a ann"), ("other", "a ann"), ("ben", "b ann")):
        for method in ("GET", "DELETE"):
            refused = await client.error(method, f"memory/{ids[path]}", 404, headers=key[name])
            assert refused["code"] == "note_not_found", (name, method)
    await client.error("DELETE", f"memory/{ids['a ann']}", 403, headers=key["reader"])
    await client.error("DELETE", "memory?user=ann", 403, headers=key["ann"])
    await client.error("DELETE", "memory?user=ann", 404, headers=key["ben"])
    await client.error("DELETE", "memory", 400)
    assert await client.serving.runtime.store.notes.list(NoteQuery(limit=1))
