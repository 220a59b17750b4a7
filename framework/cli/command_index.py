"""The generated index of all commands: their help and options, read without importing their modules.

`python -m tests.support.command_index` writes it from the commands, and a test compares the two. This module imports
nothing, so that a completion costs little more than the start of Python and click.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

INDEX_FILE = Path(__file__).with_suffix(".json")
COMPLETION_VARIABLE = "_AGENTSD_COMPLETE"
"""Environment variable that asks for completions: `bash_complete`, `zsh_complete` or `fish_complete`."""


class CommandEntry(TypedDict):
    """A command or a group of commands."""

    summary: str
    """One line for lists of commands."""
    help: str
    """The whole help text."""
    usage: Sequence[str]
    """Words of the usage line, such as `[OPTIONS]` and `RUN`."""
    options: Sequence[tuple[str, str]]
    """Flags with the name of their value, such as `-a, --agent AGENT`, and their help."""
    commands: Mapping[str, CommandEntry]
    """Commands of a group, in the order of its help."""


def read_index() -> CommandEntry:
    """Return the entry of `agentsd` itself, with all commands below it."""
    entry: CommandEntry = json.loads(INDEX_FILE.read_text("utf-8"))
    return entry


def find_entry(entry: CommandEntry, words: Sequence[str]) -> tuple[Sequence[str], CommandEntry]:
    """Return the command that the first words name below an entry: its path and its entry."""
    path: list[str] = []
    for word in words:
        if word not in entry["commands"]:
            break
        entry = entry["commands"][word]
        path.append(word)
    return path, entry
