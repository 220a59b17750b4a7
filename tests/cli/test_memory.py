"""`agentsd memory`: lists, shows and forgets notes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from framework import Runtime
from framework.testing import ScriptedModel, calls
from tests.support.commands import agentsd
from tests.support.projects import agent, write
from tests.support.stored_runs import STORE


def test_notes_are_listed_shown_and_forgotten(tmp_path: Path) -> None:
    settings = f'version: 1\nstore: {{url: "{STORE}"}}\n'
    root = write(
        tmp_path, {"agents.d/a.yaml": agent("a", memory="{scope: user, write: allow}"), "agentsd.yaml": settings}
    )
    said = [("ann", "one"), ("ann", "two \x1b[31m"), ("ben", "three")]

    async def save() -> None:
        turns = [turn for _, text in said for turn in (calls(("memory.save", {"text": text})), "ok")]
        async with Runtime.open(root, models={"scripted": ScriptedModel(*turns)}, store=STORE, watch=False) as runtime:
            for user, _ in said:
                await runtime.run("save", agent="a", user=user)

    def command(*words: str) -> str:
        return agentsd("memory", *words, cwd=root).stdout

    assert "no notes are stored" in command("list")
    assert "no notes are stored" in agentsd("memory", "show", "last", cwd=root).stderr
    asyncio.run(save())
    listed = json.loads(command("list", "--user", "ann", "--json"))
    assert [note["text"] for note in listed] == ["two \x1b[31m", "one"]
    assert "\x1b" not in command("list")
    assert command("show", listed[0]["id"]).startswith("two \\x1b[31m\n  id               note_")
    assert json.loads(command("show", "last", "--json"))["text"] == "three"
    assert [note["user"] for note in json.loads(command("list", "-s", "THREE", "-a", "a", "--json"))] == ["ben"]
    assert command("forget", listed[1]["id"]) == "forgot 1 note\n"
    assert json.loads(command("forget", "--all", "-u", "ann", "--json")) == {"forgotten": 1}
    assert len(json.loads(command("list", "--json"))) == 1
    for words in (
        ("forget",),
        ("forget", "--all"),
        ("forget", "--all", "-u", "ann", "x"),
        ("forget", "x"),
        ("show", "x"),
    ):
        assert agentsd("memory", *words, cwd=root).returncode != 0, words
