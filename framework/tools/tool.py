"""Tools: a function, the schema of its arguments, and the properties that policies use."""

from __future__ import annotations

import ast
import asyncio
import contextvars
import inspect
import json
import sys
import textwrap
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Literal, Protocol, overload

from docstring_parser import parse as parse_docstring
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticUserError

from framework.tools.arguments import Arguments, ModelArguments
from framework.tools.declaration import (
    DeclarationCheck,
    DeclarationError,
    RateLimit,
    check_name,
    check_needs,
    check_options,
    check_prefix,
    parse_rate,
    parse_timeout,
    report_declaration,
    resolve_arguments,
    short_repr,
)
from framework.tools.files import BaseFolder, open_file, readable_parts
from framework.tools.json_schema import ReturnError, ReturnType
from framework.types.errors import ConfigError, ToolError
from framework.types.http import HttpLimits
from framework.types.installation import install_command
from framework.types.messages import ToolDefinition
from framework.types.spec import Risk
from framework.types.state import ConfirmationKind, Decision
from framework.types.text import content_digest, read_object
from framework.types.tool_servers import SandboxLimits


class ToolSpan(Protocol):
    """A span of a tool."""

    def set_attribute(self, name: str, value: Any, /) -> None:
        """Set an attribute. Do not include text of users or models."""
        ...

    def fail(self, error_type: str, /) -> None:
        """Mark the span as failed. `error_type` is one of a small set of values, never a message."""
        ...


class StartSpan(Protocol):
    """Starts a span."""

    def __call__(
        self, name: str, attributes: Mapping[str, Any] | None = None, *, client: bool = False
    ) -> AbstractContextManager[ToolSpan]:
        """Start a span with a constant name. Set `client` if it is a call to another service."""
        ...


class _NoopSpan:
    def set_attribute(self, name: str, value: Any, /) -> None:
        """Nothing is recorded."""

    def fail(self, error_type: str, /) -> None:
        """Nothing is recorded."""


def noop_span(
    name: str,  # noqa: ARG001 - the signature is StartSpan's
    attributes: Mapping[str, Any] | None = None,  # noqa: ARG001 - the signature is StartSpan's
    *,
    client: bool = False,  # noqa: ARG001 - the signature is StartSpan's
) -> AbstractContextManager[ToolSpan]:
    """Return a no-op span, used when nothing is recorded."""
    return nullcontext(_NoopSpan())


_SERVER_PREFIXES = ("agent", "mcp", "skill")
"""First parts of the names of tools of other agents, servers and skills, whose second part is the source."""
MAX_SESSION_CHARS = 64 * 1024
"""Maximum size of all values together, as JSON."""


@dataclass(frozen=True, slots=True)
class Session:
    """JSON values by name. They are persisted with the run and passed to the next run of the conversation."""

    values: dict[str, Any] = field(default_factory=dict)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a copy of the value, or `default`."""
        return json.loads(json.dumps(self.values[key])) if key in self.values else default

    def set(self, key: str, value: Any) -> None:
        """Store a copy of a value.

        Raises:
            ToolError: the value is not JSON data, or all values together exceed the maximum size.
        """
        try:
            entry = read_object(json.dumps({key: value}, allow_nan=False, ensure_ascii=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise ToolError(f"cannot store {key!r}: not JSON data ({error})") from None
        size = len(json.dumps({**self.values, **entry}, ensure_ascii=False))
        if size > MAX_SESSION_CHARS:
            raise ToolError(
                f"cannot store {key!r}: session values would have {size} characters; the maximum is {MAX_SESSION_CHARS}"
            )
        self.values.update(entry)

    def delete(self, key: str) -> None:
        """Delete a value, if it exists."""
        self.values.pop(key, None)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self.values))


_WITHOUT_DOCSTRINGS = 2
"""Level of optimization from which Python removes docstrings."""
SourceKind = Literal[
    "builtin", "plugin", "python", "agent", "handoff", "a2a", "code", "client", "skills", "memory", "mcp", "skill",
    "http", "run"
]  # fmt: skip
"""Where a tool comes from. `skills`: it loads Agent Skills; `skill`: an HTTP tool host; `run`: the engine executes it,
on the run itself; `memory`: the engine executes it, on notes; `code`: it runs a script that calls the agent's other
tools; `client`: the client of the run executes it."""
BY_KEY: frozenset[SourceKind] = frozenset(("agent", "handoff", "a2a", "code", "skills", "memory"))
"""Sources of tools that an agent has because of a key of its file, without a rule that allows them."""
Progress = Callable[[float, str], Awaitable[None]]


class AskHuman(Protocol):
    """Asks a person a question. The run pauses, and the tool starts again when there is an answer."""

    def __call__(self, question: str, choices: Sequence[str] = ()) -> Awaitable[str]:
        """Return the answer, which is one of `choices` if there are any. Raise ToolError if no one can answer."""
        ...


async def _no_human(question: str, choices: Sequence[str] = ()) -> str:  # noqa: ARG001 - the signature is AskHuman's
    raise ToolError(f"no one can answer the question: {question}")


@dataclass(frozen=True, slots=True)
class Inquiry:
    """What a tool server needs from a person before it continues a call: a filled form, or a visit to an address."""

    kind: ConfirmationKind
    key: str
    """Distinguishes inquiries of one call with the same content."""
    message: str
    note: str = ""
    """What the answer leads to, if that is not evident."""
    waits_for: str = "needs a login"
    """Why an approval is requested if `kind` is `login`, after the name of the server."""
    form: Mapping[str, Any] | None = None
    """JSON Schema of the values, as `checked_form` returns it."""
    url: str = ""
    """The address, in ASCII."""


class Inquire(Protocol):
    """Passes the inquiries of a server on to a person. The run pauses until all are decided."""

    def __call__(self, inquiries: Sequence[Inquiry], continuation: Mapping[str, Any]) -> Awaitable[list[Decision]]:
        """Return the decisions in the order of the inquiries.

        Args:
            inquiries: what to ask.
            continuation: JSON data that the next attempt of the call finds in its context.

        Raises:
            ToolError: no one can be asked.
        """
        ...


async def _no_inquiry(inquiries: Sequence[Inquiry], continuation: Mapping[str, Any]) -> list[Decision]:  # noqa: ARG001 - the signature is Inquire's
    raise ToolError(f"no one can answer: {'; '.join(one.message for one in inquiries)}")


Keep = Callable[[Mapping[str, Any]], Awaitable[None]]


async def _not_kept(continuation: Mapping[str, Any]) -> None:  # noqa: ARG001 - the signature is Keep's
    raise ToolError("there is no call to store this with")


@dataclass(frozen=True, slots=True)
class HostedOutput:
    """The output of a tool that another service executed, and what the service says of the call."""

    output: Any
    about: Mapping[str, Any]
    """Small JSON data: `trace_id` and `meta`, as far as the service sent them."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The context of a tool call. A parameter of this type is filled in by the runtime and hidden from the model."""

    run_id: str
    call_id: str
    agent: str
    base_path: Path
    """Base folder of file tools. They cannot access files outside it."""
    unprotected: tuple[str, ...] = ()
    """Globs, relative to `base_path`, of protected files that file tools may access."""
    write_below: tuple[str, ...] | None = None
    """Folders, relative to `base_path`, that file tools may write to; None: all except protected ones."""
    denied_files: tuple[str, ...] = ()
    """Patterns of files that tools cannot read, list or write, from `skill_policy.files.deny`."""
    reserved_files: tuple[Path, ...] = ()
    """Absolute paths of the store's files, which tools cannot access."""
    deps: Any = None
    """Objects of the embedding program, passed to `Runtime.open(deps=…)`."""
    http: HttpLimits = field(default_factory=HttpLimits)
    """HTTP limits from `tools.http` in agentsd.yaml. `HttpClient(context.http)` enforces them."""
    sandbox: SandboxLimits = field(default_factory=SandboxLimits)
    """What commands in the sandbox may see and use, from `tools.sandbox` in agentsd.yaml."""
    locale: str = "en"
    user: str | None = None
    tenant: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress | None = None
    """Reports progress: `await context.progress(0.5, "half way")` emits a `tool_call` event with status `running`."""
    session: Session = field(default_factory=Session)
    """Values stored for the duration of the conversation: `context.session.get("cart", [])`."""
    ask_human: AskHuman = _no_human
    """Asks a person: `answer = await context.ask_human("Which account?")`. The run pauses, and the tool starts again
    when there is an answer, so ask first and act afterwards."""
    inquire: Inquire = _no_inquiry
    """Passes inquiries of a tool server on to a person."""
    continuation: Mapping[str, Any] = field(default_factory=dict)
    """What the last attempt of this call passed to `inquire` or `keep`."""
    keep: Keep = _not_kept
    """Stores JSON data with the call before it returns: an attempt after a crash finds it in `continuation`."""
    span: StartSpan = noop_span
    """Adds a span to the trace: `with context.span("fetch"):`."""

    @property
    def files(self) -> BaseFolder:
        """The base folder with the rules for its files."""
        return BaseFolder(self.base_path, self.denied_files, self.reserved_files, self.unprotected, self.write_below)

    def open(self, path: str) -> BinaryIO:
        """Open a file below the base folder for reading, under the rules of `read_file`; raise ToolError."""
        return open_file(self.files, readable_parts(self.files, path))

    @property
    def idempotency_key(self) -> str:
        """Key that is the same for every attempt of one call, for services that accept idempotency keys."""
        return idempotency_key(self.run_id, self.call_id)


def idempotency_key(run_id: str, call_id: str) -> str:
    """Return the key of a call for services that accept idempotency keys."""
    return f"{run_id}:{call_id}"


def source_of(tool: str) -> str:
    """Return the source in a tool's name: `mcp.docs` for `mcp.docs.search` or `mcp.docs.*`, `billing` of `billing.pay`.

    APIs have no common prefix, so for other tools than those of servers it may be the name of no source.
    """
    parts = tool.split(".")
    return ".".join(parts[:2]) if parts[0] in _SERVER_PREFIXES else parts[0]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool. Calling it calls its function directly, as in a unit test."""

    definition: ToolDefinition
    function: Callable[..., Any]
    arguments: Arguments
    context_parameter: str | None = None
    risk: Risk = "medium"
    confirm: bool = False
    """Whether every call needs a person's approval, regardless of the agent files."""
    idempotent: bool = False
    """Whether repeating a call has no further effect, so that it can be repeated after a crash."""
    timeout: float | None = None
    """Time limit of a call in seconds. The smallest limit of tool, agent and run applies."""
    retries: int = 0
    """Maximum number of retries after a timeout or an exception other than ToolError."""
    rate: RateLimit | None = None
    """Rate limit for all runs of the process together."""
    source: SourceKind = "python"
    """Where the tool comes from."""
    paths: tuple[str, ...] = ()
    """Names of arguments that are paths, with dots for parts of objects. Each item of a list is a path."""
    urls: tuple[str, ...] = ()
    """Names of arguments that are URLs, in the same form."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Modules that the function imports when it is called, each with what pip installs."""
    returns: ReturnType | None = None
    """Declared type of the result, if it is structured."""
    preview: Callable[..., str] | None = None
    """Called with the arguments of the function before a person is asked. Returns what the call would change, as text
    for the person, and raises ToolError if the call cannot succeed. Changes nothing; runs in a thread."""
    prefix: bool = True
    """Whether the name of a tool in a plugin file starts with that of the file."""
    wire: str = ""
    """How calls are sent, as text, if a description determines it: a change of it changes the contract."""
    allowed_by: str = ""
    """What allows the tool if the agent's file does not; deny rules and the ceiling of risk apply all the same."""
    needs_thread: bool = field(init=False, compare=False, repr=False)
    """Whether the function is not a coroutine function and must run in a thread."""

    @property
    def is_external(self) -> bool:
        """Whether a server executes the tool, with its own file system."""
        return self.source in ("a2a", "mcp", "skill", "http")

    def __post_init__(self) -> None:
        """Validate the declaration. Raise ConfigError if it is invalid."""
        definition: object = self.definition
        if not (isinstance(definition, ToolDefinition) and callable(self.function)):
            raise ConfigError(f"a Tool needs a ToolDefinition and a function: {short_repr(self.function)}")
        declared = ("risk", "confirm", "idempotent", "timeout", "retries", "rate")
        check_options(self.definition.name, {key: getattr(self, key) for key in declared})
        object.__setattr__(self, "needs_thread", not inspect.iscoroutinefunction(self.function))

    @property
    def name(self) -> str:
        """The name that policies and models use."""
        return self.definition.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def named(self, name: str, source: SourceKind) -> Tool:
        """Return the same tool with a full name and a source."""
        return replace(self, definition=self.definition.model_copy(update={"name": name}), source=source)

    @property
    def missing_packages(self) -> str:
        """Why a call would fail: packages that are not installed, with the command; empty if there are none."""
        if not self.needs:
            return ""
        missing = {
            module: package
            for module, package in self.needs.items()
            if sys.modules.get(module) is None and find_spec(module) is None
        }
        return f"{self.name} needs {', '.join(missing)}: {install_command(*missing.values())}" if missing else ""

    @property
    def contract(self) -> str:
        """Digest of the tool's definition, and of how its calls are sent."""
        return content_digest(f"{self.definition.contract} {self.wire}") if self.wire else self.definition.contract

    def with_defaults(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with defaults filled in. Policies are evaluated for these."""
        return self.arguments.with_defaults(arguments)

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Validate arguments strictly. Raise ArgumentsError with one line per invalid field."""
        return self.arguments.bind(arguments)

    async def invoke(
        self, bound: Mapping[str, Any], context: Callable[[], ToolContext], threads: Executor | None
    ) -> Any:
        """Call the function: a coroutine function in the event loop, any other in a thread.

        Args:
            bound: the arguments, as `bind` returns them.
            context: returns the value of `context_parameter`; called only if the function has one.
            threads: runs a function that is not a coroutine function.

        Raises:
            ReturnError: the returned value does not match the annotation.
            ToolError: a package that the tool needs is not installed.
        """
        if missing := self.missing_packages:
            raise ToolError(f"{missing} (the operator must run it)")
        kwargs = {**bound, self.context_parameter: context()} if self.context_parameter else dict(bound)
        if not self.needs_thread:
            return self._checked(await self.function(**kwargs))
        call = contextvars.copy_context().run
        run = asyncio.get_running_loop().run_in_executor
        return await run(threads, lambda: self._checked(call(self.function, **kwargs)))

    async def invoke_preview(
        self, bound: Mapping[str, Any], context: Callable[[], ToolContext], threads: Executor | None
    ) -> str:
        """Return what a call would change, as text for the person who approves it; empty if the tool does not say.

        Args:
            bound: the arguments, as `bind` returns them.
            context: returns the value of `context_parameter`.
            threads: runs the function.

        Raises:
            ToolError: the call cannot succeed.
        """
        if self.preview is None:
            return ""
        kwargs = {**bound, self.context_parameter: context()} if self.context_parameter else dict(bound)
        run = asyncio.get_running_loop().run_in_executor
        return str(await run(threads, partial(contextvars.copy_context().run, partial(self.preview, **kwargs))))

    def _checked(self, output: Any) -> Any:
        if inspect.isgenerator(output) or inspect.isasyncgen(output) or inspect.iscoroutine(output):
            kind = type(output).__name__.replace("_", " ")
            if not inspect.isasyncgen(output):
                output.close()
            raise ReturnError(f"the tool returned a {kind}, whose code has not run: its author must return the value")
        return output if self.returns is None else self.returns.check(output)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    risk: Risk = "medium",
    confirm: bool = False,
    idempotent: bool = False,
    timeout: float | str | None = None,
    retries: int = 0,
    rate: str | None = None,
    paths: str | Iterable[str] = (),
    urls: str | Iterable[str] = (),
    needs: Mapping[str, str] = MappingProxyType({}),
    preview: Callable[..., str] | None = None,
    prefix: bool = True,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    risk: Risk = "medium",
    confirm: bool = False,
    idempotent: bool = False,
    timeout: float | str | None = None,
    retries: int = 0,
    rate: str | None = None,
    paths: str | Iterable[str] = (),
    urls: str | Iterable[str] = (),
    needs: Mapping[str, str] = MappingProxyType({}),
    preview: Callable[..., str] | None = None,
    prefix: bool = True,
    **unknown: object,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Create a tool from a function. The signature becomes the schema, the docstring the description.

    Args:
        function: the function. If it is not a coroutine function, it runs in a thread.
        name: name of the tool. Default: the function's name.
        description: description for the model. Default: the docstring.
        risk: risk of a call.
        confirm: whether every call needs a person's approval.
        idempotent: whether repeating a call has no further effect.
        timeout: time limit of a call, in seconds or as a duration such as `500ms`, `5s` or `2m`.
        retries: number of retries after an exception other than ToolError; only for idempotent tools.
        rate: rate limit such as `5/s`, `100/m` or `1000/h`.
        paths: parameters that are paths below the base folder; `files.source` names a part of an object.
        urls: parameters that are http(s) URLs.
        needs: modules that the function imports when it is called, each with what pip installs: `{"yaml": "pyyaml"}`.
        preview: a function, not a coroutine, with the same parameters, called before a person is asked to approve a
            call. It returns what the call would change, such as a diff, or an empty text, and raises ToolError if the
            call cannot succeed; then nobody is asked.
        prefix: whether the name of a tool in a plugin file starts with that of the file: `FILE.NAME`.
        unknown: rejected.

    Raises:
        ConfigError: the signature cannot be converted to named JSON arguments, an option is unknown or invalid, or
            options contradict each other.
    """

    def decorate(target: Callable[..., Any]) -> Tool:
        if not callable(target):
            raise ConfigError(f"@tool must decorate a function, with options as keywords: {short_repr(target)}")
        check, own_name = DeclarationCheck(unknown), getattr(target, "__name__", None)
        title = check.run("name", lambda: check_name(own_name if name is None else name)) or str(own_name)
        given = {"risk": risk, "confirm": confirm, "idempotent": idempotent, "retries": retries}
        declared = _options(check, title, given, timeout, rate, needs)
        declared["preview"] = check.run("preview", lambda: _check_preview(title, target, preview))
        declared["prefix"] = check.run("prefix", lambda: check_prefix(title, prefix))
        signature = check.run(None, lambda: _signature(target, title, description))
        accepted = signature[1].accepted_names if signature else lambda name: (name,)
        locations: dict[str, Any] = {
            "paths": check.run("paths", lambda: resolve_arguments(title, "paths", paths, accepted)),
            "urls": check.run("urls", lambda: resolve_arguments(title, "urls", urls, accepted)),
        }
        if check.errors or signature is None:
            report_declaration(DeclarationError(check.errors))
            return target  # type: ignore[return-value]  # an invalid plugin is executed to its end, then rejected
        definition, arguments, context_parameter, returns = signature
        return Tool(definition, target, arguments, context_parameter, **declared, returns=returns, **locations)

    return decorate(function) if function is not None else decorate


def _options(
    check: DeclarationCheck, title: str, given: Mapping[str, Any], timeout: object, rate: object, needs: object
) -> dict[str, Any]:
    """Return the checked options of a tool that concern its calls."""
    declared = {
        **given,
        "timeout": check.run("timeout", lambda: parse_timeout(title, timeout)),
        "rate": check.run("rate", lambda: parse_rate(title, rate)),
        "needs": check.run("needs", lambda: check_needs(title, needs)),
    }
    check.run(None, lambda: check_options(title, declared))
    return declared


def _check_preview(title: str, function: Callable[..., Any], preview: object) -> Callable[..., str] | None:
    """Return the preview of a tool; raise ConfigError if it cannot be called with the function's arguments."""
    if preview is None:
        return None
    if not callable(preview) or inspect.iscoroutinefunction(preview):
        raise ConfigError(f"tool {title!r}: preview must be a function that is no coroutine: {short_repr(preview)}")
    try:
        inspect.signature(preview).bind(**dict.fromkeys(inspect.signature(function).parameters))
    except TypeError as error:
        raise ConfigError(f"tool {title!r}: preview must have the parameters of the tool: {error}") from None
    return preview


def _signature(
    function: Callable[..., Any], title: str, description: object
) -> tuple[ToolDefinition, ModelArguments, str | None, ReturnType | None]:
    """Derive definition, arguments, context parameter and return type from a function. Raise ConfigError if invalid."""
    if not isinstance(description, str | None):
        raise ConfigError(f"tool {title!r}: description must be a string: {short_repr(description)}")
    try:
        doc = parse_docstring(inspect.getdoc(function) or _docstring_in_source(function))
        hints = typing.get_type_hints(function, include_extras=True)
        described = {p.arg_name: p.description for p in doc.params}
        model, context_parameter = _arguments_model(function, title, hints, described)
        returns = ReturnType.from_annotation(hints.get("return"))
        arguments = ModelArguments(model)
        text = description or "\n\n".join(part for part in (doc.short_description, doc.long_description) if part)
        full_text = "\n\n".join(filter(None, (text, returns.described if returns else "")))
        definition = ToolDefinition(name=title, description=full_text, parameters=arguments.schema)
    except ConfigError:
        raise
    except NameError as error:
        raise ConfigError(f"tool {title!r}: {error}") from None
    except PydanticUserError as error:
        raise ConfigError(f"tool {title!r}: {error.message}") from None
    except Exception as error:
        raise ConfigError(f"tool {title!r}: invalid signature: {type(error).__name__}: {error}") from error
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"tool {title!r} is a generator, which nobody would read: return a list instead of `yield`")
    if not text:
        raise ConfigError(f"tool {title!r} needs a docstring: it is the description that the model receives")
    return definition, arguments, context_parameter, returns


def _docstring_in_source(function: Callable[..., Any]) -> str:
    """Return the docstring that Python has removed from a function (`-OO`); empty if its source is not available."""
    if sys.flags.optimize < _WITHOUT_DOCSTRINGS:
        return ""
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return ""
    return (isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node)) or ""


def _arguments_model(
    function: Callable[..., Any], title: str, hints: Mapping[str, Any], descriptions: Mapping[str, str | None]
) -> tuple[type[BaseModel], str | None]:
    fields: dict[str, Any] = {}
    context_parameter = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool {title!r}: parameter {parameter.name!r} cannot be passed by name")
        if parameter.name not in hints:
            raise ConfigError(f"tool {title!r}: parameter {parameter.name!r} needs a type annotation")
        if hints[parameter.name] is ToolContext:
            context_parameter = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], Field(default, description=descriptions.get(parameter.name)))
    model: type[BaseModel] = create_model(title, __config__=ConfigDict(extra="forbid"), **fields)
    return model, context_parameter
