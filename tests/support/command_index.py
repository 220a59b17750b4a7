"""The index of all commands, made from the commands: `python -m tests.support.command_index` writes it."""

from __future__ import annotations

import inspect
import json

import click

from framework.cli.completion import INDEX_FILE, CommandEntry
from framework.cli.main import LazyGroup, agentsd


def entry_of(command: click.Command, context: click.Context, summary: str = "") -> CommandEntry:
    """Return the entry of a command, with those below it."""
    options = [param for param in command.get_params(context) if isinstance(param, click.Option)]
    records = [option.get_help_record(context) for option in options]
    return {
        "summary": summary or command.get_short_help_str(1000),
        "help": inspect.cleandoc(command.help or ""),
        "usage": command.collect_usage_pieces(context),
        "options": [record for record in records if record is not None],
        "commands": _commands(command, context) if isinstance(command, click.Group) else {},
    }


def _commands(group: click.Group, context: click.Context) -> dict[str, CommandEntry]:
    summaries = group._commands_of if isinstance(group, LazyGroup) else {}
    entries = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, info_name=name, parent=context)
        entries[name] = entry_of(command, below, summaries.get(name, ""))
    return entries


def index_text() -> str:
    """Return the index as it is written."""
    entry = entry_of(agentsd, click.Context(agentsd, info_name="agentsd", **agentsd.context_settings))
    return json.dumps(entry, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    INDEX_FILE.write_text(index_text(), "utf-8")
