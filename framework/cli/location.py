"""Where a command works: a project folder, one agent file, or one agent file of a project. Nothing is read yet."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from framework.cli.screen import harmless, say
from framework.config.files.snapshot import AGENTS
from framework.config.settings import ReloadSettings, Settings
from framework.types.errors import RequestError
from framework.types.problem import Problem

if TYPE_CHECKING:  # half a second of imports, which commands that only look at the store do without
    from framework.config.generations.generation import Generation


@dataclass(frozen=True, slots=True)
class Location:
    """What to open, and the one file that is meant, if it is one of a project's."""

    root: Path
    file: str | None = None
    """Path of an agent file relative to the root."""

    @property
    def folder(self) -> Path:
        """The project's, or that in which one agent file stands by itself."""
        return self.root if self.root.is_dir() else self.root.parent

    def settings(self) -> Settings:
        """Those that hold in the folder; raises ConfigError when they cannot be used."""
        return Settings.load(self.folder)

    def agent(self, generation: Generation) -> str | None:
        """The name of the agent that the file holds."""
        if self.file is None:
            return None
        found = next((agent.name for agent in generation.agents.values() if agent.path == self.file), None)
        if found is None:
            raise RequestError(
                f"{self.file} holds no agent that can be used: see `agentsd check {self.root / self.file}`"
            )
        return found


def locate(path: str) -> Location:
    """Find out what a path on the command line means; raises RequestError when nothing is there."""
    given = Path(path)
    if not given.exists():
        raise RequestError(f"there is no {path}")
    if given.is_dir():
        return Location(given)
    absolute = given.resolve()
    for folder in absolute.parents:
        if folder.name == AGENTS:
            return Location(folder.parent, absolute.relative_to(folder.parent).as_posix())
    return Location(given)


def store_url(location: Location) -> str:
    """Where a location's runs and conversations are kept; raises ConfigError when the settings cannot be used."""
    settings = location.settings()
    return settings.store.url.get_secret_value()


def lenient_settings(location: Location) -> Settings:
    """The settings beside what a location names, but so that its files are loaded whatever is wrong with them.

    Raises:
        ConfigError: the settings themselves cannot be used.
    """
    settings = location.settings()
    return settings.model_copy(update={"reload": ReloadSettings()})


def arguments_of(text: str | None) -> dict[str, Any]:
    """Arguments of a tool as written on a command line; raises RequestError unless they are a JSON object."""
    try:
        found = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise RequestError(f'the arguments are not JSON ({error}); write them like \'{{"path": "a.txt"}}\'') from None
    if not isinstance(found, dict):
        raise RequestError('the arguments are not a JSON object; write them like \'{"path": "a.txt"}\'')
    return found


def show_problem(problem: Problem) -> None:
    """Print a problem as people read it."""
    place, _, rest = str(problem).partition(": ")
    click.secho(harmless(place), bold=True, nl=False, err=True)
    click.secho(": warning: " if problem.severity == "warning" else ": ", fg="yellow", nl=False, err=True)
    say(rest, err=True)
