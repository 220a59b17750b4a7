"""Parses a reply in the JSON protocol strictly: one action, one final answer, or the reason why it is neither.

Only two things are removed first: one leading `<think>…</think>`, and one fence, ```` ```json ```` or ```` ``` ````,
around the whole rest. Nothing is guessed, completed or extracted from prose: an action is executed, so it must be
exactly what the model wrote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from framework.llm.client import Unusable
from framework.llm.thoughts import ThoughtSplitter
from framework.types.strict_json import read_json

MAX_TEXT_CHARS = 1_000_000
_CONTEXT_CHARS = 30
"""Characters quoted on each side of a mistake."""
_FENCE, _FENCE_HEADS = "```", ("```", "```json")
_KEYS: Mapping[str, Mapping[str, tuple[type, str]]] = {
    "action": {"tool": (str, "text"), "args": (dict, "an object")},
    "final": {"answer": (str, "text")},
}
"""Keys of each kind of reply in addition to `type`, with their types."""
_OBJECT_KEYS = {**_KEYS, "final": {"answer": (str, "an object")}}
"""The same if the answer is an object, which has been converted to its JSON text."""


@dataclass(frozen=True, slots=True)
class ToolAction:
    """A request to call a tool."""

    tool: str
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """The answer to the user."""

    answer: str


def parse_answer(text: str, *, as_object: bool = False) -> ToolAction | FinalAnswer | Unusable:
    """Return the action, the final answer or the error in any text.

    With `as_object`, the answer is an object, which becomes JSON text; the text of one is accepted as well.
    """
    value = parse_object(text)
    if isinstance(value, Unusable):
        return value
    if as_object and isinstance(value.get("answer"), dict):
        value["answer"] = json.dumps(value["answer"], ensure_ascii=False)
    if reason := _shape_error(value, _OBJECT_KEYS if as_object else _KEYS):
        return Unusable(reason)
    return FinalAnswer(value["answer"]) if value["type"] == "final" else ToolAction(value["tool"], value["args"])


def parse_object(text: str) -> dict[str, Any] | Unusable:
    """Return the JSON object in a reply, whatever its keys, or the error."""
    if len(text) > MAX_TEXT_CHARS:
        return Unusable(f"it is longer than {MAX_TEXT_CHARS} characters")
    splitter = ThoughtSplitter()
    body = f"{splitter.add(text).text}{splitter.finish().text}"
    if splitter.is_open or splitter.blocks > 1:
        reason = "more than one <think>" if splitter.blocks > 1 else "<think> is not closed"
        return Unusable(reason, text.strip()[:_CONTEXT_CHARS])
    body = strip_fence(body.strip())
    if not body.startswith("{"):
        reason = "it does not begin with {: write nothing before the object" if body else "it is empty"
        return Unusable(reason, body[:_CONTEXT_CHARS])
    try:
        value = read_json(body)
    except json.JSONDecodeError as error:
        return _syntax_error(error, body)
    except ValueError as error:
        surrogate = isinstance(error, UnicodeError)
        return Unusable("it contains a lone surrogate, which is not valid text" if surrogate else str(error))
    assert isinstance(value, dict)  # it began with {
    return value


def strip_fence(text: str) -> str:
    """Return the text inside a Markdown code fence that surrounds all of it, and any other text unchanged."""
    head, line_break, body = text.partition("\n")
    if not line_break or not body.endswith(_FENCE) or head.rstrip(" \t\r").lower() not in _FENCE_HEADS:
        return text
    return body.removesuffix(_FENCE).strip()


def _syntax_error(error: json.JSONDecodeError, body: str) -> Unusable:
    near = body[max(0, error.pos - _CONTEXT_CHARS) : error.pos + _CONTEXT_CHARS]
    position = f"line {error.lineno}, column {error.colno}"
    if error.msg == "Extra data":
        return Unusable(f"extra text after the object at {position}: write one object and nothing else", near)
    return Unusable(f"it is not JSON: {error.msg} at {position}", near)


def _shape_error(value: Mapping[str, Any], allowed: Mapping[str, Mapping[str, tuple[type, str]]]) -> str:
    """Return why an object is neither an action nor a final answer, or an empty string."""
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in allowed:
        return 'its "type" must be "action" or "final"'
    expected = allowed[kind]
    keys = ", ".join(f'"{key}"' for key in ("type", *expected))
    for key, (value_type, type_name) in expected.items():
        if key not in value:
            return f'"{key}" is missing: a "{kind}" has {keys}'
        if not isinstance(value[key], value_type):
            return f'"{key}" must be {type_name}'
    if unknown := sorted(value.keys() - expected.keys() - {"type"}):
        return f'a "{kind}" has {keys} and nothing else, not "{unknown[0][:_CONTEXT_CHARS]}"'
    return '"tool" is empty' if kind == "action" and not value["tool"].strip() else ""
