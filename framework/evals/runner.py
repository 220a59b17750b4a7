"""Runs the cases beside agents: through a runtime like any other, on a scripted model, with tools that do no harm."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from framework.config.generations.admission import Gate
from framework.config.generations.generation import Generation
from framework.evals.expectations import Check, Evidence, checks
from framework.evals.stubs import sandboxed
from framework.evals.suite import PlacedCase, read_suite
from framework.llm.client import ModelClient, ModelRequest
from framework.llm.providers import OFFLINE
from framework.llm.scripted import ScriptedModel, Turn
from framework.types.case import Case, ScriptedAnswer, to_decision
from framework.types.confirmation_kinds import subject_of
from framework.types.errors import AgentsdError, ModelError
from framework.types.events import Event
from framework.types.messages import ToolCall
from framework.types.plan import PlanDraft
from framework.types.problem import Problem
from framework.types.state import Confirmation, Decision, RunResult


class CaseRun(Protocol):
    """A run in progress, as a case observes it."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """Iterate over the events of the run."""
        ...

    async def result(self) -> RunResult:
        """Wait for the end of the run."""
        ...


class CaseRuntime(Protocol):
    """The part of a runtime that a case uses; the engine implements it."""

    def stream(
        self, message: str, *, agent: str, conversation: str, inputs: Mapping[str, Any]
    ) -> AbstractAsyncContextManager[CaseRun]:
        """Start a run and stream its events."""
        ...

    def resume_stream(self, run_id: str, decisions: Mapping[str, Decision]) -> AbstractAsyncContextManager[CaseRun]:
        """Resume a paused run and stream its events."""
        ...


Launch = Callable[[Generation, Mapping[str, ModelClient]], AbstractAsyncContextManager[CaseRuntime]]
"""Opens a runtime on a generation as it is, with these models, and a store of its own."""

_SCRIPTED = "scripted"
_CONVERSATION = "case"
_MAX_DECISIONS = 50
"""Rounds of decisions in one turn: a plan that is sent back again and again must not go on for ever."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A case that was carried out once."""

    checks: tuple[Check, ...]
    elapsed_ms: float
    failed_calls: int = 0
    """Tool calls that ended in an error."""

    @property
    def passed(self) -> bool:
        """All that was expected came."""
        return all(check.passed for check in self.checks)

    @property
    def failures(self) -> tuple[str, ...]:
        """What did not come, one line each."""
        return tuple(check.message for check in self.checks if not check.passed)


@dataclass(frozen=True, slots=True)
class CaseRunner:
    """Carries out cases, each in a runtime of its own."""

    launch: Launch
    live: str | None = None
    """Ask this model instead of the script."""

    async def attempt(self, placed: PlacedCase, generation: Generation) -> Attempt:
        """Carry out one case; whatever goes wrong in it is a failed check."""
        started = perf_counter()
        if placed.agent not in generation.agents:
            return Attempt((Check("run", False, f"there is no usable agent {placed.agent!r}"),), 0.0)
        case = placed.case
        script = CaseScript(case.model or ())
        evidence = Evidence(offered=tuple(generation.agents[placed.agent].toolset.offered))
        model = self.live or (OFFLINE if case.model is None else _SCRIPTED)
        sandbox = sandboxed(generation, placed.agent, model, case.results)
        async with self.launch(sandbox, {_SCRIPTED: ScriptedModel(script=script.answer)}) as runtime:
            error = await _run_messages(runtime, case, placed.agent, evidence) or script.error
        results = [*checks(case.expect, evidence)]
        if error:
            results.insert(0, Check("run", False, error))
        return Attempt(tuple(results), (perf_counter() - started) * 1000, evidence.failed_calls)


def case_gate(launch: Launch) -> Gate:
    """The gate of `reload.gate: tests`: a candidate's files of cases can be read, and every case passes."""
    bench = CaseRunner(launch)

    async def run_cases(candidate: Generation) -> tuple[Problem, ...]:
        suite = read_suite(candidate)
        problems = list(suite.errors)
        for placed in suite.cases:
            if placed.agent in candidate.agents:  # otherwise the suite says so
                attempt = await bench.attempt(placed, candidate)
                problems.extend([] if attempt.passed else [failed_case_problem(placed, attempt)])
        return tuple(problems)

    return run_cases


def failed_case_problem(placed: PlacedCase, attempt: Attempt) -> Problem:
    """A case that failed, as a finding at its place."""
    return placed.problem(f"the case {placed.case.name!r} fails: {'; '.join(attempt.failures)}", "name")


class CaseScript:
    """The answers of a case's model, one after the other."""

    def __init__(self, answers: Sequence[ScriptedAnswer]) -> None:
        self._answers = answers
        self._requests = 0
        self._calls = 0
        self.error = ""
        """Why the script does not fit what the agent does."""

    def answer(self, request: ModelRequest) -> Turn:
        """The next answer, or the error to raise."""
        self._requests += 1
        if self._requests > len(self._answers):
            return self._fail(f"the script has ended after {len(self._answers)} answers, but the model is asked again")
        answer = self._answers[self._requests - 1]
        if answer.fail is not None:
            return ModelError(answer.fail)
        if request.output is PlanDraft and answer.plan is None:
            return self._fail(f"answer {self._requests} of the script must be a plan: that is what is asked for")
        if request.output is not PlanDraft and answer.plan is not None:
            return self._fail(f"answer {self._requests} of the script is a plan, but none is asked for")
        return answer.plan or self._tool_calls(answer) or answer.say or ""

    def _tool_calls(self, answer: ScriptedAnswer) -> tuple[ToolCall, ...]:
        """Ids count through the script, `c1`, `c2`, …, so that a decision can name its call."""
        first = self._calls + 1
        self._calls += len(answer.tool_calls)
        return tuple(
            ToolCall(id=f"c{number}", tool=requested.call, arguments=requested.arguments)
            for number, requested in enumerate(answer.tool_calls, first)
        )

    def _fail(self, error: str) -> ModelError:
        self.error = self.error or error
        return ModelError(error)


async def _run_messages(runtime: CaseRuntime, case: Case, agent: str, evidence: Evidence) -> str:
    """Say everything there is to say, and decide what is asked.

    Returns:
        Why the case could not be carried out to its end; empty if it could.
    """
    for number, message in enumerate(case.messages, 1):
        try:
            started = runtime.stream(message, agent=agent, conversation=_CONVERSATION, inputs=case.inputs)
            result = await _watch(started, evidence)
            for _ in range(_MAX_DECISIONS):
                if not (decisions := _decisions(case, result.pending)):
                    break
                result = await _watch(runtime.resume_stream(result.run_id, decisions), evidence)
        except AgentsdError as error:
            return error.message
        evidence.add_result(result)
        if result.status == "paused" and number < len(case.messages):
            waiting = ", ".join(confirmation.tool or confirmation.kind for confirmation in result.pending)
            return f"turn {number} still waits for a decision about {waiting}, so turn {number + 1} cannot be said"
    return ""


async def _watch(started: AbstractAsyncContextManager[CaseRun], evidence: Evidence) -> RunResult:
    async with started as stream:
        async for event in stream:
            evidence.observe(event)
        return await stream.result()


def _decisions(case: Case, pending: Sequence[Confirmation]) -> dict[str, Decision]:
    """The case's word on what is asked; what it says nothing about stays open."""
    results = {}
    for confirmation in pending:
        answer = case.decisions.get(confirmation.id) or case.decisions.get(
            subject_of(confirmation.kind, confirmation.tool)
        )
        if answer is not None:
            results[confirmation.id] = to_decision(answer)
    return results
