"""A tool's return value is validated by its annotation, which is described to the model."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from framework import Tool, ToolContext, tool
from framework.tools.json_schema import MAX_DESCRIBED_SCHEMA_CHARS, ReturnError
from framework.types.errors import ConfigError
from framework.types.state import RunResult
from tests.support.cases import cases
from tests.support.hostile_runs import CONTINUED, Seen, call, victim

MARK = "Returns JSON of this schema: "


class Out(BaseModel):
    """A docstring that describes the whole type, which the tool's own description does already."""

    hits: list[str]
    """What was found."""
    count: Annotated[int, Field(description="How many there are.")] = 0


class Row(TypedDict):
    id: int
    title: str


@dataclass
class Point:
    x: float
    y: float


def given_by(output: Any, annotation: Any, *, sync: bool = False) -> Tool:
    """Return a tool whose value may not match its return annotation."""

    async def find() -> Any:
        """Find something."""
        return output

    def find_sync() -> Any:
        """Find something."""
        return output

    function = find_sync if sync else find
    function.__annotations__["return"] = annotation
    return tool(name="find", risk="low")(function)


def called(root: Path, used: Tool) -> Seen:
    return victim(root, call("find"), CONTINUED, tools=[used])


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(
    ("annotation", "output", "problem"),
    [
        (Out, {"hits": "notalist"}, "Out: hits: Input should be a valid list"),
        (Out, {"count": 1}, "Out: hits: Field required"),
        (Out, "text", "Out: result: Input should be a valid dictionary or instance of Out"),
        (Row, {"id": "x", "title": "t"}, "Row: id: Input should be a valid integer"),
        (Point, {"x": 1}, "Point: y: Field required"),
        (list[Row], [{"id": 1}], "0.title: Field required"),
        (Out | None, [], "Input should be a valid dictionary or instance of Out"),
    ],
)
def test_an_invalid_return_value_is_reported_as_the_tools_error(
    tmp_path: Path, annotation: Any, output: Any, problem: str, sync: bool
) -> None:
    seen = called(tmp_path, given_by(output, annotation, sync=sync))
    (finished,) = seen.finished
    assert (finished.status, seen.result.status) == ("error", "completed")
    (message,) = seen.tool_results
    assert "find failed: the tool ran, but its return value is not a valid " in message
    assert problem in message
    assert "notalist" not in message, "data that does not fit is not passed on"


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(
    ("annotation", "output", "data"),
    [
        (Out, Out(hits=["a"]), {"hits": ["a"], "count": 0}),
        (Out, {"hits": ["a"], "more": 1}, {"hits": ["a"], "count": 0}),
        (Row, {"id": 1, "title": "t"}, {"id": 1, "title": "t"}),
        (Point, Point(1, 2), {"x": 1.0, "y": 2.0}),
        (list[Out], [Out(hits=[])], [{"hits": [], "count": 0}]),
        (Out | None, None, ""),
        (str, 5, 5),
        (dict[str, Any], [1], [1]),
    ],
)
def test_a_valid_return_value_is_converted_to_the_declared_type(
    tmp_path: Path, annotation: Any, output: Any, data: Any, sync: bool
) -> None:
    (made,) = called(tmp_path, given_by(output, annotation, sync=sync)).result.tool_calls
    assert (made.status, made.result) == ("success", data)


def test_the_model_receives_the_schema(tmp_path: Path) -> None:
    seen = called(tmp_path, given_by(Out(hits=[]), Out))
    description = next(one.description for one in seen.requests[0].tools if one.name == "find")
    head, _, schema = description.partition(f"\n\n{MARK}")
    assert head == "Find something."
    assert json.loads(schema) == {
        "properties": {
            "hits": {"items": {"type": "string"}, "type": "array"},
            "count": {"default": 0, "description": "How many there are.", "type": "integer"},
        },
        "required": ["hits"],
        "type": "object",
    }


def test_the_error_has_its_own_code(tmp_path: Path) -> None:
    (entry, _) = called(tmp_path, given_by({}, Out)).result.trace
    assert entry.error is not None
    assert entry.error.startswith("the tool ran, but its return value is not a valid Out")
    assert ReturnError.code == "invalid_return"


def test_without_a_structure_the_description_is_the_docstring() -> None:
    for annotation in (str, dict[str, int], Any, None, BaseModel):
        assert given_by(1, annotation).definition.description == "Find something."


def test_a_long_schema_is_checked_but_not_described() -> None:
    fields = {f"field_{number}": str for number in range(MAX_DESCRIBED_SCHEMA_CHARS // 10)}
    wide = TypedDict("wide", fields)  # type: ignore[misc]  # mypy knows only literal fields
    used = given_by({}, wide)
    assert MARK not in used.definition.description
    assert used.returns is not None
    with pytest.raises(ReturnError):
        used.returns.check({})


def test_a_type_that_cannot_be_checked_is_an_error_at_load() -> None:
    @dataclass
    class Held:
        connection: ThreadPoolExecutor

    with pytest.raises(ConfigError, match=r"tool 'find'"):
        given_by(None, Held)


def test_calling_a_tool_in_a_unit_test_calls_the_function_itself() -> None:
    assert asyncio.run(given_by({"hits": "x"}, Out)()) == {"hits": "x"}


@cases(60)
@given(
    output=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["hits", "count"]), inner),
        max_leaves=6,
    )
)
def test_any_return_value_matches_the_type_or_is_the_tools_error(output: Any) -> None:
    used = given_by(output, Out)
    assert used.returns is not None
    try:
        data = used.returns.check(output)
    except ReturnError:
        return
    assert Out.model_validate(data).model_dump(mode="json") == data


def test_a_context_still_reaches_a_tool_that_declares_its_return(tmp_path: Path) -> None:
    @tool(name="find", risk="low")
    def find(context: ToolContext) -> Out:
        """Find something."""
        return Out(hits=[context.agent])

    result: RunResult = called(tmp_path, find).result
    assert result.tool_calls[0].result == {"hits": ["victim"], "count": 0}
