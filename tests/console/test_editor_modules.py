"""The editor's pure modules: places in YAML, edits of single values, completions."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from framework.config.schema import SCHEMAS, ProjectNames
from tests.support.cases import cases
from tests.support.node_modules import call

TOOLS = ["orders.find", "orders.refund", "docs.read", "calculator", "orders.*", "*", "a b", "true", "x: y", "12", "'q'"]
SCHEMA = SCHEMAS["agent"](
    ProjectNames(tools={"orders.find": "Find one.", "calculator": ""}, models=["offline", "openai/"])
)
PLAIN = ("calculator", "orders.find", "docs.read")
PIECES = [
    "a:",
    " b",
    "\n",
    "  ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "'",
    '"',
    "#",
    "|",
    ":",
    "x",
    "\\",
    "{{",
    "}}",
    "%}",
    "{#",
]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=30).map("".join)


@cases(150)
@given(text=TEXTS, offset=st.integers(0, 60))
def test_a_text_of_any_kind_has_a_place_and_completions(text: str, offset: int) -> None:
    found = call("editor/yaml.js", "cursorAt", text, offset)
    assert found["at"] in ("key", "value")
    completion = call("editor/complete.js", "completeYaml", text, min(offset, len(text)), SCHEMA)
    assert completion["from"] <= completion["to"]
    call("editor/complete.js", "completeTemplate", text, min(offset, len(text)), [])


@pytest.mark.parametrize(
    ("text", "path", "at"),
    [
        ("na", [], "key"),
        ("name: ", ["name"], "value"),
        ("skill_policy:\n  al", ["skill_policy"], "key"),
        ("skill_policy:\n  ", ["skill_policy"], "key"),
        ("skill_policy:\n  allow: [a, or", ["skill_policy", "allow", "*"], "value"),
        ("skill_policy:\n  allow:\n  - or", ["skill_policy", "allow", "*"], "key"),
        ("skill_policy:\n  ask:\n    - {tool: or", ["skill_policy", "ask", "*", "tool"], "value"),
        ("skill_policy:\n  ask:\n    - {tool: a, wh", ["skill_policy", "ask", "*"], "key"),
        ("skill_policy:\n  ask:\n    - tool: x\n      wh", ["skill_policy", "ask", "*"], "key"),
        ("a: {b: {c: [{d", ["a", "b", "c", "*"], "key"),
        ("a: {b: 1}\nc", [], "key"),
        ("a:\n  b: |\n    text\n  c", ["a"], "key"),
        ('"a b":\n  c: "x', ["a b", "c"], "value"),
        ("# comment: x\nname: # nothing\n  d", ["name"], "key"),
        ("a: [\n  b,\n  c", ["a", "*"], "value"),
    ],
)
def test_the_place_of_the_cursor(text: str, path: list[str], at: str) -> None:
    found = call("editor/yaml.js", "cursorAt", text, len(text))
    assert (found["path"], found["at"]) == (path, at)


def completions(text: str) -> list[str]:
    found = call("editor/complete.js", "completeYaml", text, len(text), SCHEMA)
    return [option["label"] for option in found["options"]]


def test_completions_follow_the_schema() -> None:
    assert completions("mod")[0] == "model"
    assert "mode" in completions("mod")
    assert "executor" not in completions("exec"), "an older spelling"
    assert "steps" in completions("limits:\n  st")
    assert completions("tools: [ord") == completions("tools: {allow: [ord") == ["orders.find"]
    assert "name" not in completions("name: a\nversion: 1\n")
    assert "max_steps" in completions("runtime_policy:\n  max")
    assert completions("model: off") == ["offline"]
    assert completions("skill_policy: {allow: [ord") == ["orders.find"]
    assert {"tool", "when", "reason"} <= {*completions("skill_policy:\n  deny:\n    - ")}
    assert completions("runtime_policy: {risk_level: hi") == ["high"]
    assert completions("nothing: ") == []
    (option, *_) = call("editor/complete.js", "completeYaml", "inst", 4, SCHEMA)["options"]
    assert (option["insert"], bool(option["about"])) == ("instructions: ", True)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("name: a\n", ["tools"]),
        ("tools: [a]\n", ["tools"]),
        ("tools:\n  - a\n", ["tools"]),
        ("tools: {allow: [a]}\n", ["tools", "allow"]),
        ("tools:\n  deny: [a]\n", ["tools", "allow"]),
        ("skill_policy: {deny: [a]}\n", ["skill_policy", "allow"]),
    ],
)
def test_a_tool_is_allowed_where_the_file_lists_them(text: str, path: list[str]) -> None:
    assert call("editor/edits.js", "allowPath", text) == path


def test_completions_of_templates_are_its_variables_and_filters() -> None:
    variables = [{"name": "message", "description": "the message", "agents": []}]

    def labels(text: str) -> list[str]:
        return [
            one["label"]
            for one in call("editor/complete.js", "completeTemplate", text, len(text), variables)["options"]
        ]

    assert labels("Hello {{ mes") == ["message"]
    assert labels("Hello mes") == []
    assert labels("{{ message }} mes") == []
    assert labels("{{ message | trun") == ["truncate"]
    assert labels("{{ agent.na") == []


# --- edits


@st.composite
def files(draw: st.DrawFn) -> tuple[str, list[str], bool]:
    """Return an agent file with a list in some style, the items of the list, and whether the list is there."""
    items = draw(st.lists(st.sampled_from(TOOLS), unique=True, max_size=4))
    words = [json.dumps(item) if draw(st.booleans()) or item not in PLAIN else item for item in items]
    style = draw(st.sampled_from(["flow", "lines", "block", "flush", "parent", "missing", "empty"]))
    above = draw(st.sampled_from(["", "# a comment: [x]\n", "note: |\n  allow: [no]\n", "skip: {allow: [no]}  # x\n"]))
    below = draw(st.sampled_from(["", "limits:\n  allow: [no]\n", "last: 'allow: [x]' # y\n", "\n# end\n"]))
    deny = draw(st.sampled_from(["", "  deny: [x]  # never\n", "  # nothing\n  deny:\n  - {tool: x}\n"]))
    joined, lines = ", ".join(words), ",  # one\n    ".join(words)
    block = "".join(f"    - {word}  # why\n" for word in words)
    flush = "".join(f"  - {word}\n" for word in words)
    other = deny or "  ask: [y]\n"
    written = {
        "flow": f"skill_policy:\n{deny}  allow: [{joined}]  # the tools\n",
        "lines": f"skill_policy:\n{deny}  allow: [\n    {lines}\n  ]\n",
        "block": f"skill_policy:\n  allow:\n{block}{deny}",
        "flush": f"skill_policy:\n  allow:\n{flush}{deny}",
        "parent": f"skill_policy: {{allow: [{joined}], deny: [x]}}\n",
        "missing": f"skill_policy:\n{other}",
        "empty": "",
    }[style]
    is_there = style not in ("missing", "empty")
    return f"version: 1\n{above}{written}{below}", items if is_there else [], is_there


@cases(200)
@given(file=files(), tool=st.sampled_from(TOOLS), present=st.booleans())
def test_a_change_of_a_list_changes_nothing_else(file: tuple[str, list[str], bool], tool: str, present: bool) -> None:
    text, items, _ = file
    path = ["skill_policy", "allow"]
    edit = call("editor/edits.js", "setItem", text, path, tool, present)
    if (tool in items) is present:
        assert edit is None
        return
    after = call("editor/edits.js", "applyEdit", text, edit)
    wanted: Any = yaml.safe_load(text)
    policy = wanted.setdefault("skill_policy", {})
    policy["allow"] = [*items, tool] if present else [item for item in items if item != tool]
    assert yaml.safe_load(after) == wanted, after
    assert after.startswith(text[: edit["from"]])
    assert after.endswith(text[edit["to"] :])
    removed = text[edit["from"] : edit["to"]]
    assert "version" not in removed
    assert "deny" not in removed
    assert (call("editor/edits.js", "listItems", after, path) or []) == policy["allow"]


@cases(60)
@given(file=files(), value=st.sampled_from(["12", "15m", "high"]))
def test_a_value_is_set_in_place_or_added(file: tuple[str, list[str], bool], value: str) -> None:
    text, _, _ = file
    for path in (["model"], ["runtime_policy", "max_steps"], ["skill_policy", "files"], ["version"]):
        edit = call("editor/edits.js", "setValue", text, path, value)
        text = call("editor/edits.js", "applyEdit", text, edit)
        found = yaml.safe_load(text)
        for key in path:
            found = found[key]
        assert found == yaml.safe_load(value)
