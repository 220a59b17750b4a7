"""What a command works on: options that several commands share, projects, files, stored runs and conversations."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import click

from framework.cli.terminal import escape_controls, say, wrapped_line
from framework.config.overlay import ENVIRONMENT_VARIABLE, SETTINGS_FILE
from framework.config.settings import ENV_FILE_VARIABLE, ReloadSettings, Settings
from framework.config.snapshot import AGENTS
from framework.store import open_store
from framework.store.types import Conversation, RunInfo, RunQuery, StoredRun, database_paths
from framework.types.errors import ConfigError, RequestError, RunNotFound
from framework.types.frozen import parse_duration
from framework.types.messages import Message
from framework.types.problem import Problem
from framework.types.state import RunState
from framework.types.text import InputText

if TYPE_CHECKING:
    from framework.config.generations.generation import Generation
    from framework.store.store import Store


_C = TypeVar("_C", bound=Callable[..., Any])
_T = TypeVar("_T")

MODEL_VARIABLE = "AGENTSD_MODEL"
"""Environment variable that replaces every agent's model in `run` and `chat`, as `--model` does."""


def _choose_environment(context: click.Context, _: click.Parameter, name: str | None) -> None:
    """Set `AGENTSD_ENV` until the command ends, for this process and for those that it starts."""
    if name is None:
        return
    before = os.environ.get(ENVIRONMENT_VARIABLE)
    os.environ[ENVIRONMENT_VARIABLE] = name

    def restore() -> None:
        os.environ.pop(ENVIRONMENT_VARIABLE)
        if before is not None:
            os.environ[ENVIRONMENT_VARIABLE] = before

    context.find_root().call_on_close(restore)


def PROJECT_OPTION(function: _C) -> _C:  # noqa: N802 - used like the options beside it
    """Add `-C FOLDER`, and `--env NAME`, which chooses the environment of its settings."""
    environment = click.option(
        "--env",
        metavar="NAME",
        expose_value=False,
        is_eager=True,
        callback=_choose_environment,
        help="Lay agentsd.NAME.yaml over agentsd.yaml, as the variable AGENTSD_ENV does.",
    )
    folder = click.option(
        "-C", "--project", default=".", show_default=True, metavar="FOLDER", help="The project's folder."
    )
    return folder(environment(function))


MODEL_OPTION = click.option(
    "-m",
    "--model",
    metavar="MODEL",
    envvar=MODEL_VARIABLE,
    show_envvar=True,
    help="Use this model instead of the agents' own, e.g. openai/gpt-5.4-mini.",
)


def model_of(given: str | None) -> str | None:
    """Return the model of `--model` or, also from the `.env` file that `locate` has read, of `AGENTSD_MODEL`."""
    return given or os.environ.get(MODEL_VARIABLE)


INPUT_OPTION = click.option(
    "-i", "--input", "inputs", multiple=True, metavar="NAME=VALUE", help="An input of the agent; repeatable."
)
LIMIT_OPTION = click.option(
    "-l", "--limit", "limits", multiple=True, metavar="NAME=VALUE", help="Override a limit, e.g. max_steps=3."
)
COUNT_OPTION = click.option(
    "-n", "--limit", type=click.IntRange(min=1), metavar="N", default=20, show_default=True, help="Maximum number."
)
_OWNER = "The {0} it belongs to. Needed only if several {0}s have this id."


class _Duration(click.ParamType[float]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds of a duration such as `30d`."""
        try:
            return float(parse_duration(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = _Duration()


def tenant_option(about: str = _OWNER.format("tenant")) -> Callable[[_C], _C]:
    """Return the option `--tenant`."""
    return click.option("-t", "--tenant", metavar="TENANT", help=about)


def user_option(about: str = _OWNER.format("user")) -> Callable[[_C], _C]:
    """Return the option `--user`."""
    return click.option("-u", "--user", metavar="USER", help=about)


LOCALE_OPTION = click.option("--locale", metavar="LANGUAGE", help="Language of the prompts, e.g. zh.")


def project_path(function: _C) -> _C:
    """Add `[PATH]` and `-C FOLDER`. The command gets one `path`: PATH in FOLDER, each by default this folder."""

    @wraps(function)
    def with_path(*, path: str | None, project: str, **given: Any) -> Any:
        return function(path=project if path is None else str(Path(project, path)), **given)

    with_argument = click.argument("path", required=False)(with_path)
    return PROJECT_OPTION(with_argument)  # type: ignore[return-value]  # click keeps the function it decorates


def parse_pairs(values: tuple[str, ...]) -> dict[str, Any]:
    """Parse `name=value` options; a value that is valid JSON is decoded."""
    found: dict[str, Any] = {}
    for name, text in pairs(values):
        try:
            found[name] = json.loads(text)
        except json.JSONDecodeError:
            found[name] = text
    return found


def parse_inputs(values: tuple[str, ...]) -> dict[str, Any]:
    """Parse `name=value` options for inputs, whose types depend on the agent: `version=1.0` may be text."""
    return {name: InputText(text) for name, text in pairs(values)}


def pairs(values: Iterable[str], form: str = "") -> Iterator[tuple[str, str]]:
    """Yield the two parts of `name=value` options; raises click.UsageError, which names the form."""
    for value in values:
        name, equals, text = value.partition("=")
        if not equals:
            raise click.UsageError(f"write {form or f'{value}=VALUE'}")
        yield name, text


ENV_FILE = ".env"
"""File with environment variables beside `agentsd.yaml`, such as API keys."""


@dataclass(frozen=True, slots=True)
class Location:
    """The folder or file to open, and the selected file of a project, if any. Nothing is read yet."""

    root: Path
    file: str | None = None
    """Path of an agent file relative to the root."""

    @property
    def folder(self) -> Path:
        """The project folder, or the folder of a single agent file."""
        return self.root if self.root.is_dir() else self.root.parent

    def settings(self) -> Settings:
        """Load the settings of the folder; raises ConfigError if they are invalid."""
        return Settings.load(self.folder)

    def agent(self, generation: Generation) -> str | None:
        """Return the name of the agent that the selected file defines; raises ConfigError or RequestError."""
        if self.file is None:
            return None
        found = next((agent.name for agent in generation.agents.values() if agent.path == self.file), None)
        if found is None:
            if problems := [problem for problem in generation.errors if problem.path == self.file]:
                raise ConfigError(f"{self.file} defines no valid agent", problems)
            raise RequestError(f"{self.file} defines no valid agent: see `agentsd check {self.root / self.file}`")
        return found


def locate(path: str) -> Location:
    """Resolve a path of the command line, and set the variables of the project's `.env` file.

    Raises:
        RequestError: the path does not exist.
        ConfigError: the `.env` file cannot be read.
    """
    location = _resolved(path)
    _read_env_file(location)
    return location


def _read_env_file(location: Location) -> None:
    """Set the variables of the `.env` file in the environment of this process; those that are set already win."""
    named = os.environ.get(ENV_FILE_VARIABLE)
    if named == "":
        return
    file = Path(named) if named else location.folder / ENV_FILE
    is_project = (location.folder / SETTINGS_FILE).exists() or (location.folder / AGENTS).is_dir()
    if named is None and not (is_project and file.is_file()):
        return
    if not file.is_file():
        raise ConfigError(f"there is no file {file}: {ENV_FILE_VARIABLE} names it")
    try:
        values = import_module("dotenv").dotenv_values(file, interpolate=False, encoding="utf-8")
        for name, value in values.items():
            if value is not None:
                os.environ.setdefault(name, value)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8, or contains a zero byte"
        raise ConfigError(f"{file} cannot be read: {reason}") from None


def _resolved(path: str) -> Location:
    given = Path(path)
    if not given.exists():
        raise RequestError(f"no such file or folder: {path}")
    if given.is_dir():
        return Location(given)
    absolute = given.resolve()
    for folder in absolute.parents:
        if folder.name == AGENTS:
            return Location(folder.parent, absolute.relative_to(folder.parent).as_posix())
    return Location(given)


def store_url(location: Location) -> str:
    """Return the URL of a location's store; raises ConfigError if the settings are invalid."""
    settings = location.settings()
    return settings.store.url.get_secret_value()


def lenient_settings(location: Location) -> Settings:
    """Load the settings of a location without strict mode and gate, so that its valid files load.

    Raises:
        ConfigError: the settings themselves are invalid.
    """
    settings = location.settings()
    return settings.model_copy(update={"reload": ReloadSettings()})


def arguments_of(text: str | None) -> dict[str, Any]:
    """Parse tool arguments of the command line; raises RequestError unless they are a JSON object."""
    try:
        found = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise RequestError(f'the arguments are not JSON ({error}); write them like \'{{"path": "a.txt"}}\'') from None
    if not isinstance(found, dict):
        raise RequestError('the arguments are not a JSON object; write them like \'{"path": "a.txt"}\'')
    return found


def show_problem(problem: Problem) -> None:
    """Print a problem on standard error; on a terminal, its message is wrapped between words."""
    place, _, rest = str(problem).partition(": ")
    place = click.style(escape_controls(place), bold=True)
    mark = click.style(": warning: " if problem.severity == "warning" else ": ", fg="yellow")
    if sys.stderr.isatty():
        message, *excerpt = map(escape_controls, rest.split("\n"))
        click.echo("\n".join([wrapped_line(f"{place}{mark}{message}", hanging=2), *excerpt]), err=True)
    else:
        click.echo(f"{place}{mark}", nl=False, err=True)
        say(rest, err=True)


LAST = "last"
RECENT = 200
"""Number of newest runs in which the prefix of an id is looked up."""
LISTED = 3
ID_CHARS = 12
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"))


def has_store(location: Location) -> bool:
    """Return whether a project has a store that lasts: a database file that exists, or a server."""
    url = store_url(location)
    files = database_paths(url, location.folder)
    return not url.startswith("memory:") and (not files or files[0].exists())


@asynccontextmanager
async def open_project_store(location: Location) -> AsyncIterator[Store]:
    """Open the store of a project; raises StoreError."""
    store = await open_store(store_url(location), location.folder)
    try:
        yield store
    finally:
        await store.close()


def in_store(project: str, work: Callable[[Store], Awaitable[_T]]) -> _T:
    """Open the store of a project, and return what `work` returns for it; raises StoreError."""

    async def opened() -> _T:
        async with open_project_store(locate(project)) as store:
            return await work(store)

    return asyncio.run(opened())


async def find_run(store: Store, given: str) -> RunState:
    """Load a run by its id, a prefix of it, or `last`; raises RunNotFound with the candidates."""
    recent = await store.runs(RunQuery(newest_first=True, limit=RECENT))
    if given == LAST and recent:
        return await store.load_run(recent[0].run_id)
    if given not in {info.run_id for info in recent}:
        begun = [info for info in recent if info.run_id.removeprefix("run_").startswith(given.removeprefix("run_"))]
        if len(begun) == 1 and given.removeprefix("run_"):
            return await store.load_run(begun[0].run_id)
        if begun:
            raise RunNotFound(f"{len(begun)} runs begin with {given!r}: {_listed(begun)}")
    try:
        return await store.load_run(given)
    except RunNotFound:
        raise RunNotFound(f"there is no run {given!r}; {_meant(recent)}") from None


async def find_whole_run(store: Store, given: str) -> StoredRun:
    """Load a run, as `find_run` does, with its events and files; raises the errors of `Store.stored_run`."""
    return await store.stored_run(await find_run(store, given))


async def load_files(store: Store, messages: Iterable[Message]) -> Mapping[str, bytes]:
    """Load the files in messages, by digest; those that were deleted are missing. Raises StoreError."""
    digests = {part.digest for message in messages for part in message.media}
    return await store.load_media(digests) if digests else {}


def _meant(recent: Sequence[RunInfo]) -> str:
    return f"the latest: {_listed(recent)}" if recent else "no runs are stored"


def _listed(runs: Sequence[RunInfo]) -> str:
    return ", ".join(f"{info.run_id} ({info.agent}, {ago(info.created_at)})" for info in runs[:LISTED])


def new_conversation() -> str:
    """Return a new id that is short enough to type."""
    return uuid4().hex[:ID_CHARS]


def ago(moment: float) -> str:
    """Format the time since a moment in one unit, such as `3m ago`."""
    passed = max(0.0, time.time() - moment)
    return f"{one_unit(passed)} ago" if passed >= 1 else "now"


def one_unit(seconds: float) -> str:
    """Format a duration in one unit, such as `3m`."""
    return next((f"{seconds / size:.0f}{unit}" for size, unit in _UNITS if seconds >= size), f"{seconds:.0f}s")


def moment(seconds: float) -> str:
    """Format seconds since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def status_of(info: RunInfo) -> str:
    """Return the status of a run; `orphaned` if its process ended before it."""
    return "orphaned" if info.orphaned else info.status


def times_as_text(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a list entry without empty values, times as ISO 8601."""
    known = {key: value for key, value in data.items() if value not in (None, "")}
    return {key: moment(value) if key.endswith("_at") else value for key, value in known.items()}


async def runs_of(store: Store, conversation: Conversation) -> Sequence[RunInfo]:
    """Return the runs of a conversation, oldest first."""
    return await store.runs(RunQuery.of_conversation(conversation))
