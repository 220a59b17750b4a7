"""The gate: decides whether a tool call is allowed, refused, or a question for a person. Executes nothing.

The arguments are repaired first, so that rules see them as the tool will. `evaluate_call` is the only place in the path
of a call where the policy is evaluated: before a call, after each hook and wait, before each retry, and for arguments
that a person edited. The end of the file explains verdicts without a call, for `agentsd explain` and the console.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from framework.config.agents.compile import Agent
from framework.config.templates.prompt_check import HTTP_TOOL, RunVariables, placeholders
from framework.engine.context.policy import Policy, Verdict, VerdictKind, agent_verdict
from framework.engine.context.run_context import RunContext
from framework.engine.tool_call.results import INVALID_CALL, raised_error_type
from framework.llm.capabilities import Capabilities
from framework.llm.json_protocol import needs_json_protocol
from framework.llm.message_shape import estimate_tokens
from framework.llm.openai_format import revalidate_call
from framework.tools.base_folder import BaseFolder
from framework.tools.conditions import policy_views
from framework.tools.locations import canonical_arguments, require_canonical
from framework.tools.schema.arguments import ArgumentsError
from framework.tools.schema.json_schema import RepairedArguments, repair_arguments
from framework.tools.tool import Tool, idempotency_key
from framework.tools.toolset import PlacedRule, Toolset
from framework.types.errors import ToolError
from framework.types.http import HttpLimits
from framework.types.messages import ToolCall, ToolResult, original_keys
from framework.types.plan import PlanDraft
from framework.types.state import Approve, Confirmation, Edit
from framework.types.strict_json import canonical_call, content_digest, has_more_values
from framework.types.text import shorten

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


def findings_as_data(error: ArgumentsError) -> list[dict[str, Any]]:
    """Return the value of `findings` in `error.j2`: one dict per invalid field."""
    return [{**asdict(finding), "fix": finding.fix} for finding in error.findings]


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


@dataclass(frozen=True, slots=True)
class AllowedCall:
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
        return _invalid_edit(call, error) if isinstance(decision, Edit) else _invalid_arguments(error, tool)
    if len(seen := policy_views(tool, call.arguments, bound)) > 1:
        verdict = run.policy.evaluate(tool, *seen)
    if verdict.kind == "deny":
        return _denied(verdict)
    in_doubt = run.state.calls[call.id].started > 0 and not tool.idempotent
    if decision is not None or (verdict.kind != "ask" and not in_doubt):
        return AllowedCall(call, bound)
    return Question(_confirmation(run, call, tool, verdict, in_doubt=in_doubt), bound)


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
    told = idempotency_key(run.state.run_id, key)
    if in_doubt:
        reason = (
            "the process ended during this call: whether it took effect is unknown "
            f"(look it up by the call id {key} or the idempotency key {told})"
        )
    return Confirmation(
        id=run.confirmation_id(key, changed, end=doubt),
        kind="tool",
        agent=run.agent.name,
        tool=tool.name,
        call_id=key,
        idempotency_key=told,
        description=tool.definition.summary,
        arguments=call.arguments,
        hash=content_digest(arguments),
        reason=reason,
        rule=f"{verdict.rule} ({verdict.place})",
        risk=tool.risk,
    )


def edited_call(run: RunContext, call: ToolCall, tool: Tool, edit: Edit) -> ToolCall:
    """Return the call with the arguments of a person's edit, in canonical form."""
    canonical = canonical_arguments(tool, edit.arguments, run.services.base_path).arguments
    return revalidate_call(call.model_copy(update={"arguments": canonical}))


def invalid_call(message: str, **more: Any) -> ToolResult:
    """Return the result of a call that the model must correct."""
    metadata = {INVALID_CALL: True, "error_type": "invalid_call", **more}
    return ToolResult(status="error", error=message, metadata=metadata)


def _invalid_arguments(error: ToolError, tool: Tool) -> RefusedCall:
    if isinstance(error, ArgumentsError):
        return RefusedCall(invalid_call(error.message, findings=findings_as_data(error)))
    metadata = {"error_type": raised_error_type(error, tool)}
    return RefusedCall(ToolResult(status="error", error=error.message, metadata=metadata))


def _invalid_edit(call: ToolCall, error: ToolError) -> RefusedCall:
    return RefusedCall(ToolResult(status="error", error=f"invalid edit by a human: {call.invalid or error.message}"))


def _denied(verdict: Verdict) -> RefusedCall:
    metadata = {"error_type": "policy_denied", "rule": verdict.rule, "place": verdict.place}
    return RefusedCall(ToolResult(status="denied", error=f"the policy forbids this call: {verdict}", metadata=metadata))


@dataclass(frozen=True, slots=True)
class ConditionalVerdict:
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

    @property
    def is_sent(self) -> bool:
        """Whether every request contains the tool."""
        return self.offered and not self.deferred

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
    return ToolExplanation(tool, offered, agent_verdict(agent, tool, {}), conditions, deferred)


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


def system_prompt(
    agent: Agent, locale: str, inputs: Mapping[str, Any], http: HttpLimits, capabilities: Capabilities
) -> str:
    """Return the first message of a new conversation, with placeholders for the user's message and missing inputs.

    Args:
        agent: the agent.
        locale: the language of its templates.
        inputs: values of its inputs.
        http: the operator's limits of `http_request`.
        capabilities: what its model can do.

    Raises:
        PromptError: a template cannot be rendered.
    """
    values = placeholders(agent.spec.inputs) | dict(inputs)
    run = RunVariables(
        "<message>",
        http=http if HTTP_TOOL in agent.toolset.offered else None,
        parallel_calls=not needs_json_protocol(agent.spec.protocol, capabilities),
    )
    parts = agent.instructions(locale, values, None, run), agent.guidance(locale, agent.spec.runtime_policy, run)
    return "\n\n".join(part for part in parts if part)


def _conditions(agent: Agent, tool: Tool) -> Iterator[ConditionalVerdict]:
    """Yield the rules that apply to some arguments only, in the order in which the policy evaluates them."""
    rules, files = agent.toolset.rules_for(tool.name), agent.spec.skill_policy.files.deny
    yield from (_conditional("deny", placed) for placed in rules.deny if placed.rule.when)
    if files and (tool.paths or tool.urls):
        place = agent.place("skill_policy", "files", "deny")
        yield ConditionalVerdict(f"a file matches {' or '.join(files)}", Verdict("deny", "files.deny", place))
    yield from (_conditional("ask", placed) for placed in rules.ask if placed.rule.when)


def _conditional(kind: VerdictKind, placed: PlacedRule) -> ConditionalVerdict:
    condition = " and ".join(f"{name} {expected}" for name, expected in placed.rule.when.items())
    verdict = Verdict(kind, f"{kind} {placed.rule.tool}", placed.place, placed.rule.reason)
    return ConditionalVerdict(condition, verdict)
