"""The location a command works on: a project folder, one agent file, or one agent file of a project."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from framework.cli.screen import escape_controls, say
from framework.config.files.snapshot import AGENTS
from framework.config.settings import ReloadSettings, Settings
from framework.types.errors import ConfigError, RequestError
from framework.types.problem import Problem

if TYPE_CHECKING:  # half a second of imports that commands on the store alone do not need
    from framework.config.generations.generation import Generation


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
    """Resolve a path of the command line; raises RequestError if it does not exist."""
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
    """Print a problem on standard error."""
    place, _, rest = str(problem).partition(": ")
    click.secho(escape_controls(place), bold=True, nl=False, err=True)
    click.secho(": warning: " if problem.severity == "warning" else ": ", fg="yellow", nl=False, err=True)
    say(rest, err=True)
