"""Arguments that are wrong in form only are repaired before the policy; others are reported field by field."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Approve, RunResult, Runtime, events, tool
from framework.engine.tool_call.call import explain_call
from framework.testing import ScriptedModel, calls
from framework.tools.arguments import ArgumentsError, SchemaArguments
from framework.tools.json_schema import repair_arguments
from framework.tools.tool import Tool, ToolContext
from framework.tools.tool_source import external_tool
from framework.types.plan import PlanDraft
from tests.support.cases import cases, each
from tests.support.projects import agent, write

Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
TYPES: tuple[dict[str, Any], ...] = (
    {"type": "integer"},
    {"type": "number"},
    {"type": "boolean"},
    {"type": "string"},
    {"type": ["integer", "null"]},
    {"type": "array", "items": {"type": "integer"}},
    {"type": "array", "items": {"type": "string"}},
    {"type": "array"},
    {"type": "object", "properties": {"n": {"type": "integer"}}},
    {"type": "object", "additionalProperties": {"type": "boolean"}},
    {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    {"enum": [1, 2]},
    {"$ref": "#/$defs/node"},
    {"$ref": "#/$defs/loop"},
    {},
)
DEFS = {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}, "loop": {"$ref": "#/$defs/loop"}}
Values = Json | st.builds(json.dumps, Json) | st.sampled_from(["5", "-0.5", "1e3", "true", "[1]", "[1,", '{"n":"1"}'])


def schema_of(field: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": field}, "required": ["a"], "$defs": DEFS}


def repaired(field: dict[str, Any], value: Any) -> Any:
    return repair_arguments(schema_of(field), {"a": value}).arguments["a"]


@each(
    ("field", "value", "right"),
    [
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, "-12", -12),
        ({"type": "number"}, "5", 5),
        ({"type": "number"}, "2.50", 2.5),
        ({"type": "number"}, "1e-3", 0.001),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"type": "array"}, ' ["a", 2]', ["a", 2]),
        ({"type": "array", "items": {"type": "string"}}, "a", ["a"]),
        ({"type": "array", "items": {"type": "integer"}}, 3, [3]),
        ({"type": "array", "items": {"type": "integer"}}, "3", [3]),
        ({"type": "array", "items": {"type": "integer"}}, ["1", 2], [1, 2]),
        ({"type": "array", "items": {"type": "object"}}, {"a": 1}, [{"a": 1}]),
        ({"type": ["integer", "null"]}, "5", 5),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "true", True),
        ({"type": "object", "properties": {"n": {"type": "integer"}}}, '{"n": "7"}', {"n": 7}),
        ({"$ref": "#/$defs/node"}, {"next": {"next": "{}"}}, {"next": {"next": {}}}),
    ],
)
def test_values_with_a_clear_meaning_are_repaired(field: dict[str, Any], value: Any, right: Any) -> None:
    found = repaired(field, value)
    assert found == right
    assert type(found) is type(right)
    assert SchemaArguments(schema_of(field)).bind({"a": found}) == {"a": right}


@pytest.mark.parametrize(
    ("field", "kept"),
    [
        ({"type": "string"}, False),
        ({"type": "string", "default": None}, False),
        ({"type": "array", "items": {"type": "string"}}, False),
        ({"$ref": "#/$defs/node"}, False),
        ({"type": ["string", "null"]}, True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, True),
        ({}, True),
    ],
)
def test_null_for_an_optional_argument_that_must_not_be_null_is_omitted(field: dict[str, Any], kept: bool) -> None:
    schema = schema_of(field) | {"required": []}
    nested = {"type": "object", "properties": {"inner": schema}, "$defs": DEFS}

    found, inside = repair_arguments(schema, {"a": None, "b": None}), repair_arguments(nested, {"inner": {"a": None}})

    assert found.arguments == ({"a": None, "b": None} if kept else {"b": None})
    assert found.notes == (() if kept else ("a: null omitted",))
    assert inside.arguments == {"inner": {"a": None} if kept else {}}
    assert repair_arguments(schema_of(field), {"a": None}).arguments == {"a": None}, "a required one is not dropped"


def test_null_gives_a_python_parameter_its_default() -> None:
    @tool
    def weather(city: str, unit: str = None) -> str:  # type: ignore[assignment]  # noqa: RUF013 - many plugins are written so
        """Tell the weather."""
        return f"{city} {unit}"

    arguments = repair_arguments(weather.definition.parameters, {"city": "Oslo", "unit": None}).arguments

    assert weather.bind(arguments) == {"city": "Oslo", "unit": None}


@each(
    ("field", "value"),
    [
        ({"type": "integer"}, "5.0"),
        ({"type": "integer"}, " 5"),
        ({"type": "integer"}, "05"),
        ({"type": "integer"}, "+5"),
        ({"type": "integer"}, "٥"),
        ({"type": "integer"}, "5 apples"),
        ({"type": "integer"}, "9" * 5000),
        ({"type": "integer"}, 5.5),
        ({"type": "integer"}, True),
        ({"type": "integer"}, None),
        ({"type": "integer"}, [5]),
        ({"type": "number"}, "NaN"),
        ({"type": "number"}, "1e999"),
        ({"type": "number"}, "0.12345678901234567"),
        ({"type": "boolean"}, "True"),
        ({"type": "boolean"}, "yes"),
        ({"type": "boolean"}, 1),
        ({"type": "string"}, 5),
        ({"type": "object"}, '{"a": 1, "a": 2}'),
        ({"type": "object"}, '{"a": 1'),
        ({"type": "object"}, '{"a": NaN}'),
        ({"type": "object"}, "[1]"),
        ({"type": "array", "items": {"type": "string"}}, '["a", "b"'),
        ({"type": "array", "items": {"type": "string"}}, 5),
        ({"type": "array"}, None),
        ({"type": "string", "enum": ["asc", "desc"]}, "ASC"),
        ({"enum": [1, 2]}, "1"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5"),
        ({"anyOf": [{"type": "integer"}, {}]}, "5"),
        ({"$ref": "#/$defs/loop"}, "5"),
        ({"$ref": "#/$defs/missing"}, "5"),
        ({"$ref": "file:///etc/passwd"}, "5"),
        ({}, "5"),
    ],
)
def test_values_without_a_clear_meaning_are_unchanged(field: dict[str, Any], value: Any) -> None:
    found = repair_arguments(schema_of(field), {"a": value, "b": "5"})
    assert found.arguments == {"a": value, "b": "5"}
    assert type(found.arguments["a"]) is type(value)
    assert found.notes == ()


@cases(300)
@given(field=st.sampled_from(TYPES), value=Values)
def test_only_rejected_values_are_repaired_and_repair_is_idempotent(field: dict[str, Any], value: Any) -> None:
    arguments = {"a": value, "extra": "5"}
    once = repair_arguments(schema_of(field), arguments)

    if field != {"$ref": "#/$defs/loop"} and jsonschema_rs.validator_for(schema_of(field)).is_valid(arguments):
        assert once.arguments == arguments
        assert once.notes == ()
    assert bool(once.notes) == (json.dumps(once.arguments) != json.dumps(arguments))
    assert repair_arguments(schema_of(field), once.arguments).notes == ()
    assert once.arguments["extra"] == "5"
    assert arguments == {"a": value, "extra": "5"}, "what was given is not touched"


def test_llm10_a_deeply_nested_value_is_left_to_the_validation() -> None:
    nested: dict[str, Any] = {}
    for _ in range(5_000):
        nested = {"next": nested}
    arguments = {"a": nested}
    assert repair_arguments(schema_of({"$ref": "#/$defs/node"}), arguments).arguments["a"] is nested


def test_notes_describe_the_repair_without_values() -> None:
    schema = schema_of({"type": "object", "properties": {"n": {"type": "array", "items": {"type": "integer"}}}})
    assert repair_arguments(schema, {"a": '{"n": "42"}'}).notes == (
        "a: string converted to object",
        "a.n: single value converted to array",
        "a.n.0: string converted to integer",
    )


# --- in a run


class Till:
    """A Python tool and one of a server, both recording their arguments."""

    def __init__(self) -> None:
        self.paid: list[dict[str, Any]] = []

    def tools(self) -> list[Tool]:
        @tool(risk="low")
        def pay(amount: int, tags: list[str] | None = None, mode: Literal["now", "later"] = "now") -> str:
            """Pay."""
            self.paid.append({"amount": amount, "tags": tags, "mode": mode})
            return "paid"

        async def call(arguments: dict[str, Any], context: ToolContext) -> str:
            self.paid.append(arguments)
            return f"paid by {context.agent}"

        schema = {
            "properties": {
                "amount": {"type": "integer", "maximum": 1000},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["amount"],
        }
        return [pay, external_tool("skill.till.pay", "Pay.", schema, call, source="skill", risk="low")]


BOTH = pytest.mark.parametrize("name", ["pay", "skill.till.pay"])


def project(root: Path, **keys: str) -> Path:
    return write(root, {"agents.d/one.yaml": agent("one", **keys)})


def pays(name: str, **arguments: Any) -> ScriptedModel:
    return ScriptedModel(calls((name, arguments)), "done")


async def watch(root: Path, till: Till, model: ScriptedModel, **options: Any) -> tuple[RunResult, list[Any]]:
    async with (
        Runtime.open(root, tools=till.tools(), models={"scripted": model}, watch=False) as runtime,
        runtime.stream("go", **options) as stream,
    ):
        seen = [event async for event in stream]
        return await stream.result(), seen


@BOTH
def test_repaired_arguments_are_used_and_reported(tmp_path: Path, name: str) -> None:
    till = Till()
    result, seen = asyncio.run(watch(project(tmp_path), till, pays(name, amount="50", tags="a")))

    assert result.output == "done"
    assert (till.paid[0]["amount"], till.paid[0]["tags"]) == (50, ["a"])
    (warning,) = [event for event in seen if isinstance(event, events.Warned)]
    assert warning.code == "arguments_repaired"
    notes = ("amount: string converted to integer", "tags: single value converted to array")
    assert warning.message == f"the arguments of {name} were repaired: {'; '.join(notes)}"
    (started,) = [event for event in seen if isinstance(event, events.ToolStarted)]
    assert started.arguments == {"amount": 50, "tags": ["a"]}
    assert result.trace[0].repairs == notes
    assert result.trace[0].action.args == {"amount": 50, "tags": ["a"]}


@BOTH
def test_strict_arguments_are_not_repaired(tmp_path: Path, name: str) -> None:
    till = Till()
    model = pays(name, amount="50")
    root = project(tmp_path, runtime_policy="{strict_arguments: true}")
    _, seen = asyncio.run(watch(root, till, model))

    assert till.paid == []
    assert not [event for event in seen if isinstance(event, events.Warned)]
    assert 'amount: it has the wrong type (given: "50"); give: integer' in model.requests[1].messages[-1].content


@BOTH
def test_asi02_the_policy_evaluates_the_repaired_arguments(tmp_path: Path, name: str) -> None:
    till = Till()
    model = pays(name, amount="50", tags='["vip"]')
    policy = f'{{deny: [{{tool: {name}, when: {{tags: "*vip*", amount: 50}}}}], allow: ["*"]}}'
    asyncio.run(watch(project(tmp_path, skill_policy=policy), till, model))

    assert till.paid == []
    assert "the policy forbids this call" in model.requests[1].messages[-1].content


@BOTH
def test_asi09_a_person_approves_the_repaired_arguments_and_is_asked_once(tmp_path: Path, name: str) -> None:
    till = Till()

    async def main() -> None:
        root = project(tmp_path, skill_policy=f"{{ask: [{name}], allow: []}}")
        model = pays(name, amount="50", tags="a")
        async with Runtime.open(root, tools=till.tools(), models={"scripted": model}, watch=False) as runtime:
            paused = await runtime.run("go")
            (confirmation,) = paused.pending
            assert confirmation.arguments == {"amount": 50, "tags": ["a"]}
            async with runtime.resume_stream(paused.run_id, {confirmation.id: Approve()}) as stream:
                seen = [event async for event in stream]
                result = await stream.result()
        assert result.output == "done"
        assert not [event for event in seen if isinstance(event, events.Warned)]
        assert [paid["amount"] for paid in till.paid] == [50]

    asyncio.run(main())


def test_a_plan_is_repaired_before_it_is_shown(tmp_path: Path) -> None:
    till = Till()
    step = {"id": "a", "description": "Pay.", "tool": "pay", "parameters": {"amount": "50"}}
    model = ScriptedModel(PlanDraft.model_validate({"goal": "pay", "steps": [step]}), "done")
    result, seen = asyncio.run(watch(project(tmp_path, executor="plan"), till, model))

    assert result.output == "done"
    (proposed,) = [event for event in seen if isinstance(event, events.PlanProposed)]
    assert proposed.steps[0].parameters == {"amount": 50}
    (warning,) = [event for event in seen if isinstance(event, events.Warned)]
    assert "step a: amount: string converted to integer" in warning.message


def test_strictness_added_by_an_edit_applies_to_a_run_in_progress(tmp_path: Path) -> None:
    till = Till()

    async def main() -> None:
        root = project(tmp_path, skill_policy="{ask: [pay], allow: []}")
        async with Runtime.open(
            root, tools=till.tools(), models={"scripted": pays("pay", amount="50")}, watch=False
        ) as runtime:
            paused = await runtime.run("go")
            project(tmp_path, skill_policy="{ask: [pay], allow: []}", runtime_policy="{strict_arguments: true}")
            await runtime.reload()
            result = await runtime.resume(paused.run_id, {paused.pending[0].id: Approve()})
        assert result.output == "done"
        assert till.paid == []
        assert "it has the wrong type" in str(result.trace[0].error)

    asyncio.run(main())


def test_explain_evaluates_the_same_arguments_as_a_run(tmp_path: Path) -> None:
    (pay, _) = Till().tools()

    async def main() -> None:
        policy = '{deny: [{tool: pay, when: {tags: "*vip*"}}], allow: ["*"]}'
        async with Runtime.open(
            project(tmp_path, skill_policy=policy, model="offline"), tools=[pay], watch=False
        ) as runtime:
            one = runtime.catalog.current.agents["one"]
        explanation, problem = explain_call(one, pay, {"amount": "50", "tags": '["vip"]'}, tmp_path)
        assert (explanation.verdict.kind, problem) == ("deny", None)

    asyncio.run(main())


# --- errors of the other arguments


@BOTH
@pytest.mark.parametrize(
    ("locale", "lines"),
    [
        (
            "en",
            [
                "was not called: its arguments do not fit. Correct them and call it again.",
                '- amount: it has the wrong type (given: "much"); give: integer',
                "- tip: there is no such argument (given: 2); remove it",
            ],
        ),
        (
            "zh",
            [
                "未执行：参数不符合要求。请修正后重新调用。",
                '- amount：类型不对（当前值："much"）；请改为：integer',
                "- tip：没有这个参数（当前值：2）；请删除",
            ],
        ),
    ],
)
def test_each_field_is_reported_with_problem_value_and_fix(
    tmp_path: Path, name: str, locale: str, lines: list[str]
) -> None:
    model = pays(name, amount="much", tip=2)
    asyncio.run(watch(project(tmp_path), Till(), model, locale=locale))
    answered = model.requests[1].messages[-1].content
    assert all(line in answered for line in lines), answered


@pytest.mark.parametrize(
    ("locale", "line"), [("en", "- amount: it is missing; add it: integer"), ("zh", "- amount：缺少；请补上：integer")]
)
def test_a_missing_field_is_reported_with_its_type(tmp_path: Path, locale: str, line: str) -> None:
    model = pays("pay")
    asyncio.run(watch(project(tmp_path), Till(), model, locale=locale))
    assert line in model.requests[1].messages[-1].content.splitlines()


def test_choices_and_ranges_are_reported() -> None:
    (pay, other) = Till().tools()
    with pytest.raises(ArgumentsError) as error:
        pay.bind({"amount": 1, "mode": "soon"})
    assert str(error.value) == 'mode: it is not one of the choices (given: "soon"); give: "now" | "later"'
    with pytest.raises(ArgumentsError) as error:
        other.bind({"amount": 5000})
    assert str(error.value).endswith("(given: 5000); give: integer, <= 1000")


def test_a_project_can_replace_the_template(tmp_path: Path) -> None:
    root = project(tmp_path)
    write(
        root,
        {"prompts/error.j2": "{{ tool }}:{% for f in findings %} {{ f.field }}/{{ f.kind }}/{{ f.fix }}{% endfor %}"},
    )
    model = pays("pay", tip=1)
    asyncio.run(watch(root, Till(), model))
    assert model.requests[1].messages[-1].content == "pay: amount/missing/add it: integer tip/unknown/remove it"


def test_a_template_that_uses_only_the_message_still_reports_everything(tmp_path: Path) -> None:
    root = project(tmp_path)
    write(root, {"prompts/error.j2": "{{ tool }}: {{ message }}"})
    model = pays("pay", tip=1)
    asyncio.run(watch(root, Till(), model))
    assert "tip: there is no such argument (given: 1); remove it" in model.requests[1].messages[-1].content
