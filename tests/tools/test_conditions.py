"""A condition is checked against the type of its argument: it is met by some values and not by others."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from framework import Runtime, Tool, tool
from framework.config.agents.compile import Agent
from framework.tools.conditions import condition_fault, rule_matches
from framework.tools.tool_source import external_tool
from framework.types.problem import Problem
from framework.types.spec import Rule
from tests.support.cases import cases
from tests.support.projects import agent, write


class Colour(StrEnum):
    """A colour."""

    red = "red"
    green = "green"


class Item(BaseModel):
    """A row of an order."""

    price: float = Field(alias="unitPrice")
    tags: list[str] = []


@tool(name="books.pay", risk="low", paths="path", urls="url")
def pay(
    amount: float = 0.0,
    count: int = 0,
    positive: Annotated[int, Field(ge=1)] = 1,
    debt: Annotated[float, Field(ge=0)] | None = None,
    cents: Annotated[float, Field(multiple_of=0.01)] = 0.0,
    dozens: Annotated[int, Field(multiple_of=12)] = 0,
    money: Decimal = Decimal(0),
    maybe: float | None = None,
    flag: bool = False,
    method: Literal["GET", "POST"] = "GET",
    either: Literal[1, "a"] | None = None,
    colour: Colour = Colour.red,
    text: str = "",
    code: Annotated[str, Field(pattern=r"^[A-Z]{3}-\d+$")] = "ABC-1",
    day: date = date(2026, 1, 1),
    items: list[Item] = [],  # noqa: B006 - a tool's default, which nobody changes
    numbers: list[int] = [],  # noqa: B006
    mixed: int | str = 0,
    free: Any = None,
    path: str = "",
    url: str = "",
) -> str:
    """Pay."""
    return "paid"


async def _problems(root: Path, policy: str, tools: list[Tool], name: str = "a") -> tuple[list[Problem], Agent | None]:
    files = {f"agents.d/{name}.yaml": agent(name, model="offline", skill_policy=policy)}
    async with Runtime.open(write(root, files), tools=tools, watch=False) as runtime:
        return list(runtime.catalog.current.problems), runtime.catalog.current.agents.get(name)


def errors(root: Path, argument: str, condition: str, kind: str = "deny") -> list[Problem]:
    """Return the errors of a rule with this condition, which is YAML."""
    policy = f"{{{kind}: [{{tool: books.pay, when: {{{argument}: {condition}}}}}], allow: [books.pay]}}"
    found, live = asyncio.run(_problems(root, policy, [pay]))
    broken = [problem for problem in found if problem.severity == "error"]
    assert (live is None) == bool(broken)
    return broken


MISTAKES = [
    ("amount", "=> 500", ">= 500"),
    ("amount", "500+", ">= 500"),
    ("amount", "gt 500", "> 500"),
    ("amount", "≥ 500", ">= 500"),
    ("amount", "≤500", "<= 500"),
    ("amount", "more than 500", "> 500"),
    ("amount", "at least 500", ">= 500"),
    ("amount", "500 or more", ">= 500"),
    ("amount", "> 500 EUR", "> 500"),
    ("amount", "> €500", "> 500"),
    ("amount", "> 1,000", "> 1000"),
    ("amount", "> 1,5", "> 1.5"),
    ("amount", "== 500", "500"),
    ("amount", "= 500", "500"),
    ("amount", "<> 500", "!= 500"),
    ("amount", "not 500", "!= 500"),
    ("amount", "!= 500 EUR", "!= 500"),
    ("amount", "> = 500", ">= 500"),
    ("amount", " > 500", "> 500"),
    ("amount", "500.0", "500"),
    ("amount", "500 EUR", "500"),
    ("amount", "> abc", ""),
    ("amount", "> nan", ""),
    ("amount", "> inf", ""),
    ("amount", "> ", ""),
    ("amount", "", ""),
    ("amount", "100-500", ""),
    ("amount", "high", ""),
    ("count", "1.5", ""),
    ("count", "=> 500", ">= 500"),
    ("positive", "< 1", ""),
    ("positive", ">= 1", ""),
    ("positive", "0", ""),
    ("debt", "< 0", ""),
    ("dozens", "13", ""),
    ("money", "=> 500", ">= 500"),
    ("money", "500 EUR", "500"),
    ("maybe", "=> 500", ">= 500"),
    ("numbers", "=> 500", ">= 500"),
    ("mixed", "=> 500", ">= 500"),
    ("free", "=> 500", ">= 500"),
    ("free", "> 500 EUR", "> 500"),
    ("text", "=> 500", ">= 500"),
    ("text", "== prod", "prod"),
    ("text", "= prod", "prod"),
    ("text", "! prod", "!= prod"),
    ("text", "≠ prod", "!= prod"),
    ("text", "> 2026-01-01", ""),
    ("day", "> 2026-01-01", ""),
    ("code", "INV 7", ""),
    ("flag", "yes please", ""),
    ("flag", "!= maybe", ""),
    ("method", "get", "GET"),
    ("method", "PSOT", "POST"),
    ("method", "!= DELETE", ""),
    ("either", "b", ""),
    ("colour", "blue", ""),
    ("items", "x", ""),
    ("path", "../secret", ""),
    ("path", "~/secret", ""),
    ("path", "private/* ", ""),
    ("path", "!= out/*.{md,txt}", ""),
    ("url", "evil.example/*", "*://evil.example/*"),
    ("url", "!= api.example.com/*", "!= *://api.example.com/*"),
]


@pytest.mark.parametrize(("argument", "condition", "spelling"), MISTAKES)
@pytest.mark.parametrize("kind", ["deny", "ask"])
def test_a_condition_that_does_not_mean_what_it_says_is_an_error(
    tmp_path: Path, argument: str, condition: str, spelling: str, kind: str
) -> None:
    (found,) = errors(tmp_path, argument, f'"{condition}"', kind)
    assert found.place.startswith("agents.d/a.yaml:6:")
    assert "books.pay" in found.message
    assert argument in found.message
    meant = re.search(r"; did you mean (.+)\?$", found.message)
    assert (meant[1] if meant else "") == (repr(spelling) if spelling else "")


@pytest.mark.parametrize(
    ("argument", "condition"),
    [
        ("amount", '"> 500"'),
        ("amount", '">500"'),
        ("count", "9007199254740993"),
        ("amount", '">= 1e3"'),
        ("amount", '"<= -0.5"'),
        ("amount", '"!= 500"'),
        ("amount", "500"),
        ("amount", "0.5"),
        ("amount", '"500"'),
        ("amount", '"5*"'),
        ("amount", '"[1-4]?"'),
        ("amount", '"-*"'),
        ("amount", '"*.5"'),
        ("amount", '"*"'),
        ("positive", '"> 1"'),
        ("positive", "1"),
        ("dozens", "24"),
        ("cents", '"> 500"'),
        ("debt", '"> 0.5"'),
        ("money", '"> 500"'),
        ("maybe", '"> 500"'),
        ("maybe", '"null"'),
        ("flag", "true"),
        ("flag", '"false"'),
        ("method", '"!= GET"'),
        ("method", '"P*"'),
        ("either", '"a"'),
        ("either", "1"),
        ("colour", "green"),
        ("text", '"prod"'),
        ("text", "500"),
        ("text", '"> 500"'),
        ("text", '"=*"'),
        ("text", '"over the moon"'),
        ("text", '"500+"'),
        ("text", '""'),
        ("text", "true"),
        ("code", '"INV-7"'),
        ("code", '"INV-*"'),
        ("day", '"2026-*"'),
        ("items.unitPrice", '"> 5"'),
        ("items.price", '"> 5"'),
        ("items.tags", '"x"'),
        ("items", '"*"'),
        ("numbers", '"> 5"'),
        ("mixed", '"> 5"'),
        ("free", '"> 5"'),
        ("free.part", '"x"'),
        ("path", '"data/*secret*"'),
        ("path", '"!= out/*"'),
        ("path", '"**/*.key"'),
        ("path", '"/etc/*"'),
        ("url", '"https://api.example.com/orders/*"'),
        ("url", '"*.example.com/*"'),
        ("url", '"http://10.*"'),
        ("url", '"!= https://api.example.com/*"'),
    ],
)
def test_a_condition_that_some_values_meet_is_valid(tmp_path: Path, argument: str, condition: str) -> None:
    assert errors(tmp_path, argument, condition) == []


@pytest.mark.parametrize(
    ("argument", "condition", "written"),
    [("text", "0123", "0123"), ("text", "1.0", "1.0"), ("items.tags", "0x1F", "0x1F"), ("mixed", "007", "007")],
)
def test_a_number_that_stands_for_a_text_is_put_in_quotes(
    tmp_path: Path, argument: str, condition: str, written: str
) -> None:
    (found,) = errors(tmp_path, argument, condition)
    assert found.message.endswith(f"; put it in quotes: '{written}'")
    assert errors(tmp_path, argument, f"'{condition}'") == []


@pytest.mark.parametrize("condition", ["true", "1.5", ".nan", ".inf"])
def test_a_value_of_another_type_is_an_error(tmp_path: Path, condition: str) -> None:
    assert len(errors(tmp_path, "count", condition)) == 1


@pytest.mark.parametrize("condition", ["prod ", " prod", "pr\\u200bod", "pr\\u200dod", "\\ufeffprod"])
def test_a_text_with_what_nobody_sees_is_an_error(tmp_path: Path, condition: str) -> None:
    (found,) = errors(tmp_path, "text", f'"{condition}"')
    assert "has a blank at an end, or an invisible character" in found.message


@pytest.mark.parametrize("condition", ["\\u0645\\u06cc\\u200c\\u062e", "\\U0001f469\\u200d\\U0001f4bb"])
def test_a_text_that_is_spelt_with_joiners_is_no_error(tmp_path: Path, condition: str) -> None:
    assert errors(tmp_path, "text", f'"{condition}"') == []


def test_the_error_shows_the_forms_of_a_condition(tmp_path: Path) -> None:
    (found,) = errors(tmp_path, "amount", '"=> 500"')
    assert found.message == (
        "the condition '=> 500' on 'amount' can never be met: books.pay takes number there; did you mean '>= 500'?"
    )
    assert found.hint is not None
    assert '">"' in found.hint
    (found,) = errors(tmp_path, "amount", '"> 500 EUR"')
    assert found.message == (
        "the condition '> 500 EUR' on 'amount' of books.pay does not compare with a number; did you mean '> 500'?"
    )


SERVER = external_tool(
    "mcp.shop.pay",
    "Pay.",
    {
        "type": "object",
        "properties": {
            "amount": {"$ref": "#/$defs/money"},
            "order": {"type": "object", "properties": {"a.b": {"type": "integer"}}},
            "kind": {"enum": ["x", 1]},
            "anything": {},
            "both": {"allOf": [{"type": "integer"}, {"minimum": 3}]},
        },
        "$defs": {"money": {"type": ["number", "null"]}},
    },
    lambda _arguments, _context: asyncio.sleep(0),
    source="mcp",
)


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ('{amount: "=> 5"}', "'>= 5'"),
        ('{amount: "> 5"}', None),
        ("{order.a.b: 7}", None),
        ('{order.a.b: "x"}', "can never be met"),
        ('{order.c: "x"}', "mcp.shop.pay has no argument 'order.c'"),
        ("{kind: y}", "can never be met"),
        ("{kind: 1}", None),
        ("{anything: y}", None),
        ('{both: "5 EUR"}', None),
        ('{both: "> 5 EUR"}', "'> 5'"),
        ("{amuont: 5}", "did you mean amount?"),
    ],
)
def test_the_schema_of_a_server_is_used(tmp_path: Path, when: str, expected: str | None) -> None:
    policy = f"{{deny: [{{tool: mcp.shop.pay, when: {when}}}], allow: [mcp.shop.pay]}}"
    found, _ = asyncio.run(_problems(tmp_path, policy, [SERVER]))
    messages = [problem.message for problem in found if problem.severity == "error"]
    assert [str(expected) in message for message in messages] == ([True] if expected else [])


NUMBERS = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
TYPES: dict[str, st.SearchStrategy[Any]] = {
    "amount": st.floats(allow_nan=False, allow_infinity=False),
    "count": st.integers(),
    "maybe": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "flag": st.booleans(),
    "method": st.sampled_from(["GET", "POST"]),
    "colour": st.sampled_from(["red", "green"]),
    "text": st.text(max_size=4),
}
WORDS = ["=>", ">", ">=", "<", "!=", "==", "≥", "gt", "500", "1,000", "0.5", "1e3", "EUR", "+", "*", "?", "[", "0-9]"]
WORDS += ["GET", "get", "true", "false", "null", "red", "a", "-", " ", "nan", "inf", "x"]
CONDITIONS = (
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map("".join)
    | st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
    | st.text(max_size=6)
    | st.integers(-5, 5)
    | st.floats()
    | st.booleans()
)


def _probes(argument: str, condition: object, drawn: list[Any]) -> Iterator[Any]:
    """Yield values of an argument's type near the condition: its numbers and their neighbours, its text filled in."""
    yield from (*drawn, *(["", "x"] if argument == "text" else []))
    texts = [json.dumps(condition) if isinstance(condition, bool) else str(condition)]
    texts.append(texts[0].removeprefix("!=").strip())
    found = [float(number) * sign for text in texts for number in NUMBERS.findall(text) for sign in (1, -1)]
    near = [value for number in found for value in (number, number - 1, number + 1, number * 2, number / 2)]
    near = [value for value in near if isfinite(value)]
    filled = [re.sub(r"[*?]|\[[^]]*\]", fill, text) for text in texts for fill in ("", "0", "1", "5", "9", "a", "-1")]
    probes: list[float | str] = [*near, 0.0, 1.0, -1.0, *filled]
    for value in probes:
        if argument in ("amount", "maybe") and isinstance(value, float):
            yield value
        elif argument == "count" and isinstance(value, float) and value.is_integer():
            yield int(value)
        elif argument == "text":
            yield value if isinstance(value, str) else json.dumps(int(value) if value.is_integer() else value)
        elif isinstance(value, str) and argument in ("amount", "maybe", "count"):
            yield from _as_number(value, whole=argument == "count")
    choices: dict[str, list[Any]] = {"flag": [True, False], "method": ["GET", "POST"], "colour": ["red", "green"]}
    yield from choices.get(argument, [])
    if argument == "maybe":
        yield None


def _as_number(text: str, *, whole: bool) -> Iterator[float]:
    try:
        number = float(text)
    except ValueError:
        return
    if isfinite(number) and (not whole or number.is_integer()):
        yield int(number) if whole else number


@cases(300)
@given(argument=st.sampled_from([*TYPES]), condition=CONDITIONS, data=st.data())
def test_a_valid_condition_is_met_by_some_values_and_not_by_others(
    argument: str, condition: str | float, data: st.DataObject
) -> None:

    if condition_fault(pay, argument, condition) is not None:
        return
    if isinstance(condition, str) and condition and not condition.strip("*"):
        return  # documented: any value
    rule = Rule(tool="books.pay", when={argument: condition})
    drawn = data.draw(st.lists(TYPES[argument], min_size=3, max_size=8))
    seen = set()
    for value in _probes(argument, condition, drawn):
        pay.bind({argument: value})
        seen.add(rule_matches(rule, {argument: value}, pay))
    assert seen == {True, False}
