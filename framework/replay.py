"""Replays a run: recorded models, tools and hooks repeat their answers, and nothing is called."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from framework.config.agents.compile import Agent
from framework.config.agents.toolbox import ExternalTools
from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Blueprints, Generation
from framework.engine.plan.executor import EXECUTORS
from framework.engine.routing import RouteChoice
from framework.engine.runtime.background import BackgroundWork, WorkerSlots
from framework.engine.runtime.launcher import Launcher, PreparedRun
from framework.engine.runtime.presence import RunReleaser
from framework.engine.runtime.project import Project
from framework.engine.runtime.request import RUNTIME_CALLER
from framework.engine.runtime.resume import RunResumer
from framework.evals.runner import reachable_agents, without_budgets
from framework.evals.suite import without_router_model
from framework.llm.client import Delta, FinishReason, ModelInfo, ModelReply, ModelRequest
from framework.store import memory_store
from framework.store.types import StoredRun
from framework.tools.arguments import SchemaArguments
from framework.tools.declaration import Extension
from framework.tools.tool import SourceKind, Tool, ToolContext, source_of
from framework.tools.toolset import Toolset
from framework.types.errors import AgentNotFound, ConfigError, ModelError, Paused, Refused, ToolError
from framework.types.messages import Message, ToolCall, ToolDefinition, ToolResult, Usage
from framework.types.spec import HookPlace, Limits
from framework.types.state import CONFIRMATION_KINDS, Approve, CallRecord, Confirmation, Decision, RunState

if TYPE_CHECKING:
    pass


RECORDED = "recorded"
"""Name of the recorded model."""
NO_RESULT = "(the record has no result of this call)"
_USAGE_LIMITS = ("max_total_tokens", "max_cost_usd")
RunPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FirstRequest:
    """The first request of an agent to its model."""

    agent: str
    prompt: str
    """The system prompt."""
    offered: tuple[str, ...]
    """Names of the offered tools, sorted."""


class Recording:
    """Replies, results and decisions of a recorded run, repeated to a run with the same start."""

    def __init__(self, record: RunState, live: RunState) -> None:
        """Initialize from the record, and the replayed run's state, which shows which sub-run a request is from."""
        self._records = {state.path: state for state in record.with_sub_runs()}
        self._live, self._record = live, record
        self._given_counts: Counter[tuple[RunPath, str]] = Counter()
        self._questions = {
            question.id.partition("?")[0]: question for question in record.pending if question.traits.asked_by_tool
        }
        self.first_requests: dict[str, FirstRequest] = {}
        """First requests, by agent."""
        self.missing: list[str] = []
        """Requests that the record has no answer for."""

    # --- the model

    def reply(self, request: ModelRequest) -> ModelReply:
        """Return the recorded reply to this request; raise ModelError if there is none."""
        if request.continued is not None:  # the record contains the whole answer
            return _reply(Message(role="assistant"), Usage(), truncated=True)
        path = self._asking_path(request)
        if path is None:
            return _reply(Message(role="assistant", content=self._answer_outside_turns(request)), Usage())
        self._record_request(path, request)
        kind = "reply" if request.output is None else "typed"
        place = self._given_counts[path, kind]
        self._given_counts[path, kind] += 1
        record = self._records.get(path)
        answers = _answers(record, kind) if record else []
        if place >= len(answers):
            where = f"the sub-run {'/'.join(path)}" if path else "the run"
            self.missing.append(f"{where} calls its model more often than recorded: {place} replies")
            raise ModelError("the record has no further reply")
        is_last = place == len(answers) - 1 and kind == "reply"
        truncated = is_last and self._records[path].truncated
        return _reply(answers[place], self._usage(), truncated=truncated)

    def _answer_outside_turns(self, request: ModelRequest) -> str:
        """Return the reply to a request outside a turn, for an executor or a summary; raise ModelError if none."""
        if request.output is not RouteChoice:
            if self._record.summary is None:
                raise ModelError("the record has no summary")
            return self._record.summary.text
        message = request.messages[-1].content
        candidates = (s for s in self._live.with_sub_runs() if not s.executor and s.messages[0].description == message)
        for live in candidates:
            if (record := self._records.get(live.path)) and record.executor:
                return json.dumps({"agent": live.agent, "executor": record.executor})
        raise ModelError("the record has no choice of executor")

    def _asking_path(self, request: ModelRequest) -> RunPath | None:
        """Return the path of the run whose first message is in the request; None if the request is not a turn."""
        message_ids = {id(message) for message in request.messages}
        own = (s.path for s in self._live.with_sub_runs() if s.messages and id(s.messages[0]) in message_ids)
        return next(own, None)

    def _record_request(self, path: RunPath, request: ModelRequest) -> None:
        agent = next(state.answering for state in self._live.with_sub_runs() if state.path == path)
        if agent not in self.first_requests:
            offered = tuple(sorted(tool.name for tool in request.tools))
            prompt = request.messages[0].content if request.messages[0].role == "system" else ""
            self.first_requests[agent] = FirstRequest(agent, prompt, offered)

    def _usage(self) -> Usage:
        """Return the usage of one reply, so that the replay uses as much as the record, and meets the same limits."""
        used, answers = self._record.usage, sum(len(_answers(run, k)) for run in self._records.values() for k in _KINDS)
        share = 1 / max(answers, 1)
        if self._record.finish_reason in _USAGE_LIMITS:
            share = float(sum(self._given_counts.values()) == answers)
        return Usage(
            prompt_tokens=round(used.prompt_tokens * share),
            completion_tokens=round(used.completion_tokens * share),
            total_tokens=round(used.total_tokens * share),
            cost_usd=None if used.cost_usd is None else used.cost_usd * share,
        )

    # --- tools and hooks

    def tool(self, tool: Tool) -> Tool:
        """Return a tool that looks like the original to the policy and the model, and returns its recorded results."""
        if tool.source in ("agent", "code"):  # their own calls are recorded
            return tool
        known = {field.name: getattr(tool, field.name) for field in fields(Tool) if field.init}
        return _Recorded(**{**known, "retries": 0, "rate": None, "needs": {}}, recording=self)

    def result(self, call_id: str) -> ToolResult | Confirmation:
        """Return the recorded result of a call, or the question that its tool asked."""
        if known := self._recorded_result(call_id):
            return known
        if question := self._questions.get(call_id):
            return question
        self.missing.append(f"call {call_id} has no recorded result")
        return ToolResult(status="success", output=NO_RESULT)

    def hooks(self) -> Mapping[HookPlace, tuple[Extension, ...]]:
        """Return hooks that refuse what the recorded run's hooks refused."""

        async def before_tool(context: ToolContext, call: ToolCall) -> None:  # noqa: ARG001 - a hook's signature
            result = self._recorded_result(context.call_id)
            if result is not None and str(result.metadata.get("rule", "")).startswith("hook "):
                raise Refused(result.error or "")

        async def after_run(context: ToolContext, output: str) -> None:  # noqa: ARG001 - a hook's signature
            if context.call_id == "" and self._record.finish_reason == "refused":
                raise Refused(self._record.output)

        is_refused = self._record.finish_reason == "refused"
        hooks: dict[HookPlace, tuple[Extension, ...]] = {"before_tool": (Extension("hook", RECORDED, before_tool),)}
        if is_refused:
            hooks["after_run"] = (Extension("hook", RECORDED, after_run),)
        return hooks

    def _recorded_result(self, call_id: str) -> ToolResult | None:
        *path, own = call_id.split("/")
        record = self._records.get(tuple(path))
        call = record.calls.get(own) if record else None
        return call.result if call else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded(Tool):
    recording: Recording

    async def invoke(  # the signature is Tool's
        self,
        bound: Mapping[str, Any],  # noqa: ARG002
        context: Callable[[], ToolContext],
        threads: Executor | None,  # noqa: ARG002
    ) -> Any:
        match self.recording.result(context().call_id):
            case Confirmation() as question:
                raise Paused([question])
            case ToolResult(status="success", output=output):
                return output
            case ToolResult(error=error):
                raise ToolError(error or "")


class RecordedModel:
    """A model client that returns recorded replies."""

    info = ModelInfo(provider=RECORDED, model="", typed=True, stand_in=True)

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Yield the next reply; raise ModelError at the end of the record."""
        yield Delta(reply=self._recording.reply(request))

    async def close(self) -> None:
        """Do nothing: there is no connection."""


_KINDS = ("reply", "typed")


def _answers(record: RunState, kind: str) -> list[Message]:
    if kind == "reply":
        return [record.messages[place] for place in record.replies]
    return [Message(role="assistant", content=text) for text in record.typed]


def _reply(message: Message, usage: Usage, *, truncated: bool = False) -> ModelReply:
    finish: FinishReason = "tool_calls" if message.tool_calls else "length" if truncated else "stop"
    return ModelReply(message, finish, usage, RECORDED)


def requested_calls(record: RunState) -> Iterator[ToolCall]:
    """Yield every call that a run and its sub-runs requested."""
    for state in record.with_sub_runs():
        yield from (call.call for call in state.calls.values())


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
    granted = [event["confirmation_id"] for event in run.events if event["event"] == "grant_used"]
    # A recorded tool returns its result without the questions that were answered.
    open_questions = [
        one["id"]
        for one in asked
        if not CONFIRMATION_KINDS[one["kind"]].asked_by_tool
        or one["kind"] == "client_tool"  # a replay waits for these, too
        or one["id"] not in record.decisions
    ]
    return tuple(differences(record, list(dict.fromkeys((*open_questions, *granted))), before, now))


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
            state, await store.start(state, None, None), catalog.current, catalog.current.agents[state.answering]
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
    """Return the recorded decision, or else an approval if the kind of confirmation allows one.

    Nothing is remembered: a replay asks whatever the files ask.
    """
    found = record.decisions.get(question.id) or (Approve() if question.traits.can_approve else None)
    return Approve() if isinstance(found, Approve) else found


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
        client=record.client,
        output_schema=record.output_schema,
        handled_by=record.handled_by[:1] if record.handled_by[:1] != [record.agent] else [],
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
