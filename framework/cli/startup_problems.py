"""Shows the problems of a project before its first run, once each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from framework.cli.location import show_problem
from framework.types.errors import ConfigError
from framework.types.events import Event, Warned
from framework.types.problem import Problem

_REPEATED = ("tool_server", "missing_package")


class StartupProblems:
    """The problems that a command has shown, so that the warnings of its runs do not repeat them."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def show(self, problems: Iterable[Problem]) -> None:
        """Print problems on standard error."""
        for problem in problems:
            show_problem(problem)
            self._shown.add(problem.message)

    @contextmanager
    def shown_once(self) -> Iterator[None]:
        """Remove the problems from a ConfigError if all of them have been printed."""
        try:
            yield
        except ConfigError as error:
            if error.problems and all(problem.message in self._shown for problem in error.problems):
                raise ConfigError(error.message) from None
            raise

    def repeats(self, event: Event) -> bool:
        """Return whether an event warns of unavailable tools as a problem or another run did."""
        if not isinstance(event, Warned) or event.code not in _REPEATED:
            return False
        if any(text in event.message for text in self._shown):
            return True
        self._shown.add(event.message)
        return False
