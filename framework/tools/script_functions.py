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
_DIRECT = ("code", "run", "skills")
"""Sources of tools that stay tools in code mode: what they return is for the model to read."""
_IMPORTS = "from typing import Any, Literal, Mapping, Sequence\n"
_TAKEN = frozenset({*dir(builtins), *keyword.kwlist, "Any", "Literal", "Mapping", "Sequence"})
"""Names that no function or parameter gets."""
_SIMPLE = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_MAX_DEPTH = 6
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
    tool: str
    """Name of the tool."""
    parameters: Mapping[str, str]
    """The tool's name of each parameter, by its name in the function: required ones first."""
    stub: str
    """Its signature, to be checked against."""
    text: str
    """Its signature with defaults and a docstring, for the model."""

    def arguments(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by the tool's names; raise ValueError if they cannot be assigned."""
        given, names = list(args), list(self.parameters)
        if len(given) > len(names):
            raise ValueError(f"{self.name}() takes {len(names)} arguments, {len(given)} were given")
        assigned = dict(zip(names, given, strict=False))
        if twice := assigned.keys() & kwargs.keys():
            raise ValueError(f"{self.name}() got two values for {min(twice)!r}")
        return {self.parameters.get(name, name): value for name, value in {**assigned, **kwargs}.items()}


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
        found[name] = _function(name, one.definition)
    return found


def script_prompt(functions: Iterable[ScriptFunction]) -> str:
    """Return the part of the system prompt that describes functions; empty without any."""
    stubs = "\n\n".join(function.text for function in functions)
    return _INTRODUCTION.format(stubs=stubs) if stubs else ""


def checked_stubs(functions: Iterable[ScriptFunction]) -> str:
    """Return the stubs that a script is checked against."""
    return _IMPORTS + "".join(f"{function.stub}\n" for function in functions)


def _python_name(name: str, taken: Collection[str]) -> str:
    """Return the name, or one like it that a script can use and nothing else has."""
    plain = "".join(sign if sign.isascii() and (sign.isalnum() or sign == "_") else "_" for sign in name) or "_"
    plain = f"_{plain}" if plain[0].isdigit() else plain
    plain = f"{plain}_" if plain in _TAKEN else plain
    return plain if plain not in taken else f"{plain}_{blake2b(name.encode(), digest_size=4).hexdigest()}"


def _function(name: str, definition: ToolDefinition) -> ScriptFunction:
    schema = definition.parameters
    properties, required = schema.get("properties") or {}, set(schema.get("required") or ())
    parameters: dict[str, str] = {}
    for own in sorted(properties, key=lambda own: own not in required):
        parameters[_python_name(own, parameters)] = own
    checked, shown = list[str](), list[str]()
    for parameter, own in parameters.items():
        typed = f"{parameter}: {_type(properties[own], schema)}"
        is_optional = own not in required
        checked.append(f"{typed} = ..." if is_optional else typed)
        shown.append(f"{typed} = {_default(properties[own])}" if is_optional else typed)
    if schema.get("additionalProperties") or (not properties and schema.get("additionalProperties") is not False):
        checked.append("**more: Any")
        shown.append("**more: Any")
    described = "\n".join(_docstring(definition, parameters, properties))
    return ScriptFunction(
        name,
        definition.name,
        parameters,
        stub=f"def {name}({', '.join(checked)}) -> Any: ...",
        text=f'def {name}({", ".join(shown)}) -> Any:\n    """{described}"""',
    )


def _docstring(
    definition: ToolDefinition, parameters: Mapping[str, str], properties: Mapping[str, Any]
) -> Iterator[str]:
    yield _in_docstring(shorten(definition.description.strip(), _MAX_DESCRIPTION_CHARS))
    root = definition.parameters
    about = {name: list(_about(properties[own], root)) for name, own in parameters.items()}
    if any(about.values()):
        yield "\n    Args:"
        yield from (f"        {name}: {_in_docstring('; '.join(parts), 12)}" for name, parts in about.items() if parts)
        yield "    "


def _about(schema: Any, root: Mapping[str, Any]) -> Iterator[str]:
    """Yield the description of a parameter, and its schema if the type does not say it."""
    if isinstance(schema, dict):
        if description := str(schema.get("description", "")).strip():
            yield shorten(description, _MAX_DESCRIPTION_CHARS)
        rest = {key: value for key, value in schema.items() if key not in ("description", "default", "title")}
        text = json.dumps(_inlined(rest, root), ensure_ascii=False)
        if '"properties"' in text or "pattern" in schema:
            yield f"JSON Schema {shorten(text, _MAX_SCHEMA_CHARS)}"


def _inlined(schema: Any, root: Mapping[str, Any], depth: int = 0) -> Any:
    """Return a schema with what its references mean in their place."""
    if isinstance(schema, list):
        return [_inlined(one, root, depth + 1) for one in schema]
    if not isinstance(schema, dict) or depth > 2 * _MAX_DEPTH:
        return schema
    if reference := schema.get("$ref"):
        return _inlined(_resolved(str(reference), root), root, depth + 1)
    return {key: _inlined(value, root, depth + 1) for key, value in schema.items()}


def _in_docstring(text: str, indent: int = 4) -> str:
    return text.replace("\\", "/").replace('"""', "'''").replace("\n", "\n" + " " * indent)


def _default(schema: Any) -> str:
    default = schema.get("default", ...) if isinstance(schema, dict) else ...
    is_plain = default is None or isinstance(default, (str, bool, int, float))
    return repr(default) if is_plain and len(str(default)) <= _MAX_CHOICES else "..."


def _type(schema: Any, root: Mapping[str, Any], depth: int = 0) -> str:
    """Return the Python type of what a JSON Schema accepts; `Any` where there is none."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return "Any"
    if reference := schema.get("$ref"):
        return _type(_resolved(str(reference), root), root, depth + 1)
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(choices, list):
        plain = all(one is None or isinstance(one, (str, bool, int)) for one in choices)
        if choices and plain and len(choices) <= _MAX_CHOICES:
            return f"Literal[{', '.join(ascii(one) for one in choices)}]"
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return _union(_type(one, root, depth + 1) for one in schema[key])
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union(_type({**schema, "type": one}, root, depth + 1) for one in kind)
    if kind == "array":
        return f"Sequence[{_type(schema.get('items'), root, depth + 1)}]"
    if kind == "object":
        more = schema.get("additionalProperties") if not schema.get("properties") else None
        return f"Mapping[str, {_type(more, root, depth + 1)}]"
    return _SIMPLE.get(str(kind), "Any")


def _union(types: Iterable[str]) -> str:
    found = list(dict.fromkeys(types))
    return "Any" if not found or "Any" in found else " | ".join(found)


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    name = reference.removeprefix("#/$defs/").removeprefix("#/definitions/")
    return (root.get("$defs") or root.get("definitions") or {}).get(name)
