"""Structured output: from the answer if it fits the type, else from a second model call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, field_validator

from framework import Approve, RunResult, Runtime
from framework.llm.client import ModelInfo
from framework.testing import JsonStore, ScriptedModel, calls
from framework.types.flat_schema import ANY_OBJECT
from framework.types.messages import Message
from tests.support.projects import agent, write

SCHEMA = "{type: object, properties: {city: {type: string}, people: {type: integer}}, required: [city, people]}"


class City(BaseModel):
    city: str
    people: int

    @field_validator("people")
    @classmethod
    def _some(cls, people: int) -> int:
        if people <= 0:
            raise ValueError("nobody lives there")
        return people


OPTION_OF = {"type": "output_type", "option": "output_schema"}
ROME = {"city": "Rome", "people": 3}


def run(
    root: Path,
    *script: Any,
    keys: dict[str, str] | None = None,
    model: Callable[..., ScriptedModel] = ScriptedModel,
    **options: Any,
) -> tuple[RunResult, ScriptedModel]:
    write(root, {"agents.d/a.yaml": agent("a", **(keys or {}))})
    scripted = model(*script)

    async def main() -> RunResult:
        async with Runtime.open(root, models={"scripted": scripted}, watch=False) as runtime:
            assert runtime.catalog.problems == (), runtime.catalog.problems
            return await runtime.run("go", **options)

    return asyncio.run(main()), scripted


class Untyped(ScriptedModel):
    """A model whose typed answers are the arguments of a tool that it calls."""

    info = ModelInfo(provider="untyped", model="1")


class Titled(City):
    model_config = ConfigDict(title="P of the caller")


@pytest.mark.parametrize(("source", "name"), [("type", "Titled"), ("option", "Answer"), ("schema", "Answer")])
def test_the_tool_of_a_typed_answer_has_the_name_in_the_prompt(tmp_path: Path, source: str, name: str) -> None:
    given: dict[str, Any] = {"type": Titled, "option": Titled.model_json_schema()}
    keys = {"output_schema": SCHEMA.replace("type: object", "title: P, type: object", 1)} if source == "schema" else {}
    options = {OPTION_OF[source]: given[source]} if source in given else {}
    result, model = run(tmp_path, "In Rome.", calls((name, ROME)), keys=keys, model=Untyped, **options)
    assert result.data == ROME
    request = model.requests[-1]
    assert [tool.name for tool in request.tools] == [request.settings.tool_choice] == [name]
    assert f"as the arguments of {name}." in request.messages[-1].content


def test_any_object_is_a_schema_of_its_own(tmp_path: Path) -> None:
    """Servers have a mode for it; it takes nothing from an agent that has a schema."""
    result, model = run(tmp_path, "{}", model=Untyped, output_schema=ANY_OBJECT)
    assert (result.data, model.requests[0].json) == ({}, {})
    result, model = run(tmp_path, json.dumps(ROME), keys={"output_schema": SCHEMA}, output_schema=ANY_OBJECT)
    assert (result.data, len(model.requests)) == (ROME, 1)
    result, model = run(tmp_path, "In Rome.", calls(("Answer", {"a": 1})), model=Untyped, output_schema=ANY_OBJECT)
    assert result.data == {"a": 1}


@pytest.mark.parametrize("text", [json.dumps(ROME), f"```json\n{json.dumps(ROME)}\n```", f"  {json.dumps(ROME)}\n"])
@pytest.mark.parametrize("source", ["type", "schema", "option"])
def test_an_answer_that_fits_the_type_needs_no_second_call(tmp_path: Path, text: str, source: str) -> None:
    keys = {"output_schema": SCHEMA} if source == "schema" else {}
    given: dict[str, Any] = {"type": City, "option": City.model_json_schema()}
    options = {OPTION_OF[source]: given[source]} if source in given else {}
    result, model = run(tmp_path, text, keys=keys, **options)
    assert (result.data, result.output, len(model.requests)) == (ROME, text, 1)


@pytest.mark.parametrize("text", ["Rome has 3.", '{"city": "Rome"}', '{"city": "Rome", "people": "3", "x": 1}', "[]"])
def test_any_other_answer_is_requested_again_and_the_text_stays(tmp_path: Path, text: str) -> None:
    reply = Message(role="assistant", content=json.dumps(ROME))
    result, model = run(tmp_path, text, reply, keys={"output_schema": SCHEMA})
    assert (result.data, result.output, result.steps) == (ROME, text, 2)
    request = model.requests[1]
    assert request.output is not None
    assert request.messages[-1].content.startswith("Repeat your complete answer")
    assert request.messages[-2].content == text


def test_without_a_type_there_is_no_data(tmp_path: Path) -> None:
    result, _ = run(tmp_path, json.dumps(ROME))
    assert result.data is None


def test_limits_apply_to_the_second_call(tmp_path: Path) -> None:
    result, _ = run(tmp_path, "text", keys={"output_schema": SCHEMA, "runtime_policy": "{max_steps: 1}"})
    assert (result.finish_reason, result.data, result.output) == ("max_steps", None, "text")


def test_a_run_resumed_in_another_process_still_returns_its_data(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/a.yaml": agent("a", runtime_policy="{confirm: {from: low}}")})
    model, store = ScriptedModel(calls(("echo", {"text": "x"})), json.dumps(ROME)), JsonStore()

    async def main() -> RunResult:
        options: dict[str, Any] = {"models": {"scripted": model}, "store": store, "watch": False}
        async with Runtime.open(tmp_path, **options) as runtime:
            paused = await runtime.run("go", output_type=City)
        async with Runtime.open(tmp_path, **options) as runtime:
            return await runtime.resume(paused.run_id, {paused.pending[0].id: Approve()})

    assert asyncio.run(main()).data == ROME


def test_a_sub_agents_data_is_returned_to_its_caller(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/b.yaml": agent("b", output_schema=SCHEMA)})
    script = (calls(("agent.b", {"message": "which?"})), json.dumps(ROME), "done")
    result, model = run(tmp_path, *script, keys={"sub_agents": "[b]"}, agent="a")
    assert result.output == "done"
    assert json.loads(model.requests[-1].messages[-1].content) == ROME


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{type: array}", "does not describe an object"),
        ("{type: object, properties: {a: {type: x}}}", "is invalid"),
    ],
)
def test_an_invalid_schema_is_rejected_at_load(tmp_path: Path, schema: str, message: str) -> None:
    write(tmp_path, {"agents.d/a.yaml": agent("a", model="offline", output_schema=schema)})

    async def main() -> str:
        async with Runtime.open(tmp_path, watch=False) as runtime:
            (problem,) = runtime.catalog.problems
            assert problem.place.startswith("agents.d/a.yaml:7")
            return problem.message

    assert message in asyncio.run(main())
