"""The interface of tool servers, tools built from the descriptions that servers send, and requests to them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, Protocol

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from framework.tools.http.client import HttpClient, HttpReply
from framework.tools.http.urls import WebUrl
from framework.tools.locations import LocationKind, declared_in_schema
from framework.tools.schema.arguments import SchemaArguments
from framework.tools.tool import Tool, ToolContext
from framework.tools.toolset import CLIENT
from framework.types.errors import ConfigError, ToolError
from framework.types.messages import ToolDefinition
from framework.types.spec import Risk
from framework.types.text import shorten

MAX_DESCRIPTION_CHARS = 4096
_CLIENT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""A name that every provider accepts."""
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}(?<!\.)\Z")
_CONTEXT = "__context__"
_SERVER_PREFIXES = ("agent", "mcp", "skill")

RemoteCall = Callable[[dict[str, Any], ToolContext], Awaitable[Any]]
"""Calls a tool of a server with validated arguments. Raises ToolError for errors that the model can act on."""


class ToolSource(Protocol):
    """A server with tools. It is started once, reports changes of its tools, and is closed at the end."""

    @property
    def name(self) -> str:
        """Prefix of the names of its tools, such as `mcp.docs` or `skill.files`."""
        ...

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The current tools. An unchanged tool remains the same object."""
        ...

    @property
    def faults(self) -> tuple[str, ...]:
        """Reasons why the server or some of its tools are unavailable."""
        ...

    async def start(self) -> None:
        """Connect. Return once the tools are known or the first attempt failed; retries continue in the background."""
        ...

    async def close(self) -> None:
        """Disconnect and release all resources."""
        ...


OnChange = Callable[[], None]
"""Called by a source, in the event loop, whenever its tools or faults change."""


def source_of(tool: str) -> str:
    """Return the source in a tool's name: `mcp.docs` for `mcp.docs.search` or `mcp.docs.*`, `billing` of `billing.pay`.

    APIs have no common prefix, so for other tools than those of servers it may be the name of no source.
    """
    parts = tool.split(".")
    return ".".join(parts[:2]) if parts[0] in _SERVER_PREFIXES else parts[0]


async def request_in_span(
    client: HttpClient,
    context: ToolContext,
    method: str,
    url: WebUrl,
    *,
    headers: Mapping[str, str],
    body: bytes | None = None,
    follow: bool = False,
    trace: bool = False,
    template: str | None = None,
) -> HttpReply:
    """Send a request of a tool call in a span of its own.

    Args:
        client: the client of the server.
        context: the call.
        method: the HTTP method.
        url: the URL.
        headers: the headers.
        body: the body.
        follow: whether to follow redirects.
        trace: whether to send the trace context.
        template: the path without its arguments, for a URL that contains arguments.

    Raises:
        ToolError: the request was not sent, or has no response.
    """
    attributes = {"http.request.method": method, "server.address": url.host, "server.port": url.port}
    attributes |= {"url.full": str(url).partition("?")[0]} if template is None else {"url.template": template}
    with context.span(method, attributes, client=True) as span:
        try:
            reply = await client.request(
                method, url, headers={**headers, **(_traceparent() if trace else {})}, body=body, follow=follow
            )
        except ToolError as error:
            span.fail(error.code)
            raise
        span.set_attribute("http.response.status_code", reply.status)
        if reply.status >= 400:
            span.fail(str(reply.status))
    return reply


def _traceparent() -> dict[str, str]:
    """Return the `traceparent` header of the current span, without baggage."""
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {name: value for name, value in carrier.items() if name == "traceparent"}


def external_tool(
    name: str,
    description: str,
    schema: Mapping[str, Any],
    call: RemoteCall,
    *,
    source: Literal["a2a", "mcp", "skill", "http"],
    risk: Risk = "medium",
    idempotent: bool = False,
    timeout: float | None = None,
    paths: Iterable[str] = (),
    urls: Iterable[str] = (),
    wire: str = "",
) -> Tool:
    """Build a tool from a server's description of it.

    Args:
        name: full name, such as `mcp.docs.search`.
        description: description from the server. Invisible characters are removed.
        schema: JSON Schema of the arguments, from the server.
        call: calls the tool on the server.
        source: kind of server.
        risk: risk of a call.
        idempotent: whether repeating a call has no further effect.
        timeout: time limit of a call, in seconds.
        paths: arguments that are paths, in addition to those with `format: path` in the schema.
        urls: arguments that are URLs, in addition to those with `format: uri` in the schema.
        wire: how calls are sent, as text, if the description determines it.

    Raises:
        ConfigError: the name or the schema is invalid.
    """
    if not _NAME.match(name):
        raise ConfigError(f"invalid tool name {name!r}: use at most 128 letters, digits, '_', '-' and '.'")
    arguments = SchemaArguments(schema)
    definition = ToolDefinition(name=name, description=_readable(description), parameters=arguments.flat)

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
        wire=wire,
        paths=_declared("path", paths, arguments.flat),
        urls=_declared("url", urls, arguments.flat),
    )


def client_tool(declared: ToolDefinition, allowed_by: str = "") -> Tool:
    """Build the tool `client.NAME`, which the client of a run executes.

    Its paths and URLs are those of the client, so rules see them as plain text.

    Args:
        declared: the tool as the client describes it.
        allowed_by: what allows it, if the agent's file does not.

    Raises:
        ConfigError: the name or the schema is invalid.
    """
    if not _CLIENT_NAME.fullmatch(declared.name):
        raise ConfigError(f"invalid tool name {declared.name!r:.80}: use 1 to 64 letters, digits, '_' and '-'")
    try:
        arguments = SchemaArguments(declared.parameters)
    except ConfigError as error:
        raise ConfigError(f"{declared.name}: {error.message}") from None
    about = {"description": _readable(declared.description), "parameters": arguments.flat, "wire": declared.name}
    definition = ToolDefinition(name=f"{CLIENT}{declared.name}", **about)

    async def function(**_: Any) -> Any:
        raise ToolError(f"{declared.name} is executed by the client")

    # The runtime executes nothing, so a repeated request of the call has no effect here.
    return Tool(definition, function, arguments, risk="low", idempotent=True, source="client", allowed_by=allowed_by)


def _declared(kind: LocationKind, given: Iterable[str], schema: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*given, *(name for name, hint in declared_in_schema(schema) if hint == kind))))


def _readable(text: str) -> str:
    """Remove control, format and private-use characters: models should not read what people cannot see."""
    visible = "".join(char for char in text if char in "\n\t" or unicodedata.category(char)[0] != "C")
    return shorten(visible, MAX_DESCRIPTION_CHARS)
