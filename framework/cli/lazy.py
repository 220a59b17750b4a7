"""Command groups that import the module of a command when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from keyword import iskeyword
from typing import Any

import click

from framework.types.text import did_you_mean


class LazyGroup(click.Group):
    """A group that lists its commands without importing them."""

    def __init__(self, *args: Any, package: str, commands_of: Mapping[str, str], **kwargs: Any) -> None:
        """Set the help of each command by name; the module `package.NAME` defines it as `command`."""
        super().__init__(*args, **kwargs)
        self._package, self._commands_of = package, commands_of

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        """Return the names of all commands, in the order in which a newcomer needs them."""
        return list(self._commands_of)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; raises click.UsageError with the closest names."""
        if cmd_name not in self._commands_of:
            meant = did_you_mean(cmd_name, [*self._commands_of])
            raise click.UsageError(f"there is no command {cmd_name!r}{meant}", ctx)
        module = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command: click.Command = import_module(f"{self._package}.{module}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._commands_of.items()))
