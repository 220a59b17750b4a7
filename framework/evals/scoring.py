"""Scores stored runs with what case files expect of all cases, so that a drift is seen before users tell of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from framework.config.agents.toolbox import ExternalTools
from framework.config.generations.generation import Generation
from framework.config.yaml.document import Document
from framework.config.yaml.parse import ParseError, parse
from framework.evals.runner import Check, Evidence, Launch, checks, evaluations, without_router_model
from framework.evals.suite import Judged, default_agent, judge_answer, resolved_model
from framework.llm.client import ModelClient
from framework.telemetry.spans import Evaluation, content_mode
from framework.types.case import CaseFile, Expect
from framework.types.events import read_event
from framework.types.problem import Problem
from framework.types.state import RunResult, RunState
from framework.types.strict_json import DATA_SUFFIX


@dataclass(frozen=True, slots=True)
class Expectations:
    """What a case file expects of all runs of its agent."""

    agent: str
    expect: Expect
    document: Document

    def own_judge(self, generation: Generation) -> Problem | None:
        """Return a warning if the agent's own model is the judge."""
        judge, agent = self.expect.judge, generation.agents.get(self.agent)
        if judge is None or agent is None:
            return None
        if resolved_model(generation, judge.model) != resolved_model(generation, agent.spec.model):
            return None
        message = f"{judge.model} judges its own answers"
        problem = self.document.problem(("expect", "judge", "model"), message, at_key=True)
        return problem.model_copy(update={"severity": "warning"})


@dataclass(frozen=True, slots=True)
class Score:
    """The result of scoring a stored run."""

    run_id: str
    agent: str
    checks: tuple[Check, ...]
    judged: Judged | None
    results: tuple[Evaluation, ...]
    """The same as it is recorded in the run's trace."""

    @property
    def passed(self) -> bool:
        """Whether every check passed. A judge that failed has not passed anything."""
        return all(check.passed for check in self.checks)

    @property
    def failures(self) -> list[str]:
        """Messages of the checks that failed."""
        return [check.message for check in self.checks if not check.passed]

    @property
    def unknown(self) -> bool:
        """Whether only a judge that failed stands between the run and a pass."""
        others = all(check.passed for check in self.checks if check.key != "judge")
        return self.judged is not None and self.judged.is_unknown and others


def expectations(generation: Generation) -> dict[str, Expectations]:
    """Return what the valid case files expect of all cases, by agent. Files without such a key are left out."""
    found: dict[str, Expectations] = {}
    for path, source in generation.cases.items():
        if path.endswith(DATA_SUFFIX) or isinstance(source, Problem):
            continue
        with suppress(ParseError):
            file, document = parse(path, source, CaseFile)
            if file.expect.model_fields_set:
                agent = default_agent(path)
                found[agent] = Expectations(agent, file.expect, document)
    return found


async def score_run(
    expected: Expectations,
    state: RunState,
    result: RunResult,
    events: Sequence[Mapping[str, Any]],
    generation: Generation,
    launch: Launch,
    models: Mapping[str, ModelClient],
) -> Score:
    """Check a stored run, and ask the judge about its answer. Nothing of the run is executed again.

    Args:
        expected: what is expected.
        state: the run, which has ended.
        result: its result.
        events: its events in wire format.
        generation: has the settings and the agent, as they are now.
        launch: opens a runtime for the judge.
        models: clients of models by name.
    """
    agent = generation.agents[expected.agent]
    evidence = Evidence(offered=tuple(agent.toolset.offered), elapsed=state.elapsed_ms / 1000)
    for event in events:
        with suppress(ValueError):  # of a newer version
            evidence.observe(read_event(event))
    evidence.add_result(result)
    found = [*checks(expected.expect, evidence)]
    judged: Judged | None = None
    if (judge := expected.expect.judge) is not None:
        plain = replace(generation, settings=without_router_model(generation.settings), external=ExternalTools())
        question = [*_questions(state)]
        judged = await judge_answer(judge, question, result.output, plain, agent, launch, models)
        found.append(Check("judge", judged.label == "pass", judged.message))
    with_content = content_mode(generation.settings.telemetry.content, os.environ) != "none"
    results = evaluations("run", found, judged, with_content=with_content)
    return Score(state.run_id, state.agent, tuple(found), judged, tuple(results))


def _questions(state: RunState) -> Iterator[str]:
    """Yield what the user asked in a run."""
    yield from (message.description for message in state.messages[:1])
