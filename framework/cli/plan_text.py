"""Converts plans to text that people edit, and back."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from framework.config.yaml.parse import ParseError, parse
from framework.types.plan import Plan, PlanDraft, StepDraft
from framework.types.text import visible

FILE = "the plan"
HEAD = """\
# Change the plan, save, and close the editor. An empty file changes nothing.
# A step has a tool and its parameters; or no tool: then its description is a goal, and `tools` lists what it may call.
# {{ steps.ID.output }} in a parameter stands for the result of a step that is in its depends_on.
"""


def as_text(draft: PlanDraft, plan: Plan, tools: Collection[str] = ()) -> str:
    """Return a draft as YAML with help in comments, which also list the finished steps."""
    return "\n".join([*_head(plan, tools), *_lines(draft)]) + "\n"


def with_problems(text: str, error: ParseError) -> str:
    """Return the text with the problems in comments above it."""
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#!")).strip("\n")
    comments = "\n".join(f"#! {line}" for line in str(error).splitlines())
    return f"{comments}\n{body}\n"


def read_text(text: str) -> PlanDraft:
    """Parse an edited plan; raises ParseError with every mistake at its place."""
    draft, _ = parse(FILE, text.encode("utf-8", "replace"), PlanDraft)
    return draft


def is_unchanged(text: str | None) -> bool:
    """Return whether the editor was closed without a plan in it."""
    return text is None or not [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def without(draft: PlanDraft, names: Collection[str]) -> PlanDraft:
    """Return the draft without these steps and those that depend on them."""
    gone = set(names)
    while more := {step.id for step in draft.steps if step.id not in gone and gone.intersection(step.depends_on)}:
        gone |= more
    return draft.model_copy(update={"steps": tuple(step for step in draft.steps if step.id not in gone)})


def _head(plan: Plan, tools: Collection[str]) -> Iterator[str]:
    yield HEAD.rstrip()
    if tools:
        yield f"# Tools: {', '.join(sorted(tools))}"
    for step in plan.steps:
        if step.status == "done":
            yield f"# done: {step.id}: {visible(step.description)}"


def _lines(draft: PlanDraft) -> Iterator[str]:
    yield f"goal: {_value(draft.goal)}"
    yield "steps:" if draft.steps else "steps: []"
    for step in draft.steps:
        first, *rest = _step(step)
        yield ""
        yield f"  - {first}"
        yield from (f"    {line}" for line in rest)


def _step(step: StepDraft) -> Iterator[str]:
    yield f"id: {_value(step.id)}"
    yield f"description: {_value(step.description)}"
    if step.tool is not None:
        yield f"tool: {_value(step.tool)}"
        yield "parameters:" if step.parameters else "parameters: {}"
        yield from (f"  {_value(name)}: {_value(value)}" for name, value in step.parameters.items())
    if step.tools is not None:
        yield f"tools: {_value(list(step.tools))}"
    if step.depends_on or step.id.isdecimal():  # numbered steps run in order by default
        yield f"depends_on: [{', '.join(step.depends_on)}]"
    if step.expected:
        yield f"expected: {_value(step.expected)}"


def _value(value: Any) -> str:
    """Format a value as JSON, which is also YAML; plain words without quotation marks."""
    if isinstance(value, str) and value.replace(" ", "").replace("_", "").isalnum() and _is_a_word(value):
        return value
    text = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in text)


def _is_a_word(text: str) -> bool:
    return (
        text.isascii() and text[0].isalpha() and text.strip() == text and text.lower() not in ("true", "false", "null")
    )
