"""Tools as functions of a script: their names, their signatures as Python stubs, and `run_script`, which runs scripts.

A stub has the types of a tool's JSON Schema as far as Python's types can say them: objects are mappings, because a
dictionary that a script builds step by step would not match a narrower type. The gate checks each value once more.
"""

from __future__ import annotations

import builtins
import json
import keyword
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from framework.tools.tool import Tool, tool
from framework.types.errors import ToolError
from framework.types.messages import ToolDefinition
from framework.types.text import shorten

RUN_SCRIPT = "run_script"
MAX_CODE_CHARS = 50_000
_DIRECT = ("client", "code", "run", "skills")
"""Sources of tools that stay tools in code mode: what they return is for the model to read, or belongs to a turn."""
_IMPORTS = "from typing import Any, Literal, Mapping, Sequence\n"
_TAKEN = frozenset({*dir(builtins), *keyword.kwlist, "Any", "Literal", "Mapping", "Sequence"})
"""Names that no function or parameter gets."""
_SIMPLE = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_MAX_DEPTH, _MAX_PARTS = 10, 1_000
"""Limits of what is read of the schema of one tool: levels, and parts with references resolved."""
_MAX_CHOICES, _MAX_SCHEMA_CHARS, _MAX_DESCRIPTION_CHARS = 50, 2_000, 4_000
_INTRODUCTION = """\
# Scripts

These functions are your tools. Call them in a script that you pass to `run_script`, as many as the task needs:

```python
{stubs}
```

Results are JSON data. A call that fails or is denied raises RuntimeError. Print what you need to see, and only that."""


@tool(risk="low", idempotent=True, needs={"pydantic_monty": "agentsd[code]"})
async def _run_script(code: str) -> str:
    """Run a Python script that calls tools as functions; return what it prints, and the value of its last line.

    A part of Python: functions, loops, comprehensions, f-strings, exceptions, and the modules math, json, re, datetime.
    No files, network, environment, input, `await`, generators or inheritance. Types are checked before it runs. Nothing
    is kept between scripts.

    Args:
        code: The whole script.
    """
    raise ToolError(f"the engine runs scripts: {shorten(code, 80)!r}")


SCRIPT_TOOL = _run_script.named(RUN_SCRIPT, "code")


@dataclass(frozen=True, slots=True)
class ScriptFunction:
    """A tool as a function."""

    name: str
    definition: ToolDefinition

    @property
    def tool(self) -> str:
        """Name of the tool."""
        return self.definition.name

    def parameters(self) -> dict[str, str]:
        """Return the tool's name of each parameter, by its name in the function: required ones first."""
        names: dict[str, str] = {}
        required = self.definition.parameters.get("required") or ()
        for own in sorted(self._properties, key=lambda own: own not in required):
            names[_python_name(own, names)] = own
        return names

    def stub(self) -> str:
        """Return its signature, to be checked against."""
        return f"def {self.name}({', '.join(self._typed(with_defaults=False))}) -> Any: ..."

    def text(self) -> str:
        """Return its signature with defaults and a docstring, for the model."""
        described = "\n".join(self._docstring())
        return f'def {self.name}({", ".join(self._typed(with_defaults=True))}) -> Any:\n    """{described}"""'

    def arguments(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by the tool's names; raise ValueError if they cannot be assigned."""
        given, parameters = list(args), self.parameters()
        if len(given) > len(parameters):
            raise ValueError(f"{self.name}() takes {len(parameters)} arguments, {len(given)} were given")
        assigned = dict(zip(parameters, given, strict=False))
        if twice := assigned.keys() & kwargs.keys():
            raise ValueError(f"{self.name}() got two values for {min(twice)!r}")
        return {parameters.get(name, name): value for name, value in {**assigned, **kwargs}.items()}

    @property
    def _properties(self) -> Mapping[str, Any]:
        return self.definition.parameters.get("properties") or {}

    def _typed(self, *, with_defaults: bool) -> Iterator[str]:
        """Yield the parameters with their types."""
        schema, properties = self.definition.parameters, self._properties
        reader, required = _SchemaReader(schema), schema.get("required") or ()
        for name, own in self.parameters().items():
            typed = f"{name}: {reader.type_of(properties[own])}"
            default = _default(properties[own]) if with_defaults else "..."
            yield typed if own in required else f"{typed} = {default}"
        more = schema.get("additionalProperties")
        if more or (not properties and more is not False):
            yield "**more: Any"

    def _docstring(self) -> Iterator[str]:
        yield _in_docstring(shorten(self.definition.description.strip(), _MAX_DESCRIPTION_CHARS))
        reader = _SchemaReader(self.definition.parameters)
        about = {name: "; ".join(_about(self._properties[own], reader)) for name, own in self.parameters().items()}
        if any(about.values()):
            yield "\n    Args:"
            yield from (f"        {name}: {_in_docstring(text, 12)}" for name, text in about.items() if text)
            yield "    "


def is_function(tool: Tool) -> bool:
    """Return whether scripts call a tool, in code mode, instead of the model."""
    return tool.source not in _DIRECT


def script_functions(tools: Iterable[Tool]) -> dict[str, ScriptFunction]:
    """Return the tools that scripts call, by the names of their functions.

    Args:
        tools: all tools of an agent: a name depends on those that others have.
    """
    found: dict[str, ScriptFunction] = {}
    for one in sorted(filter(is_function, tools), key=lambda one: one.name):
        name = _python_name(one.definition.wire_name, found)
        found[name] = ScriptFunction(name, one.definition)
    return found


def script_prompt(functions: Iterable[ScriptFunction]) -> str:
    """Return the part of the system prompt that describes functions; empty without any."""
    stubs = "\n\n".join(function.text() for function in functions)
    return _INTRODUCTION.format(stubs=stubs) if stubs else ""


def checked_stubs(functions: Iterable[ScriptFunction]) -> str:
    """Return the stubs that a script is checked against."""
    return _IMPORTS + "".join(f"{function.stub()}\n" for function in functions)


def _python_name(name: str, taken: Collection[str]) -> str:
    """Return the name, or one like it that a script can use and nothing else has."""
    plain = "".join(sign if sign.isascii() and (sign.isalnum() or sign == "_") else "_" for sign in name) or "_"
    plain = f"_{plain}" if plain[0].isdigit() else plain
    plain = f"{plain}_" if plain in _TAKEN else plain
    return plain if plain not in taken else f"{plain}_{blake2b(name.encode(), digest_size=4).hexdigest()}"


def _about(schema: Any, reader: _SchemaReader) -> Iterator[str]:
    """Yield the description of a parameter, and its schema if the type does not say it."""
    if isinstance(schema, dict):
        if description := str(schema.get("description", "")).strip():
            yield shorten(description, _MAX_DESCRIPTION_CHARS)
        rest = {key: value for key, value in schema.items() if key not in ("description", "default", "title")}
        text = json.dumps(reader.inlined(rest), ensure_ascii=False)
        if '"properties"' in text or "pattern" in schema:
            yield f"JSON Schema {shorten(text, _MAX_SCHEMA_CHARS)}"


def _in_docstring(text: str, indent: int = 4) -> str:
    for sign, instead in (("\\", "/"), ('"""', "'''"), ("```", "'''"), ("\n", "\n" + " " * indent)):
        text = text.replace(sign, instead)
    return text


def _default(schema: Any) -> str:
    default = schema.get("default", ...) if isinstance(schema, dict) else ...
    is_plain = default is None or isinstance(default, (str, bool, int, float))
    return repr(default) if is_plain and len(str(default)) <= _MAX_CHOICES else "..."


class _SchemaReader:
    """Reads the schemas of one tool's parameters, up to a limit: references can multiply what a schema contains."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._definitions = root.get("$defs") or root.get("definitions") or {}
        self._left = _MAX_PARTS

    def type_of(self, schema: Any, depth: int = 0) -> str:
        """Return the Python type of what a JSON Schema accepts; `Any` where there is none."""
        if not isinstance(schema, dict) or not self._may_read(depth):
            return "Any"
        if reference := schema.get("$ref"):
            return self.type_of(self._resolved(reference), depth + 1)
        if literal := _literal([schema["const"]] if "const" in schema else schema.get("enum")):
            return literal
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                return _union(self.type_of(one, depth + 1) for one in schema[key])
        kind = schema.get("type")
        if isinstance(kind, list):
            return _union(self.type_of({**schema, "type": one}, depth + 1) for one in kind)
        if kind == "array":
            return f"Sequence[{self.type_of(schema.get('items'), depth + 1)}]"
        if kind == "object":
            more = schema.get("additionalProperties") if not schema.get("properties") else None
            return f"Mapping[str, {self.type_of(more, depth + 1)}]"
        return _SIMPLE.get(str(kind), "Any")

    def inlined(self, schema: Any, depth: int = 0) -> Any:
        """Return a schema with what its references mean in their place, as far as the limit permits."""
        if not isinstance(schema, (list, dict)):
            return schema
        if not self._may_read(depth):
            return {}
        if isinstance(schema, list):
            return [self.inlined(one, depth + 1) for one in schema]
        if reference := schema.get("$ref"):
            return self.inlined(self._resolved(reference), depth + 1)
        return {key: self.inlined(value, depth + 1) for key, value in schema.items()}

    def _may_read(self, depth: int) -> bool:
        self._left -= 1
        return self._left > 0 and depth <= _MAX_DEPTH

    def _resolved(self, reference: Any) -> Any:
        return self._definitions.get(str(reference).removeprefix("#/$defs/").removeprefix("#/definitions/"))


def _literal(choices: Any) -> str:
    """Return the type of a few plain values; empty if they are others."""
    if not isinstance(choices, list) or not 0 < len(choices) <= _MAX_CHOICES:
        return ""
    if not all(one is None or isinstance(one, (str, bool, int)) for one in choices):
        return ""
    text = f"Literal[{', '.join(ascii(one) for one in choices)}]"
    return text if len(text) <= _MAX_SCHEMA_CHARS else ""


def _union(types: Iterable[str]) -> str:
    found = list(dict.fromkeys(types))
    return "Any" if not found or "Any" in found else " | ".join(found)
