"""`agentsd keys`: creates keys of the HTTP server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from secrets import token_urlsafe
from typing import Any

import click
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from framework.cli.options import tenant_option, user_option
from framework.config.api_keys import KEY_PREFIX, ROLES, ApiKey, text_digest
from framework.config.yaml.document import Document
from framework.config.yaml.parse import validation_problems
from framework.types.errors import RequestError

_KEY_BYTES = 32
_QUOTED = ("sha256", "tenant", "user")
"""Values that YAML could read as something else than text, such as a hash that consists of digits."""


@click.group("keys")
def command() -> None:
    """Create keys of the HTTP server."""


@command.command("new")
@click.option("--name", required=True, metavar="NAME", help="Name of the key in logs.")
@tenant_option("Tenant of its runs and conversations. Default: none.")
@user_option("User of its runs and conversations. Default: requests name the user.")
@click.option("--agents", metavar="A,B", help="Agents that it may use. Default: all.")
@click.option("--roles", metavar="A,B", default="chat", show_default=True, help=f"Of {', '.join(ROLES)}.")
@click.option(
    "--rate", metavar="RATE", help="Limit on requests that start or continue a run, such as 60/m. Default: none."
)
@click.option(
    "--max-running", type=int, metavar="N", help="Limit on its runs that are queued or in progress. Default: none."
)
@click.option("--json", "as_json", is_flag=True, help="Print the key and its entry as JSON.")
def new(agents: str | None, roles: str, as_json: bool, **given: Any) -> int:
    """Create a key, and print it with its entry for `server.api_keys` in agentsd.yaml.

    The entry contains the hash of the key only. The key itself is not stored anywhere: it is printed only once.
    """
    key = KEY_PREFIX + token_urlsafe(_KEY_BYTES)
    given |= {"agents": _names(agents), "roles": _names(roles)}
    rights = {name: given[name] for name in ApiKey.model_fields if given.get(name) is not None}
    entry = {"name": given["name"], "sha256": text_digest(key).hex(), **rights}
    try:
        ApiKey.model_validate(entry)
    except ValidationError as error:
        raise RequestError("; ".join(_problems(error.errors(include_url=False), entry))) from None
    if as_json:
        click.echo(json.dumps({"key": key, "entry": entry}, ensure_ascii=False, indent=2))
    else:
        click.echo(f"The key, which is printed only now:\n\n{key}\n\nIts entry in agentsd.yaml:\n")
        click.echo("\n".join(_yaml_lines(entry)))
    return 0


def _names(text: str | None) -> list[str] | None:
    """Return the names of a comma-separated list."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _problems(details: Iterable[ErrorDetails], entry: dict[str, Any]) -> Iterator[str]:
    for detail in details:
        option = "--" + str(detail["loc"][0]).replace("_", "-")
        for problem in validation_problems([detail], Document(option, b"", entry, {}), ApiKey):
            yield f"{option}: {problem.message}"


def _yaml_lines(entry: Mapping[str, Any]) -> Iterator[str]:
    yield "server:"
    yield "  api_keys:"
    for name, value in entry.items():
        if isinstance(value, list):
            text = f"[{', '.join(value)}]"
        elif name in _QUOTED:
            text = json.dumps(value, ensure_ascii=False)
        else:
            text = str(value)
        yield f"    {'- ' if name == 'name' else '  '}{name}: {text}"
