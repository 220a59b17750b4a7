"""Validation of arguments takes bounded time: a model chooses the arguments, and a server the schema."""

from __future__ import annotations

import asyncio
import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from framework import RunResult, Runtime, tool
from framework.engine.tool_call.call import call_off_loop
from framework.llm.openai_format import chat_to_call
from framework.testing import ScriptedModel, calls
from framework.tools.arguments import ArgumentsError, SchemaArguments, bounded_model
from framework.tools.json_schema import repair_arguments
from framework.types.errors import ConfigError
from framework.types.messages import ToolCall, revalidate_call
from framework.types.text import MAX_OBJECT_CHARS, MAX_OBJECT_VALUES
from tests.support.cases import cases
from tests.support.growth import assert_alike, assert_linear
from tests.support.projects import agent, write


class All(BaseModel):
    items: list[All | Any_ | Leaf]


class Any_(BaseModel):  # noqa: N801 - the name of a class in a user's tool
    items: list[All | Any_ | Leaf]


class Leaf(BaseModel):
    field: str


for model in (All, Any_):
    model.model_rebuild()


@tool
def query(filter: All | Any_ | Leaf) -> str:
    """Query.

    Args:
        filter: What to look for.
    """
    return "done"


LEAF = {"type": "object", "properties": {"field": {"type": "string"}}, "required": ["field"]}
GROUP = {"type": "object", "properties": {"items": {"type": "array", "items": {"$ref": "#/$defs/f"}}}}
RECURSIVE = {"properties": {"filter": {"$ref": "#/$defs/f"}}, "$defs": {"f": {"anyOf": [GROUP, GROUP, LEAF]}}}
PLAIN = {
    name: {
        "type": "object",
        "properties": {name: {"type": "array", "items": {"$ref": "#/$defs/f"}}},
        "required": [name],
    }
    for name in ("and", "or")
}
HONEST = {"properties": {"filter": {"$ref": "#/$defs/f"}}, "$defs": {"f": {"anyOf": [*PLAIN.values(), LEAF]}}}


def nested(depth: int, leaf: Any, name: str = "items") -> dict[str, Any]:
    value = leaf
    for _ in range(depth):
        value = {name: [value]}
    return {"filter": value}


def bind(arguments: Any, given: dict[str, Any]) -> None:
    try:
        arguments.bind(given)
    except ArgumentsError:
        return


@pytest.mark.parametrize("leaf", [{"field": "x"}, {"field": 1}])
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "python"])
def test_asi08_deeper_arguments_do_not_multiply_the_work_of_recursive_choices(leaf: Any, keyword: str) -> None:
    schema = json.loads(json.dumps(RECURSIVE).replace("anyOf", keyword))
    arguments = query.arguments if keyword == "python" else SchemaArguments(schema)
    for depth in (8, 16, 32):
        assert_alike(partial(bind, arguments), nested(depth, leaf), nested(2 * depth, leaf), label=f"depth {2 * depth}")


class Query(BaseModel):
    """The search query."""

    filter: All | Any_ | Leaf


def typed_run(root: Path, value: dict[str, Any], output: type[BaseModel]) -> RunResult:
    """Run an agent whose model always returns the same answer."""
    write(root, {"agents.d/a.yaml": agent("a")})
    model = ScriptedModel(script=lambda _: json.dumps(value))

    async def main() -> RunResult:
        async with Runtime.open(root, models={"scripted": model}, watch=False) as runtime:
            return await runtime.run("go", output_type=output)

    return asyncio.run(main())


@pytest.mark.parametrize("leaf", [{"field": "x"}, {"field": 1}])
def test_asi08_deeper_answers_do_not_multiply_the_work_of_a_recursive_output_type(leaf: Any, tmp_path: Path) -> None:
    for depth in (7, 14, 40):
        small, large = (partial(typed_run, tmp_path, nested(size, leaf)) for size in (depth // 2, depth))
        assert_alike(lambda work: work(Query), small, large, noticeable=0.5, label=f"depth {depth}")


def test_an_answer_that_nests_too_deep_fails_the_run_with_a_reason(tmp_path: Path) -> None:
    result = typed_run(tmp_path, nested(40, {"field": 1}), Query)
    assert result.error is not None
    assert (result.status, result.error.code) == ("failed", "model_error")
    assert "nest too deep for a schema with recursive choices" in result.error.message


@cases(30)
@given(st.integers(0, 8), st.sampled_from([{"field": "x"}, {"field": 1}, {}, {"field": "x", "more": 1}]))
def test_ordinary_answers_of_a_recursive_type_validate_like_the_model_itself(depth: int, leaf: Any) -> None:
    bounded, text = bounded_model(Query), json.dumps(nested(depth, leaf))
    assert (bounded.__name__, bounded.model_json_schema()) == ("Query", Query.model_json_schema())
    assert validated(bounded, text) == validated(Query, text)


def validated(model: type[BaseModel], text: str) -> Any:
    try:
        return model.model_validate_json(text).model_dump()
    except ValidationError as error:
        return error.errors()


def test_a_type_without_recursive_choices_is_used_unchanged() -> None:
    assert bounded_model(Leaf) is Leaf


@pytest.mark.parametrize("depth", [1, 4, 8])
def test_ordinary_nesting_is_checked_and_its_mistake_is_named(depth: int) -> None:
    query.bind(nested(depth, {"field": "x"}))
    with pytest.raises(ArgumentsError, match="filter"):
        query.bind(nested(depth, {"field": 1}))


@pytest.mark.parametrize("depth", [20, 45])
def test_choices_with_a_discriminator_may_nest_deep(depth: int) -> None:
    arguments = SchemaArguments(HONEST)
    assert arguments.bind(nested(depth, {"field": "x"}, "and"))
    with pytest.raises(ArgumentsError):
        arguments.bind(nested(depth, {"field": 1}, "and"))


def test_arguments_that_nest_too_deep_are_rejected_with_a_fix() -> None:
    with pytest.raises(ArgumentsError, match="nest too deep for a schema with recursive choices: pass a flatter value"):
        query.bind(nested(40, {"field": "x"}))


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
def test_asi04_a_servers_schema_whose_references_double_is_not_evaluated(keyword: str) -> None:
    definitions = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)}
    schema = {
        "properties": {"x": {"$ref": "#/$defs/d0"}},
        "$defs": {**definitions, "d30": {"type": "string", "minLength": 9}},
    }
    arguments = SchemaArguments(schema)
    with pytest.raises(ArgumentsError, match="nest too deep"):
        arguments.bind({"x": "short"})
    repair_arguments(arguments.schema, {"x": "5"})


def test_asi04_a_schema_that_refers_to_itself_is_not_evaluated() -> None:
    try:
        arguments = SchemaArguments(
            {"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}
        )
    except ConfigError:
        return
    with pytest.raises(ArgumentsError):
        arguments.bind({"x": 1})


def test_asi04_nested_choices_do_not_multiply_the_work_of_repairs() -> None:
    node: Any = {"type": "integer"}
    for _ in range(8):
        node = {"anyOf": [node] * 8}
    assert_linear(
        lambda size: repair_arguments(
            {"properties": {f"x{n}": node for n in range(size)}}, {f"x{n}": "5" for n in range(size)}
        ),
        lambda size: size,
    )


@cases(60)
@given(
    keyword=st.sampled_from(["anyOf", "oneOf", "allOf"]),
    shapes=st.lists(st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=2), min_size=2, max_size=3),
    path=st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=16),
    extra=st.booleans(),
)
def test_every_combination_of_schema_and_value_is_validated_quickly(
    keyword: str, shapes: list[list[str]], path: list[str], extra: bool
) -> None:
    own = {} if extra else {"additionalProperties": False}
    choices = [
        {"type": "object", "properties": {name: {"$ref": "#/$defs/f"} for name in shape}, **own} for shape in shapes
    ]
    arguments = SchemaArguments(
        {"properties": {"x": {"$ref": "#/$defs/f"}}, "$defs": {"f": {keyword: [*choices, LEAF]}}}
    )
    small, large = (along(part) for part in (path[: len(path) // 2], path))
    assert_alike(partial(bind, arguments), small, large, noticeable=0.1)


def along(path: list[str]) -> dict[str, Any]:
    value: dict[str, Any] = {"field": 1}
    for name in path:
        value = {name: value}
    return {"x": value}


def called(arguments: str, name: str = "echo") -> ToolCall:
    return chat_to_call({"id": "c", "function": {"name": name, "arguments": arguments}}, {})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (json.dumps({"text": "x" * MAX_OBJECT_CHARS}), f"at most {MAX_OBJECT_CHARS} are read"),
        (json.dumps({"list": [1] * MAX_OBJECT_VALUES}), f"more than {MAX_OBJECT_VALUES} values"),
    ],
)
def test_asi08_huge_arguments_are_rejected_before_they_are_parsed(text: str, problem: str) -> None:
    call = called(text)
    assert problem in (call.invalid or "")
    assert call.arguments == {}
    assert problem in (revalidate_call(ToolCall(id="c", tool="echo", arguments=json.loads(text))).invalid or "")


def test_asi08_a_very_long_name_is_truncated() -> None:
    call = revalidate_call(called("{}", "n" * 5_000_000))
    assert len(call.tool) == 256
    assert len(revalidate_call(ToolCall(id="i" * 5_000_000, tool="t")).id) == 10_000


def test_asi08_many_mistakes_in_long_arguments_are_not_all_collected() -> None:
    rows = {"type": "object", "properties": {"rows": {"type": "array", "items": {"type": "string"}}}}
    arguments = SchemaArguments(rows)
    assert_linear(lambda size: bind(arguments, {"rows": [1] * size}), lambda size: size, largest=64_000)

    @tool
    def insert(rows: list[str]) -> str:
        """Insert."""
        return "done"

    with pytest.raises(ArgumentsError, match="50000 values in the arguments do not fit"):
        insert.bind({"rows": [1] * 50_000})


@pytest.mark.parametrize(("size", "apart"), [(10, False), (20_000, True)])
def test_large_arguments_are_repaired_in_another_thread(size: int, apart: bool) -> None:
    value = {"rows": ["5"] * size}
    thread = asyncio.run(call_off_loop(value, threading.get_ident))
    assert (thread != threading.get_ident()) is apart


def test_large_arguments_are_repaired_like_small_ones(tmp_path: Path) -> None:
    @tool
    def total(rows: list[int]) -> int:
        """Total.

        Args:
            rows: Numbers.
        """
        return sum(rows)

    write(tmp_path, {"agents.d/a.yaml": agent("a")})
    model = ScriptedModel(calls(("total", {"rows": ["5"] * 20_000})), "done")

    async def main() -> RunResult:
        async with Runtime.open(tmp_path, models={"scripted": model}, tools=[total], watch=False) as runtime:
            return await runtime.run("go")

    result = asyncio.run(main())
    assert [warning.code for warning in result.warnings] == ["arguments_repaired"]
    assert model.requests[-1].messages[-1].content == "100000"
