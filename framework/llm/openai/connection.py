"""A connection to a server through the openai SDK, over its HTTP client on aiohttp, and the events of its responses.

Events are read from their bytes: the SDK's decoder costs ten times as much. See docs/design/011-model-calls.md.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import aiohttp
import httpx2
import orjson
from openai import (
    APIError,
    APIStatusError,
    AsyncAzureOpenAI,
    AsyncOpenAI,
    AsyncStream,
    DefaultAioHttpClient,
    Omit,
    RequestOptions,
    omit,
)

from framework.llm.http_client import http_client_options
from framework.llm.provider_client import STREAM_END
from framework.llm.provider_errors import is_bare_error

_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_DONE = STREAM_END.encode()


async def read_events(response: httpx2.Response) -> AsyncGenerator[list[Any], None]:
    """Yield the events of a response of type `text/event-stream`, parsed from JSON: all that arrived together.

    The last event may be `STREAM_END`. Comments and other fields than `data` are skipped.

    Raises:
        APIError: an event reports an error.
        ValueError: an event is not JSON.
        httpx2.HTTPError: the connection was lost.
    """
    begun: list[bytes] = []  # of an event whose end has not arrived
    async for chunk in response.aiter_bytes():
        begun.append(chunk)
        if b"\n" not in chunk and b"\r" not in chunk:
            continue
        text = b"".join(begun)
        *blocks, rest = text.split(b"\n\n") if b"\r" not in text else _EVENT_END.split(text)
        begun, events = [rest], list[Any]()
        for data in filter(None, map(_data, blocks)):
            if data.startswith(_DONE):
                yield [*events, STREAM_END]
                return
            try:
                events.append(_event(data, response))
            except (ValueError, APIError):
                if events:
                    yield events
                raise
        if events:
            yield events
    if _data(b"".join(begun)).startswith(_DONE):  # some servers leave out the empty line after it
        yield [STREAM_END]


def _event(data: bytes, response: httpx2.Response) -> Any:
    try:
        event = orjson.loads(data)
    except ValueError:
        event = json.loads(data)  # accepts NaN and lone surrogates, which orjson rejects
    if isinstance(event, dict) and (error := event.get("error") or (is_bare_error(event) and event)):
        message = error.get("message") if isinstance(error, dict) else None
        text = message if isinstance(message, str) and message else "the stream ended with an error"
        raise APIError(text, response.request, body=error)
    return event


def _data(block: bytes) -> bytes:
    """Return the `data` of an event; nearly all events consist of one such line."""
    if block.startswith(b"data: ") and b"\n" not in block and b"\r" not in block:
        return block[6:]
    fields = (line.partition(b":") for line in block.removeprefix(BOM_UTF8).splitlines())
    return b"\n".join(value.removeprefix(b" ") for name, _, value in fields if name == b"data")


USER_AGENT = "agentsd"
LARGE_BODY = 1 << 20
"""Bytes; larger bodies are sent in pieces, between which other tasks run."""
_PIECE = 1 << 18
"""Bytes of one piece of a large body."""
_MAX_PROPERTIES = 1_000_000
"""Bytes of a server's answer about itself."""
_MAX_CLOSED = 3
"""Number of closed connections in a row over which a request is sent again."""
_COST_HEADER = "x-litellm-response-cost"
"""Header in which LiteLLM reports the cost of a response in US dollars. A stream has it beside its token counts."""
_TELEMETRY = (
    *("X-Stainless-Lang", "X-Stainless-Package-Version", "X-Stainless-OS", "X-Stainless-Arch"),
    *("X-Stainless-Runtime", "X-Stainless-Runtime-Version", "X-Stainless-Async"),
    *("X-Stainless-Retry-Count", "X-Stainless-Read-Timeout"),
)
"""Headers in which the SDK describes this machine to every server."""
_ACCOUNT = ("OpenAI-Organization", "OpenAI-Project")
"""Headers that the SDK sets from environment variables, even for servers that are not OpenAI's."""


class SdkConnection:
    """A connection to one server, through the SDK's `post` with bytes: its `create` inspects each part of each message.

    Args:
        api_key: empty for a server that requires none.
        base_url: the URL up to and including `/v1`; None for the SDK's default.
        timeout: seconds without a byte.
        path: the path of the API below the base URL.
        added: headers added to each request. With some, no redirect is followed: they may contain another key, which
            the client would send to any host.
        azure: deployment and `api-version`, for a resource of Azure OpenAI at a base URL without a path. Its key has
            a header of its own, so no redirect is followed either.

    Raises:
        ValueError: the key contains a line break or another character that is not printable.
        OSError: the certificates that the environment names cannot be read.
    """

    def __init__(
        self,
        api_key: str,
        base_url: str | None,
        timeout: float,
        path: str,
        added: Mapping[str, str] = MappingProxyType({}),
        azure: tuple[str, str] | None = None,
    ) -> None:
        if not api_key.isprintable():
            raise ValueError("Authorization contains a line break or another character that is not printable")
        create: Any = AsyncOpenAI
        if azure and base_url:
            # Azure has chat completions for each deployment; the Responses API finds it by the model in the request.
            below = f"/openai/deployments/{quote(azure[0], safe='')}" if path == "chat/completions" else "/openai"
            base_url, create = base_url.removesuffix("/openai") + below, partial(AsyncAzureOpenAI, api_version=azure[1])
        base_url, password = _split_password(base_url)
        # Never empty: the SDK would send the key in its own environment variable to any server.
        self._sdk: AsyncOpenAI = create(
            api_key=api_key or "none",
            base_url=base_url,
            max_retries=0,
            timeout=timeout,
            # The client drops the key from requests that are redirected to another host.
            http_client=_HttpClient(**http_client_options(timeout), follow_redirects=True),
        )
        # The complete URL, so that the SDK does not join it for every call. Its base URL may end with a slash.
        self._url = f"{str(self._sdk.base_url).rstrip('/')}/{path}"
        omitted = _TELEMETRY if base_url is None else (*_TELEMETRY, *_ACCOUNT)
        headers: dict[str, str | Omit] = {"User-Agent": USER_AGENT, **dict.fromkeys(omitted, omit)}
        if azure:  # set here, so that the SDK does not send a token from its own environment variable instead
            headers |= {"Authorization": omit, "api-key": api_key}
        if password:
            headers["Authorization"] = password
        # In the spelling of the headers above, so that each is sent once.
        spelled = {name.lower(): name for name in (*headers, "Authorization", "api-key")}
        headers |= {spelled.get(name.lower(), name): value for name, value in added.items()}
        # Repeats the client's options: without them, the SDK copies its defaults for each request.
        self._options: RequestOptions = {
            "headers": headers,
            "max_retries": 0,
            "timeout": timeout,
            "security": {"bearer_auth": True},
        }
        if added or azure:
            self._options["follow_redirects"] = False

    async def post(self, body: bytes) -> Any:
        """Return the response's JSON, or its text if it declares another content type.

        Raises OpenAIError, httpx2.HTTPError or ValueError.
        """
        content, options = self._content(body)
        response = await self._sdk.post(self._url, content=content, cast_to=httpx2.Response, options=options)
        received = await response.aread()
        parsed = _parse_json(received, response.headers)
        cost = response.headers.get(_COST_HEADER)
        if cost is not None and isinstance(parsed, dict) and isinstance(parsed.get("usage"), dict):
            parsed["usage"].setdefault("cost", cost)
        return parsed

    async def stream(self, body: bytes) -> httpx2.Response:
        """Return the response to a body that requests a stream, before it is read; raises the same errors as `post`."""
        content, options = self._content(body)
        form = AsyncStream[object]
        stream = await self._sdk.post(
            self._url, content=content, cast_to=object, options=options, stream=True, stream_cls=form
        )
        return stream.response

    def _content(self, body: bytes) -> tuple[bytes | _Pieces, RequestOptions]:
        """Return the content of a request and its options."""
        if len(body) < LARGE_BODY:
            return body, self._options
        headers = {**self._options["headers"], "Content-Length": str(len(body))}
        return _Pieces(body), {**self._options, "headers": headers}

    async def fetch(self, url: str, body: dict[str, Any] | None = None) -> object:
        """Return the JSON at another URL of the server, for GET, or for POST with a body; None if there is none.

        Raises the same errors as `post`.
        """
        options: RequestOptions = {**self._options, "follow_redirects": False}
        url = _split_password(url)[0] or url
        try:
            if body is None:
                response = await self._sdk.get(url, cast_to=httpx2.Response, options=options)
            else:
                response = await self._sdk.post(url, body=body, cast_to=httpx2.Response, options=options)
        except APIStatusError as error:
            if error.status_code >= 500:  # it may be loading its model
                raise
            return None
        content = await response.aread()
        if len(content) > _MAX_PROPERTIES or "json" not in response.headers.get("content-type", ""):
            return None
        value: object = orjson.loads(content)
        return value

    async def close(self) -> None:
        """Close the connections."""
        await self._sdk.close()


class _HttpClient(DefaultAioHttpClient):
    """The SDK's HTTP client on aiohttp, with errors of the right kind, and without requests lost to closed connections.

    Some servers announce that they keep a connection open and close it after each response. A request that is sent
    over such a connection is lost before any of its response arrives, and is sent again: several runs may have left
    several such connections behind.
    """

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; raise httpx2.HTTPError if it fails."""
        for _ in range(_MAX_CLOSED):
            try:
                return await self._send(request, **options)
            except RequestLost:
                continue
        return await self._send(request, **options)

    async def _send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request once; raise an error of a refused or lost connection as such, not as a timeout."""
        try:
            return await super().send(request, **options)
        except httpx2.TransportError as error:
            match error.__cause__:
                case aiohttp.ClientConnectorError() as cause:
                    raise httpx2.ConnectError(str(cause)) from cause
                case aiohttp.ServerDisconnectedError(message=str()) | aiohttp.ClientOSError() as cause:
                    raise RequestLost(str(cause)) from cause
                case aiohttp.ServerDisconnectedError() as cause:  # within the header of the response
                    raise httpx2.RemoteProtocolError(str(cause)) from cause
            raise


class RequestLost(httpx2.RemoteProtocolError):
    """The connection was lost before any of the response arrived."""


class _Pieces:
    """A large body in pieces, which can be read again for another try."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        view = memoryview(self._body)
        for start in range(0, len(view), _PIECE):
            yield bytes(view[start : start + _PIECE])


def _split_password(base_url: str | None) -> tuple[str | None, str]:
    """Return a URL without its user and password, and the header with them; aiohttp refuses them beside a header."""
    parts = urlsplit(base_url or "")
    if "@" not in parts.netloc:
        return base_url, ""
    user, _, host = parts.netloc.rpartition("@")
    named = b64encode(unquote(user if ":" in user else f"{user}:").encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), f"Basic {named}"


def _parse_json(content: bytes, headers: Mapping[str, str]) -> Any:
    """Return the JSON in a body, or its text if it declares another content type; raises ValueError for bad JSON."""
    try:
        return orjson.loads(content)
    except ValueError:
        if "json" not in headers.get("content-type", "json"):
            return content.decode(errors="replace")
        raise
