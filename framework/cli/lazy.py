"""Command groups that import the module of a command when it is called."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from itertools import takewhile
from keyword import iskeyword
from types import MappingProxyType
from typing import Any

import click

from framework.cli.command_index import CommandEntry, find_entry, read_index
from framework.cli.terminal import draws, raw_stderr
from framework.types.text import did_you_mean

SLOW = ("chat", "run")
"""Commands that import the engine, and then show what they do on a terminal: it must not be blank until then."""


@contextmanager
def _starting() -> Iterator[None]:
    """Show on a terminal that a command starts; the line is erased afterwards."""
    if not draws():
        yield
        return
    click.secho("starting…", dim=True, nl=False, err=True)
    try:
        yield
    finally:
        raw_stderr().write("\r\x1b[2K")


class LazyGroup(click.Group):
    """A group that lists its commands without importing them."""

    def __init__(
        self,
        *args: Any,
        package: str,
        commands_of: Mapping[str, str],
        instead: Mapping[str, str] = MappingProxyType({}),
        **kwargs: Any,
    ) -> None:
        """Create a group.

        Args:
            *args: those of click.Group.
            package: its module NAME defines the command NAME as `command`.
            commands_of: the help of each command by name.
            instead: what to type instead of names that are no commands.
            **kwargs: those of click.Group.
        """
        super().__init__(*args, **kwargs)
        self._package, self._commands_of, self._instead = package, commands_of, instead

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        """Return the names of all commands, in the order in which a newcomer needs them."""
        return list(self._commands_of)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; raises click.UsageError with the closest names."""
        if cmd_name not in self._commands_of:
            known = self._instead.get(cmd_name)
            meant = f"; use {known}" if known else did_you_mean(cmd_name, [*self._commands_of])
            raise click.UsageError(f"there is no command {cmd_name!r}{meant}", ctx)
        module = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        with _starting() if cmd_name in SLOW else nullcontext():
            command: click.Command = import_module(f"{self._package}.{module}").command
        if not gc.isenabled():  # since `entry`; a frozen object is never collected, so freeze before anything is opened
            gc.freeze()
            gc.enable()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._commands_of.items()))


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
