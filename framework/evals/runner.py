"""Runs cases in a real runtime, with a scripted model, and checks what the runs did."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, suppress
from copy import copy
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from itertools import chain, repeat
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from time import perf_counter
from typing import Any, Literal, Protocol

from framework.config.agents.compile import Agent
from framework.config.agents.toolbox import ExternalTools
from framework.config.generations.generation import Generation
from framework.config.settings import Settings
from framework.evals.suite import Judged, JudgeRuntime, PlacedCase, judge_answer, read_suite, without_router_model
from framework.llm.client import ModelClient, ModelRequest, ScriptedModel, Turn
from framework.llm.providers import OFFLINE
from framework.store.store import Store
from framework.store.types import CaseResult, RunInfo
from framework.telemetry import names
from framework.telemetry.spans import Evaluation, content_mode, record_evaluations
from framework.tools.tool import Tool, ToolContext
from framework.types import events
from framework.types.case import Case, Expect, Failure, ScriptedAnswer, to_decision
from framework.types.errors import AgentsdError, ModelError, ToolError
from framework.types.events import Event, read_event
from framework.types.file import File
from framework.types.messages import REFUSED_STATUSES, ToolCall
from framework.types.plan import PlanDraft, PlanStep
from framework.types.problem import Problem
from framework.types.redact import redact
from framework.types.spec import LinearPattern
from framework.types.state import Confirmation, Decision, RunResult, RunState, subject_of
from framework.types.text import one_line

MAX_LINE_CHARS = 160
"""Length of texts in messages and lines of transcripts."""
MAX_FAILURE_CHARS = 500
"""Length of the failure of a case that a store keeps."""
_MAX_LINES = 50


@dataclass(frozen=True, slots=True)
class Check:
    """One expectation, and whether it was met."""

    key: str
    """The key of `expect`, or `run` if the case itself could not be completed."""
    passed: bool
    message: str
    """`expected called [a], got [b]`."""


@dataclass(slots=True)
class Evidence:
    """Observations from the runs of a case, in order, sub-agents included."""

    offered: Sequence[str] = ()
    called: dict[tuple[object, ...], str] = field(default_factory=dict)
    """Tools called, by run, sub-run and call id: a call that resumes after a pause counts once."""
    requested: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    """Every tool that was called, needed a confirmation or was denied, with its arguments."""
    denied: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    failed_calls: int = 0
    steps: int = 0
    cost_usd: float | None = 0.0
    """Cost of all runs; None if that of one is unknown."""
    elapsed: float = 0.0
    """Duration of the case, in seconds."""
    plan: tuple[PlanStep, ...] = ()
    result: RunResult | None = None
    """Result of the last run."""
    transcript: list[str] = field(default_factory=list)
    """What happened, one line each: messages, calls with what became of them, answers."""

    def observe(self, event: Event) -> None:
        """Record an event of a run."""
        line = ""
        match event:
            case events.ToolStarted(run_id=run, path=path, id=call, tool=tool, arguments=arguments, progress=None):
                self.called[run, path, call] = tool
                self.requested.append((tool, arguments))
                line = f"call {tool} {_shown(arguments)}"
            case events.ToolFinished(tool=tool, status=status, result=result, error=error):
                self.failed_calls += status == "error"
                self.denied += [tool] if status in REFUSED_STATUSES else []
                line = f"{status} {tool}: {one_line(error or result, MAX_LINE_CHARS)}"
            case events.ConfirmationRequested(kind=kind, tool=tool, arguments=arguments, reason=reason, rule=rule):
                self.asked.append(subject_of(kind, tool))
                self.requested.append((tool, arguments))
                why = one_line(reason or rule, MAX_LINE_CHARS)
                line = f"asked {subject_of(kind, tool)} {_shown(arguments)}: {why}"
            case events.PlanProposed(steps=steps):
                self.plan = steps
                line = f"plan {', '.join(step.tool or step.id for step in steps)}"
        if line and len(self.transcript) < _MAX_LINES:
            self.transcript.append(line)

    def add_result(self, result: RunResult) -> None:
        """Record the result of a run, with its calls, also those that were not executed."""
        self.result = result
        self.steps += result.steps
        cost = result.usage.cost_usd
        self.cost_usd = None if self.cost_usd is None or cost is None else self.cost_usd + cost
        self.requested.extend((call.tool, call.arguments) for call in result.tool_calls)
        subjects = ", ".join(subject_of(one.kind, one.tool) for one in result.pending)
        waiting = f", waits for a decision on {subjects}" if subjects else ""
        output = f": {one_line(result.output, MAX_LINE_CHARS)}" if result.output else ""
        self.transcript.append(f"{result.status} ({result.finish_reason}{waiting}){output}")

    def fate(self, pattern: str) -> str:
        """Return what became of the calls of a tool: `denied`, `asked` or `called`; empty if there were none."""
        fates = (("denied", self.denied), ("asked", self.asked), ("called", self.called.values()))
        return next((text for text, names in fates if _any_matches(names, pattern)), "")


def checks(expect: Expect, evidence: Evidence) -> Iterator[Check]:
    """Yield a Check for each expectation that the case states."""
    called = [*evidence.called.values()]
    steps = [(step.tool or step.id, step.id) for step in evidence.plan]
    for key, got, meets in (
        ("offered", dict.fromkeys(evidence.offered), _each_matches),
        ("denied", dict.fromkeys(evidence.denied), _each_matches),
        ("asked", dict.fromkeys(evidence.asked), _each_matches),
        ("not_offered", evidence.offered, _none_matches),
        ("not_called", called, _none_matches),
        ("called", called, _in_order),
        ("called_exactly", called, _exactly),
        ("called_in_any_order", called, _covers),
        ("plan", steps, _in_order),
    ):
        if (patterns := getattr(expect, key)) is not None:
            entries = [one if isinstance(one, tuple) else (one,) for one in got]
            yield _list_check(key, meets, patterns, entries, evidence)
    yield from _limit_checks(expect, evidence)
    for tool, arguments in expect.arguments.items():
        yield _arguments_check(tool, arguments, evidence)
    if evidence.result is not None:
        yield from _ending_checks(expect, evidence.result)


Entries = Sequence[tuple[str, ...]]
"""Calls or steps, each with the names that a pattern may match."""


def _list_check(
    key: str, meets: Callable[[Sequence[str], Entries], bool], patterns: Sequence[str], got: Entries, evidence: Evidence
) -> Check:
    """Return the check of a list, in which no pattern means no entry; the message says what became of missing calls."""
    shown = [names[0] for names in got]
    passed = meets(patterns, got) if patterns or key.startswith("not_") else not got
    message = f"expected {key} [{', '.join(patterns)}], got [{one_line(', '.join(shown), MAX_LINE_CHARS)}]"
    missing = () if key in ("offered", "plan") or key.startswith("not_") else patterns
    happened = [(one, evidence.fate(one)) for one in missing if not _any_matches(shown, one)]
    fates = ", ".join(f"{pattern} was {fate}" for pattern, fate in happened if fate)
    return Check(key, passed, f"{message}; {fates}" if fates else message)


def _limit_checks(expect: Expect, evidence: Evidence) -> Iterator[Check]:
    used: Mapping[str, float | None] = {
        "max_steps_used": evidence.steps,
        "max_calls": len(evidence.called),
        "max_cost_usd": evidence.cost_usd,
        "max_time": evidence.elapsed,
    }
    for key, got in used.items():
        if (limit := getattr(expect, key)) is not None:
            unit = "s" if key == "max_time" else ""
            shown = "an unknown cost" if got is None else f"{got:g}{unit}"
            yield Check(key, got is not None and got <= limit, f"expected {key} {limit:g}{unit}, got {shown}")


def _ending_checks(expect: Expect, result: RunResult) -> Iterator[Check]:
    got = _shown(result.output)
    for text in expect.output or ():
        yield Check("output", text in result.output, f"expected output with {_shown(text)}, got {got}")
    if (pattern := expect.output_matches) is not None:
        message = f"expected output_matches {_shown(pattern)}, got {got}"
        yield Check("output_matches", LinearPattern(pattern).is_in(result.output), message)
    why = f" ({one_line(result.error.message, MAX_LINE_CHARS)})" if result.error else ""
    for key in ("status", "finish_reason"):
        if (expected := getattr(expect, key)) is not None:
            end = getattr(result, key)
            yield Check(key, expected == end, f"expected {key} {expected}, got {end}{why}")
    if expect.status is None and expect.finish_reason is None:
        yield Check("run", result.status != "failed", f"the run failed: {result.finish_reason}{why}")


def _arguments_check(tool: str, expected: Mapping[str, Any], evidence: Evidence) -> Check:
    actual = [arguments for name, arguments in evidence.requested if fnmatchcase(name, tool)]
    passed = any(all(key in one and _same(value, one[key]) for key, value in expected.items()) for one in actual)
    got = _shown(actual[-1]) if actual else "no such call"
    return Check("arguments", passed, f"expected arguments of {tool} {_shown(expected)}, got {got}")


def _same(expected: Any, got: Any) -> bool:
    """Return whether two JSON values are equal; an expected text may be a glob."""
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    return bool(expected == got) or (isinstance(expected, str) and isinstance(got, str) and fnmatchcase(got, expected))


def _any_matches(names: Iterable[str], pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _each_matches(patterns: Sequence[str], got: Entries) -> bool:
    return all(any(_any_matches(names, pattern) for names in got) for pattern in patterns)


def _none_matches(patterns: Sequence[str], got: Entries) -> bool:
    return not any(_any_matches(names, pattern) for names in got for pattern in patterns)


def _in_order(patterns: Sequence[str], got: Entries) -> bool:
    """Return whether each pattern matches an entry after the one that the previous pattern matched."""
    rest = iter(got)
    return all(any(_any_matches(names, pattern) for names in rest) for pattern in patterns)


def _exactly(patterns: Sequence[str], got: Entries) -> bool:
    pairs = zip(got, patterns, strict=False)
    return len(patterns) == len(got) and all(_any_matches(names, pattern) for names, pattern in pairs)


def _covers(patterns: Sequence[str], got: Entries) -> bool:
    """Return whether each pattern can have a call of its own that it matches (Kuhn's algorithm)."""
    taken: dict[int, int] = {}

    def assign(pattern: int, tried: set[int]) -> bool:
        for place, entry in enumerate(got):
            if place not in tried and _any_matches(entry, patterns[pattern]):
                tried.add(place)
                if place not in taken or assign(taken[place], tried):
                    taken[place] = pattern
                    return True
        return False

    return all(assign(pattern, set()) for pattern in range(len(patterns)))


def _shown(value: Any) -> str:
    return one_line(json.dumps(value, ensure_ascii=False, default=str), MAX_LINE_CHARS)


_NOT_EXECUTED = "(not executed in a test)"
_LOCAL_SOURCES = ("builtin", "plugin", "python", "run")
"""Sources of tools that may be executed; tools of external servers never are."""

Answers = Sequence[str | Failure]


@dataclass(frozen=True, slots=True, kw_only=True)
class StubTool(Tool):
    """A stub: to policy and model it looks like the real tool, but it returns given answers and is never executed."""

    answers: Iterator[str | Failure]

    async def invoke(  # the signature is Tool's
        self,
        bound: Mapping[str, Any],  # noqa: ARG002
        context: Callable[[], ToolContext],  # noqa: ARG002
        threads: Executor | None,  # noqa: ARG002
    ) -> Any:
        """Return the next answer; raise ToolError if it is a failure."""
        answer = next(self.answers)
        if isinstance(answer, Failure):
            raise ToolError(answer.fail)
        return answer


def sandboxed(generation: Generation, agent: str, model: str, results: Mapping[str, Answers]) -> Generation:
    """Return the generation for a case: an agent and its sub-agents, on one model, with stubs for unsafe tools.

    `results` has the answers of stubs, by tool. The given generation is not changed.
    """
    tools = {name: stub_unless_safe(tool, results.get(name)) for name, tool in generation.tools.items()}
    agents = {
        name: _sandboxed_agent(generation.agents[name], model, tools) for name in reachable_agents(generation, agent)
    }
    settings = without_router_model(generation.settings)
    return replace(generation, agents=agents, tools=tools, external=ExternalTools(), settings=settings)


def without_budgets(agent: Agent) -> Agent:
    """Return the agent without its shared budgets: a test or a replay neither uses them nor is stopped by them."""
    return replace(agent, spec=agent.spec.model_copy(update={"budgets": ()}))


def stub_unless_safe(tool: Tool, answers: Answers | None) -> Tool:
    """Return the tool itself if it is safe in a test and has no given answers, else a stub."""
    is_safe = tool.risk == "low" and tool.idempotent and tool.source in _LOCAL_SOURCES
    if is_safe and answers is None:
        return tool
    given = answers or (_NOT_EXECUTED,)
    values = {field.name: getattr(tool, field.name) for field in fields(Tool) if field.init}
    return StubTool(**values | {"rate": None, "needs": {}}, answers=chain(given, repeat(given[-1])))


def reachable_agents(generation: Generation, agent: str) -> list[str]:
    """Return the agent's name, with the names of all that it can call, or hand its conversation over to."""
    names = [agent]
    for name in names:
        spec = generation.agents[name].spec
        names.extend(
            sub
            for sub in dict.fromkeys((*spec.sub_agents, *spec.handoffs))
            if sub in generation.agents and sub not in names
        )
    return names


def _sandboxed_agent(agent: Agent, model: str, tools: Mapping[str, Tool]) -> Agent:
    toolset = copy(agent.toolset)
    toolset.tools = {name: _safe_tool(tool, tools) for name, tool in agent.toolset.tools.items()}
    toolset.offered = {name: toolset.tools[name] for name in agent.toolset.offered}
    return replace(without_budgets(agent.on_model(model)), toolset=toolset, hooks={})


def _safe_tool(tool: Tool, tools: Mapping[str, Tool]) -> Tool:
    """Return a sub-agent's tool unchanged, else its safe version; a stale agent may have a removed tool."""
    return tool if tool.source in ("agent", "code", "skills") else tools.get(tool.name) or stub_unless_safe(tool, None)


class CaseRun(Protocol):
    """A run in progress, as a case observes it."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """Iterate over the events of the run."""
        ...

    async def result(self) -> RunResult:
        """Wait for the end of the run."""
        ...


class CaseRuntime(JudgeRuntime, Protocol):
    """The part of a runtime that a case uses; the engine implements it."""

    root: Path
    """The project's folder."""
    store: Store
    """The store of the runs."""

    def stream(
        self, message: str | Sequence[str | File], *, agent: str, conversation: str, inputs: Mapping[str, Any]
    ) -> AbstractAsyncContextManager[CaseRun]:
        """Start a run and stream its events."""
        ...

    def resume_stream(self, run_id: str, decisions: Mapping[str, Decision]) -> AbstractAsyncContextManager[CaseRun]:
        """Resume a paused run and stream its events."""
        ...


Launch = Callable[[Generation, Mapping[str, ModelClient]], AbstractAsyncContextManager[CaseRuntime]]
"""Opens a runtime on a generation, with the given models and a separate store."""

_SCRIPTED = "scripted"
_CONVERSATION = "case"
_MAX_DECISIONS = 50
"""Maximum rounds of decisions in one turn, so that a plan that is always sent back ends."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of running a case once, or of scoring a stored run."""

    checks: tuple[Check, ...]
    elapsed_ms: float = 0.0
    """Duration, that of the judge excepted."""
    failed_calls: int = 0
    """Tool calls that ended in an error."""
    transcript: tuple[str, ...] = ()
    """What happened, one line each."""
    judged: Judged | None = None
    """The result of the judge, if there is one."""
    varies: bool = False
    """A model took part that is not scripted, so another attempt may have another result."""
    cost_usd: float | None = None
    """Cost of its runs, that of the judge excepted; None if it is unknown."""
    unknown: str = ""
    """Why there is no result: the agent's model or its judge could not be asked. Such an attempt has not passed."""

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    @property
    def failures(self) -> tuple[str, ...]:
        """Messages of the checks that failed, one line each."""
        return tuple(check.message for check in self.checks if not check.passed)

    def evaluations(self, name: Literal["case", "run"], settings: Settings) -> list[Evaluation]:
        """Return the results as a trace has them. Reasons quote content: settings must allow it."""
        with_content = content_mode(settings.telemetry.content, os.environ) != "none"
        why = redact("; ".join(self.failures)) if with_content else None
        found = [Evaluation(name, float(self.passed), "pass" if self.passed else "fail", why)]
        if (judged := self.judged) is not None:
            pins = {names.JUDGE_MODEL: judged.model, names.JUDGE_RUBRIC: judged.rubric_digest}
            reason = redact(judged.reason) if with_content else None
            found.append(Evaluation("judge", judged.score, judged.label, reason, pins))
        return found


async def assess(
    expect: Expect,
    evidence: Evidence,
    question: Sequence[str],
    agent: Agent,
    generation: Generation,
    launch: Launch,
    models: Mapping[str, ModelClient],
) -> Attempt:
    """Check what was observed, and ask the judge about the last answer, if one is expected to approve of it.

    `question` has the messages of the user. The generation has the settings with the models' aliases; the judge runs in
    a runtime of its own.
    """
    found, judged, unknown = [*checks(expect, evidence)], None, ""
    if expect.judge is not None:
        answer = evidence.result.output if evidence.result else ""
        judged = await judge_answer(expect.judge, question, answer, generation, agent, launch, models)
        if judged.is_unknown and all(check.passed for check in found):
            unknown = judged.reason
        found.append(Check("judge", judged.label == "pass", judged.message))
    return Attempt(
        tuple(found),
        evidence.elapsed * 1000,
        evidence.failed_calls,
        tuple(evidence.transcript),
        judged,
        varies=judged is not None,
        cost_usd=evidence.cost_usd,
        unknown=unknown,
    )


async def score_run(
    expect: Expect,
    state: RunState,
    result: RunResult,
    events: Sequence[Mapping[str, Any]],
    generation: Generation,
    launch: Launch,
    models: Mapping[str, ModelClient],
) -> Attempt:
    """Check a stored run, with its events in wire format. Nothing of the run is executed again. See `assess`."""
    agent = generation.agents[state.agent]
    evidence = Evidence(offered=tuple(agent.toolset.offered), elapsed=state.elapsed_ms / 1000)
    for event in events:
        with suppress(ValueError):  # of a newer version
            evidence.observe(read_event(event))
    evidence.add_result(result)
    question = [message.description for message in state.messages[:1]]
    return await assess(expect, evidence, question, agent, generation, launch, models)


@dataclass(frozen=True, slots=True)
class CaseRunner:
    """Runs cases, each in a separate runtime."""

    launch: Launch
    live: str | None = None
    """Name of a real model to call instead of the script."""
    models: Mapping[str, ModelClient] = field(default_factory=dict)
    """Clients of the program, by the names that files use."""
    judges: bool = True
    """Whether to ask judges. Without them, what they expect is not checked."""

    async def attempt(self, placed: PlacedCase, generation: Generation) -> Attempt:
        """Run one case; any error in it becomes a failed check."""
        agent = generation.agents.get(placed.agent)
        if agent is None:
            return Attempt((Check("run", False, f"there is no usable agent {placed.agent!r}"),))
        case, started, traceparent = placed.case, perf_counter(), ""
        script, evidence = CaseScript(case.model or ()), Evidence(offered=tuple(agent.toolset.offered))
        model = self.live or (OFFLINE if case.model is None else _SCRIPTED)
        sandbox = sandboxed(generation, placed.agent, model, case.results)
        async with self.launch(sandbox, {**self.models, _SCRIPTED: ScriptedModel(script=script.answer)}) as runtime:
            try:
                async with asyncio.timeout(case.expect.max_time):
                    error = await _run_messages(runtime, case, placed.agent, evidence) or script.error
            except TimeoutError:
                error = "the case was stopped: it took longer than its max_time"
            evidence.elapsed = round(perf_counter() - started, 4)
            if evidence.result is not None:
                traceparent = (await runtime.store.load_run(evidence.result.run_id)).traceparent
        expect = case.expect if self.judges else case.expect.model_copy(update={"judge": None})
        found = await assess(expect, evidence, case.messages, agent, generation, self.launch, self.models)
        is_live = self.live not in (None, OFFLINE)
        unknown = (_model_failure(evidence.result) if is_live else "") or ("" if error else found.unknown)
        results = (*([Check("run", False, error)] if error else ()), *found.checks)
        found = replace(found, checks=results, varies=found.varies or is_live, unknown=unknown)
        if traceparent:
            record_evaluations(traceparent, found.evaluations("case", generation.settings))
        return found


def _model_failure(result: RunResult | None) -> str:
    """Return the message of a run that ended because its model could not be asked; empty for other ends."""
    error = result.error if result is not None else None
    return one_line(error.message, MAX_LINE_CHARS) if error is not None and error.code == ModelError.code else ""


def case_result(
    placed: PlacedCase, attempts: Sequence[Attempt], digest: str, source: Literal["test", "gate"], model: str | None
) -> CaseResult:
    """Return the result of all attempts at a case as a store keeps it. `model` is the real one, if one was called."""
    return _result(placed.agent, attempts, digest, name=placed.case.name, source=source, model=model)


def run_result(info: RunInfo, score: Attempt) -> CaseResult:
    """Return the score of a stored run as a store keeps it."""
    return _result(info.agent, [score], info.digest, name="", source="runs", run_id=info.run_id)


def _result(agent: str, attempts: Sequence[Attempt], digest: str, **about: Any) -> CaseResult:
    costs = [attempt.cost_usd for attempt in attempts]
    failures = [attempt.failures for attempt in attempts if not attempt.passed]
    return CaseResult(
        agent=agent,
        digest=digest,
        attempts=len(attempts),
        passed=sum(attempt.passed for attempt in attempts),
        unknown=sum(bool(attempt.unknown) for attempt in attempts),
        cost_usd=None if None in costs else sum(filter(None, costs)),
        elapsed_ms=sum(attempt.elapsed_ms for attempt in attempts),
        failure=redact(one_line("; ".join(failures[0]), MAX_FAILURE_CHARS)) if failures else "",
        **about,
    )


async def case_problems(
    candidate: Generation, launch: Launch, keep: Callable[[CaseResult], None] = lambda _: None
) -> tuple[Problem, ...]:
    """Run all cases of a candidate. Return the invalid case files and the cases that failed.

    `keep` is called with the result of each case.
    """
    bench, suite = CaseRunner(launch, judges=False), read_suite(candidate)
    problems = list(suite.errors)
    for placed in suite.cases:
        if placed.agent in candidate.agents:  # otherwise the suite has a problem for it
            attempts: list[Attempt] = []
            while len(attempts) < placed.repeat and all(one.passed for one in attempts):
                attempts.append(await bench.attempt(placed, candidate))
            problems += [failed_case_problem(placed, one) for one in attempts if not one.passed]
            keep(case_result(placed, attempts, candidate.digest, "gate", None))
    return tuple(problems)


def failed_case_problem(placed: PlacedCase, attempt: Attempt) -> Problem:
    """Return a failed case as a problem at its place in the file."""
    message = f"case {placed.case.name!r} failed: {'; '.join(attempt.failures)}"
    return placed.problem(message, "name", hint=f"agentsd test -a {placed.agent} shows what happened instead")


class CaseScript:
    """The scripted answers of a case's model, in order."""

    def __init__(self, answers: Sequence[ScriptedAnswer]) -> None:
        self._answers = answers
        self._requests = 0
        self._calls = 0
        self.error = ""
        """Why the script does not match the agent's requests; empty if it does."""

    def answer(self, request: ModelRequest) -> Turn:
        """Return the next answer, or the error to raise."""
        self._requests += 1
        if self._requests > len(self._answers):
            return self._fail(f"the script has only {len(self._answers)} answers, but the model is called again")
        answer = self._answers[self._requests - 1]
        if answer.fail is not None:
            return ModelError(answer.fail)
        if request.output is PlanDraft and answer.plan is None:
            return self._fail(f"answer {self._requests} of the script must be a plan: the agent requests one")
        if request.output is not PlanDraft and answer.plan is not None:
            return self._fail(f"answer {self._requests} of the script is a plan, but the agent does not request one")
        return answer.plan or self._tool_calls(answer) or answer.say or ""

    def _tool_calls(self, answer: ScriptedAnswer) -> tuple[ToolCall, ...]:
        """Return the answer's calls, with ids `c1`, `c2`, … counted over the script, for decisions to refer to."""
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
    """Send the case's messages, and answer confirmations with its decisions.

    Returns:
        Why the case could not be completed; empty if it was.
    """
    for number, message in enumerate(case.messages, 1):
        try:
            names = case.files if number == 1 else ()
            files = [await asyncio.to_thread(File.from_path, runtime.root / name) for name in names]
            evidence.transcript.append(f"user: {one_line(message, MAX_LINE_CHARS)}")
            started = runtime.stream([*files, message], agent=agent, conversation=_CONVERSATION, inputs=case.inputs)
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
            return f"turn {number} is waiting for a decision about {waiting}, so turn {number + 1} cannot start"
    return ""


async def _watch(started: AbstractAsyncContextManager[CaseRun], evidence: Evidence) -> RunResult:
    async with started as stream:
        async for event in stream:
            evidence.observe(event)
        return await stream.result()


def _decisions(case: Case, pending: Sequence[Confirmation]) -> dict[str, Decision]:
    """Return the case's decisions on pending confirmations; those that it does not mention stay open."""
    results = {}
    for confirmation in pending:
        answer = case.decisions.get(confirmation.id) or case.decisions.get(
            subject_of(confirmation.kind, confirmation.tool)
        )
        if answer is not None:
            results[confirmation.id] = to_decision(answer)
    return results


@dataclass(frozen=True, slots=True)
class SuccessRate:
    """The number of attempts that passed, out of those that exercised an ability."""

    passed: int
    tried: int

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the two ends of the Wilson interval of the rate."""
        if not self.tried:
            return 0.0, 1.0
        z = NormalDist().inv_cdf((1 + confidence) / 2)
        rate, square = self.passed / self.tried, z**2 / self.tried
        centre, half = rate + square / 2, z * sqrt((rate * (1 - rate) + square / 4) / self.tried)
        return max((centre - half) / (1 + square), 0.0), min((centre + half) / (1 + square), 1.0)

    def __str__(self) -> str:
        return f"{self.passed}/{self.tried}" + (f"  {self.passed / self.tried:.0%}" if self.tried else "")


_ABILITIES = {
    "right tool": {"called", "called_exactly", "called_in_any_order", "not_called", "asked", "plan"},
    "right arguments": {"arguments"},
    "answer": {"output", "output_matches"},
}
"""Keys of expectations by the ability that they exercise."""


def rates(tried: Iterable[tuple[Case, Attempt]]) -> dict[str, SuccessRate]:
    """Return rates by name, each over the attempts that exercised the ability."""
    outcomes: dict[str, list[bool]] = {
        name: [] for name in ("right tool", "right arguments", "multi-turn", "recovery", "answer")
    }
    for case, attempt in tried:
        for name, keys in _ABILITIES.items():
            if shown := [check.passed for check in attempt.checks if check.key in keys]:
                outcomes[name].append(all(shown))
        outcomes["multi-turn"] += [attempt.passed] if len(case.messages) > 1 else []
        outcomes["recovery"] += [attempt.passed] if attempt.failed_calls else []
    return {name: SuccessRate(sum(passed), len(passed)) for name, passed in outcomes.items()}
