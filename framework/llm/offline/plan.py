"""Plans of the offline model: one or more steps per clause, and corrected steps if an error suggests a name."""

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
"""Returns the calls of the tool that matches a clause."""

_TEXTS = frozenset({"text", "message", "content", "body", "note"})
_POINTING = re.compile(
    r"\b(?:it|them|(?:the|that|those|all)\s+(?:results?|findings?|answers?|output|report|lines?))\b|结果|它们?|内容",
    re.IGNORECASE,
)
_STATE = re.compile(r"^- (\S+?) ?[(（](open|running|done|failed|skipped)[)）]", re.MULTILINE)
_SUGGESTION = re.compile(r"there is no \w+ '([^']+)'; did you mean ([^,?]+)")
_FEEDBACK = re.compile(r"^(?:The user saw your last plan|用户看过上一份计划)[^:：]*[:：](.*)$", re.MULTILINE)


@dataclass(slots=True)
class _Progress:
    """The progress of a plan, from the transcript."""

    states: dict[str, str] = field(default_factory=dict)
    errors: Sequence[tuple[str, Mapping[str, Any], str]] = ()
    """Failed calls with a suggestion: tool, arguments, error."""
    feedback: str = ""
    """The user's feedback on the previous plan."""

    @classmethod
    def read(cls, messages: Sequence[Message]) -> _Progress:
        start = max((at for at, message in enumerate(messages) if message.role == "user"), default=0)
        after = messages[start:]
        instruction = after[-1].content if after and after[-1].role == "system" else ""
        calls = {call.id: call for message in after for call in message.tool_calls}
        answers = [(calls.get(m.tool_call_id or ""), m.content) for m in after if m.role == "tool"]
        errors = [(call.tool, call.arguments, text) for call, text in answers if call and _SUGGESTION.search(text)]
        feedback = _FEEDBACK.search(instruction)
        return cls(dict(_STATE.findall(instruction)), errors, feedback[1] if feedback else "")


def draft_plan(text: str, messages: Sequence[Message], tools: Sequence[ToolDefinition], pick: PickCalls) -> PlanDraft:
    """Return a plan of the remaining steps: those of one clause in parallel, each after all of the previous clause."""
    progress = _Progress.read(messages)
    steps = _steps(text, tools, pick)
    skipped = {step.id for step in steps if re.search(rf"\b{step.id}\b", progress.feedback)}
    remaining: list[StepDraft] = []
    for step in steps:
        state = progress.states.get(step.id, "open")
        if state == "done" or step.id in skipped:
            continue
        attempt = _corrected(step, progress) if state == "failed" else step
        if attempt is None or _references(attempt) & skipped:
            skipped.add(step.id)
            continue
        remaining.append(attempt)
    steps = [
        step.model_copy(update={"depends_on": tuple(other for other in step.depends_on if other not in skipped)})
        for step in remaining
    ]
    return PlanDraft(goal=text, steps=tuple(steps))


def _steps(text: str, tools: Sequence[ToolDefinition], pick: PickCalls) -> list[StepDraft]:
    by_name = {tool.name: tool for tool in tools}
    parts = [(part, pick(clause := parse_clause(part), tools, ()), clause) for part in split_clauses(text)]
    if not any(calls for _, calls, _ in parts):
        return [StepDraft(id="s1", description=text)]
    steps: list[StepDraft] = []
    previous: tuple[str, ...] = ()
    for part, picked, clause in parts:
        drafts: list[tuple[str | None, dict[str, Any]]] = [*picked] or [(None, {})]
        if len(picked) == 1 and "analyze" in clause.words:
            [(name, arguments)] = picked
            drafts = [(name, variant) for variant in expand_modes(by_name[name], arguments)]
        step_ids = tuple(f"s{len(steps) + number}" for number in range(1, len(drafts) + 1))
        for step_id, (tool, parameters) in zip(step_ids, drafts, strict=True):
            described = f"{part}: {list(parameters.values())[-1]}" if len(drafts) > 1 else part
            filled = _with_references(parameters, clause, previous)
            steps.append(
                StepDraft(id=step_id, description=described, tool=tool, parameters=filled, depends_on=previous)
            )
        previous = step_ids
    return steps


def _with_references(parameters: dict[str, Any], clause: Clause, previous: Sequence[str]) -> dict[str, Any]:
    """Replace a text that the clause only refers to ("write it to a.md") with the outputs of the previous steps."""
    if not previous or clause.quoted or not _POINTING.search(clause.text):
        return parameters
    outputs = "\n\n".join(f"{{{{ steps.{name}.output }}}}" for name in previous)
    return {name: outputs if name in _TEXTS else value for name, value in parameters.items()}


def _corrected(step: StepDraft, progress: _Progress) -> StepDraft | None:
    """Return the step with the name that its error suggests, or None without a suggestion that is new."""
    tried = [arguments for tool, arguments, _ in progress.errors if tool == step.tool]
    parameters = dict(step.parameters)
    while parameters in tried:
        error = next(text for tool, arguments, text in progress.errors if tool == step.tool and arguments == parameters)
        wrong, suggested = _SUGGESTION.search(error).groups()  # type: ignore[union-attr]  # only errors with a suggestion are kept
        folder = wrong.rpartition("/")[0]
        right = f"{folder}/{suggested.strip()}" if folder else suggested.strip()
        changed = {name: _replaced(value, wrong, right) for name, value in parameters.items()}
        if changed == parameters:
            return None
        parameters = changed
    return step.model_copy(update={"parameters": parameters}) if parameters != step.parameters else None


def _replaced(value: Any, wrong: str, right: str) -> Any:
    return right + value[len(wrong) :] if isinstance(value, str) and value.startswith(wrong) else value


def _references(step: StepDraft) -> set[str]:
    return set(re.findall(r"steps\.(\w+)\.output", str(step.parameters)))
