"""Tools as functions of a script: their names, their signatures as Python stubs, and `run_script`, which runs scripts.

A stub has the types of a tool's JSON Schema as far as Python's types can say them: objects are mappings, because a
dictionary that a script builds step by step would not match a narrower type. The gate checks each value once more.
"""

from __future__ import annotations

import builtins
import json
import keyword
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from framework.tools.tool import Tool, tool
from framework.types.errors import ToolError
from framework.types.messages import ToolDefinition
from framework.types.text import shorten

if TYPE_CHECKING:
    import pydantic_monty as monty


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

    A name depends on those that others have.
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


# A script sees the same time and the same random numbers each time it is run with the same `started_at` and `seed`, so
# that it asks for the same calls when it is run again from its start.


_SECONDS = 10.0
"""Time that a script may compute, in seconds, without the time of its calls."""
_KILLED_AFTER = 20.0
"""Seconds after which an interpreter that does not answer is killed."""
_MEMORY_BYTES = 128 * 1024 * 1024
_RECURSION = 400
MAX_CALLS = 5_000
"""Maximum number of calls of one script; the limits of the run are usually lower."""
MAX_SCRIPT_OUTPUT = 1_000_000
"""Maximum number of characters that a script prints, and of the value of its last line."""
_MAX_ERROR_CHARS = 4_000
_SCRIPT_NAME = "script"
_SHOWN_AS = "<python-input-0>"
"""Name of the script in the interpreter's messages."""


class ScriptError(Exception):
    """The script is invalid, raised an exception or reached a limit: a text for the model."""

    def __init__(self, message: str, *, kind: str, last_line: str = "") -> None:
        super().__init__(message)
        self.message, self.kind, self.last_line = message, kind, last_line


class SnapshotError(Exception):
    """A snapshot cannot be restored by this version of the interpreter."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """The script calls a function, and waits for its result."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finished:
    """The script has ended."""

    value: Any
    """Value of its last line, if that is an expression."""


def interpreter_version() -> str:
    """Return the version of the interpreter, to which snapshots belong."""
    import pydantic_monty as monty

    return monty.__version__


class Interpreter:
    """One script in progress."""

    def __init__(self, session: monty.AsyncMontySession, functions: Collection[str]) -> None:
        self._session = session
        self._functions = dict.fromkeys(functions, _never_called)
        self._call: monty.AsyncFunctionSnapshot | None = None
        self.printed = ""
        """What the script has printed."""

    async def start(self, code: str, *, check: bool) -> FunctionCall | Finished:
        """Run the script up to its first call or its end, after a check of its types unless `check` is False.

        Raises:
            ScriptError: it is invalid, raised an exception or reached a limit.
        """
        begin = self._session.feed_start(
            code, external_lookup=self._functions, print_callback=self._print, skip_type_check=not check
        )
        return await self._next(begin)

    async def restore(self, snapshot: bytes, printed: str) -> FunctionCall | Finished:
        """Continue at the call for which the script waited; raise SnapshotError if that is impossible."""
        import pydantic_monty as monty

        self.printed = printed
        try:
            progress = await self._session.load_snapshot(
                snapshot, external_lookup=self._functions, print_callback=self._print
            )
        except (monty.MontyError, ValueError, OSError) as error:
            raise SnapshotError(str(error)) from None
        return await self._next(_done(progress))

    async def answer(self, value: Any) -> FunctionCall | Finished:
        """Return a value from the call; raises like `start`."""
        assert self._call is not None
        return await self._next(self._call.resume({"return_value": value}))

    async def fail(self, kind: monty.ExcType, message: str) -> FunctionCall | Finished:
        """Raise an exception from the call; raises like `start`."""
        assert self._call is not None
        return await self._next(self._call.resume({"exc_type": kind, "message": message}))

    def snapshot(self) -> bytes:
        """Return the state of the script, which waits for the result of a call."""
        assert self._call is not None
        return self._call.dump()

    async def _next(self, started: Awaitable[monty.AsyncSnapshot]) -> FunctionCall | Finished:
        import pydantic_monty as monty

        try:
            progress = await started
            while True:
                if isinstance(progress, monty.MontyComplete):
                    return Finished(progress.output)
                if isinstance(progress, monty.AsyncFutureSnapshot):
                    raise ScriptError("functions return their results: do not await them", kind="script_error")
                if isinstance(progress, monty.AsyncNameLookupSnapshot):
                    progress = await progress.resume_auto()
                elif progress.is_os_function:
                    progress = await progress.resume_not_handled()
                else:
                    self._call = progress
                    return FunctionCall(str(progress.function_name), progress.args, progress.kwargs)
        except monty.MontyTypingError as error:
            raise ScriptError(_readable(error.display()), kind="invalid_script") from None
        except (monty.MontySyntaxError, monty.MontyRuntimeError) as error:
            text, last = _readable(error.display()), error.display("type-msg")
            raise ScriptError(text, kind="script_error", last_line=last) from None
        except monty.MontyCrashedError as error:
            reason = "the script took too long" if error.timed_out else f"the interpreter ended: {error}"
            raise ScriptError(reason, kind="script_error") from None
        except (monty.MontyError, ValueError, OSError) as error:
            raise ScriptError(f"the script could not be run: {error}", kind="script_error") from None

    def _print(self, _stream: str, text: str) -> None:
        self.printed += text[: MAX_SCRIPT_OUTPUT - len(self.printed)]
        if len(self.printed) >= MAX_SCRIPT_OUTPUT:
            raise RuntimeError(f"the script prints more than {MAX_SCRIPT_OUTPUT} characters")


@asynccontextmanager
async def open_interpreter(
    functions: Collection[str], stubs: str, *, started_at: float, seed: str
) -> AsyncIterator[Interpreter]:
    """Start an interpreter for one script; it ends with the block, whatever the script does.

    The script is checked against the `stubs`, and sees `started_at`, in Unix seconds, as the time.
    """
    import pydantic_monty as monty

    limits = monty.ResourceLimits(
        max_feed_duration_secs=_SECONDS,
        max_memory=_MEMORY_BYTES,
        max_recursion_depth=_RECURSION,
        max_suspensions=MAX_CALLS,
    )
    fixed = monty.OSPolicy(sleep="zero", datetime=datetime.fromtimestamp(started_at, UTC), random_start={"seed": seed})
    async with (
        monty.AsyncMonty(min_processes=1, max_processes=1, request_timeout=_KILLED_AFTER) as pool,
        pool.checkout(
            script_name=_SCRIPT_NAME,
            limits=limits,
            type_check=True,
            type_check_stubs=stubs,
            type_check_format="concise",
            os_policy=fixed,
        ) as session,
    ):
        yield Interpreter(session, functions)


def json_text(value: Any, limit: int, *, strict: bool) -> str:
    """Return a value of a script as JSON, built in pieces, because a small value can have a very long text.

    Unless `strict`, sets, dates and bytes are converted, too.

    Raises:
        ValueError: the value is not JSON data, or its text is too long.
    """
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=not strict, default=_refuse if strict else _plain)
    pieces, length = list[str](), 0
    try:
        for piece in encoder.iterencode(value):
            pieces.append(piece)
            if (length := length + len(piece)) > limit:
                raise ValueError(f"it has more than {limit} characters as JSON")
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return "".join(pieces)


def _refuse(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} is not JSON data: pass dict, list, str, int, float, bool or None")


def _plain(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value.isoformat() if hasattr(value, "isoformat") else repr(value)


def _readable(text: str) -> str:
    """Return the interpreter's message with the name of the script; of a long one the end, where the cause is."""
    return text.replace(_SHOWN_AS, _SCRIPT_NAME).replace(f"{_SCRIPT_NAME}:", "line ").strip()[-_MAX_ERROR_CHARS:]


def _never_called(*_args: Any, **_kwargs: Any) -> None:
    raise RuntimeError("the engine executes the calls of a script")


async def _done(progress: monty.AsyncSnapshot) -> monty.AsyncSnapshot:
    return progress
