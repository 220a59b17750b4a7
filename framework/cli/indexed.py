"""The help of commands from the index of all commands: no command is imported to print its help."""

from __future__ import annotations

from itertools import takewhile

import click

from framework.cli.command_index import CommandEntry, find_entry, read_index
from framework.cli.lazy import LazyGroup

_HELP_FLAGS = frozenset({"-h", "--help"})


class IndexedRoot(LazyGroup):
    """The `agentsd` command. It prints the help of each command below it from the index."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command to call, or one that prints its help if the arguments ask for that."""
        options = [*takewhile(lambda word: word != "--", args)]
        if _HELP_FLAGS.isdisjoint(options):
            return super().resolve_command(ctx, args)
        path, entry = find_entry(read_index(), options)
        if not path or (entry["commands"] and options[len(path)] not in _HELP_FLAGS):  # an unknown name
            return super().resolve_command(ctx, args)
        return " ".join(path), IndexedHelp(entry), ["--help"]


class IndexedHelp(click.Command):
    """Prints the help of a command as the command itself would."""

    def __init__(self, entry: CommandEntry) -> None:
        """Take the entry of the command."""
        super().__init__(None, help=entry["help"])
        self._entry = entry

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        """Return the words of the usage line."""
        return [*self._entry["usage"]]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Write the options, and the commands of a group."""
        with formatter.section("Options"):
            formatter.write_dl([(flags, text) for flags, text in self._entry["options"]])
        if commands := self._entry["commands"]:
            with formatter.section("Commands"):
                formatter.write_dl([(name, one["summary"]) for name, one in commands.items()])
