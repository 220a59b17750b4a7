"""Reports reloads in a chat, but never into a line that the user types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import click

from framework.cli.location import show_problem
from framework.types.events import ConfigRejected, ConfigReloaded
from framework.types.problem import Problem


class ReloadNotices:
    """Prints what a reload changed, at once or when the user has finished a line."""

    def __init__(self) -> None:
        self._held: list[ConfigReloaded | ConfigRejected] | None = None
        self._known: frozenset[Problem] = frozenset()
        """The problems of the last reload, which the next one does not repeat."""

    def know(self, problems: Iterable[Problem]) -> None:
        """Do not report these problems, as long as they last."""
        self._known = frozenset(problems)

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
            if problem not in self._known:
                line = (problem.path, problem.line)
                show_problem(problem.model_copy(update={"excerpt": None}) if line in lines else problem)
                lines.add(line)
        self.know(event.problems)
        _show_change(event)


def _show_change(event: ConfigReloaded | ConfigRejected) -> None:
    if isinstance(event, ConfigRejected):
        click.secho("(the edit is invalid; the previous version stays live)", fg="yellow", err=True)
        return
    parts = [
        f"{name}: {', '.join(names)}" for name in ("added", "changed", "removed") if (names := getattr(event, name))
    ]
    click.secho(
        f"(generation {event.generation} is live; {'; '.join(parts) or 'nothing changed for agents'})",
        dim=True,
        err=True,
    )
