"""Results of earlier steps in a step's parameters are converted to the type in the tool's schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import tool
from framework.config.agents.plan_steps import resolve_references
from framework.testing import Turn
from framework.tools.json_schema import is_of_type
from framework.tools.tool import Tool
from framework.types.errors import ToolError
from tests.support.cases import cases
from tests.support.plans import draft, plan_project, run_plan_with_requests, tool_step

REFERENCE = "{{ steps.a.output }}"
TYPES = ("string", "integer", "number", "boolean", "object", "array", "null")
SCALARS = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    SCALARS | st.text(max_size=8) | st.integers(-99, 99).map(str),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NODES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.sampled_from(TYPES).map(lambda name: {"type": name}),
    st.lists(st.sampled_from(TYPES), min_size=2, max_size=3, unique=True).map(lambda names: {"type": names}),
    st.lists(st.sampled_from(TYPES), min_size=2, max_size=3, unique=True).map(
        lambda names: {"anyOf": [{"type": name} for name in names]}
    ),
    st.just({}),
)


def types_in(node: dict[str, Any]) -> set[str]:
    named = node.get("type", [inner["type"] for inner in node.get("anyOf", ())])
    return {named} if isinstance(named, str) else set(named)


@cases(200)
@given(node=NODES, value=VALUES, deep=st.booleans())
def test_a_result_is_converted_to_the_required_type_if_unambiguous(
    node: dict[str, Any], value: Any, deep: bool
) -> None:
    schema = {"type": "object", "properties": {"p": {"type": "array", "items": node} if deep else node}}
    parameters = {"p": [REFERENCE] if deep else REFERENCE}
    given_value = resolve_references(parameters, lambda _: value, schema)["p"]
    got, types = given_value[0] if deep else given_value, types_in(node)
    if not types or value is None or is_of_type(value, types):
        assert (got, type(got)) == (value, type(value))
    elif "string" in types:
        assert isinstance(got, str)
        assert json.loads(got) == value
    elif got is not value and got != value:
        assert isinstance(value, str)
        assert is_of_type(got, types)
        assert got == json.loads(value)
    text = resolve_references({"p": f"<{REFERENCE}>"}, lambda _: value, schema)["p"]
    assert text == f"<{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}>"


@cases(50)
@given(number=st.integers(-(10**9), 10**9), around=st.sampled_from(["", " ", "\n"]))
def test_a_number_as_text_becomes_a_number_in_a_numeric_parameter(number: int, around: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "x": {"type": ["number", "null"]}}}
    got = resolve_references({"n": REFERENCE, "x": REFERENCE}, lambda _: f"{around}{number}{around}", schema)
    assert got == {"n": number, "x": number}
    assert resolve_references({"n": REFERENCE}, lambda _: f"{number} apples", schema) == {"n": f"{number} apples"}


def chain(root: Path, output: Any, strict: bool = False) -> tuple[list[Any], str]:
    """Return the values that a tool with a text parameter receives for a step's output, and the run's status."""
    got: list[Any] = []

    @tool(risk="low", idempotent=True)
    def find() -> Any:
        """Find something."""
        return output

    @tool(risk="low")
    def keep(content: str) -> str:
        """Keep a text."""
        got.append(content)
        return "kept"

    tools: list[Tool] = [find, keep]
    turns: list[Turn] = [
        draft(tool_step("s1", "find"), tool_step("s2", "keep", "s1", content="{{ steps.s1.output }}")),
        "done",
    ]
    policy = {"runtime_policy": "{strict_arguments: true}"} if strict else {}
    result, _, _ = run_plan_with_requests(plan_project(root, **policy), tools, *turns)
    return got, result.status


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("output", "text"),
    [(5, "5"), (2.5, "2.5"), (True, "true"), ({"a": [1]}, '{"a": [1]}'), ([], "[]"), ("5", "5")],
)
def test_any_result_can_be_inserted_into_a_text_parameter(tmp_path: Path, output: Any, text: str, strict: bool) -> None:
    assert chain(tmp_path, output, strict) == ([text], "completed")


def test_the_preflight_names_parameters_that_a_result_may_not_fit(tmp_path: Path) -> None:
    @tool(risk="low")
    def find() -> str:
        """Find something."""
        return "five"

    @tool(risk="low")
    def order(count: int, note: str) -> str:
        """Order things."""
        return f"{count} {note}"

    last = tool_step("s2", "order", "s1", count="{{ steps.s1.output }}", note="{{ steps.s1.output }}")
    result, _, seen = run_plan_with_requests(
        plan_project(tmp_path), [find, order], draft(tool_step("s1", "find"), last), draft(), "no"
    )
    (plan, _) = (event for event in seen if event["event"] == "plan")
    assert plan["preflight"]["steps"][1]["risks"] == ["count: the step fails unless the result of s1 is integer"]
    assert result.status == "failed"


def test_a_path_leads_into_json_text() -> None:
    parameters = {"n": "{{ steps.a.output.items.1.id }}"}
    assert resolve_references(parameters, lambda _: ' {"items": [{"id": 1}, {"id": 2}]}') == {"n": 2}


@pytest.mark.parametrize("text", ["items", '{"items": ', "[]", "{" * 100_000])
def test_a_path_into_another_text_is_an_error(text: str) -> None:
    with pytest.raises(ToolError, match="has no items"):
        resolve_references({"n": "{{ steps.a.output.items }}"}, lambda _: text)
