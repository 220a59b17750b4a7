"""The location a command works on: a project folder, one agent file, or one agent file of a project."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from framework.cli.terminal import escape_controls, say, wrapped_line
from framework.config.overlay import SETTINGS_FILE
from framework.config.settings import ENV_FILE_VARIABLE, ReloadSettings, Settings
from framework.config.snapshot import AGENTS
from framework.types.errors import ConfigError, RequestError
from framework.types.problem import Problem

if TYPE_CHECKING:
    from framework.config.generations.generation import Generation


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
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{file} cannot be read: {reason}") from None
    for name, value in values.items():
        if value is not None:
            os.environ.setdefault(name, value)


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
