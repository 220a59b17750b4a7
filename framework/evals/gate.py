"""The gate of `reload.gate: tests`, without the modules that run test cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from framework.config.generations.generation import Gate, Generation
from framework.types.problem import Problem

if TYPE_CHECKING:
    from framework.evals.runner import Launch


def case_gate(launch: Launch) -> Gate:
    """Return the gate: a candidate's case files must be valid, and every case must pass.

    What runs the cases is imported with the first candidate, because most projects have no gate.
    """

    async def run_cases(candidate: Generation) -> tuple[Problem, ...]:
        from framework.evals.runner import case_problems

        return await case_problems(candidate, launch)

    return run_cases
