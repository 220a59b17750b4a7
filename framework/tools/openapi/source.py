"""The tools of APIs and the HTTP tools of a project's files: built from their descriptions, and called."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from framework.tools.builtin.data import check_jmespath, evaluate_jmespath
from framework.tools.http import (
    HttpClient,
    HttpFailed,
    HttpReply,
    WebUrl,
    refuse_ambiguous_path,
)
from framework.tools.logins import Account, LoginStore
from framework.tools.openapi.document import MAX_API_DOCUMENT_BYTES, ApiDocumentError, read_api_document
from framework.tools.openapi.operations import (
    MAX_FAULTS,
    Fault,
    Operation,
    Parameter,
    RequestBody,
    encode_body,
    encode_path,
    encode_query,
    matches,
    path_parameters,
    read_operations,
)
from framework.tools.tool import Tool, ToolContext
from framework.tools.tool_source import (
    OnChange,
    RefreshedSource,
    RemoteCall,
    configured_base,
    configured_headers,
    configured_url,
    external_tool,
    request_in_span,
)
from framework.types.errors import ConfigError, ToolError
from framework.types.http import Method
from framework.types.redact import MASK
from framework.types.spec import Risk
from framework.types.text import bytes_digest, read_json, shorten
from framework.types.tool_servers import ApiAuth, HttpTool, OAuth, OpenApi

_RISKS: Mapping[Method, Risk] = {"GET": "low", "HEAD": "low", "DELETE": "high"}
_IDEMPOTENT: tuple[Method, ...] = ("GET", "HEAD", "PUT", "DELETE")
_SAFE: tuple[Method, ...] = ("GET", "HEAD")
_MAX_TARGET_CHARS = 8_000
"""Maximum length of path and query: most servers refuse longer ones."""
_MAX_ERROR_CHARS = 2_000
_MIN_SECRET_CHARS = 6
"""Shorter values are not searched in responses: they would match by chance."""
_DOCUMENT_TIMEOUT = 60.0


class ApiError(ToolError):
    """A response whose status says that the request failed. The message has the status and the response."""

    code = "http_status"


class ApiServer:
    """Sends the requests of one API, with what its entry adds to each."""

    def __init__(
        self,
        base_url: str,
        entry: OpenApi | HttpTool,
        paths: Iterable[tuple[str, str]] = (),
        *,
        name: str = "",
        logins: LoginStore | None = None,
    ) -> None:
        """Check an entry.

        `paths` are method and path of every known operation. Without `logins`, requests that need a login fail.

        Raises:
            ConfigError: the URL, a header or a cookie is invalid.
        """
        self._base = configured_base(base_url)
        self._headers = _fixed_headers(entry)
        query = entry.query if isinstance(entry, OpenApi) else {}
        self._query = {name: value.get_secret_value() for name, value in query.items()}
        self._client = HttpClient.to(self._base, timeout=entry.timeout, methods=_METHODS, max_bytes=entry.max_bytes)
        # A response may repeat a key without its scheme, such as `Token`. Other headers end with ordinary words.
        in_headers = [*self._headers.values(), self._headers.get("authorization", "").rpartition(" ")[2]]
        given = [
            text for text in (*in_headers, *self._query.values(), *_secrets(entry)) if len(text) >= _MIN_SECRET_CHARS
        ]
        forms = {form for text in given for form in (text, quote(text), quote(text, safe=""))}
        self._secrets = sorted(forms, key=len, reverse=True)
        self._paths = tuple(paths)
        self._oauth = entry.auth.oauth if entry.auth else None
        self._name, self._login_url, self._logins = name, base_url, logins

    async def call(self, operation: Operation, arguments: dict[str, Any], context: ToolContext) -> HttpReply:
        """Send the request of a call; raise ToolError if it cannot be sent or has no response."""
        url = self.url(operation, arguments)
        body, content_type = encode_body(operation.body, arguments)
        headers = {"accept": "application/json, */*;q=0.5"} | {k.lower(): v for k, v in operation.headers.items()}
        if operation.method not in _SAFE:
            headers[(operation.idempotency_header or "idempotency-key").lower()] = context.idempotency_key
        headers |= self._headers
        if body is not None:
            headers["content-type"] = content_type

        async def send(token: str | None) -> HttpReply:
            reply = await request_in_span(
                self._client,
                context,
                operation.method,
                url,
                headers=headers | ({"authorization": f"Bearer {token}"} if token else {}),
                body=body,
                follow=operation.method in _SAFE,
                template=operation.path,
            )
            return self._masked(reply, *([token] if token else []))

        return await (send(None) if self._oauth is None else self._logged_in(self._oauth, send, context))

    async def _logged_in(
        self, oauth: OAuth, send: Callable[[str | None], Awaitable[HttpReply]], context: ToolContext
    ) -> HttpReply:
        """Send a request with the login of the run; pause the run if the API refuses it and a person must log in."""
        from framework.tools.mcp.login import Login, send_logged_in

        if self._logins is None:
            raise ToolError(f"{self._name} needs a login, and there is no folder for logins")
        owner = (context.tenant, context.user) if oauth.per == "user" else (None, None)
        login = Login(self._logins, Account(self._name, self._login_url, *owner), oauth)
        return await send_logged_in(login, send, context)

    def url(self, operation: Operation, arguments: Mapping[str, Any]) -> WebUrl:
        """Return the URL of a call; raise ToolError for arguments that could reach another operation."""
        path = encode_path(operation, arguments)
        fixed = [f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in self._query.items()]
        query = "&".join(filter(None, [encode_query(operation, arguments), *fixed]))
        target = f"{self._base.target.rstrip('/')}{path}"
        if query:
            target += ("&" if "?" in target else "?") + query
        if len(target) > _MAX_TARGET_CHARS:
            raise ToolError(f"the arguments are too long for a URL: {len(target)} characters")
        url = replace(self._base, target=target)
        refuse_ambiguous_path(url)
        self._refuse_other_paths(operation, arguments)
        return url

    def _refuse_other_paths(self, operation: Operation, arguments: Mapping[str, Any]) -> None:
        """Refuse a `/` in a path parameter with which a server that decodes `%2F` would see another operation."""
        texts = {one.name: str(arguments.get(one.argument)) for one in operation.parameters if one.place == "path"}
        if not any("/" in text for text in texts.values()):
            return
        path = re.sub(r"\{([^{}/]+)\}", lambda match: texts[match[1]], operation.path).split("/")
        for method, other in self._paths:
            if method == operation.method and other != operation.path and _has_form(path, other.split("/")):
                raise ToolError(f"a value for the path must not contain '/': the URL would be one of {method} {other}")

    def _masked(self, reply: HttpReply, *tokens: str) -> HttpReply:
        body, headers = reply.body, reply.headers
        for secret in (*tokens, *self._secrets):
            body = body.replace(secret.encode(), MASK.encode())
            headers = {  # the content type, which a configured `accept` repeats, says how to read the body
                name: value if name == "content-type" else value.replace(secret, MASK)
                for name, value in headers.items()
            }
        return replace(reply, body=body, headers=headers)


_METHODS: tuple[Method, ...] = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


def _has_form(path: list[str], template: list[str]) -> bool:
    """Return whether the segments of a path have the form of a template."""
    if len(path) != len(template):
        return False
    pairs = zip(path, template, strict=True)
    return all(own == other or (other.startswith("{") and other.endswith("}")) for own, other in pairs)


def _fixed_headers(entry: OpenApi | HttpTool) -> dict[str, str]:
    """Return the headers that the entry adds; raise ConfigError if one is invalid."""
    headers = {name.lower(): value.get_secret_value() for name, value in entry.headers.items()}
    if entry.auth:
        if "authorization" in headers:
            raise ConfigError("write either `auth` or the header authorization")
        if entry.auth.oauth is None:
            headers["authorization"] = _authorization(entry.auth)
    if entry.cookies:
        headers["cookie"] = "; ".join(f"{name}={value.get_secret_value()}" for name, value in entry.cookies.items())
    return configured_headers(headers)


def _authorization(auth: ApiAuth) -> str:
    if auth.bearer is not None:
        return f"Bearer {auth.bearer.get_secret_value()}"
    assert auth.basic is not None, "auth has one of both"
    pair = f"{auth.basic.username}:{auth.basic.password.get_secret_value()}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _secrets(entry: OpenApi | HttpTool) -> list[str]:
    """Return the secrets of an entry that a response could repeat without what surrounds them in a header."""
    values = [*entry.cookies.values()]
    if entry.auth:
        values += [value for value in (entry.auth.bearer, entry.auth.basic and entry.auth.basic.password) if value]
    return [value.get_secret_value() for value in values]


def response_output(reply: HttpReply, request: str) -> Any:
    """Return a response as the result of a call: JSON data, or text.

    Raises:
        ApiError: its status says that the request failed.
    """
    status = f"HTTP {reply.status}{_phrase(reply.status)}"
    text = "" if _is_binary(reply) else reply.text
    if reply.status >= 400:
        retry = reply.headers.get("retry-after", "")
        wait = f" (retry after: {shorten(retry, 60)})" if retry else ""
        raise ApiError(
            f"{request}: {status}{wait}{f': {shorten(text.strip(), _MAX_ERROR_CHARS)}' if text.strip() else ''}"
        )
    if reply.status >= 300:
        return f"{status}, location: {shorten(reply.headers.get('location', 'none'), 500)}"
    if not reply.body:
        return f"{status}, without content"
    if _is_binary(reply):
        more = " or more" if reply.truncated else ""
        return f"{status}: {reply.content_type or 'binary data'}, {len(reply.body)} bytes{more}"
    if reply.truncated:
        return f"{text}\n(cut off: the response is larger than {len(reply.body)} bytes)"
    return _json_or_text(text, reply.content_type)


def _json_or_text(text: str, content_type: str) -> Any:
    text = text.removeprefix("\ufeff")
    if content_type.endswith(("json", "+json")) or text[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            return read_json(text)
    return text


def _is_binary(reply: HttpReply) -> bool:
    return b"\0" in reply.body[:8192] or reply.content_type.partition("/")[0] in ("image", "audio", "video")


def _phrase(status: int) -> str:
    try:
        return f" {HTTPStatus(status).phrase}"
    except ValueError:
        return ""


@dataclass(frozen=True, slots=True)
class BuiltApi:
    """The tools of an API, and why some are missing."""

    tools: tuple[Tool, ...] = ()
    faults: tuple[Fault, ...] = ()
    operations: Mapping[str, Operation] = field(default_factory=dict)
    """The operation of each tool, by its name."""
    is_usable: bool = True
    """Whether the document and the entry are valid, so that a fault concerns a single operation."""


def build_api(
    name: str, api: OpenApi, source: bytes, before: BuiltApi | None = None, logins: LoginStore | None = None
) -> BuiltApi:
    """Build the tools of an API. A fault that has no line concerns the entry.

    Tools that are equal to those built `before` remain the same objects.
    """
    try:
        document = read_api_document(source)
        read = read_operations(document, name, api)
    except ApiDocumentError as error:
        return BuiltApi(faults=(Fault(error.message, error.line or 1),), is_usable=False)
    try:
        server = ApiServer(api.base_url, api, read.paths, name=name, logins=logins)
    except ConfigError as error:
        return BuiltApi(faults=(Fault(error.message),), is_usable=False)
    tools, faults, operations = dict[str, Tool](), list(read.faults), dict[str, Operation]()
    known = {tool.name: tool for tool in before.tools} if before else {}
    for operation in read.found:
        full_name = f"{name}.{operation.name}"
        if before and full_name in known and before.operations[full_name] == operation:
            tools[full_name] = known[full_name]
        else:
            try:
                tools[full_name] = _api_tool(full_name, api, operation, server)
            except ConfigError as error:
                keys = ("paths", operation.path, operation.method.lower())
                line = document.line_of(*keys) if len(faults) < MAX_FAULTS else None
                faults.append(Fault(f"{operation.request} is not available: {error.message}", line))
                continue
        operations[full_name] = operation
    return BuiltApi(tuple(tools.values()), _limited(faults), operations)


def _limited(faults: list[Fault]) -> tuple[Fault, ...]:
    more = len(faults) - MAX_FAULTS
    return (*faults[:MAX_FAULTS], *([Fault(f"{more} more operations are not available")] if more > 0 else []))


def _api_tool(full_name: str, api: OpenApi, operation: Operation, server: ApiServer) -> Tool:
    names = (operation.id, operation.name, operation.request)
    rated: Mapping[str, Risk] = {"*": api.risk} if isinstance(api.risk, str) else api.risk
    risks = [risk for glob, risk in rated.items() if matches(glob, names)]
    return _tool(
        full_name,
        operation,
        partial(_call, server, operation),
        risk=risks[-1] if risks else None,
        idempotent=any(matches(glob, names) for glob in api.idempotent) or None,
    )


def _tool(
    full_name: str, operation: Operation, call: RemoteCall, *, risk: Risk | None, idempotent: bool | None
) -> Tool:
    """Build a tool. Patterns that the validator does not know are left to the server."""
    build = partial(
        external_tool,
        full_name,
        operation.description,
        call=call,
        source="http",
        risk=risk or _RISKS.get(operation.method, "medium"),
        idempotent=operation.method in _IDEMPOTENT if idempotent is None else idempotent,
        wire=operation.wire,
    )
    try:
        return build(schema=operation.schema)
    except ConfigError:
        return build(schema=_without_patterns(operation.schema))


def _without_patterns(schema: Any) -> Any:
    if isinstance(schema, dict):
        is_pattern = isinstance(schema.get("pattern"), str)
        return {key: _without_patterns(value) for key, value in schema.items() if not (is_pattern and key == "pattern")}
    return [_without_patterns(item) for item in schema] if isinstance(schema, list) else schema


async def _call(
    server: ApiServer,
    operation: Operation,
    arguments: dict[str, Any],
    context: ToolContext,
    *,
    result: str = "",
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    reply = await server.call(operation, {**defaults, **arguments}, context)
    found = response_output(reply, operation.request)
    if not result or isinstance(found, str):
        return found
    return await asyncio.to_thread(evaluate_jmespath, result, json.dumps(found))


def build_http_tool(name: str, entry: HttpTool, logins: LoginStore | None = None) -> Tool:
    """Build the tool of one entry of `http_tools`, with the project's logins; raise ConfigError if it is invalid."""
    method, url = entry.request
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    if entry.result:
        check_jmespath(entry.result)
    operation = _http_operation(name, entry, method, "/" + path.partition("#")[0])
    server = ApiServer(f"{scheme}://{host}", entry, name=name.partition(".")[0], logins=logins)
    properties = operation.schema["properties"].items()
    defaults = {key: declared["default"] for key, declared in properties if "default" in declared}
    call = partial(_call, server, operation, result=entry.result, defaults=defaults)
    return _tool(name, operation, call, risk=entry.risk, idempotent=entry.idempotent)


def _http_operation(name: str, entry: HttpTool, method: Method, path: str) -> Operation:
    in_path = dict.fromkeys(path_parameters(path.partition("?")[0]))
    if unknown := [one for one in entry.path if one not in in_path]:
        raise ConfigError(f"the URL has no parameter {{{unknown[0]}}}")
    if "{" in path.partition("?")[2]:
        raise ConfigError("parameters in braces are for the path: declare those of the query under `query`")
    properties: dict[str, Any] = {one: entry.path.get(one, {"type": "string"}) for one in in_path}
    kind, fields = entry.body or ("", {})
    if clash := [one for one in in_path if one in entry.query or one in fields]:
        raise ConfigError(f"two parameters are named {clash[0]!r}")
    required = [*in_path]
    for one, declared in (*entry.query.items(), *fields.items()):
        properties[one] = {
            key: value for key, value in declared.items() if key != "required" or isinstance(value, list)
        }
        required += [one] if declared.get("required") is True else []
    parameters = [Parameter(one, one, "path", "simple", explode=False) for one in in_path]
    parameters += [Parameter(one, one, "query", "form", explode=True) for one in entry.query]
    files = {one: "file" if declared.get("format") == "binary" else "text" for one, declared in fields.items()}
    body = RequestBody({one: one for one in fields}, "", _MEDIA_TYPES[kind], files) if kind else None
    default = f"{method} {path} of {entry.request[1].partition('://')[2].partition('/')[0]}"
    schema = {"type": "object", "properties": properties, "required": required}
    return Operation(name, name, method, path, entry.description or default, schema, tuple(parameters), body)


_MEDIA_TYPES = {
    "json": "application/json",
    "form": "application/x-www-form-urlencoded",
    "multipart": "multipart/form-data",
}


class ApiSource(RefreshedSource):
    """An API whose document has a URL, as a source of tools. The document is requested again from time to time."""

    def __init__(
        self,
        name: str,
        api: OpenApi,
        changed: OnChange,
        logins: LoginStore | None = None,
        *,
        first_retry: float = 1.0,
    ) -> None:
        """Create a source; `start` requests the document.

        Raises:
            ConfigError: the URL of the document or of the API, or a header, is invalid.
        """
        ApiServer(api.base_url, api)
        self._url = configured_url(api.document)
        self._place = str(self._url).partition("?")[0]  # the query may contain a key
        super().__init__(name, changed, api.refresh, first_retry)
        self._api, self._logins = api, logins
        self._client = HttpClient.to(self._url, timeout=_DOCUMENT_TIMEOUT, max_bytes=MAX_API_DOCUMENT_BYTES)
        self._source = b""
        self._built = BuiltApi()

    @property
    def document(self) -> str:
        """Digest of the document; empty without one."""
        return bytes_digest(self._source) if self._source else ""

    async def _look(self) -> bool:
        """Request the document; if it has changed, build its tools. The last good document stays in use."""
        try:
            await self._update(await self._requested())
            outdated = ""
        except (ToolError, ConfigError) as error:
            outdated = f"{self.name} is not up to date: {error.message}"
        places = [f"line {fault.line} of {self._place}: " if fault.line else "" for fault in self._built.faults]
        faults = [
            f"{self.name}: {place}{fault.message}" for place, fault in zip(places, self._built.faults, strict=True)
        ]
        self.tools, self.faults = self._built.tools, (*([outdated] if outdated else []), *faults)
        return not outdated

    async def _requested(self) -> bytes:
        reply = await self._client.request("GET", self._url, headers={"accept": _DOCUMENT_TYPES})
        if reply.truncated:
            raise HttpFailed(f"{self._place} has more than {len(reply.body)} bytes")
        if reply.status != 200:
            raise HttpFailed(f"{self._place} responded with HTTP {reply.status}")
        return reply.body

    async def _update(self, source: bytes) -> None:
        if source == self._source:
            return
        built = await asyncio.to_thread(build_api, self.name, self._api, source, self._built, self._logins)
        if not built.is_usable and self._built.operations:
            raise ConfigError(built.faults[0].message)
        self._source, self._built = source, built


_DOCUMENT_TYPES = "application/json, application/yaml;q=0.9, */*;q=0.5"
