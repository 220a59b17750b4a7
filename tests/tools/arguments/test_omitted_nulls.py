"""Null for an optional argument that must not be null counts as not given; no other null is touched."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import RunResult, Runtime
from framework.testing import ScriptedModel, calls
from framework.tools.json_schema import repair_arguments
from framework.tools.tool import Tool, ToolContext
from framework.tools.tool_source import external_tool
from tests.support.cases import cases
from tests.support.projects import agent, write

LEAVES: tuple[dict[str, Any], ...] = (
    {"type": "string"},
    {"type": "string", "default": None},
    {"type": ["integer", "null"]},
    {"anyOf": [{"type": "number"}, {"type": "null"}]},
    {"anyOf": [{"type": "number"}, {"type": "boolean"}]},
    {"enum": ["a", "b"]},
    {"enum": ["a", None]},
    {"type": "array", "items": {"type": "string"}},
    {},
)


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [name for name in required if name in properties]}


NAMES = ("a", "b", "c")
SCHEMAS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: (
        st.builds(
            _object, st.dictionaries(st.sampled_from(NAMES), inner), st.lists(st.sampled_from(NAMES), unique=True)
        )
        | st.builds(lambda items: {"type": "array", "items": items}, inner)
    ),
    max_leaves=8,
)
OBJECTS = st.builds(_object, st.fixed_dictionaries(dict.fromkeys((*NAMES, "d", "e"), SCHEMAS)), st.just(["c"]))


def allows_null(node: dict[str, Any]) -> bool:
    return bool(jsonschema_rs.validator_for(node).is_valid(None))


@st.composite
def given_values(draw: st.DrawFn, node: dict[str, Any], *, whole: bool = False) -> Any:
    """Draw a value in the form of an object or a list of the schema, with nulls anywhere; `whole` is never null."""
    if not whole and draw(st.booleans()):
        return None
    if node.get("type") == "object":
        named = node["properties"].items()
        return {name: draw(given_values(inner)) for name, inner in named if draw(st.integers(0, 3))}
    if node.get("type") == "array":
        return [draw(given_values(node["items"])) for _ in range(draw(st.integers(0, 2)))]
    return draw(st.sampled_from(["a", 1, True]))


def without_nulls(node: dict[str, Any], value: Any) -> Any:
    """Return the value without the nulls that count as not given."""
    if isinstance(value, list) and node.get("type") == "array":
        return [without_nulls(node["items"], item) for item in value]
    if not isinstance(value, dict) or node.get("type") != "object":
        return value
    return {
        name: without_nulls(inner, value[name])
        for name, inner in node["properties"].items()
        if name in value and not (value[name] is None and name not in node["required"] and not allows_null(inner))
    }


def nulls_in(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (value is None) + sum(map(nulls_in, inner))


def normalized(value: Any) -> Any:
    """Return the value with the keys of objects in one order, and without the other repairs."""
    if isinstance(value, dict):
        return {key: normalized(value[key]) for key in sorted(value)}
    return [normalized(item) for item in value] if isinstance(value, list) else value


@cases(100)
@given(st.data())
def test_exactly_the_nulls_of_optional_arguments_that_must_not_be_null_are_omitted(data: st.DataObject) -> None:
    schema = data.draw(OBJECTS)
    arguments = data.draw(given_values(schema, whole=True))
    found, right = repair_arguments(schema, arguments), without_nulls(schema, arguments)

    omitted = [note for note in found.notes if note.endswith(": null omitted")]
    assert nulls_in(found.arguments) == nulls_in(right)
    assert len(omitted) == nulls_in(arguments) - nulls_in(right)
    if len(omitted) == len(found.notes):
        assert normalized(found.arguments) == normalized(right)
    if jsonschema_rs.validator_for(schema).is_valid(arguments):
        assert found.arguments == arguments
        assert not found.notes


# --- in a run


class Weather:
    """A tool of a server, which records its arguments."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []

    def tool(self) -> Tool:
        async def call(arguments: dict[str, Any], context: ToolContext) -> str:
            self.received.append(arguments)
            return f"sunny for {context.agent}"

        place = {"type": "object", "properties": {"city": {"type": "string"}, "zone": {"type": "string"}}}
        schema = {
            "type": "object",
            "properties": {
                "place": {**place, "required": ["city"]},
                "unit": {"type": "string", "default": None},
                "days": {"type": ["integer", "null"]},
            },
            "required": ["place"],
        }
        return external_tool("skill.sky.look", "Look at the sky.", schema, call, source="skill", risk="low")


def run(root: Path, arguments: dict[str, Any], **keys: str) -> tuple[list[dict[str, Any]], RunResult, str]:
    """Return what the tool received, the result, and what the model received."""
    weather, model = Weather(), ScriptedModel(calls(("skill.sky.look", arguments)), "done")
    write(root, {"agents.d/one.yaml": agent("one", **keys)})

    async def main() -> RunResult:
        async with Runtime.open(root, tools=[weather.tool()], models={"scripted": model}, watch=False) as runtime:
            return await runtime.run("go")

    result = asyncio.run(main())
    return weather.received, result, model.requests[1].messages[-1].content


def test_the_tool_does_not_receive_them_and_the_repair_is_announced(tmp_path: Path) -> None:
    given_arguments = {"place": {"city": "Oslo", "zone": None}, "unit": None, "days": None}
    received, result, _ = run(tmp_path, given_arguments)
    assert received == [{"place": {"city": "Oslo"}, "days": None}]
    assert result.trace[0].repairs == ("place.zone: null omitted", "unit: null omitted")
    assert [warning.code for warning in result.warnings] == ["arguments_repaired"]


@pytest.mark.parametrize("arguments", [{"place": {"city": None}}, {"place": None}])
def test_null_for_a_required_argument_is_an_error_for_the_model(tmp_path: Path, arguments: dict[str, Any]) -> None:
    received, _, answer = run(tmp_path, arguments)
    assert received == []
    assert "it has the wrong type (given: null)" in answer


def test_strict_arguments_keep_them_as_errors(tmp_path: Path) -> None:
    received, _, answer = run(
        tmp_path, {"place": {"city": "Oslo"}, "unit": None}, runtime_policy="{strict_arguments: true}"
    )
    assert received == []
    assert "- unit: it has the wrong type (given: null)" in answer


@pytest.mark.parametrize(("condition", "denied"), [("!= metric", True), ("*", True), ("metric", False), ("null", True)])
def test_asi02_the_policy_decides_as_if_they_were_not_given(tmp_path: Path, condition: str, denied: bool) -> None:
    policy = f'{{deny: [{{tool: skill.sky.look, when: {{unit: "{condition}"}}}}], allow: ["*"]}}'
    place = {"city": "Oslo"}
    null, _, _ = run(tmp_path / "null", {"place": place, "unit": None}, skill_policy=policy)
    absent, _, _ = run(tmp_path / "absent", {"place": place}, skill_policy=policy)
    assert null == absent == ([] if denied else [{"place": place}])
