"""`agentsd config` and `keys`: versions of a project, the generations of a server, and keys for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from secrets import token_urlsafe
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
import yaml
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from framework.cli.location import PROJECT_OPTION, locate, tenant_option, user_option
from framework.cli.project import version_folder
from framework.cli.terminal import print_json
from framework.config.api_keys import KEY_PREFIX, ROLES, ApiKey, text_digest
from framework.config.generations.generation import Candidate, Generation
from framework.config.settings import API_KEY_VARIABLE
from framework.config.yaml.document import BlockDumper, Document
from framework.config.yaml.parse import validation_problems
from framework.engine.runtime.project import Project
from framework.server.schemas import ConfigHistory, LiveConfig, PastConfig
from framework.types.errors import AgentsdError, RequestError
from framework.types.http import server_url
from framework.types.text import visible

T = TypeVar("T", bound=BaseModel)
SECONDS = 60.0
"""Timeout of a request: a rollback sets plugins up."""


class NoServer(AgentsdError):
    """No server answers, or it is not an agentsd server. Start `agentsd serve`, or correct the URL."""

    code = "no_server"


@dataclass(frozen=True, slots=True)
class Remote:
    """A server, by its URL, and the key for it."""

    url: str
    key: SecretStr | None = None

    @classmethod
    def of(cls, url: str | None, key: str | None, project: str) -> Remote:
        """Return the server at `url`, by default that of a project's settings.

        A key of the settings is sent to the server of the settings only.
        """
        shown = SecretStr(key) if key else None
        if url is not None:
            if not _is_url(url):
                raise RequestError(f"not the URL of a server: {url}; write it like http://127.0.0.1:8321")
            return cls(url.rstrip("/"), shown)
        server = locate(project).settings().server
        plain = next((key for key in server.api_keys if isinstance(key, SecretStr)), None)  # of others, only the hash
        return cls(server_url(server.host, server.port), shown or plain)

    def request(self, path: str, reply: type[T], body: dict[str, Any] | None = None) -> T:
        """Send a GET request, or with a body a POST request, and validate the response.

        Raises:
            NoServer: no agentsd server answers, or it fails.
            RequestError: the server rejects the request.
        """
        import httpx2

        method = "GET" if body is None else "POST"
        headers = {"authorization": f"Bearer {self.key.get_secret_value()}"} if self.key else {}
        try:
            # No proxy and no .netrc: the key must only reach the named server.
            with httpx2.Client(trust_env=False, timeout=SECONDS) as client:
                response = client.request(method, self.url + path, json=body, headers=headers)
        except httpx2.TimeoutException:
            raise NoServer(f"the server at {self.url} does not answer") from None
        except httpx2.ConnectError:
            raise NoServer(f"there is no server at {self.url}: start one with `agentsd serve`") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise NoServer(f"{self.url} is not an agentsd server: {type(error).__name__}") from None
        try:
            body = response.json()
            return reply.model_validate(body) if response.is_success else self._refused(response.status_code, body)
        except (ValidationError, ValueError, KeyError, TypeError, RecursionError):
            raise NoServer(f"{self.url} is not an agentsd server: it answered {response.status_code}") from None

    def _refused(self, status: int, body: Any) -> Any:
        message = str(body["error"]["message"])
        if status == HTTPStatus.UNAUTHORIZED:
            what = "wrong key" if self.key else "missing key"
            message = f"{what} for the server at {self.url}: pass it as --key or {API_KEY_VARIABLE}"
        if status < 500:
            raise RequestError(message)
        raise NoServer(f"the server at {self.url} failed: {message}")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0 and text.split() == [text]
    except ValueError:
        return False


C = TypeVar("C", bound=Callable[..., Any])
SHOWN_CHANGES = 3
_STYLES = {"widens": "yellow", "tightens": "green", "neutral": None}


@click.group("config")
def command() -> None:
    """Compare configurations; show the generations of a server, and roll back to one."""


@command.command("diff")
@click.argument("old")
@click.argument("new", required=False)
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the changes as JSON.")
def diff(old: str, new: str | None, project: str, as_json: bool) -> int:
    """Show how the project NEW (default: that of -C) differs from the project OLD: folders, or revisions in git.

    Each change widens, tightens, or is neutral. Exit codes: 0 no differences, 1 differences.
    """
    before, after = _version(old, project), _version(new or project, project)
    candidate = Candidate.of(after, before)
    if as_json:
        print_json([change.model_dump(exclude_none=True) for change in candidate.changes])
    else:
        for change in candidate.changes:
            click.secho(str(change), fg=_STYLES[change.effect])
        if not candidate.changes:
            click.echo("no differences")
    return 1 if candidate.changes else 0


def _version(name: str, project: str) -> Generation:
    """Load a folder, or the project as it is in a revision of git; raises RequestError."""
    with version_folder(name, project) as folder:
        return asyncio.run(Project.read(locate(folder).root)).catalog.current


def _server_options(function: C) -> C:
    """Add the options that select a server."""
    for option in (
        click.option(
            "-C",
            "--project",
            default=".",
            show_default=True,
            metavar="FOLDER",
            help="The project whose settings contain the server's address.",
        ),
        click.option(
            "--key", metavar="KEY", envvar=API_KEY_VARIABLE, show_envvar=True, help="One of the server's keys."
        ),
        click.option(
            "--url",
            metavar="URL",
            help="URL of the server, e.g. http://127.0.0.1:8321. Default: server.host and server.port.",
        ),
    ):
        function = option(function)
    return function


@command.command("history")
@_server_options
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def history(url: str | None, key: str | None, project: str, as_json: bool) -> int:
    """Show the generations that a running server keeps, the live one (*) first."""
    found = Remote.of(url, key, project).request("/agent/config/history", ConfigHistory)
    if as_json:
        print_json(found.model_dump(mode="json", exclude_none=True))
    else:
        _show_history(found)
    return 0


@command.command("rollback")
@click.argument("generation", type=click.IntRange(min=1))
@_server_options
@click.option("--json", "as_json", is_flag=True, help="Print the new live configuration as JSON.")
def rollback(generation: int, url: str | None, key: str | None, project: str, as_json: bool) -> int:
    """Make GENERATION of a running server live again, as a new one. It stays live until the files change again."""
    live = Remote.of(url, key, project).request("/agent/config/rollback", LiveConfig, {"generation": generation})
    if as_json:
        print_json(live.model_dump(mode="json", exclude_none=True))
        return 0
    digest = visible(live.digest)
    click.echo(f"generation {live.generation} is live, with the content of generation {generation} (digest {digest})")
    if live.held:
        click.echo("the files differ from it: they are not loaded until they change again")
    return 0


def _show_history(found: ConfigHistory) -> None:
    rows = [_row(entry) for entry in found.generations]
    widths = [max(len(row[column]) for row in rows) for column in range(4)] if rows else []
    for entry, row in zip(found.generations, rows, strict=True):
        head = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        click.secho(("* " if entry.live else "  ") + head, bold=entry.live, nl=False)
        for number, (text, style) in enumerate(_changes(entry)):
            click.echo(" " * (len(head) + 2) if number else "", nl=False)
            click.secho(f"  {visible(text)}", fg=style)


def _row(entry: PastConfig) -> tuple[str, str, str, str]:
    when = f"{entry.at.astimezone():%Y-%m-%d %H:%M:%S}"
    return str(entry.generation), when, visible(entry.digest), entry.trigger


def _changes(entry: PastConfig) -> Iterator[tuple[str, str | None]]:
    changes = entry.changes
    for change in changes[:SHOWN_CHANGES]:
        yield str(change), _STYLES[change.effect]
    if len(changes) > SHOWN_CHANGES:
        yield f"and {len(changes) - SHOWN_CHANGES} more", None
    if entry.unusable:
        yield f"invalid, last good version stays live: {', '.join(entry.unusable)}", "red"
    elif not changes:
        yield "no change of an agent file", None


_KEY_BYTES = 32


@click.group("keys")
def keys_command() -> None:
    """Create keys of the HTTP server."""


@keys_command.command("new")
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
        print_json({"key": key, "entry": entry})
    else:
        click.echo(f"The key, which is printed only now:\n\n{key}\n\nIts entry in agentsd.yaml:\n")
        shown = {"server": {"api_keys": [entry]}}
        options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "default_flow_style": None}
        click.echo(yaml.dump(shown, Dumper=BlockDumper, **options), nl=False)
    return 0


def _names(text: str | None) -> list[str] | None:
    """Return the names of a comma-separated list."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _problems(details: Iterable[ErrorDetails], entry: dict[str, Any]) -> Iterator[str]:
    for detail in details:
        option = "--" + str(detail["loc"][0]).replace("_", "-")
        for problem in validation_problems([detail], Document(option, b"", entry, {}), ApiKey):
            yield f"{option}: {problem.message}"
