"""Replays stored runs with their recorded answers, and compares the outcomes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from framework.config.agents.compile import Agent
from framework.config.agents.toolbox import ExternalTools
from framework.config.generations.blueprint import Blueprints
from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Generation
from framework.engine.plan.executor import EXECUTORS
from framework.engine.runtime.background import BackgroundWork, WorkerSlots
from framework.engine.runtime.launcher import Launcher, PreparedRun
from framework.engine.runtime.presence import RunReleaser
from framework.engine.runtime.project import Project
from framework.engine.runtime.request import RUNTIME_CALLER
from framework.engine.runtime.resume import RunResumer
from framework.evals.runner import reachable_agents, without_budgets, without_router_model
from framework.replay.recorded import NO_RESULT, RECORDED, FirstRequest, RecordedModel, Recording, requested_calls
from framework.replay.stored_run import StoredRun
from framework.store.url import memory_store
from framework.tools.schema.arguments import SchemaArguments
from framework.tools.tool import SourceKind, Tool
from framework.tools.tool_source import source_of
from framework.tools.toolset import Toolset
from framework.types.errors import AgentNotFound, ConfigError, ToolError
from framework.types.messages import ToolDefinition
from framework.types.spec import Limits
from framework.types.state import CONFIRMATION_KINDS, Approve, CallRecord, Confirmation, Decision, RunState

DifferenceKind = Literal["agent", "offered", "prompt", "asked", "call", "plan", "record", "status", "output"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between the record and the replay."""

    what: DifferenceKind
    subject: str
    """The agent, call or question that differs; empty for the run as a whole."""
    before: str
    """The recorded value; empty if there was none."""
    after: str
    """The value under the current files; empty if there is none."""


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """Observations from a replayed run."""

    state: RunState
    requests: Mapping[str, FirstRequest]
    """The first request of each agent to its model."""
    questions: Sequence[str]
    """Ids of the confirmations that were requested."""
    missing: Sequence[str]
    """Replies and results that the run requested and the record does not contain."""


def differences(
    record: RunState, questions: Sequence[str], before: ReplayedRun | None, now: ReplayedRun
) -> Iterator[Difference]:
    """Yield the differences between a recorded run and its replays.

    Args:
        record: the run.
        questions: ids of the confirmations that the run requested.
        before: the replay with the files that the run started with, if they are still stored.
        now: the replay with the current files.
    """
    if before is not None:
        yield from _request_differences(before.requests, now.requests)
    for question in dict.fromkeys((*questions, *now.questions)):
        if (question in questions) != (question in now.questions):
            was, is_now = ("asked" if question in where else "not asked" for where in (questions, now.questions))
            yield Difference("asked", question, was, is_now)
    yield from _calls(dict(_calls_of(record)), dict(_calls_of(now.state)))
    if _plan(record) != _plan(now.state):
        yield Difference("plan", "", _plan(record), _plan(now.state))
    yield from _ending(record, now)


def _request_differences(before: Mapping[str, FirstRequest], now: Mapping[str, FirstRequest]) -> Iterator[Difference]:
    for agent in dict.fromkeys((*before, *now)):
        old, new = before.get(agent), now.get(agent)
        if old is None or new is None:
            yield Difference("agent", agent, "asked" if old else "not asked", "asked" if new else "not asked")
            continue
        if old.offered != new.offered:
            gone, come = set(old.offered) - set(new.offered), set(new.offered) - set(old.offered)
            yield Difference("offered", agent, ", ".join(sorted(gone)), ", ".join(sorted(come)))
        if old.prompt != new.prompt:
            yield Difference("prompt", agent, old.prompt, new.prompt)


def _calls(before: Mapping[str, CallRecord], now: Mapping[str, CallRecord]) -> Iterator[Difference]:
    for key in dict.fromkeys((*before, *now)):
        old, new = (_call_text(calls.get(key)) for calls in (before, now))
        if old != new:
            call = (now.get(key) or before[key]).call
            yield Difference("call", f"{key} {call.tool} {_json(call.arguments)}", old, new)


def _call_text(record: CallRecord | None) -> str:
    """Return how a call ended."""
    if record is None:
        return "not asked for"
    if record.result is None or record.result.output == NO_RESULT:
        return "has no result"
    result = record.result
    if result.metadata.get("decision") == "reject":  # older records have another status and message
        return "rejected"
    return result.status if result.status == "success" else f"{result.status}: {result.error}"


def _ending(record: RunState, now: ReplayedRun) -> Iterator[Difference]:
    """Yield differences of status and output. A run that was interrupted is compared up to the end of its record."""
    was_cut_off = record.status not in ("completed", "paused")
    if now.missing:
        if not was_cut_off:
            yield Difference("record", "", "", now.missing[0])
        return
    old, new = (f"{state.status} ({state.finish_reason})" for state in (record, now.state))
    if old != new:
        why = f": {now.state.error.message}" if now.state.error else ""
        yield Difference("status", "", old, new + why)
    if record.output != now.state.output:
        yield Difference("output", "", record.output, now.state.output)


def _calls_of(state: RunState) -> Iterator[tuple[str, CallRecord]]:
    for run in state.with_sub_runs():
        for record in run.calls.values():
            yield "/".join((*run.path, record.call.id)), record


def _plan(state: RunState) -> str:
    """Return a plan as text, one line per step, with its status and call."""
    lines = [
        f"{step.id} ({step.status}): {step.description}{f': {step.tool} {_json(step.parameters)}' if step.tool else ''}"
        for step in (state.plan.steps if state.plan else ())
    ]
    return "\n".join([*lines, *(_plan(child) for child in state.children.values())]).strip()


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


_OPEN_OBJECT = {"type": "object", "properties": {}, "additionalProperties": True}
_MAX_ROUNDS = 50
"""Maximum rounds of decisions, so that a plan that is sent back in each round ends."""


async def replay(root: Path, run: StoredRun, current: Generation) -> tuple[Difference, ...]:
    """Return the differences between a recorded run and the same run under other files. Nothing external is called.

    Args:
        root: the project's directory.
        run: the recorded run.
        current: the files to replay it with.

    Raises:
        AgentNotFound: the run's agent does not exist in `current`.
    """
    record = run.state
    if record.agent not in current.agents:
        raise AgentNotFound(record.agent, list(current.agents), current.errors)
    original = _original_generation(run, current)
    policy: Limits = original.agents[record.agent].spec.runtime_policy if original else record.limits
    before = await _replay_with(root, record, original, record.limits) if original else None
    now = await _replay_with(root, record, current, _limits(record.limits, policy, current.agents[record.agent]))
    asked = [event for event in run.events if event["event"] == "confirm_required"]
    # A recorded tool returns its result without the questions that were answered.
    open_questions = [
        one["id"]
        for one in asked
        if not CONFIRMATION_KINDS[one["kind"]].asked_by_tool or one["id"] not in record.decisions
    ]
    return tuple(differences(record, list(dict.fromkeys(open_questions)), before, now))


def _original_generation(run: StoredRun, current: Generation) -> Generation | None:
    """Return the generation that the run started with, or None if it is not stored or does not fit the plugins."""
    if run.blueprint is None:
        return None
    try:
        return replace(current, agents=Blueprints(EXECUTORS).agents(run.blueprint, current))
    except ConfigError:
        return None


def _limits(own: Limits, original: Limits, agent: Agent) -> Limits:
    """Return the agent's current limits, with those that the run's caller had changed."""
    changed = {
        name: getattr(own, name) for name in Limits.model_fields if getattr(own, name) != getattr(original, name)
    }
    live = {name: getattr(agent.spec.runtime_policy, name) for name in Limits.model_fields}
    return Limits.model_construct(**{**live, **changed})


async def _replay_with(root: Path, record: RunState, generation: Generation, limits: Limits) -> ReplayedRun:
    """Replay the run to the end of its record. Recorded decisions are repeated, other confirmations approved."""
    state = _first_state(record, limits)
    recording = Recording(record, state)
    catalog, store = Catalog(root, tools=(), executors=(), models=()), memory_store()
    catalog.set_live(_recorded_generation(generation, record, recording))
    launcher = Launcher(Project(root, catalog), store, {RECORDED: RecordedModel(recording)}, None, observed=False)
    background = BackgroundWork()
    resumer = RunResumer(catalog, launcher, Blueprints(EXECUTORS), background, WorkerSlots(1), RunReleaser(store))
    questions: dict[str, None] = {}
    still_open = {question.id for question in record.pending}
    try:
        start = PreparedRun(
            state, await store.start(state, None, None), catalog.current, catalog.current.agents[state.agent]
        )
        async with launcher.launch(start, listening=False) as stream:
            result = await stream.result()
        for _ in range(_MAX_ROUNDS):
            questions |= dict.fromkeys(question.id for question in result.pending)
            answerable = [question for question in result.pending if question.id not in still_open]
            decisions = {
                question.id: found for question in answerable if (found := _decision(record, question)) is not None
            }
            if not decisions:
                break
            async with resumer.stream(state.run_id, decisions, RUNTIME_CALLER) as stream:
                result = await stream.result()
    finally:
        await launcher.close(0)
        resumer.close()
        await background.close()
        await catalog.close()
    return ReplayedRun(state, recording.first_requests, list(questions), recording.missing)


def _decision(record: RunState, question: Confirmation) -> Decision | None:
    """Return the recorded decision, or else an approval if the kind of confirmation allows one."""
    return record.decisions.get(question.id) or (Approve() if CONFIRMATION_KINDS[question.kind].can_approve else None)


def _first_state(record: RunState, limits: Limits) -> RunState:
    """Return the run's initial state, with the choices and inputs from before its first turn."""
    return RunState(
        agent=record.agent,
        user=record.user,
        tenant=record.tenant,
        locale=record.locale,
        inputs=record.inputs,
        metadata=record.metadata,
        limits=limits,
        model_settings=record.model_settings,
        caller_instructions=record.caller_instructions,
        output_schema=record.output_schema,
        executor=record.executor,
        background=record.background,
        history=list(record.history),
        summary=record.summary,
        messages=record.messages[:1],
    )


def _recorded_generation(generation: Generation, record: RunState, recording: Recording) -> Generation:
    """Return a generation with the agents that the run can reach, on recorded models and tools."""
    outside = [_unconnected_tool(name) for name in _tools_of_unavailable_servers(generation, record)]
    hooks = recording.hooks()
    agents = {}
    for name in reachable_agents(generation, record.agent):
        agent = generation.agents[name]
        tools = {tool.name: recording.tool(tool) for tool in (*agent.toolset.tools.values(), *outside)}
        toolset = Toolset(
            tools,
            agent.spec.skill_policy,
            risk_level=agent.spec.runtime_policy.risk_level,
            source=agent.document,
            blocked=agent.toolset.blocked,
        ).deferring(agent.toolset.deferred)
        agents[name] = replace(without_budgets(agent.on_model(RECORDED)), toolset=toolset, hooks=hooks)
    return replace(
        generation, agents=agents, external=ExternalTools(), settings=without_router_model(generation.settings)
    )


def _tools_of_unavailable_servers(generation: Generation, record: RunState) -> list[str]:
    """Return the tools that the run called on servers whose tool lists are not available now."""
    names = dict.fromkeys(call.tool for call in requested_calls(record))
    return [n for n in names if n not in generation.tools and source_of(n) in generation.external.unavailable]


def _unconnected_tool(name: str) -> Tool:
    """Return a placeholder for a tool whose definition is not available."""

    async def unknown(**arguments: object) -> str:
        raise ToolError(f"the tool's server is not connected: {sorted(arguments)}")

    arguments = SchemaArguments(_OPEN_OBJECT)
    definition = ToolDefinition(name=name, description="(its server is not connected)", parameters=arguments.schema)
    source: SourceKind = "mcp" if name.startswith("mcp.") else "skill" if name.startswith("skill.") else "http"
    return Tool(definition, unknown, arguments, source=source)
