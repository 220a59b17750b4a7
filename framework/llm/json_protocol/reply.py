"""What a model says in the text protocol, read strictly: one action, one final answer, or the reason why neither.

Only two things are taken off before: one `<think>…</think>` at the beginning, and one fence, ```` ```json ```` or
```` ``` ````, around all of the rest. Nothing is guessed, completed or picked out of prose: an action is carried out,
so it must be what the model said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from framework.llm.client import Unusable
from framework.llm.reply_check import THINK_TAG, split_reasoning
from framework.types.strict_json import read_json

MAX_TEXT_CHARS = 1_000_000
_CONTEXT_CHARS = 30
"""How much of the answer is quoted on each side of a mistake."""
_FENCE, _FENCE_HEADS = "```", ("```", "```json")
_KEYS: Mapping[str, Mapping[str, tuple[type, str]]] = {
    "action": {"tool": (str, "text"), "args": (dict, "an object")},
    "final": {"answer": (str, "text")},
}
"""What each form has besides its `type`."""


@dataclass(frozen=True, slots=True)
class ToolAction:
    """Call this tool."""

    tool: str
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """Answer the user."""

    answer: str


def answer_schema(tools: Sequence[str], *, must_act: bool) -> dict[str, Any]:
    """Return the JSON Schema of an answer.

    Args:
        tools: names of the tools that may be called.
        must_act: a tool must be called now.
    """
    values: dict[str, dict[str, Any]] = {"tool": {"enum": list(tools)}, "args": {"type": "object"}}
    forms = []
    for kind, keys in _KEYS.items():
        if tools if kind == "action" else not (tools and must_act):
            properties = {"type": {"const": kind}, **{key: values.get(key, {"type": "string"}) for key in keys}}
            forms.append(
                {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
            )
    return {"oneOf": forms} if len(forms) > 1 else forms[0]


def parse_answer(text: str) -> ToolAction | FinalAnswer | Unusable:
    """Read an answer; any text at all gives one of the three."""
    value = parse_object(text)
    if isinstance(value, Unusable):
        return value
    if reason := _misshapen(value):
        return Unusable(reason)
    return FinalAnswer(value["answer"]) if value["type"] == "final" else ToolAction(value["tool"], value["args"])


def parse_object(text: str) -> dict[str, Any] | Unusable:
    """Read an answer that must be one JSON object, whatever its keys."""
    if len(text) > MAX_TEXT_CHARS:
        return Unusable(f"it is longer than {MAX_TEXT_CHARS} characters")
    _, body = split_reasoning(text)
    if body.startswith(THINK_TAG):
        return Unusable(
            "<think> is not closed" if "</think>" not in body else "more than one <think>", body[:_CONTEXT_CHARS]
        )
    body = strip_fence(body)
    if not body.startswith("{"):
        reason = "it does not begin with {: write nothing before the object" if body else "it is empty"
        return Unusable(reason, body[:_CONTEXT_CHARS])
    try:
        value = read_json(body)
    except json.JSONDecodeError as error:
        return _at(error, body)
    except ValueError as error:
        surrogate = isinstance(error, UnicodeError)
        return Unusable("it has half a surrogate pair, which is not text" if surrogate else str(error))
    assert isinstance(value, dict)  # it began with {
    return value


def strip_fence(text: str) -> str:
    """The text inside a Markdown code fence that surrounds all of it; any other text as it is."""
    head, line_break, body = text.partition("\n")
    if not line_break or not body.endswith(_FENCE) or head.rstrip(" \t\r").lower() not in _FENCE_HEADS:
        return text
    return body.removesuffix(_FENCE).strip()


def _at(error: json.JSONDecodeError, body: str) -> Unusable:
    near = body[max(0, error.pos - _CONTEXT_CHARS) : error.pos + _CONTEXT_CHARS]
    place = f"line {error.lineno}, column {error.colno}"
    if error.msg == "Extra data":
        return Unusable(f"something follows the object at {place}: write one object and nothing else", near)
    return Unusable(f"it is not JSON: {error.msg} at {place}", near)


def _misshapen(value: Mapping[str, Any]) -> str:
    """Why an object is neither an action nor a final answer; empty if it is one."""
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _KEYS:
        return 'its "type" must be "action" or "final"'
    wanted = _KEYS[kind]
    form = ", ".join(f'"{key}"' for key in ("type", *wanted))
    for key, (of_type, told) in wanted.items():
        if key not in value:
            return f'"{key}" is missing: a "{kind}" has {form}'
        if not isinstance(value[key], of_type):
            return f'"{key}" must be {told}'
    if more := sorted(value.keys() - wanted.keys() - {"type"}):
        return f'a "{kind}" has {form} and nothing else, not "{more[0][:_CONTEXT_CHARS]}"'
    return '"tool" is empty' if kind == "action" and not value["tool"].strip() else ""
