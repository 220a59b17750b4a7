"""The command line, from click."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from examples.reference.markdown import code, prose, table
from framework.cli.main import agentsd

_OPENING = """\
{what}, with their arguments and options. [The command
line](../commands.md) shows how they are used.
Commands on a project also have `-C FOLDER` (`--project FOLDER`) and `--env NAME`.
"""
_SHARED = {"--project", "--env"}
"""Options that the opening explains."""


def commands_page() -> Iterator[str]:
    """Yield the lines of the page on commands without subcommands."""
    yield "# Commands\n"
    yield _OPENING.format(what="All commands without subcommands")
    yield "Commands [with subcommands](commands-groups.md) are on another page. All share their"
    yield "[exit codes](outcomes.md#exit-codes).\n"
    for words, command in all_commands():
        if " " not in words:
            yield from _command(words, command)


def groups_page() -> Iterator[str]:
    """Yield the lines of the page on commands with subcommands, apart from `runs`."""
    yield "# Commands with subcommands\n"
    yield _OPENING.format(what="All commands with subcommands")
    yield "Those of `agentsd runs` are on [another page](commands-runs.md).\n"
    for words, command in all_commands():
        if " " in words and not words.startswith("runs "):
            yield from _command(words, command)


def run_commands_page() -> Iterator[str]:
    """Yield the lines of the page on `agentsd runs`."""
    yield "# Commands for stored runs\n"
    yield _OPENING.format(what="All commands of `agentsd runs`")
    for words, command in all_commands():
        if words.startswith("runs "):
            yield from _command(words, command)


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Yield each command with its words, such as `runs show`, in the order of the help."""
    yield from _below(agentsd, click.Context(agentsd, info_name="agentsd"), ())


def _below(group: click.Group, context: click.Context, words: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        if isinstance(command, click.Group):
            yield from _below(command, click.Context(command, context, info_name=name), (*words, name))
        else:
            yield " ".join((*words, name)), command


def _command(words: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=f"agentsd {words}")
    yield f"## agentsd {words}\n"
    yield f"`{' '.join(command.get_usage(context).removeprefix('Usage: ').split())}`\n"
    yield "\n\n".join(prose(part) for part in re.split(r"\n\s*\n", command.help or "")) + "\n"
    left_out = _SHARED | {"--help"}
    options = [
        one for one in command.get_params(context) if isinstance(one, click.Option) and left_out.isdisjoint(one.opts)
    ]
    if options:
        yield from table(("option", "meaning"), [(_names(one), _meaning(one, context)) for one in options])
        yield ""


def _names(option: click.Option) -> str:
    value = "" if option.is_flag or option.count else f" {option.make_metavar(click.Context(click.Command('')))}"
    names = [*option.opts, *option.secondary_opts]
    return ", ".join(code(f"{name}{value}") for name in names)


def _meaning(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    return record[1] if record else option.help or ""
