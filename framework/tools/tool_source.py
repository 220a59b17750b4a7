"""Where tools come from that are not Python functions: servers elsewhere, whose word is checked before it counts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, Protocol

from framework.tools.locations import LocationKind, declared_in_schema
from framework.tools.schema.arguments import SchemaArguments
from framework.tools.tool import Tool, ToolContext
from framework.types.errors import ConfigError
from framework.types.messages import ToolDefinition
from framework.types.spec import Risk
from framework.types.text import shorten

MAX_DESCRIPTION_CHARS = 4096
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}(?<!\.)\Z")
_CONTEXT = "__context__"

RemoteCall = Callable[[dict[str, Any], ToolContext], Awaitable[Any]]
"""Calls one tool with checked arguments; raises ToolError for what the model can act on."""


class ToolSource(Protocol):
    """A server that has tools. It is started once, tells when its tools change, and is closed at the end."""

    @property
    def name(self) -> str:
        """What the names of its tools begin with: `mcp.docs`, `skill.files`."""
        ...

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools known now; the same objects while nothing about them changes."""
        ...

    @property
    def faults(self) -> tuple[str, ...]:
        """Why it, or some of its tools, cannot be used now."""
        ...

    async def start(self) -> None:
        """Connect. Returns when the tools are known or the connection failed; trying goes on behind it."""
        ...

    async def close(self) -> None:
        """Disconnect, and leave nothing behind."""
        ...


OnChange = Callable[[], None]
"""Called by a source, in the event loop, whenever its tools or faults are not what they were."""


def source_of(tool: str) -> str:
    """The source that a tool's name begins with, such as `mcp.docs` of `mcp.docs.search` or of `mcp.docs.*`."""
    return ".".join(tool.split(".")[:2])


def external_tool(
    name: str,
    description: str,
    schema: Mapping[str, Any],
    call: RemoteCall,
    *,
    source: Literal["mcp", "skill"],
    risk: Risk = "medium",
    idempotent: bool = False,
    timeout: float | None = None,
    paths: Iterable[str] = (),
    urls: Iterable[str] = (),
) -> Tool:
    """Make a tool of what a server says of it.

    Args:
        name: in full, such as `mcp.docs.search`.
        description: of the server; what cannot be seen in it is taken out.
        schema: JSON Schema of the arguments, from the server.
        call: makes the call.
        source: which kind of server.
        risk: as the project, not the server, has it.
        idempotent: a repetition does no harm.
        timeout: in seconds.
        paths: arguments that are paths, besides those that the schema says are.
        urls: arguments that are URLs, likewise.

    Raises:
        ConfigError: the name cannot be used, or the schema.
    """
    if not _NAME.match(name):
        raise ConfigError(f"{name!r} cannot be a tool's name: letters, digits, '_', '-' and '.', at most 128")
    arguments = SchemaArguments(schema)
    definition = ToolDefinition(name=name, description=_readable(description), parameters=arguments.schema)

    async def function(**given: Any) -> Any:
        context = given.pop(_CONTEXT)
        return await call(given, context)

    return Tool(
        definition,
        function,
        arguments,
        _CONTEXT,
        risk=risk,
        idempotent=idempotent,
        timeout=timeout,
        source=source,
        paths=_declared("path", paths, arguments.schema),
        urls=_declared("url", urls, arguments.schema),
    )


def _declared(kind: LocationKind, given: Iterable[str], schema: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*given, *(name for name, hint in declared_in_schema(schema) if hint == kind))))


def _readable(text: str) -> str:
    """Text without control, format and private characters: what people cannot see, models should not read."""
    seen = "".join(char for char in text if char in "\n\t" or unicodedata.category(char)[0] != "C")
    return shorten(seen, MAX_DESCRIPTION_CHARS)
