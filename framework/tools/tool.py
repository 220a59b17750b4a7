"""A tool: a function, its arguments as a strict model, and what the policy needs to know of it."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, overload

from docstring_parser import parse as parse_docstring
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticUserError

from framework.tools.base_folder import BaseFolder
from framework.tools.declaration import (
    RateLimit,
    check_name,
    check_options,
    parse_rate,
    parse_timeout,
    reject_unknown_options,
    resolve_arguments,
    short_repr,
)
from framework.tools.schema.arguments import Arguments, ModelArguments
from framework.tools.schema.return_type import ReturnType
from framework.tools.session_values import Session
from framework.tools.tool_span import StartSpan, noop_span
from framework.types.errors import ConfigError, ToolError
from framework.types.http import HttpLimits
from framework.types.messages import ToolDefinition
from framework.types.spec import Risk

SourceKind = Literal["builtin", "plugin", "python", "agent", "mcp", "skill"]
Progress = Callable[[float, str], Awaitable[None]]


class AskHuman(Protocol):
    """Asks a human: the run pauses, and the tool starts again once there is an answer."""

    def __call__(self, question: str, choices: Sequence[str] = ()) -> Awaitable[str]:
        """Return the answer; with choices, it is one of them. Raises ToolError if there will be none."""
        ...


async def _no_human(question: str, choices: Sequence[str] = ()) -> str:  # noqa: ARG001 - the signature is AskHuman's
    raise ToolError(f"there is nobody to ask: {question}")


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may know of its run: a parameter of this type is filled in, and never shown to the model."""

    run_id: str
    call_id: str
    agent: str
    base_path: Path
    """File tools stay below it."""
    unprotected: tuple[str, ...] = ()
    """Globs, relative to `base_path`: protected places that file tools may use all the same."""
    write_below: tuple[str, ...] | None = None
    """Folders, relative to `base_path`, that file tools may write in; None: everywhere but in protected places."""
    denied_files: tuple[str, ...] = ()
    """Patterns of files that tools neither read, list nor write: `skill_policy.files.deny`."""
    reserved_files: tuple[Path, ...] = ()
    """Absolute paths of the store's files, which tools do not touch."""
    deps: Any = None
    """The embedding program's own objects, as given to `Runtime.open(deps=…)`."""
    http: HttpLimits = field(default_factory=HttpLimits)
    """What `tools.http` in agentsd.yaml allows: `HttpClient(context.http)` keeps to it."""
    locale: str = "en"
    user: str | None = None
    tenant: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress | None = None
    """`await context.progress(0.5, "half way")`: on the wire as a running `tool_call`."""
    session: Session = field(default_factory=Session)
    """Values that last as long as the conversation: `context.session.get("cart", [])`."""
    ask_human: AskHuman = _no_human
    """`answer = await context.ask_human("Which account?")`: the run pauses, and the tool is begun anew once there is an
    answer, so ask first and act afterwards."""
    span: StartSpan = noop_span
    """`with context.span("fetch"):` shows a part of the work in the trace."""

    @property
    def files(self) -> BaseFolder:
        """The base folder with what in it is off limits."""
        return BaseFolder(self.base_path, self.denied_files, self.reserved_files)

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of one call, for services that take such a key."""
        return f"{self.run_id}:{self.call_id}"


@dataclass(frozen=True, slots=True)
class Tool:
    """A function an agent may be offered. Calling it calls the function itself, as in a unit test."""

    definition: ToolDefinition
    function: Callable[..., Any]
    arguments: Arguments
    context_parameter: str | None = None
    risk: Risk = "medium"
    confirm: bool = False
    """A human must approve every call, whatever the files say."""
    idempotent: bool = False
    """Doing it twice is doing it once: may be repeated after a crash."""
    timeout: float | None = None
    """Seconds; the smallest of tool, agent and run wins."""
    retries: int = 0
    """How often it is tried again when it fails for no reason of its own making, or takes too long."""
    rate: RateLimit | None = None
    """How often it may be called, by all runs of the process together."""
    source: SourceKind = "python"
    paths: tuple[str, ...] = ()
    """The arguments that are paths: names, with dots for parts of objects. Each item of a list counts."""
    urls: tuple[str, ...] = ()
    """The arguments that are URLs, likewise."""
    returns: ReturnType | None = None
    """The declared type of its result, where that has a structure."""

    @property
    def is_external(self) -> bool:
        """Whether a server executes it, which may have folders of its own."""
        return self.source in ("mcp", "skill")

    def __post_init__(self) -> None:
        """Refuse a declaration that no tool can have, however it was made; raises ConfigError."""
        definition: object = self.definition
        if not (isinstance(definition, ToolDefinition) and callable(self.function)):
            raise ConfigError(f"a Tool has a ToolDefinition and a function: {short_repr(self.function)}")
        declared = ("risk", "confirm", "idempotent", "timeout", "retries", "rate")
        check_options(self.definition.name, {key: getattr(self, key) for key in declared})

    @property
    def name(self) -> str:
        """The name that policies and models use."""
        return self.definition.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def named(self, name: str, source: SourceKind) -> Tool:
        """The same tool under a full name."""
        return replace(self, definition=self.definition.model_copy(update={"name": name}), source=source)

    @property
    def contract(self) -> str:
        """Digest of what a model is told of the tool."""
        return self.definition.contract

    def with_defaults(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the function will get them: what a policy must judge."""
        return self.arguments.with_defaults(arguments)

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check arguments strictly; raises ArgumentsError with one line a field."""
        return self.arguments.bind(arguments)

    @property
    def needs_thread(self) -> bool:
        """Whether the function blocks: it is no coroutine."""
        return not inspect.iscoroutinefunction(self.function)

    async def invoke(self, bound: Mapping[str, Any], context: ToolContext, threads: Executor | None) -> Any:
        """Call the function: a coroutine in the loop, anything else in a thread.

        Raises:
            ReturnError: what it returned does not fit the annotation.
        """
        kwargs = {**bound, self.context_parameter: context} if self.context_parameter else dict(bound)
        if not self.needs_thread:
            return self._checked(await self.function(**kwargs))
        call = contextvars.copy_context().run
        run = asyncio.get_running_loop().run_in_executor
        return await run(threads, lambda: self._checked(call(self.function, **kwargs)))

    def _checked(self, output: Any) -> Any:
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
    **unknown: object,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function: its signature is the schema, its docstring the description.

    Args:
        function: what the tool does; a coroutine function, or one that is called in a thread.
        name: instead of the function's.
        description: instead of the docstring.
        risk: how much harm a call may do.
        confirm: a human must approve every call.
        idempotent: doing it twice is doing it once.
        timeout: how many seconds a call may take; or a duration, such as `500ms`, `5s` or `2m`.
        retries: how often to try again after a failure other than ToolError; only for idempotent tools.
        rate: how often it may be called, such as `5/s`, `100/m` or `1000/h`.
        paths: the parameters that are paths below the base folder; `files.source` is a part of an object.
        urls: the parameters that are http(s) URLs.
        unknown: anything else is refused.

    Raises:
        ConfigError: the signature cannot be turned into named JSON arguments, an option is unknown or has a value that
            it cannot have, or the options contradict each other.
    """
    reject_unknown_options(unknown)

    def decorate(target: Callable[..., Any]) -> Tool:
        if not callable(target):
            raise ConfigError(f"@tool goes above a function, and its options have names: {short_repr(target)}")
        title = check_name(getattr(target, "__name__", None) if name is None else name)
        declared: dict[str, Any] = {
            "risk": risk,
            "confirm": confirm,
            "idempotent": idempotent,
            "timeout": parse_timeout(title, timeout),
            "retries": retries,
            "rate": parse_rate(title, rate),
        }
        check_options(title, declared)
        definition, arguments, context_parameter, returns = _signature(target, title, description)
        return Tool(
            definition,
            target,
            arguments,
            context_parameter,
            **declared,
            returns=returns,
            paths=resolve_arguments(title, "paths", paths, arguments.accepted_names),
            urls=resolve_arguments(title, "urls", urls, arguments.accepted_names),
        )

    return decorate(function) if function is not None else decorate


def _signature(
    function: Callable[..., Any], title: str, description: object
) -> tuple[ToolDefinition, ModelArguments, str | None, ReturnType | None]:
    """What a function says of itself; raises ConfigError."""
    if not isinstance(description, str | None):
        raise ConfigError(f"tool {title!r}: description must be text: {short_repr(description)}")
    try:
        doc = parse_docstring(inspect.getdoc(function) or "")
        hints = typing.get_type_hints(function, include_extras=True)
        described = {p.arg_name: p.description for p in doc.params}
        model, context_parameter = _arguments_model(function, title, hints, described)
        returns = ReturnType.from_annotation(hints.get("return"))
        arguments = ModelArguments(model)
        text = description or "\n\n".join(part for part in (doc.short_description, doc.long_description) if part)
        told = "\n\n".join(filter(None, (text, returns.described if returns else "")))
        definition = ToolDefinition(name=title, description=told, parameters=arguments.schema)
    except ConfigError:
        raise
    except NameError as error:
        raise ConfigError(f"tool {title!r}: {error}") from None
    except PydanticUserError as error:
        raise ConfigError(f"tool {title!r}: {error.message}") from None
    except Exception as error:
        raise ConfigError(f"tool {title!r}: its signature cannot be used: {type(error).__name__}: {error}") from error
    if not text:
        raise ConfigError(f"tool {title!r} needs a docstring: it is all the model knows of it")
    return definition, arguments, context_parameter, returns


def _arguments_model(
    function: Callable[..., Any], title: str, hints: Mapping[str, Any], descriptions: Mapping[str, str | None]
) -> tuple[type[BaseModel], str | None]:
    fields: dict[str, Any] = {}
    context_parameter = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool {title!r}: parameter {parameter.name!r} cannot be given by name")
        if parameter.name not in hints:
            raise ConfigError(f"tool {title!r}: parameter {parameter.name!r} needs a type")
        if hints[parameter.name] is ToolContext:
            context_parameter = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], Field(default, description=descriptions.get(parameter.name)))
    model: type[BaseModel] = create_model(title, __config__=ConfigDict(extra="forbid"), **fields)
    return model, context_parameter
