"""The lifecycle of one tool call: check limits, evaluate the policy, ask for approval, execute, record.

Each stage is recorded in `state.calls`. After a pause or a crash, a finished call is not executed again, and a call
that was in progress is repeated only if its tool is idempotent; otherwise a person is asked first.

The gate decides whether a call is allowed, refused, or a question for a person. The arguments are repaired first, so
that rules see them as the tool will. `evaluate_call` is the only place in the path of a call where the policy is
evaluated: before a call, after each hook and wait, before each retry, and for arguments that a person edited.
`explain_call` and its like explain verdicts without a call, for `agentsd explain` and the console.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from operator import is_
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from framework.config.agents.compile import Agent
from framework.config.templates.prompt_check import placeholders
from framework.config.templates.prompts import HTTP_TOOL, RunVariables
from framework.engine.context.policy import Policy, Verdict, VerdictKind, agent_verdict
from framework.engine.context.run_context import Confirmations, RunContext
from framework.engine.tool_call import results
from framework.engine.tool_call.memory import call_memory_tool, memory_preview
from framework.engine.tool_call.results import (
    INVALID_CALL,
    ToolTrace,
    build_tool_context,
    confirmations_in,
    describe_output,
    describe_unfinished,
    is_plugin_failure,
    raised_error_type,
    record_decision,
    record_result,
    split_output,
)
from framework.engine.tool_call.run_tools import call_handoff, call_run_tool, refused_handoff, run_script
from framework.llm.client import ModelInfo
from framework.telemetry import names
from framework.telemetry.redact import safe_traceback
from framework.telemetry.spans import current_span
from framework.tools.arguments import ArgumentsError
from framework.tools.builtin.notes import TODO
from framework.tools.conditions import canonical_arguments, policy_views, require_canonical
from framework.tools.files import BaseFolder
from framework.tools.json_schema import RepairedArguments, repair_arguments
from framework.tools.plugins import place_of_error
from framework.tools.scripts import is_function
from framework.tools.tool import HostedOutput, Tool, idempotency_key
from framework.tools.toolset import PlacedRule, Toolset
from framework.types.errors import Paused, ToolError
from framework.types.events import ToolRequested, ToolStarted
from framework.types.file import File
from framework.types.http import HttpLimits, backoff
from framework.types.media import MAX_REQUEST_MEDIA_BYTES, file_size
from framework.types.messages import HOST, Message, ToolCall, ToolResult, original_keys, revalidate_call, unique_calls
from framework.types.plan import PlanDraft
from framework.types.redact import redact_data
from framework.types.state import EXPIRED, Approve, CallRecord, Confirmation, Edit, Reject, Respond, RunState
from framework.types.text import (
    canonical_call,
    content_digest,
    did_you_mean,
    estimate_tokens,
    fix_surrogates,
    has_more_values,
    repetition_key,
    shorten,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_VALUES_IN_LOOP = 5_000
"""Number of values up to which arguments are repaired in the event loop; this takes about 15 ms."""


async def repair_call(run: RunContext, call: ToolCall, tool: Tool) -> ToolCall:
    """Return the call with repaired arguments; the repairs are reported once, also if the run resumes in between.

    The repair of the tool's name, which `normalize_message` made, is reported with them.
    """
    repaired = await _normalize(run, tool, call.arguments)
    written = run.state.misspelt.pop(call.id, None)
    notes = repaired.notes if written is None else (f"name: {shorten(written, 80)!r} is {tool.name}", *repaired.notes)
    if not notes:
        same_names = repaired.arguments.keys() == call.arguments.keys()
        return call if same_names else call.model_copy(update={"arguments": repaired.arguments})
    record = run.state.calls[call.id]
    if not record.repairs:
        run.state.calls[call.id] = record.model_copy(update={"repairs": notes})
        await _warn_of_repairs(run, tool, notes, "arguments" if written is None else "call")
    return call.model_copy(update={"arguments": repaired.arguments})


async def repair_plan(run: RunContext, draft: PlanDraft) -> PlanDraft:
    """Return the plan with the names and parameters of the tools of its steps repaired, as in calls."""
    toolset, steps = run.agent.toolset, []
    for step in draft.steps:
        tool = _meant_by(toolset, step.tool) if step.tool else None
        repaired = await _normalize(run, tool, step.parameters) if tool else RepairedArguments(step.parameters)
        changed: dict[str, Any] = {"parameters": repaired.arguments}
        notes = list(repaired.notes)
        if tool and tool.name != step.tool:
            changed["tool"] = tool.name
            if tool.definition.wire_name != step.tool:
                notes.insert(0, f"name: {shorten(step.tool or '', 80)!r} is {tool.name}")
        if tool and notes:
            what = "arguments" if len(notes) == len(repaired.notes) else "call"
            await _warn_of_repairs(run, tool, [f"step {step.id}: {note}" for note in notes], what)
        if step.tools:
            allowed = ((name, _meant_by(toolset, name)) for name in step.tools)
            changed["tools"] = tuple(meant.name if meant else name for name, meant in allowed)
        steps.append(step.model_copy(update=changed))
    return draft.model_copy(update={"steps": tuple(steps)})


def _meant_by(toolset: Toolset, name: str) -> Tool | None:
    """Return the tool with a name, with that name in an API, or the only one that it can mean."""
    return toolset.tools.get(name) or toolset.by_wire_name(name) or toolset.by_misspelt_name(name)


def normalize_arguments(
    tool: Tool, arguments: Mapping[str, Any], base: Path, *agents: Agent | None
) -> RepairedArguments:
    """Convert paths and URLs to their canonical form, and repair other values unless an agent is strict.

    Names that had to be changed for a provider are restored first.

    Args:
        tool: the tool to call.
        arguments: the arguments from the model or a person.
        base: the base directory of relative paths.
        *agents: agents whose `strict_arguments` setting applies.
    """
    schema = tool.definition.parameters
    arguments = original_keys(arguments, schema.get("properties", {}))
    if any(agent is not None and agent.spec.runtime_policy.strict_arguments for agent in agents):
        repaired = RepairedArguments(dict(arguments))
    else:
        repaired = repair_arguments(schema, arguments)
    if not tool.paths and not tool.urls:
        return repaired
    canonical = canonical_arguments(tool, repaired.arguments, base)
    return RepairedArguments(canonical.arguments, (*repaired.notes, *canonical.notes))


def bind_arguments(tool: Tool, arguments: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Return the arguments as passed to the tool; relative paths are below the directory `base`.

    Raises:
        ArgumentsError: the arguments do not fit the tool's schema.
        ToolError: a path or URL has no canonical form, such as one with `..`.
    """
    bound = tool.bind(arguments)
    require_canonical(tool, bound, base)
    return bound


async def call_off_loop(value: Any, function: Callable[[], T]) -> T:
    """Call `function` in a worker thread if `value`, which it works on, is large, so as not to block other runs."""
    return await asyncio.to_thread(function) if has_more_values(value, MAX_VALUES_IN_LOOP) else function()


async def _normalize(run: RunContext, tool: Tool, arguments: Mapping[str, Any]) -> RepairedArguments:
    """Normalize by the pinned and the live version of the agent: a stricter live version applies immediately."""
    agents = (run.agent, run.services.current_agent(run.agent.name))
    return await call_off_loop(
        arguments, partial(normalize_arguments, tool, arguments, run.services.base_path, *agents)
    )


async def _warn_of_repairs(run: RunContext, tool: Tool, notes: Sequence[str], what: str = "arguments") -> None:
    verb = "was" if what == "call" else "were"
    message = f"the {what} of {tool.name} {verb} repaired: {'; '.join(notes)}"
    await run.warn("arguments_repaired", message)


class AllowedCall(NamedTuple):
    """The call may be executed with these arguments."""

    call: ToolCall
    """The call, with a person's edit."""
    bound: dict[str, Any]
    """Its arguments as passed to the tool."""


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """The call is not executed: the policy, a hook or a person decided so, or its arguments are invalid."""

    result: ToolResult


@dataclass(frozen=True, slots=True)
class Question:
    """A person must decide first."""

    confirmation: Confirmation
    bound: dict[str, Any]
    """The arguments that the call would be executed with."""
    in_doubt: bool = False
    """Whether it is unknown if the call took effect already. Only the person who is asked can tell."""


Ruling = AllowedCall | RefusedCall | Question


def evaluate_call(run: RunContext, call: ToolCall, tool: Tool, decision: Approve | Edit | None = None) -> Ruling:
    """Evaluate the policy on a call with repaired arguments, and check the arguments.

    The policy sees the arguments as written, before any code of the tool runs, and then as the tool's types convert
    them.

    Args:
        run: the run that makes the call.
        call: the call, with the arguments of the decision if it is an edit.
        tool: its tool.
        decision: a person's decision to execute it: the policy can still deny it, but asks no more.
    """
    verdict = run.policy.evaluate(tool, *policy_views(tool, call.arguments))
    if verdict.kind == "deny":
        return _denied(verdict)
    try:
        bound = bind_arguments(tool, call.arguments, run.services.base_path)
    except ToolError as error:
        if not isinstance(decision, Edit):
            return _invalid_arguments(error, tool)
        why = f"invalid edit by a human: {call.invalid or error.message}"
        return RefusedCall(ToolResult(status="error", error=why))
    if len(seen := policy_views(tool, call.arguments, bound)) > 1:
        verdict = run.policy.evaluate(tool, *seen)
    if verdict.kind == "deny":
        return _denied(verdict)
    in_doubt = _is_in_doubt(run.state.calls[call.id], tool)
    if decision is not None or (verdict.kind != "ask" and not in_doubt):
        return AllowedCall(call, bound)
    return Question(_confirmation(run, call, tool, verdict, in_doubt=in_doubt), bound, in_doubt)


def _is_in_doubt(record: CallRecord, tool: Tool) -> bool:
    """Return whether it is unknown if a call took effect before its process ended."""
    is_known = tool.source == "a2a" and bool(record.continuation)  # then the call continues, and is not repeated
    return record.started > 0 and not (tool.idempotent or is_known)


def _confirmation(run: RunContext, call: ToolCall, tool: Tool, verdict: Verdict, *, in_doubt: bool) -> Confirmation:
    """Return the question to a person; its id changes with what the person would approve."""
    record = run.state.calls[call.id]
    reason, changed = verdict.reason, list[str]()
    arguments = canonical_call(tool.name, call.arguments)
    if record.contract and record.contract != tool.contract:
        reason = "the tool's definition has changed since approval was requested"
        changed.append(tool.definition.canonical_json)
    if record.asked and record.asked != content_digest(arguments):
        reason = "its arguments have changed since approval was requested"
        changed.append(arguments)
    doubt = f"~{record.started}" if in_doubt else ""
    key = "/".join((*run.state.path, call.id))
    tool_key = idempotency_key(run.state.run_id, key)
    if in_doubt:
        reason = (
            "the process ended during this call: whether it took effect is unknown "
            f"(look it up by the call id {key} or the idempotency key {tool_key})"
        )
    return Confirmation(
        id=run.confirmation_id(key, changed, end=doubt),
        kind="tool",
        agent=run.agent.name,
        tool=tool.name,
        call_id=key,
        idempotency_key=tool_key,
        description=tool.definition.summary,
        arguments=call.arguments,
        hash=content_digest(arguments),
        reason=reason,
        rule=f"{verdict.rule} ({verdict.place})",
        risk=tool.risk,
    )


def invalid_call(message: str, **more: Any) -> ToolResult:
    """Return the result of a call that the model must correct."""
    metadata = {INVALID_CALL: True, "error_type": "invalid_call", **more}
    return ToolResult(status="error", error=message, metadata=metadata)


def _invalid_arguments(error: ToolError, tool: Tool) -> RefusedCall:
    if isinstance(error, ArgumentsError):
        findings = [{**asdict(finding), "fix": finding.fix} for finding in error.findings]  # as error.j2 reads them
        return RefusedCall(invalid_call(error.message, findings=findings))
    metadata = {"error_type": raised_error_type(error, tool)}
    return RefusedCall(ToolResult(status="error", error=error.message, metadata=metadata))


def _denied(verdict: Verdict) -> RefusedCall:
    metadata = {"error_type": "policy_denied", "rule": verdict.rule, "place": verdict.place}
    return RefusedCall(ToolResult(status="denied", error=f"the policy forbids this call: {verdict}", metadata=metadata))


class ConditionalVerdict(NamedTuple):
    """The policy's verdict on calls of a tool whose arguments meet a condition."""

    condition: str
    """Such as `amount > 50`."""
    verdict: Verdict

    def __str__(self) -> str:
        because = f": {self.verdict.reason}" if self.verdict.reason else ""
        return f"when {self.condition} ({self.verdict.place}){because}"


@dataclass(frozen=True, slots=True)
class ToolExplanation:
    """The policy's verdict on a tool."""

    tool: Tool
    offered: bool
    """Whether the model is offered the tool."""
    verdict: Verdict
    """The verdict on a call that meets no condition, or on the explained call."""
    conditions: tuple[ConditionalVerdict, ...] = ()
    """Verdicts on calls that meet a condition."""
    deferred: bool = False
    """Whether the first request does not contain the tool: a run adds it when it needs it."""
    in_scripts: bool = False
    """Whether scripts of the model call the tool: the system prompt describes it as a function."""

    @property
    def is_sent(self) -> bool:
        """Whether every request contains the tool."""
        return self.offered and not self.deferred and not self.in_scripts

    @property
    def tokens(self) -> int:
        """Estimated tokens of the tool's definition in each request."""
        return estimate_tokens(json.dumps(self.tool.definition.model_dump(), ensure_ascii=False)) if self.is_sent else 0


def explain_tools(agent: Agent) -> list[ToolExplanation]:
    """Explain every tool, sorted by name."""
    return [explain_tool(agent, tool) for _, tool in sorted(agent.toolset.tools.items())]


def explain_tool(agent: Agent, tool: Tool) -> ToolExplanation:
    """Explain one tool, for any arguments."""
    deferred = agent.toolset.is_deferred(tool.name)
    offered = deferred or tool.name in agent.toolset.offered
    conditions = tuple(_conditions(agent, tool)) if offered else ()
    in_scripts = agent.toolset.in_code_mode and is_function(tool)
    return ToolExplanation(tool, offered, agent_verdict(agent, tool, {}), conditions, deferred, in_scripts)


def explain_call(
    agent: Agent, tool: Tool, arguments: Mapping[str, Any], base: Path
) -> tuple[ToolExplanation, str | None]:
    """Explain one call; also return the error in its arguments, or None if they are valid.

    Args:
        agent: the agent whose policy applies.
        tool: the tool to call.
        arguments: the arguments as a model would pass them.
        base: the base directory of file tools.
    """
    policy = Policy(agent, lambda _: agent, base=BaseFolder(base))
    repaired = normalize_arguments(tool, arguments, base, agent).arguments
    argument_views, error_message = policy_views(tool, repaired), None
    try:
        argument_views = policy_views(tool, repaired, bind_arguments(tool, repaired, base))
    except ToolError as error:
        error_message = error.message
    verdict = policy.evaluate(tool, *argument_views)
    deferred = agent.toolset.is_deferred(tool.name)
    offered = deferred or tool.name in agent.toolset.offered
    return ToolExplanation(tool, offered, verdict, deferred=deferred), error_message


def system_prompt(agent: Agent, locale: str, inputs: Mapping[str, Any], http: HttpLimits, model: ModelInfo) -> str:
    """Return the first message of a new conversation, with placeholders for the user's message and missing inputs.

    Args:
        agent: the agent.
        locale: the language of its templates.
        inputs: values of its inputs.
        http: the operator's limits of `http_request`.
        model: its model.

    Raises:
        PromptError: a template cannot be rendered.
    """
    values = placeholders(agent.spec.inputs) | dict(inputs)
    run = RunVariables(
        "<message>",
        http=http if HTTP_TOOL in agent.toolset.offered else None,
        parallel_calls=not model.needs_json_protocol(agent.spec.protocol),
    )
    guidance = agent.guidance(locale, agent.spec.runtime_policy, run)
    own = agent.instructions(locale, values, None, run), *agent.tool_guidance()
    return "\n\n".join(part for part in (*own, guidance) if part)


def _conditions(agent: Agent, tool: Tool) -> Iterator[ConditionalVerdict]:
    """Yield the rules that apply to some arguments only, in the order in which the policy evaluates them."""
    rules, files = agent.toolset.rules_for(tool.name), agent.spec.skill_policy.files.deny
    yield from (_conditional("deny", placed) for placed in rules.deny if placed.rule.is_conditional)
    if files and (tool.paths or tool.urls):
        place = agent.place("skill_policy", "files", "deny")
        yield ConditionalVerdict(f"a file matches {' or '.join(files)}", Verdict("deny", "files.deny", place))
    yield from (_conditional("ask", placed) for placed in rules.ask if placed.rule.is_conditional)


def _conditional(kind: VerdictKind, placed: PlacedRule) -> ConditionalVerdict:
    verdict = Verdict(kind, f"{kind} {placed.rule.tool}", placed.place, placed.rule.reason)
    return ConditionalVerdict(placed.rule.condition, verdict)


RAISED_AT = "raised_at"
"""Key in a result's metadata: `file:line` in the tool's code, for its author. It is not sent to the model."""
_MAX_PREVIEW_CHARS = 20_000
RETRYABLE = "retryable"
"""Key in a result's metadata: the tool broke or timed out, so a retry may help."""
_LIMIT_REACHED = "not called: max_tool_calls is reached; answer now with what you have"
_REJECTED = "The user rejected this call"
"""Error of a call that a person rejects."""
_ESCAPED_MARKS = str.maketrans("/~?@", "____")
"""Separators in confirmation ids and in ids of a script's calls, which must not occur in a call's own id."""


def normalize_message(message: Message, state: RunState, toolset: Toolset) -> Message:
    """Return a model's message in the form that is stored: valid text, arguments as JSON, unique call ids.

    Duplicate calls are removed, and tool names in a provider's spelling replaced by the tools' own names. A misspelt
    name that can mean one offered tool only is repaired, and kept in `state.misspelt` for the report. A call gets a new
    id if its own is empty, was used before in this run, or contains a separator of confirmation ids.
    """
    used = {*state.calls, *(call.id for earlier in state.messages for call in earlier.tool_calls)}
    unique = []
    requested = [_with_tool_name(revalidate_call(call), toolset) for call in unique_calls(message.tool_calls)]
    for index, call in enumerate(requested):
        fresh = call.id.translate(_ESCAPED_MARKS)
        if not fresh or fresh in used:
            fresh = f"{fresh or 'call'}_{len(state.messages)}_{index}"
        while fresh in used:
            fresh += "_"
        used.add(fresh)
        if call.tool not in toolset.tools and (meant := toolset.by_misspelt_name(call.tool)):
            state.misspelt[fresh] = call.tool
            call = call.model_copy(update={"tool": meant.name})
        unique.append(call if call.id == fresh else call.model_copy(update={"id": fresh}))
    content = fix_surrogates(message.content)
    is_same = len(unique) == len(message.tool_calls) and all(map(is_, unique, message.tool_calls))
    if is_same and content == message.content:
        return message
    return message.model_copy(update={"content": content, "tool_calls": tuple(unique)})


def _with_tool_name(call: ToolCall, toolset: Toolset) -> ToolCall:
    """Return the call under its tool's own name, so that rules also match the providers' spelling (`a__b`)."""
    if call.tool in toolset.tools:
        return call
    tool = toolset.by_wire_name(call.tool)
    return call.model_copy(update={"tool": tool.name}) if tool else call


def reserve_calls(run: RunContext, requested: Sequence[ToolCall], *, is_retry: bool = False) -> list[ToolCall]:
    """Count calls against the limits before the first is executed. Calls beyond a limit get an error as their result.

    Args:
        run: the run that makes the calls.
        requested: the calls of one turn.
        is_retry: the calls are further attempts, which do not count as repeats.

    Returns:
        The calls to pass to `run_call`; those whose arguments are not valid JSON are marked as invalid.

    Raises:
        LimitExceeded: no call is within the limits, or one was repeated too often.
    """
    open_calls = run.state.open_calls()  # parsed when their message arrived
    requested = [
        call if any(call is open_call for open_call in open_calls) else revalidate_call(call) for call in requested
    ]
    requested = [_with_tool_name(call, run.agent.toolset) for call in requested]
    new = [call for call in requested if call.id not in run.state.calls]
    beyond_limit = ToolResult(status="error", error=_LIMIT_REACHED)
    fitting = 0
    for call in new:
        repeats = 1 if is_retry else run.budget.spend_repeat(repetition_key(call.tool, call.arguments))
        fits = run.budget.reserve_call()
        fitting += fits
        run.state.calls[call.id] = CallRecord(call=call, repeats=repeats, result=None if fits else beyond_limit)
    if new and not fitting:
        raise run.budget.calls_exhausted()
    return requested


async def run_call(run: RunContext, call: ToolCall) -> Confirmations:
    """Execute a reserved call and record its result, unless it already has one.

    Returns:
        The confirmations that are needed first; empty once the call has a result.
    """
    record = run.state.calls[call.id]
    if record.result is not None:
        return ()
    tool = run.agent.toolset.tools.get(call.tool)
    if tool is not None and _is_in_doubt(record, tool):
        call = record.call  # with the edit of the person who approved it
    pending: Confirmations = ()
    with ToolTrace(run, call, tool) as trace:
        if tool is None:
            unknown = f"there is no tool {call.tool!r}{did_you_mean(call.tool, sorted(run.agent.toolset.offered))}"
            await record_result(run, call, invalid_call(unknown))
        elif call.invalid:
            await record_result(run, call, invalid_call(f"the arguments cannot be read: {call.invalid}"))
        else:
            call = await repair_call(run, call, tool)
            refused = refused_handoff(run, call, tool) if tool.source == "handoff" else None
            ruling = RefusedCall(refused) if refused else await _authorize(run, call, tool)
            is_denied = isinstance(ruling, RefusedCall) and ruling.result.status == "denied"
            if run.agent.toolset.is_deferred(tool.name) and not is_denied:
                run.add_tools([tool.name])  # called by its name, without a search: the model gets its definition
            match ruling:
                case RefusedCall(result):
                    await record_result(run, call, result)
                case Question(confirmation):
                    pending = (confirmation,)
                case AllowedCall(call, _) if tool.source == "client":
                    pending = await results.await_client(run, call, tool)
                case AllowedCall(call, bound):
                    pending = await _execute(run, call, tool, bound)
        trace.set_pending(pending)
    return pending


async def _authorize(run: RunContext, call: ToolCall, tool: Tool) -> Ruling:
    """Pass a call through the gate, the hooks, a person's decision and the tool's rate limit.

    Whatever takes time or changes the call leads back to the gate: a hook, an approval, an edit, a wait.
    """
    decision: Approve | Edit | None = None
    seen_by_hooks: ToolCall | None = None
    while True:
        ruling = evaluate_call(run, call, tool, decision)
        if isinstance(ruling, RefusedCall):
            return ruling
        if seen_by_hooks is not call and any(True for _ in run.hooks("before_tool")):
            if refused := await results.before_tool(run, call):
                return RefusedCall(refused)
            seen_by_hooks = call
            continue
        if isinstance(ruling, AllowedCall):
            ruling = await _admit(run, call, tool, ruling, decision)
            if not isinstance(ruling, Question):
                return ruling
        answer = await _answer(run, call, tool, ruling)
        if not isinstance(answer, Approve | Edit):
            return answer
        decision = answer
        if isinstance(decision, Edit):
            canonical = canonical_arguments(tool, decision.arguments, run.services.base_path).arguments
            call = revalidate_call(call.model_copy(update={"arguments": canonical}))


async def _admit(
    run: RunContext, call: ToolCall, tool: Tool, allowed: Ruling, decision: Approve | Edit | None
) -> Ruling:
    """Wait for the tool's rate limit, and count the call for rules with `at_most`; return the ruling after that."""
    if await results.wait_for_rate(run, tool):
        allowed = evaluate_call(run, call, tool, decision)
    if not isinstance(allowed, AllowedCall):
        return allowed
    views = policy_views(tool, call.arguments, allowed.bound)
    if not any(True for _ in run.policy.counted_rules(tool, views)):
        return allowed
    is_approved, record = decision is not None, run.state.calls[call.id]
    reached = await run.services.grants.count(
        run.policy, run.services.root, tool, views, is_approved=is_approved, counted=record.counted
    )
    if not isinstance(reached, Verdict):
        run.state.calls[call.id] = record.model_copy(update={"counted": reached})
        return evaluate_call(run, call, tool, decision)  # again: counting takes time
    if reached.kind == "deny":
        return _denied(reached)
    return Question(_confirmation(run, call, tool, reached, in_doubt=False), allowed.bound)


async def _answer(run: RunContext, call: ToolCall, tool: Tool, question: Question) -> Ruling | Approve | Edit:
    """Return a person's decision to execute the call, also a remembered one, or the ruling for the lack of one."""
    decision = run.decision(question.confirmation.id)
    if decision is None:
        views = policy_views(tool, call.arguments, question.bound)
        if not question.in_doubt and await results.is_granted(run, call, tool, views, question.confirmation):
            return Approve()
        return await _ask(run, call, tool, question)
    record_decision(run, question.confirmation.id, decision)
    match decision:
        case Respond(text=text):
            return RefusedCall(ToolResult(status="success", output=text, metadata={"decision": "respond"}))
        case Reject(reason=reason):
            what = "The approval expired" if decision == EXPIRED else _REJECTED
            error = f"{what}: {reason}" if reason else what
            return RefusedCall(ToolResult(status="cancelled", error=error, metadata={"decision": "reject"}))
    return decision


async def _ask(run: RunContext, call: ToolCall, tool: Tool, question: Question) -> Ruling:
    """Return the question with a preview of what the call would change, or the error of a call that cannot succeed."""
    record, confirmation = run.state.calls[call.id], question.confirmation
    if not record.started:  # a call in doubt may have taken effect, so that it could not succeed again
        preview = await _preview(run, call, tool, question.bound)
        if isinstance(preview, ToolResult):
            return RefusedCall(preview)
        views = policy_views(tool, call.arguments, question.bound)
        offer = run.services.grants.offer(run.policy, run.services.root, tool, views)
        confirmation = confirmation.model_copy(update={"preview": preview, "remember": offer})
    if not record.contract:  # the first question keeps the plain id; its approval covers these contents only
        about = {"contract": tool.contract, "asked": confirmation.hash}
        run.state.calls[call.id] = record.model_copy(update=about)
    await run.emit(ToolRequested, id=call.id, tool=call.tool, arguments=redact_data(call.arguments))
    return replace(question, confirmation=confirmation)


async def _execute(run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any]) -> Confirmations:
    """Execute an allowed call and record its result; return the confirmations that the tool requests first, if any."""
    run.keep_time()
    run.services.journal.check()
    record = run.state.calls[call.id]
    run.state.calls[call.id] = record.model_copy(update={"started": record.started + 1, "call": call})
    described = {"id": call.id, "tool": call.tool, "arguments": redact_data(call.arguments)}
    if not (record.contract or record.started):  # else it was emitted with the first question, or start
        await run.emit(ToolRequested, **described)
    await run.emit(ToolStarted, **described)
    await run.save()
    started = perf_counter()
    own = {"agent": _delegate, "run": call_run_tool, "code": run_script}
    own |= {"memory": call_memory_tool, "handoff": call_handoff}
    if tool.source in own and isinstance(ruling := evaluate_call(run, call, tool, Approve()), RefusedCall):
        await record_result(run, call, ruling.result)  # denied while its start was stored; `_invoke` checks others
        return ()
    invoke_tool = own.get(tool.source, _call_with_retries)
    todo_before = run.services.root.session.get(TODO) if call.tool == TODO else None
    pending, result = await invoke_tool(run, call, tool, bound)
    if pending:
        return pending
    if call.tool == TODO:
        await results.report_todo_changes(run, todo_before)
    elapsed = (perf_counter() - started) * 1000
    timed = result.model_copy(update={"elapsed_ms": elapsed})
    changed = await results.after_tool(run, call, timed)
    if changed is not timed:
        run.state.found_tools.pop(call.id, None)  # the model reads what the hook returned
    await record_result(run, call, timed if changed is timed else changed.model_copy(update={"elapsed_ms": elapsed}))
    return ()


async def _preview(run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any]) -> str | ToolResult:
    """Return what a call would change, for the person who approves it; or the error of a call that cannot succeed.

    If the preview itself fails, the person decides without it.
    """
    if tool.source == "memory":
        return await memory_preview(run, tool, bound)
    if tool.preview is None:
        return ""
    limits = [limit for limit in (tool.timeout, run.budget.limits.tool_timeout) if limit is not None]
    try:
        async with (
            run.services.threads.turn(run.services.root.run_id, tool.name) as thread,
            asyncio.timeout(min(limits, default=None)),
        ):
            return shorten(
                await tool.invoke_preview(bound, partial(build_tool_context, run, call), thread), _MAX_PREVIEW_CHARS
            )
    except ToolError as error:
        return ToolResult(status="error", error=error.message, metadata={"error_type": error.code})
    except BaseException as error:  # a plugin's preview may raise anything
        if not is_plugin_failure(error) and not isinstance(error, TimeoutError):
            raise
        log.info("run %s: the preview of %s failed: %s", run.state.run_id, tool.name, safe_traceback(error))
        return ""


async def _call_with_retries(
    run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any]
) -> tuple[Confirmations, ToolResult]:
    """Call the tool, and retry it as often as it declares, for failures that may be temporary."""
    for attempt in count(1):
        try:
            result = await _invoke(run, call, tool, bound)
        except Paused as paused:  # a tool asks before it acts, so this attempt had no effect
            record = run.state.calls[call.id]
            run.state.calls[call.id] = record.model_copy(update={"started": record.started - 1})
            return paused.confirmations, ToolResult(status="cancelled")
        if attempt > tool.retries or RETRYABLE not in result.metadata:
            break
        await asyncio.sleep(retry_delay(attempt))
        if tool.rate:
            await run.services.rate_limiter.wait(tool.name, tool.rate)
        if isinstance(evaluate_call(run, call, tool, Approve()), RefusedCall):
            break
    if tool.retries:
        current_span().set_attribute(names.TOOL_ATTEMPTS, attempt)
    return (), result


def retry_delay(attempt: int) -> float:
    """Return the wait before the call is repeated after `attempt` failures, in seconds."""
    return backoff(attempt, base=0.1, cap=5.0, spread=0.5)


async def _invoke(run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any]) -> ToolResult:
    longest = run.budget.limits.tool_timeout if tool.source != "a2a" else None  # as for other sub-agents
    limits = [limit for limit in (tool.timeout, longest) if limit is not None]
    try:
        async with (
            _thread(run, tool) as thread,
            asyncio.timeout(min(limits, default=None)) as deadline,
        ):
            if isinstance(ruling := evaluate_call(run, call, tool, Approve()), RefusedCall):
                return ruling.result  # denied while its start was stored, or while it waited for a thread
            context = partial(build_tool_context, run, call)
            returned = await tool.invoke(bound, context, thread)
            is_hosted = isinstance(returned, HostedOutput)
            output, files = split_output(returned.output if is_hosted else returned)
    except ToolError as error:
        return ToolResult(status="error", error=error.message, metadata={"error_type": raised_error_type(error, tool)})
    except TimeoutError as error:
        if not deadline.expired():
            return _failure_result(run, tool, error)
        doubt = "" if tool.idempotent else "; whether it took effect is unknown"
        message = f"timed out after {min(limits):g}s{doubt}"
        return ToolResult(status="error", error=message, metadata={"error_type": "timeout", RETRYABLE: True})
    except BaseException as error:  # a tool may raise anything; the model gets the error, and the run continues
        if pending := [*confirmations_in(error)]:
            raise Paused(pending) from None
        if not is_plugin_failure(error):
            raise
        return _failure_result(run, tool, error)
    if files:
        return await _result_with_files(run, output, files)
    about = {HOST: dict(returned.about)} if is_hosted and returned.about else {}
    return ToolResult(status="success", output=output, metadata=about)


async def _result_with_files(run: RunContext, output: Any, files: Sequence[File]) -> ToolResult:
    """Save the files that a tool returned, and return its result; raises StoreError."""
    if (size := sum(len(file.data) for file in files)) > MAX_REQUEST_MEDIA_BYTES:
        limit = file_size(MAX_REQUEST_MEDIA_BYTES)
        error = f"the tool returned {file_size(size)} of files; at most {limit} are allowed"
        return ToolResult(status="error", error=error, metadata={"error_type": "files_too_large"})
    return ToolResult(status="success", output=output, media=await run.services.media.save(files))


def _thread(run: RunContext, tool: Tool) -> AbstractAsyncContextManager[Executor | None]:
    """Return a thread from the run's quota for a blocking tool; None for a coroutine."""
    return run.services.threads.turn(run.services.root.run_id, tool.name) if tool.needs_thread else nullcontext()


async def _delegate(
    run: RunContext, call: ToolCall, tool: Tool, bound: dict[str, Any]
) -> tuple[Confirmations, ToolResult]:
    """Run a sub-agent: the call's arguments become its message and inputs, its output the result."""
    name = tool.name.removeprefix("agent.")
    agent = run.services.generation.agents.get(name)
    if agent is None:
        return (), ToolResult(status="error", error=f"agent {name!r} no longer exists")
    inputs = {key: value for key, value in bound.items() if key != "message"}
    pending, state = await run.delegate(call.id, agent, bound["message"], inputs)
    if pending or state.status == "completed":
        output = describe_output(state) if state.data is None else state.data
        return pending, ToolResult(status="success", output=output)
    metadata = {"error_type": state.finish_reason}
    return (), ToolResult(status="error", error=describe_unfinished(state), metadata=metadata)


def _failure_result(run: RunContext, tool: Tool, error: BaseException) -> ToolResult:
    """Return the result of a tool that raised: the message for the model, the code location for the tool's author."""
    kind = type(error).__name__
    place = place_of_error(error, tool.function)
    if log.isEnabledFor(logging.INFO):
        log.info("run %s: tool %s raised %s", run.state.run_id, tool.name, safe_traceback(error))
    try:
        text = f"{kind}: {error}"
    except BaseException:  # noqa: BLE001 - __str__ of a tool's exception may raise anything
        text = kind
    metadata = {"error_type": kind, RETRYABLE: True, **({RAISED_AT: place} if place else {})}
    return ToolResult(status="error", error=text, metadata=metadata)
