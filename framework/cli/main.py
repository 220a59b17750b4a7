"""`agentsd`: finds the command, loads only its module, and turns errors into one line and an exit code."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from traceback import format_exc
from typing import Any

import click

from framework.cli.lazy import LazyGroup
from framework.telemetry.redact import MaskingFormatter
from framework.types.errors import AgentsdError, ConfigError, RequestError
from framework.types.outcome import EXIT_CONFIG, EXIT_USAGE
from framework.types.redact import redact

COMMANDS = {
    "init": "Put a working starter project into a folder.",
    "check": "Check a project's files: every problem with file, line and what to do.",
    "schema": "Print or write the JSON Schema of the files, for editors.",
    "test": "Run the cases beside the agents, on their scripts or live on a model.",
    "run": "Send one message to an agent.",
    "explain": "Say what an agent is offered, asked about and denied, and by which line.",
    "agents": "List a project's agents, or show one as it is in effect.",
    "tools": "List a project's tools, or call one under an agent's policy.",
    "serve": "Serve a project over HTTP, with its files watched.",
    "config": "Compare two versions of a project; the history of a server, and the way back.",
    "runs": "List runs, show them, decide what they ask, go on with them, replay and export them.",
    "conversations": "List conversations, show, export, import or delete them.",
    "chat": "Talk with an agent; edits of its files go live between messages.",
}


@click.group(
    cls=LazyGroup,
    package="framework.cli",
    commands_of=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="agentsd", message="%(version)s")
@click.option("-v", "--verbose", is_flag=True, help="Show the log: one line a run, one a reload.")
def agentsd(verbose: bool) -> None:
    """Agents are files: run, check and watch them."""
    handler = logging.StreamHandler()
    handler.setFormatter(MaskingFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    # Commands show problems themselves, with the source line.
    logging.getLogger("framework.config.catalog").setLevel(logging.INFO if verbose else logging.CRITICAL)


def main(arguments: list[str] | None = None) -> None:
    """The entry point of the `agentsd` command."""
    arguments = sys.argv[1:] if arguments is None else arguments
    code = _invoke(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    if any(thread.name.startswith("agentsd-tool") and not thread.daemon for thread in threading.enumerate()):
        # A tool that is still busy in a thread was given up by its run; waiting for it here would hang the shell.
        os._exit(code)
    sys.exit(code)


def _invoke(arguments: list[str]) -> int:
    try:
        return int(agentsd.main(arguments, prog_name="agentsd", standalone_mode=False) or 0)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - the reader is gone; nothing to close
        return 1
    except AgentsdError as error:
        return report(error, as_json="--json" in arguments)
    except Exception:  # noqa: BLE001 - a fault of ours is shown whole, but never with a secret
        click.echo(redact(format_exc()), err=True, nl=False)
        return 1


def report(error: AgentsdError, *, as_json: bool) -> int:
    """Print an error; returns its exit code."""
    if as_json:
        body: dict[str, Any] = {"code": error.code, "message": redact(error.message)}
        if isinstance(error, ConfigError):
            body["problems"] = [problem.model_dump(exclude_none=True) for problem in error.problems]
        click.echo(json.dumps({"error": body}, ensure_ascii=False))
    else:
        click.secho("error: ", fg="red", nl=False, err=True)
        click.echo(redact(str(error)), err=True)
    if isinstance(error, ConfigError):
        return EXIT_CONFIG
    return EXIT_USAGE if isinstance(error, RequestError) else 1


if __name__ == "__main__":
    main()
