"""Sends requests that are already encoded through the openai SDK: to OpenAI, to Azure, and through proxies.

The SDK knows how these are addressed and authenticated. It prepares the first request; later ones repeat its URL and
headers over a connection of their own, unless a proxy or a password in the URL needs the SDK's transport.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx2
import orjson
from openai import (
    APIConnectionError,
    APIError,
    APIStatusError,
    AsyncAzureOpenAI,
    AsyncOpenAI,
    AsyncStream,
    Omit,
    RequestOptions,
    omit,
)

from framework.llm.capabilities import OpenAIApi
from framework.llm.http_client import create_http_client
from framework.llm.openai.event_stream import EventStream
from framework.llm.openai.http_connection import (
    USER_AGENT,
    HttpConnection,
    is_directly_reachable,
    parse_json,
    parse_properties,
)
from framework.llm.openai.server_error import ServerError
from framework.llm.stream_assembler import as_dict

_TELEMETRY = (
    *("X-Stainless-Lang", "X-Stainless-Package-Version", "X-Stainless-OS", "X-Stainless-Arch"),
    *("X-Stainless-Runtime", "X-Stainless-Runtime-Version", "X-Stainless-Async"),
    *("X-Stainless-Retry-Count", "X-Stainless-Read-Timeout"),
)
"""Headers in which the SDK describes this machine to every server."""
_ACCOUNT = ("OpenAI-Organization", "OpenAI-Project")
"""Headers that the SDK sets from environment variables, even for servers that are not OpenAI's."""
_OF_ONE_REQUEST = {"content-length", "transfer-encoding", "host", "connection"}
"""Headers that are not repeated."""


class SdkConnection:
    """A connection to one server, through the SDK's public `post`: its `create` inspects every part of every message.

    If the installed SDK's `post` does not accept bytes, `create` is used, with the same results.

    Args:
        api_key: empty for a server that requires none.
        base_url: the URL up to and including `/v1`; None for the SDK's default.
        timeout: seconds without a byte.
        api: the API to which requests are sent.
        path: the path of the API below the base URL.
    """

    def __init__(self, api_key: str, base_url: str | None, timeout: float, api: OpenAIApi, path: str) -> None:
        # Never empty: the SDK would send the key in its own environment variable to any server.
        self._sdk = self._create_sdk(
            api_key=api_key or "none",
            base_url=base_url,
            max_retries=0,
            timeout=timeout,
            # httpx drops the key from requests that are redirected to another host.
            http_client=create_http_client(timeout, follow_redirects=True),
        )
        # The complete URL, so that the SDK does not join it for every call. Its base URL may end with a slash.
        self._url = f"{str(self._sdk.base_url).rstrip('/')}/{path}"
        self._api, self._timeout = api, timeout
        self._accepts_bytes = "content" in inspect.signature(self._sdk.post).parameters
        self._may_repeat = is_directly_reachable(base_url)
        self._repeated: HttpConnection | None = None
        """Repeats the URL and headers of the first request that was answered."""
        omitted = _TELEMETRY if base_url is None else (*_TELEMETRY, *_ACCOUNT)
        # Repeats the client's options: without them, the SDK copies its defaults for each request.
        self._options: RequestOptions = {
            "headers": {"User-Agent": USER_AGENT, **dict.fromkeys(omitted, omit)},
            "max_retries": 0,
            "timeout": timeout,
            "security": {"bearer_auth": True},
        }

    def _create_sdk(self, **options: Any) -> AsyncOpenAI:
        return AsyncOpenAI(**options)

    async def post(self, body: bytes) -> Any:
        """Return the response's JSON, or its text if it declares another content type.

        Raises ServerError, OpenAIError, httpx2.HTTPError or ValueError.
        """
        if self._repeated is not None:
            return await self._repeated.post(body)
        if not self._accepts_bytes:
            completion = await self._create(body)
            return completion if isinstance(completion, str) else as_dict(completion)
        with _server_errors():
            response = await self._sdk.post(self._url, content=body, cast_to=httpx2.Response, options=self._options)
            content = await response.aread()
        self._repeat(response)
        return parse_json(content, response.headers)

    async def stream(self, body: bytes) -> EventStream:
        """Return the events of the response, for a body that requests a stream; raises the same errors as `post`."""
        if self._repeated is not None:
            return await self._repeated.stream(body)
        if not self._accepts_bytes:
            typed: AsyncStream[Any] = await self._create(body)
            return EventStream(SdkResponse(typed.response))
        with _server_errors():
            stream = await self._sdk.post(
                self._url,
                content=body,
                cast_to=object,
                options=self._options,
                stream=True,
                stream_cls=AsyncStream[object],
            )
        self._repeat(stream.response)
        return EventStream(SdkResponse(stream.response))

    async def fetch(self, url: str, body: dict[str, Any] | None = None) -> object:
        """Return the JSON at another URL of the server, for GET, or for POST with a body; None if there is none.

        Raises the same errors as `post`.
        """
        options: RequestOptions = {**self._options, "follow_redirects": False}
        try:
            with _server_errors():
                if body is None:
                    response = await self._sdk.get(url, cast_to=httpx2.Response, options=options)
                else:
                    response = await self._sdk.post(url, body=body, cast_to=httpx2.Response, options=options)
        except ServerError as error:
            if error.status is None or error.status >= 500:  # it may be loading its model
                raise
            return None
        return parse_properties(await response.aread(), response.headers)

    async def close(self) -> None:
        """Close the connections."""
        await self._sdk.close()
        if self._repeated is not None:
            await self._repeated.close()

    def _repeat(self, response: httpx2.Response) -> None:
        """Send the next requests with the URL and the headers of this response's request, without the SDK."""
        if not self._may_repeat or response.history:  # a redirect may be another one the next time
            return
        headers = {name: value for name, value in response.request.headers.items() if name not in _OF_ONE_REQUEST}
        self._repeated = HttpConnection(str(response.request.url), headers, self._timeout)

    async def _create(self, body: bytes) -> Any:
        """Call the typed `create`, with the conversation in `extra_body`, which it does not inspect."""
        fields = orjson.loads(body)
        create: Any = self._sdk.responses.create if self._api == "responses" else self._sdk.chat.completions.create
        required: dict[str, Any] = {} if self._api == "responses" else {"messages": []}
        if fields.pop("stream", False):
            required["stream"] = True
        with _server_errors():
            return await create(
                model=fields.pop("model"), **required, extra_body=fields, extra_headers=self._options["headers"]
            )


class AzureConnection(SdkConnection):
    """A connection to a deployment of a model in Azure OpenAI. The key is sent as `api-key`.

    Args:
        api_key: key of the resource.
        base_url: the resource's URL, such as `https://example.openai.azure.com`.
        timeout: seconds without a byte.
        api: the API to which requests are sent.
        path: the path of the API below the base URL.
        deployment: name of the deployment.
        version: `api-version` of each request.
    """

    def __init__(
        self, api_key: str, base_url: str, timeout: float, api: OpenAIApi, path: str, deployment: str, version: str
    ) -> None:
        root = base_url.removesuffix("/openai")
        # Azure has chat completions for each deployment; the Responses API finds it by the model in the request.
        below = f"/openai/deployments/{quote(deployment, safe='')}" if api == "chat" else "/openai"
        self._version = version
        super().__init__(api_key, root + below, timeout, api, path)
        # Set here, so that the SDK does not send a token from its own environment variable instead.
        headers: dict[str, str | Omit] = {**self._options["headers"], "api-key": api_key, "Authorization": omit}
        self._options["headers"] = headers

    def _create_sdk(self, **options: Any) -> AsyncOpenAI:
        return AsyncAzureOpenAI(api_version=self._version, **options)


class SdkResponse:
    """A response of the SDK's HTTP client whose body has not been read."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self.headers: Mapping[str, str] = response.headers

    async def aread(self) -> bytes:
        """Return the decoded body; raise httpx2.HTTPError if the connection fails."""
        return await self._response.aread()

    def chunks(self) -> AsyncIterator[bytes]:
        """Return the pieces of the decoded body as they arrive; they raise the same errors as `aread`."""
        return self._response.aiter_bytes()

    async def aclose(self) -> None:
        """Close the response."""
        await self._response.aclose()


@contextmanager
def _server_errors() -> Iterator[None]:
    """Raise errors that the SDK found in a response as ServerError; errors of the connection remain the SDK's."""
    try:
        yield
    except APIStatusError as error:
        headers = error.response.headers
        raise ServerError(error.message, error.body, status=error.status_code, headers=headers) from error
    except APIConnectionError:
        raise
    except APIError as error:
        raise ServerError(error.message, error.body) from error
