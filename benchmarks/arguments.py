"""Validation and repair of tool arguments, beside the independent validator `jsonschema`, on generated values.

Counts, not times: they are the same on every machine, because the seed is fixed.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field

from benchmarks.harness import Row, Table
from framework import tool
from framework.tools.arguments import ArgumentsError, SchemaArguments
from framework.tools.json_schema import repair_arguments

SEED = 1
SCHEMAS, VALUES = 2000, 25
"""Generated schemas, and values for each."""
WORDS = ("", "a", "no", "order-7", "Ångström", "5", "-3", "2.50", "true", "null", "[1]", '{"n":1}', "5 apples", "[1,")
NUMBERS = (0, 1, -1, 2, 3, 5, 10, 100, 1.5, 2.5, -0.5, 5.0, 1e3, 2**53)
NAMES = ("city", "limit", "tags", "filter", "when")
WRONG: tuple[Any, ...] = (None, True, False, 0, 1.5, "", "5", "true", [], [1], {}, {"n": 1}, "[]", "{}")
DEPTH = 3


class Filter(BaseModel):
    """A part of the arguments of `search`."""

    model_config = ConfigDict(extra="forbid")

    field: Literal["date", "size"]
    least: Annotated[int, Field(ge=0, le=100)] | None = None


@tool(risk="low")
async def search(query: str, limit: Annotated[int, Field(ge=1, le=50)] = 5, exact: bool = False) -> str:
    """Search."""
    return f"{query} {limit} {exact}"


@tool(risk="low")
async def select(tags: list[str], filters: list[Filter], share: float | None = None) -> str:
    """Select."""
    return f"{tags} {filters} {share}"


@tool(risk="low")
async def book(when: Literal["today", "later"], seats: dict[str, int], note: str | None = None) -> str:
    """Book."""
    return f"{when} {seats} {note}"


class Generator:
    """Generates schemas, and values that fit them, fit them nearly, or do not fit."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def arguments_schema(self) -> dict[str, Any]:
        """Return the schema of a tool's arguments."""
        schema = self._object(DEPTH)
        return schema | {"$defs": {"part": self._object(1)}}

    def arguments(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments for a schema. Half of them are changed in one to three places."""
        value = self._fitting(schema, schema)
        for _ in range(self._random.choice((0, 0, 0, 1, 2, 3))):
            value = self._changed(value)
        return value if isinstance(value, dict) else {}

    def _schema(self, depth: int) -> dict[str, Any]:
        chosen = self._random.choice
        leaves: list[Callable[[], dict[str, Any]]] = [
            lambda: {"type": "string"},
            lambda: {"type": "string", "minLength": chosen((1, 2)), "maxLength": chosen((3, 7))},
            lambda: {"type": "string", "pattern": chosen(("^[a-z]+$", "^order-[0-9]+$", "5"))},
            lambda: {"type": "integer"},
            lambda: {"type": "integer", "minimum": chosen((0, 1)), "maximum": chosen((5, 100))},
            lambda: {"type": "number", "exclusiveMinimum": 0, "multipleOf": chosen((1, 0.5, 5))},
            lambda: {"type": "boolean"},
            lambda: {"type": [chosen(("integer", "string", "boolean")), "null"]},
            lambda: {"enum": self._random.sample(["a", "5", 5, 1, True, None, "order-7"], 3)},
            lambda: {"const": chosen(("a", 5, True, None))},
            lambda: {"$ref": "#/$defs/part"} if depth > 1 else {"type": "null"},
            dict,
        ]
        if depth == 0 or self._random.random() < 0.6:
            return chosen(leaves)()
        nested: list[Callable[[], dict[str, Any]]] = [
            lambda: self._object(depth - 1),
            lambda: {"type": "array", "items": self._schema(depth - 1), "maxItems": chosen((2, 4))},
            lambda: {"type": "array", "items": self._schema(0), "minItems": 1, "uniqueItems": True},
            lambda: {chosen(("anyOf", "oneOf")): [self._schema(depth - 1), self._schema(0)]},
        ]
        return chosen(nested)()

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._random.sample(NAMES, self._random.randint(1, 4))
        schema: dict[str, Any] = {"type": "object", "properties": {name: self._schema(depth - 1) for name in names}}
        schema["required"] = [name for name in names if self._random.random() < 0.5]
        if self._random.random() < 0.5:
            schema["additionalProperties"] = self._random.choice((False, {"type": "integer"}))
        return schema

    def _fitting(self, root: Mapping[str, Any], schema: Mapping[str, Any]) -> Any:
        """Return a value that mostly fits a schema: limits may be exceeded."""
        chosen = self._random.choice
        if "$ref" in schema:
            return self._fitting(root, root["$defs"][schema["$ref"].rpartition("/")[2]])
        if choices := schema.get("anyOf") or schema.get("oneOf"):
            return self._fitting(root, chosen(choices))
        if "enum" in schema or "const" in schema:
            return chosen(schema.get("enum") or [schema.get("const")])
        kinds = schema.get("type", "null")
        kind = chosen(kinds) if isinstance(kinds, list) else kinds
        if kind == "object":
            return self._fitting_object(root, schema)
        if kind == "array":
            items = schema.get("items", {})
            return [self._fitting(root, items) for _ in range(self._random.randint(0, 3))]
        leaves = {"string": WORDS, "integer": [n for n in NUMBERS if n == int(n)], "number": NUMBERS}
        return chosen(leaves.get(kind) or ([True, False] if kind == "boolean" else [None]))

    def _fitting_object(self, root: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
        properties, required = schema.get("properties", {}), schema.get("required", ())
        value = {
            name: self._fitting(root, inner)
            for name, inner in properties.items()
            if name in required or self._random.random() < 0.7
        }
        if isinstance(more := schema.get("additionalProperties"), Mapping):
            value["extra"] = self._fitting(root, more)
        return value

    def _changed(self, value: Any) -> Any:
        """Return a value that is changed in one place."""
        chosen = self._random.choice
        if isinstance(value, dict) and value and self._random.random() < 0.8:
            name = chosen(sorted(value))
            without = {key: part for key, part in value.items() if key != name}
            more = {**value, chosen(NAMES): chosen(WRONG)}
            return chosen((without, more, *[{**value, name: self._changed(value[name])}] * 5))
        if isinstance(value, list) and value and self._random.random() < 0.6:
            place = self._random.randrange(len(value))
            return [*value[:place], self._changed(value[place]), *value[place + 1 :]]
        written = value if isinstance(value, str) else json.dumps(value)
        return chosen((chosen(WRONG), written, [value], None))


def is_documented(before: Any, after: Any) -> bool:
    """Return whether docs/tools.md describes a repair: a written value, a list of one, or an omitted null."""
    if type(before) is type(after) and before == after:
        return True
    if isinstance(before, dict) and isinstance(after, dict):
        omitted = before.keys() - after.keys()
        return (
            all(before[key] is None for key in omitted)
            and after.keys() <= before.keys()
            and all(is_documented(before[key], after[key]) for key in after)
        )
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return all(is_documented(old, new) for old, new in zip(before, after, strict=True))
    if isinstance(after, list) and len(after) == 1 and is_documented(before, after[0]):
        return True
    return isinstance(before, str) and not isinstance(after, str) and is_documented(_read(before), after)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def count(found: Counter[str], schema: Mapping[str, Any], bind: Callable[[Any], object], arguments: Any) -> None:
    """Compare the verdicts about arguments, as given and as repaired."""
    independent = Draft202012Validator(schema)
    ours, theirs = _accepts(bind, arguments), independent.is_valid(arguments)
    found["checked"] += 1
    is_whole = theirs and not ours and _accepts(bind, _with_integers(arguments))
    found["whole" if is_whole else f"{ours} {theirs}"] += 1
    repaired = repair_arguments(schema, arguments).arguments
    if type(repaired) is type(arguments) and json.dumps(repaired) == json.dumps(arguments):
        return
    found["changed valid"] += theirs
    found["undocumented"] += not is_documented(arguments, repaired)
    accepted = _accepts(bind, repaired)
    found["repaired"] += accepted
    found["repaired in part"] += not accepted
    found["repaired wrongly"] += accepted and not independent.is_valid(repaired)


def _with_integers(value: Any) -> Any:
    """Return a value with integers in place of whole numbers such as 5.0."""
    if isinstance(value, dict):
        return {key: _with_integers(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_integers(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _accepts(bind: Callable[[Any], object], arguments: Any) -> bool:
    try:
        bind(arguments)
    except ArgumentsError:
        return False
    return True


def table(title: str, found: Counter[str]) -> Table:
    """Return the counts as shares of all values."""
    total = found["checked"]

    def row(name: str, key: str, at_most: float | None = None) -> Row:
        return Row(name, found[key], found[key] / total, at_most=at_most)

    rows = [
        row("checked", "checked"),
        row("accepted by both", "True True"),
        row("refused by both", "False False"),
        row("wrongly accepted", "True False", 0),
        row("wrongly refused", "False True", 0),
        row("refused, as 5.0 is given for an integer", "whole"),
        row("repaired, then accepted", "repaired"),
        row("repaired in part, then refused", "repaired in part"),
        row("repaired, then accepted wrongly", "repaired wrongly", 0),
        row("repaired although valid", "changed valid", 0),
        row("repaired in an undocumented way", "undocumented", 0),
    ]
    return Table(title, "values", rows)


def servers_tools(schemas: int) -> Counter[str]:
    """Compare arguments of tools with generated schemas, as servers declare them."""
    generator, found = Generator(SEED), Counter[str]()
    for _ in range(schemas):
        checked = SchemaArguments(generator.arguments_schema())
        for _ in range(VALUES):
            count(found, checked.schema, checked.bind, generator.arguments(checked.schema))
    return found


def python_tools(values: int) -> Counter[str]:
    """Compare arguments of Python functions, with the schemas that are derived from their signatures."""
    generator, found = Generator(SEED), Counter[str]()
    for one in (search, select, book):
        schema = one.definition.parameters
        for _ in range(values):
            count(found, schema, one.bind, generator.arguments(schema))
    return found


def tables(*, quick: bool) -> Iterator[Table]:
    """Count the verdicts about generated arguments."""
    part = 10 if quick else 4
    yield table("Arguments of servers' tools, beside jsonschema", servers_tools(SCHEMAS // part))
    yield table("Arguments of Python tools, beside jsonschema", python_tools(10_000 // part))
