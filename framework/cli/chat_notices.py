"""Reports reloads in a chat, but never into a line that the user types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import click

from framework.cli.location import show_problem
from framework.cli.wrapping import wrapped_line
from framework.types.events import ConfigRejected, ConfigReloaded
from framework.types.problem import Problem


class ReloadNotices:
    """Prints what a reload changed, at once or when the user has finished a line."""

    def __init__(self) -> None:
        self._held: list[ConfigReloaded | ConfigRejected] | None = None
        self._known: frozenset[str] = frozenset()
        """The problems of the last reload, which the next one does not repeat."""
        self._warnings: frozenset[str] = frozenset()
        """The warnings that were shown for valid files. They are not repeated."""
        self._generation = 1

    def know(self, problems: Iterable[Problem], generation: int = 1) -> None:
        """Do not report these problems of the live generation, as long as they last."""
        self._known = frozenset(map(_identity, problems))
        self._warnings |= frozenset(_identity(problem) for problem in problems if problem.severity == "warning")
        self._generation = generation

    def report(self, event: ConfigReloaded | ConfigRejected) -> None:
        """Print what changed, unless notices are held."""
        if self._held is None:
            self._show(event)
        else:
            self._held.append(event)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold notices while the context is open."""
        held: list[ConfigReloaded | ConfigRejected] = []
        self._held = held
        try:
            yield
        finally:
            self._held = None
            for event in held:
                self._show(event)

    def _show(self, event: ConfigReloaded | ConfigRejected) -> None:
        lines = set[tuple[str, int | None]]()
        for problem in event.problems:
            line = (problem.path, problem.line)
            if _identity(problem) not in self._known | self._warnings and line not in lines:
                hint = f" ({problem.hint})" if problem.hint else ""
                message = f"{problem.message}{hint}"
                show_problem(problem.model_copy(update={"message": message, "excerpt": None, "hint": None}))
                lines.add(line)
        _show_change(event, self._generation)
        if isinstance(event, ConfigReloaded):
            self.know(event.problems, event.generation)
        else:
            self._known, self._generation = frozenset(map(_identity, event.problems)), event.generation


def _identity(problem: Problem) -> str:
    """Return what distinguishes a problem; its line moves with edits above it."""
    return f"{problem.path}: {problem.message}"


def _show_change(event: ConfigReloaded | ConfigRejected, before: int) -> None:
    if isinstance(event, ConfigRejected):
        where = f", in generation {event.generation}" if event.generation != before else ""
        files = ", ".join(sorted({problem.path for problem in event.problems if problem.severity == "error"}))
        stays = f"(the last good version of {files or 'the files'} stays live{where})"
        click.secho(wrapped_line(stays, hanging=1), fg="yellow", err=True)
        return
    parts = [
        f"{name}: {', '.join(names)}" for name in ("added", "changed", "removed") if (names := getattr(event, name))
    ]
    live = f"(generation {event.generation} is live; {'; '.join(parts) or 'nothing changed for agents'})"
    click.secho(wrapped_line(live, hanging=1), dim=True, err=True)
