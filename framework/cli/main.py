"""`agentsd`: finds a command, imports it when it is called, turns errors into one line and an exit code."""

from __future__ import annotations

import codecs
import gc
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from importlib import import_module
from io import TextIOWrapper
from itertools import takewhile
from traceback import format_exc
from types import MappingProxyType
from typing import Any

import click

from framework.cli.completion import CommandEntry, find_entry, read_index
from framework.cli.terminal import THREAD, protected, say, starting
from framework.telemetry.redact import MaskingFormatter
from framework.types.errors import EXIT_CANCELLED, EXIT_USAGE, AgentsdError, ConfigError, exit_code_of
from framework.types.redact import redact
from framework.types.text import did_you_mean

SLOW = ("chat", "run")
"""Commands that import the engine, and then show what they do on a terminal: it must not be blank until then."""


class LazyGroup(click.Group):
    """A group that lists its commands without importing them."""

    def __init__(
        self,
        *args: Any,
        commands_of: Mapping[str, str],
        modules: Mapping[str, str] = MappingProxyType({}),
        **kwargs: Any,
    ) -> None:
        """Create a group.

        `commands_of` has the help of each command by name, and `modules` has `MODULE:NAME` of each command that is not
        `command` of the module with its name.
        """
        super().__init__(*args, **kwargs)
        self._commands_of, self._modules = commands_of, modules

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        """Return the names of all commands, in the order in which a newcomer needs them."""
        return list(self._commands_of)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        """Import and return a command; None if there is none."""
        if cmd_name not in self._commands_of:
            return None
        module, _, name = self._modules.get(cmd_name, f"{cmd_name}:command").partition(":")
        with starting() if cmd_name in SLOW else nullcontext():
            command: click.Command = getattr(import_module(f"framework.cli.{module}"), name)
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


COMMANDS = {
    "init": "Create a working starter project in a folder.",
    "new": "Add an agent to a project.",
    "check": "Check a project's files: all problems with file, line and fix.",
    "completion": "Print the script with which a shell completes commands and names.",
    "schema": "Print or write the JSON Schema of the files, for editors.",
    "test": "Run the test cases of the agents, on their scripts or live on a model.",
    "run": "Send one message to an agent.",
    "explain": "Show what an agent may do, and which line decides.",
    "agents": "List a project's agents, or show one with all defaults.",
    "templates": "List the prompt templates, or the variables of one.",
    "tools": "List a project's tools, or call one under an agent's policy.",
    "models": "Show what is assumed of a model, and check it.",
    "serve": "Serve a project over HTTP, with its files watched.",
    "worker": "Execute runs that wait in a store, next to other workers.",
    "mcp": "Serve the agents of a project as tools to an MCP client.",
    "acp": "Serve the agents of a project to an editor that speaks ACP.",
    "keys": "Create keys of the HTTP server.",
    "config": "Compare two versions of a project; show and roll back those of a server.",
    "fleet": "Show the processes that share a store, and what waits where and why.",
    "grants": "List and revoke approvals that are remembered.",
    "triggers": "List, run, pause and resume what starts runs by itself.",
    "budgets": "Show how much of the shared budgets is used.",
    "runs": "List, show, decide, resume, cancel, replay and export stored runs.",
    "policy": "Learn rules from what people approved and rejected.",
    "conversations": "List, show, fork, export, import or delete conversations.",
    "memory": "List, show and forget the notes that agents keep.",
    "chat": "Talk with an agent; edits of its files take effect between messages.",
}

MODULES = {
    "new": "init:new_command",
    "worker": "serve:worker_command",
    "templates": "agents:templates_command",
    "explain": "agents:explain_command",
    "fleet": "runs:fleet_command",
    "budgets": "runs:budgets_command",
    "schema": "project:schema_command",
    "mcp": "serve:mcp_command",
    "acp": "serve:acp_command",
    "conversations": "runs:conversations_command",
    "memory": "runs:memory_command",
    "policy": "grants:policy_command",
    "models": "tools:models_command",
    "triggers": "run_control:triggers_command",
    "keys": "config:keys_command",
}
"""`MODULE:NAME` of each command that is not `command` of the module with its name."""
UNDERSTOOD = {"ls": ("agents", "list"), "validate": ("check",), "lint": ("check",), "version": ("--version",)}
"""Commands of other tools that have one meaning here."""
INSTEAD = {
    "approve": "`agentsd runs decide RUN --approve CALL`; `agentsd runs list` shows what waits",
    "decide": "`agentsd runs decide RUN`",
    "resume": "`agentsd runs resume RUN`",
    "logs": "`agentsd runs list`, `agentsd runs show RUN` or `agentsd runs tail RUN`",
    "status": "`agentsd runs list`",
    "start": "`agentsd serve`, or `agentsd chat` in the terminal",
    "create": "`agentsd init FOLDER`, or `agentsd new agent NAME`",
    "list": "`agentsd agents list`, `agentsd tools list` or `agentsd runs list`",
    "install": "pip: `agentsd check` prints which extras are missing",
}
"""Names that are no commands, with what to type instead."""

STREAMS = (("stdin", "r", "replace"), ("stdout", "w", "backslashreplace"), ("stderr", "w", "backslashreplace"))
ABANDONED = ("agentsd-tool", THREAD)
"""Name prefixes of threads that the process does not wait for when it ends."""

STDERR = 2
SHOW_CURSOR = b"\x1b[?25h"
"""Shows the cursor of a terminal, which the tree of a run hides."""


@click.group(
    cls=IndexedRoot, commands_of=COMMANDS, modules=MODULES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="agentsd", prog_name="agentsd", message="%(prog)s %(version)s")
@click.option("-v", "--verbose", is_flag=True, help="Show the log: one line per run and per reload.")
def agentsd(verbose: bool) -> None:
    """Agents are files: run, check and watch them."""
    handler = logging.StreamHandler()
    handler.setFormatter(MaskingFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    # Commands show problems themselves, with the source line.
    logging.getLogger("framework.config.generations.catalog").setLevel(logging.INFO if verbose else logging.CRITICAL)
    logging.getLogger("agentsd.runs").setLevel(logging.INFO if verbose else logging.ERROR)  # and warnings of runs


def main(arguments: list[str] | None = None) -> None:
    """Run the `agentsd` command with these arguments, by default those of the process."""
    arguments = [_decoded(argument) for argument in sys.argv[1:]] if arguments is None else arguments
    earlier = frozenset(threading.enumerate())
    _open_streams()
    signal.signal(signal.SIGTERM, _terminated)
    code = _invoke(arguments)
    with suppress(OSError):  # reported already, or the reader is gone
        sys.stdout.flush()
    if any(thread.name.startswith(ABANDONED) for thread in threading.enumerate() if thread not in earlier):
        # A tool whose run gave up on it, or a prompt that waits for input: waiting here would hang the shell.
        os._exit(code)
    sys.exit(code)


def _decoded(argument: str) -> str:
    """Read an argument as UTF-8 if the locale, such as `LC_ALL=C` in a container, lacks its characters.

    The name of a file stays: in such a locale, no other text opens it.
    """
    try:
        argument.encode()
    except UnicodeEncodeError:
        if os.path.lexists(argument):
            return argument
        return os.fsencode(argument).decode("utf-8", "surrogateescape")
    return argument


def _open_streams() -> None:
    """Replace closed streams, escape characters that the encoding of an output lacks, and read ASCII as UTF-8."""
    for name, mode, errors in STREAMS:
        stream = getattr(sys, name)
        if stream is None:  # takes the free descriptor, so that no database gets the number of standard output
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - open until the end
        elif isinstance(stream, TextIOWrapper):
            # An input is never ASCII by intention: `LC_ALL=C` says no more than that nobody set a language.
            as_utf8 = mode == "r" and codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding="utf-8" if as_utf8 else None, errors=errors)
            if mode == "w":
                setattr(sys, name, protected(stream))


def _terminated(number: int, frame: object) -> None:  # noqa: ARG001 - as signal handlers are called
    """Show the cursor again, and end like a killed process: runs are stored and can be resumed."""
    if os.isatty(STDERR):  # `sys.stderr` is replaced while a tree is shown
        os.write(STDERR, SHOW_CURSOR)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _invoke(arguments: list[str]) -> int:
    arguments = [*UNDERSTOOD.get(arguments[0], arguments[:1]), *arguments[1:]] if arguments else arguments
    try:
        return int(agentsd.main(arguments, prog_name="agentsd", standalone_mode=False) or 0)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        _report_usage(error)
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        return EXIT_CANCELLED
    except AgentsdError as error:
        return report(error, as_json="--json" in arguments)
    except OSError as error:
        return _report_os_error(error)
    except Exception:  # noqa: BLE001 - an internal error is shown with its traceback, secrets masked
        click.echo(redact(format_exc()), err=True, nl=False)
        return 1


def _report_usage(error: click.ClickException) -> None:
    """Report a mistake in the command line, and how the command is used."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # a group without a command
        _, entry = find_entry(read_index(), error.ctx.command_path.split()[1:])
        click.echo(IndexedHelp(entry).get_help(error.ctx), err=True)
        return
    message = error.format_message()
    if isinstance(error, click.NoSuchCommand) and error.ctx and isinstance(group := error.ctx.command, click.Group):
        name = error.command_name
        known = f"; use {INSTEAD[name]}" if group is agentsd and name in INSTEAD else None
        message = f"there is no command {name!r}{known or did_you_mean(name, group.list_commands(error.ctx))}"
    click.secho("error: ", fg="red", nl=False, err=True)
    say(redact(message[:1].lower() + message[1:]), err=True)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        click.echo(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.", err=True)


def _report_os_error(error: OSError) -> int:
    """Report a file, or the output, that the operating system refuses; return the exit code."""
    if error.filename is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - as what is still held for it is lost
    if not isinstance(error, BrokenPipeError):  # the reader closed it on purpose
        place = "the output" if error.filename is None else error.filename
        with suppress(OSError):
            click.secho("error: ", fg="red", nl=False, err=True)
            say(redact(f"{place}: {error.strerror}"), err=True)
    return 1


def report(error: AgentsdError, *, as_json: bool) -> int:
    """Print an error, and return its exit code."""
    if as_json:
        body: dict[str, Any] = {"code": error.code, "message": redact(error.message)}
        if isinstance(error, ConfigError):
            body["problems"] = [problem.model_dump(exclude_none=True) for problem in error.problems]
        click.echo(json.dumps({"error": body}, ensure_ascii=False))
    else:
        click.secho("error: ", fg="red", nl=False, err=True)
        say(redact(str(error)), err=True)
    return exit_code_of(error)


if __name__ == "__main__":
    main()
