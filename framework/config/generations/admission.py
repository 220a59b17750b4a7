"""Decides whether a candidate may be published: settings errors, strict mode, and the gate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from framework.config.generations.generation import Generation
from framework.config.settings import ReloadSettings
from framework.types.problem import Problem

Gate = Callable[[Generation], Awaitable[Sequence[Problem]]]
"""Checks a candidate, for instance by running test cases. Returned problems reject it."""


class Admission:
    """Decides whether a candidate may be published."""

    def __init__(self, settings: ReloadSettings, gate: Gate | None, *, gate_start: bool = True) -> None:
        """Create the checks.

        Args:
            settings: whether they are strict, and use the gate.
            gate: the gate.
            gate_start: use it for the files at the start, too.
        """
        self._gate_start = gate_start
        self._strict = settings.mode == "strict"
        self._gate = gate if settings.gate == "tests" else None

    @property
    def runs_cases(self) -> bool:
        """Return whether candidates must pass the gate, which depends on test case files."""
        return self._gate is not None

    def check_files(self, generation: Generation) -> tuple[Problem, ...]:
        """Return why a candidate is rejected, without running the gate; empty if it is not."""
        if generation.rejection:
            return generation.rejection
        return generation.problems if self._strict and generation.errors else ()

    async def check(self, generation: Generation) -> tuple[Problem, ...]:
        """Return why a candidate is rejected, by its files or by the gate; empty if it may be published."""
        if problems := self.check_files(generation):
            return problems
        is_gated = self._gate_start or generation.number > 1
        return tuple(await self._gate(generation)) if self._gate and is_gated else ()
