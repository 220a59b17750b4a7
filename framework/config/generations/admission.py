"""What may keep a generation from going live as a whole: broken settings, strict mode, and the cases of the gate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from framework.config.generations.generation import Generation
from framework.config.settings import ReloadSettings
from framework.types.problem import Problem

Gate = Callable[[Generation], Awaitable[Sequence[Problem]]]
"""Examines a candidate before it goes live; what it finds keeps the candidate from doing so."""


class Admission:
    """Decides whether a candidate may go live."""

    def __init__(self, settings: ReloadSettings, gate: Gate | None) -> None:
        self._strict = settings.mode == "strict"
        self._gate = gate if settings.gate == "tests" else None

    @property
    def runs_cases(self) -> bool:
        """Whether what goes live depends on the files of cases."""
        return self._gate is not None

    def check_files(self, generation: Generation) -> tuple[Problem, ...]:
        """What is wrong with a candidate, without running a case; empty if it may go live."""
        if generation.rejection:
            return generation.rejection
        return generation.problems if self._strict and generation.errors else ()

    async def check(self, generation: Generation) -> tuple[Problem, ...]:
        """What is wrong with a candidate; empty if it may go live."""
        if unusable := self.check_files(generation):
            return unusable
        return tuple(await self._gate(generation)) if self._gate else ()
