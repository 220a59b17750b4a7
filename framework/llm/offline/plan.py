"""Plans of the offline stand-in: steps out of clauses, and another way where a step failed and the error names one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from framework.llm.offline.arguments import expand_modes
from framework.llm.offline.words import Clause, parse_clause, split_clauses
from framework.types.messages import Message, ToolDefinition
from framework.types.plan import PlanDraft, StepDraft

PickCalls = Callable[[Clause, Sequence[ToolDefinition], Sequence[str]], list[tuple[str, dict[str, Any]]]]
"""Finds the calls of the tool that fits a clause."""

_TEXTS = frozenset({"text", "message", "content", "body", "note"})
_POINTING = re.compile(
    r"\b(?:it|them|(?:the|that|those|all)\s+(?:results?|findings?|answers?|output|report|lines?))\b|结果|它们?|内容",
    re.IGNORECASE,
)
_STATE = re.compile(r"^- (\S+?) ?[(（](open|running|done|failed|skipped)[)）]", re.MULTILINE)
_MEANT = re.compile(r"there is no \w+ '([^']+)'; did you mean ([^,?]+)")
_WANTED = re.compile(r"^(?:The user saw your last plan|用户看过上一份计划)[^:：]*[:：](.*)$", re.MULTILINE)


@dataclass(slots=True)
class _Progress:
    """What the transcript says of a plan that is under way."""

    states: dict[str, str] = field(default_factory=dict)
    errors: Sequence[tuple[str, Mapping[str, Any], str]] = ()
    """Calls that failed: tool, arguments, what it said."""
    wanted: str = ""
    """What the user said of the plan before."""

    @classmethod
    def read(cls, messages: Sequence[Message]) -> _Progress:
        start = max((at for at, message in enumerate(messages) if message.role == "user"), default=0)
        after = messages[start:]
        told = after[-1].content if after and after[-1].role == "system" else ""
        calls = {call.id: call for message in after for call in message.tool_calls}
        answers = [(calls.get(m.tool_call_id or ""), m.content) for m in after if m.role == "tool"]
        errors = [(call.tool, call.arguments, text) for call, text in answers if call and _MEANT.search(text)]
        wanted = _WANTED.search(told)
        return cls(dict(_STATE.findall(told)), errors, wanted[1] if wanted else "")


def draft_plan(text: str, messages: Sequence[Message], tools: Sequence[ToolDefinition], pick: PickCalls) -> PlanDraft:
    """The steps that are still to be done; those of one clause side by side, each after all of the clause before."""
    progress = _Progress.read(messages)
    steps = _steps(text, tools, pick)
    left_out = {step.id for step in steps if re.search(rf"\b{step.id}\b", progress.wanted)}
    again: list[StepDraft] = []
    for step in steps:
        state = progress.states.get(step.id, "open")
        if state == "done" or step.id in left_out:
            continue
        tried = _another_way(step, progress) if state == "failed" else step
        if tried is None or _refers(tried) & left_out:
            left_out.add(step.id)
            continue
        again.append(tried)
    kept = [
        step.model_copy(update={"depends_on": tuple(other for other in step.depends_on if other not in left_out)})
        for step in again
    ]
    return PlanDraft(goal=text, steps=tuple(kept))


def _steps(text: str, tools: Sequence[ToolDefinition], pick: PickCalls) -> list[StepDraft]:
    by_name = {tool.name: tool for tool in tools}
    parts = [(part, pick(clause := parse_clause(part), tools, ()), clause) for part in split_clauses(text)]
    if not any(calls for _, calls, _ in parts):
        return [StepDraft(id="s1", description=text)]
    steps: list[StepDraft] = []
    before: tuple[str, ...] = ()
    for part, picked, clause in parts:
        drafts: list[tuple[str | None, dict[str, Any]]] = [*picked] or [(None, {})]
        if len(picked) == 1 and "analyze" in clause.words:
            [(name, arguments)] = picked
            drafts = [(name, variant) for variant in expand_modes(by_name[name], arguments)]
        now = tuple(f"s{len(steps) + number}" for number in range(1, len(drafts) + 1))
        for step_id, (tool, parameters) in zip(now, drafts, strict=True):
            described = f"{part}: {list(parameters.values())[-1]}" if len(drafts) > 1 else part
            filled = _with_references(parameters, clause, before)
            steps.append(StepDraft(id=step_id, description=described, tool=tool, parameters=filled, depends_on=before))
        before = now
    return steps


def _with_references(parameters: dict[str, Any], clause: Clause, before: Sequence[str]) -> dict[str, Any]:
    """A text that the clause only points at ("write it to a.md") as what the steps before will find."""
    if not before or clause.quoted or not _POINTING.search(clause.text):
        return parameters
    found = "\n\n".join(f"{{{{ steps.{name}.output }}}}" for name in before)
    return {name: found if name in _TEXTS else value for name, value in parameters.items()}


def _another_way(step: StepDraft, progress: _Progress) -> StepDraft | None:
    """The step with the name that its error suggests; none where it suggests none, or that was tried already."""
    tried = [arguments for tool, arguments, _ in progress.errors if tool == step.tool]
    parameters = dict(step.parameters)
    while parameters in tried:
        said = next(text for tool, arguments, text in progress.errors if tool == step.tool and arguments == parameters)
        wrong, meant = _MEANT.search(said).groups()  # type: ignore[union-attr]  # only such texts are kept
        folder = wrong.rpartition("/")[0]
        right = f"{folder}/{meant.strip()}" if folder else meant.strip()
        changed = {name: _replaced(value, wrong, right) for name, value in parameters.items()}
        if changed == parameters:
            return None
        parameters = changed
    return step.model_copy(update={"parameters": parameters}) if parameters != step.parameters else None


def _replaced(value: Any, wrong: str, right: str) -> Any:
    return right + value[len(wrong) :] if isinstance(value, str) and value.startswith(wrong) else value


def _refers(step: StepDraft) -> set[str]:
    return set(re.findall(r"steps\.(\w+)\.output", str(step.parameters)))
