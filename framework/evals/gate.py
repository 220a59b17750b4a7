"""The gates of `reload.gate`, without the modules that run test cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from framework.config.generations.generation import Gate, Generation
from framework.config.settings import ComparisonGate
from framework.config.snapshot import AGENTS, PROJECT_FOLDERS
from framework.llm.client import ModelClient
from framework.types.problem import Problem

if TYPE_CHECKING:
    from framework.evals.runner import Launch


def case_gate(launch: Launch, models: Mapping[str, ModelClient]) -> Gate:
    """Return what runs the gates: a candidate's case files must be valid, and each gate must let it pass.

    What runs the cases is imported with the first candidate, because most projects have no gate.

    Args:
        launch: opens a runtime on a generation.
        models: the clients of the program, which stay open.
    """

    async def run_cases(
        candidate: Generation, live: Generation, gates: Sequence[Literal["tests"] | ComparisonGate]
    ) -> tuple[Problem, ...]:
        from framework.evals.comparison import comparison_problems
        from framework.evals.runner import case_problems

        problems = [*_unread_folders(candidate)]
        for gate in gates if not problems else ():
            if isinstance(gate, ComparisonGate):
                problems += await comparison_problems(candidate, live, gate, launch, models)
            else:
                problems += await case_problems(candidate, launch)
        return tuple(dict.fromkeys(problems))

    return run_cases


def _unread_folders(candidate: Generation) -> Iterator[Problem]:
    """Yield the folders of agents that cannot be read: nobody knows which cases are in them."""
    for problem in candidate.errors:
        is_file = problem.path.endswith(PROJECT_FOLDERS[AGENTS])
        if not is_file and (problem.path == AGENTS or problem.path.startswith(AGENTS + "/")):
            yield problem
