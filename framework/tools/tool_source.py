"""The interface of tool servers, tools built from the descriptions that servers send, and requests to them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from framework.tools.arguments import SchemaArguments
from framework.tools.conditions import LocationKind, declared_in_schema
from framework.tools.http import HttpClient, HttpReply, UrlRefused, WebUrl, parse_http_url, validate_headers
from framework.tools.tool import Tool, ToolContext, source_of
from framework.tools.toolset import CLIENT
from framework.types.errors import ConfigError, ToolError
from framework.types.installation import write_private_file
from framework.types.messages import ToolDefinition
from framework.types.redact import redact
from framework.types.spec import RISKS, Risk
from framework.types.text import did_you_mean, shorten

MAX_DESCRIPTION_CHARS = 4096
_CLIENT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""A name that every provider accepts."""
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}(?<!\.)\Z")
_CONTEXT = "__context__"
_MAX_RETRY_SECONDS = 60.0

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


class RefreshedSource(ABC):
    """A `ToolSource` whose description is read again from time to time, and sooner while that fails."""

    def __init__(self, name: str, changed: OnChange, refresh: float | None, first_retry: float = 1.0) -> None:
        """Create a source; `start` reads its description.

        Args:
            name: prefix of the names of its tools.
            changed: called whenever the tools or faults change.
            refresh: seconds between two readings; None: it is read once.
            first_retry: seconds before the first retry after a failure. The delay doubles, up to a minute.
        """
        self.name = name
        self.tools: tuple[Tool, ...] = ()
        self.faults: tuple[str, ...] = ()
        self._changed, self._refresh, self._first_retry = changed, refresh, first_retry
        self._wake = asyncio.Event()
        """Set to read the description at once."""
        self._watching: asyncio.Task[None] | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Read the description, and read it again in the background."""
        is_read = await self._read()
        if self._refresh is not None and not self._is_closed:  # the server may have been removed meanwhile
            self._watching = asyncio.create_task(self._watch(self._refresh, is_read), name=self.name)

    async def close(self) -> None:
        """Stop reading the description."""
        self._is_closed = True
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    @abstractmethod
    async def _look(self) -> bool:
        """Read the description, and set the tools and faults. Return whether it could be read."""

    async def _read(self) -> bool:
        try:
            return await self._look()
        except Exception as error:  # noqa: BLE001 - whatever a server sends must not end the reading
            self.faults = (f"{self.name} cannot be read: {redact(f'{type(error).__name__}: {error}')}",)
            return False

    async def _watch(self, refresh: float, is_read: bool) -> None:
        pause = self._first_retry
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), refresh if is_read else pause)
            self._wake.clear()
            pause = self._first_retry if is_read else min(pause * 2, _MAX_RETRY_SECONDS)
            before = (self.tools, self.faults)
            is_read = await self._read()
            if (self.tools, self.faults) != before:
                self._changed()


def configured_url(text: str) -> WebUrl:
    """Parse a URL of the project's files; raises ConfigError."""
    try:
        return parse_http_url(text)
    except UrlRefused as error:
        raise ConfigError(error.message) from None


def configured_base(text: str) -> WebUrl:
    """Parse a URL of the project's files that paths are appended to; raises ConfigError."""
    base = configured_url(text.rstrip("/"))
    if "?" in base.target:
        raise ConfigError(f"the URL cannot have a query: write {str(base).partition('?')[0]}")
    return base


def configured_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers of the project's files by name in lower case; raises ConfigError for an invalid one."""
    try:
        return validate_headers(headers)
    except ToolError as error:
        raise ConfigError(error.message) from None


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

    `template` is the path without its arguments, for a URL that contains arguments.

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

    `paths` and `urls` are arguments in addition to those that the schema declares by `format`. `wire` says how calls
    are sent, if the description determines it.

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

    Its paths and URLs are those of the client, so rules see them as plain text. `allowed_by` says what allows it, if
    the agent's file does not.

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


# The tools of a server seen for the first time are accepted. After that, changed descriptions and schemas, new tools
# and lower risks wait for `agentsd tools accept`. A higher risk takes effect immediately.


_VERSION = 2
_log = logging.getLogger(__name__)

ContractChange = Literal["changed", "new", "lower risk"]
"""A difference that waits for an operator: another definition, a new tool, or a lower risk than accepted."""


@dataclass(frozen=True, slots=True)
class AcceptedContract:
    """An accepted tool definition."""

    contract: str
    """Digest of name, description and schema."""
    risk: Risk | None = None
    """Risk claimed by the server; None if unknown."""
    idempotent: bool | None = None
    """Whether the server claimed that the tool is idempotent; None if unknown."""


class Contracts:
    """The accepted definitions of server tools, in a JSON file that several processes can share."""

    def __init__(self, path: Path) -> None:
        """Use the file at `path`, which does not need to exist."""
        self.path = path
        self._accepted: dict[str, AcceptedContract] = {}
        self._seen: dict[str, AcceptedContract] = {}
        self._documents: dict[str, str] = {}
        """Digests of the documents of which every chosen tool was accepted, by source."""

    def compare(
        self,
        tools: Iterable[Tool],
        rated: Collection[str] = (),
        documents: Mapping[str, str] = MappingProxyType({}),
        *,
        record: bool = True,
    ) -> list[tuple[Tool, ContractChange | None]]:
        """Compare tools with the accepted definitions. Tools of a server seen for the first time are accepted.

        If the file exists but cannot be read, nothing is accepted, because it is unknown which servers were seen.

        Args:
            tools: current tools of the servers.
            rated: sources whose risk the project sets, so that the risk claimed by the server is ignored.
            documents: digest of the document of each source that has one. A tool that is chosen later from a document
                that was accepted as a whole is not new.
            record: whether to write what is accepted.

        Returns:
            Each tool and its pending change, or None. The tool has at least the accepted risk, and is idempotent only
            if that was accepted.
        """
        is_readable = self._read()
        now = {tool.name: (tool, _claims(tool, rated)) for tool in tools}
        known = {source_of(name) for name in self._accepted}
        same = {source for source, digest in documents.items() if self._documents.get(source) == digest}
        news = {
            name: claims
            for name, (_, claims) in now.items()
            if is_readable
            and (source_of(name) not in known or (source_of(name) in same and name not in self._accepted))
        }
        self._seen |= {name: claims for name, (_, claims) in now.items()}
        accepted = self._accepted | news
        compared = [_compared(tool, claims, accepted.get(name)) for name, (tool, claims) in now.items()]
        waiting = {source_of(tool.name) for tool, change in compared if change}
        read = {source: digest for source, digest in documents.items() if source not in waiting and source not in same}
        if record and is_readable and (news or read):
            self._documents |= read
            self._write(news)
        return compared

    def accept(self, patterns: Iterable[str]) -> list[str]:
        """Accept the last seen definitions of tools, by names or globs. Return the names of the accepted tools.

        Raises:
            ConfigError: a pattern matches no tool.
        """
        chosen: list[str] = []
        for pattern in patterns:
            matching = sorted(name for name in self._seen if fnmatchcase(name, pattern))
            if not matching:
                meant = did_you_mean(pattern, sorted(self._seen))
                raise ConfigError(f"no server tool matches {pattern!r}{meant}")
            chosen += matching
        self._read()
        self._write({name: self._seen[name] for name in chosen})
        return list(dict.fromkeys(chosen))

    def _read(self) -> bool:
        """Add what other processes have accepted. Return False if the file exists but cannot be read."""
        try:
            content = json.loads(self.path.read_bytes())
            self._accepted |= dict(_entries(content))
            self._documents |= {str(source): str(digest) for source, digest in content.get("documents", {}).items()}
        except (FileNotFoundError, NotADirectoryError):
            return True
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            fix = "all server tools wait for `agentsd tools accept`; restore the file, or delete it to accept them all"
            _log.warning("%s cannot be read (%s): %s", self.path, error, fix)
            return False
        return True

    def _write(self, more: Mapping[str, AcceptedContract]) -> None:
        self._accepted |= more
        entries = {name: asdict(entry) for name, entry in sorted(self._accepted.items())}
        documents = {"documents": dict(sorted(self._documents.items()))} if self._documents else {}
        content = json.dumps({"version": _VERSION, "contracts": entries, **documents}, indent=2) + "\n"
        try:
            write_private_file(self.path, content)
        except OSError as error:
            message = "%s cannot be written (%s): accepted definitions are lost when this process ends"
            _log.warning(message, self.path, error)


def _claims(tool: Tool, rated: Collection[str]) -> AcceptedContract:
    if tool.source in ("a2a", "http"):  # the project's files set its risk, and whether it is idempotent
        return AcceptedContract(tool.contract)
    return AcceptedContract(tool.contract, None if source_of(tool.name) in rated else tool.risk, tool.idempotent)


def _compared(
    tool: Tool, claims: AcceptedContract, accepted: AcceptedContract | None
) -> tuple[Tool, ContractChange | None]:
    if accepted is None:
        return tool, "new"
    risk = tool.risk if claims.risk is None else max(tool.risk, accepted.risk or tool.risk, key=RISKS.index)
    idempotent = tool.idempotent and accepted.idempotent is not False
    is_held = (risk, idempotent) != (tool.risk, tool.idempotent)
    held = replace(tool, risk=risk, idempotent=idempotent) if is_held else tool
    if accepted.contract != tool.contract:
        return held, "changed"
    return held, "lower risk" if is_held else None


def _entries(document: Any) -> Iterable[tuple[str, AcceptedContract]]:
    """Yield the entries of a file. Raise ValueError, LookupError, TypeError or AttributeError if it is invalid."""
    if document["version"] != _VERSION:
        raise ValueError("unknown format")
    for name, entry in document["contracts"].items():
        risk, idempotent = entry["risk"], entry["idempotent"]
        if not isinstance(entry["contract"], str):
            raise ValueError(f"invalid entry for {name!r}")
        if risk not in (None, *RISKS) or idempotent not in (None, True, False):
            raise ValueError(f"invalid entry for {name!r}")
        yield name, AcceptedContract(entry["contract"], risk, idempotent)
