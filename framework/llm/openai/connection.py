"""Sends requests that are already encoded through the openai SDK."""

from __future__ import annotations

import inspect
import json
from typing import Any
from urllib.parse import quote

import httpx2
import orjson
from openai import APIStatusError, AsyncAzureOpenAI, AsyncOpenAI, AsyncStream, Omit, RequestOptions, omit

from framework.llm.capabilities import OpenAIApi
from framework.llm.http_client import create_http_client
from framework.llm.openai.event_stream import EventStream
from framework.llm.openai.transport import PreparedRequest, create_direct_client, read_content
from framework.llm.stream_assembler import as_dict

_TELEMETRY = (
    *("X-Stainless-Lang", "X-Stainless-Package-Version", "X-Stainless-OS", "X-Stainless-Arch"),
    *("X-Stainless-Runtime", "X-Stainless-Runtime-Version", "X-Stainless-Async"),
    *("X-Stainless-Retry-Count", "X-Stainless-Read-Timeout"),
)
"""Headers in which the SDK describes this machine to every server."""
_MAX_PROPERTIES = 1_000_000
"""Bytes of a server's answer about itself."""
_ACCOUNT = ("OpenAI-Organization", "OpenAI-Project")
"""Headers that the SDK sets from environment variables, even for servers that are not OpenAI's."""
_PATHS: dict[OpenAIApi, str] = {"chat": "chat/completions", "responses": "responses"}
"""Path of each API below the base URL."""


class Connection:
    """A connection to one server, through the SDK's public `post`: its `create` inspects every part of every message.

    If the installed SDK's `post` does not accept bytes, `create` is used, with the same results.

    Args:
        api_key: empty for a server that requires none.
        base_url: the URL up to and including `/v1`; None for the SDK's default.
        timeout: seconds without a byte.
        api: the API to which requests are sent.
    """

    def __init__(self, api_key: str, base_url: str | None, timeout: float, api: OpenAIApi) -> None:
        self._direct = create_direct_client(base_url, timeout)
        # Never empty: the SDK would send the key in its own environment variable to any server.
        self._sdk = self._create_sdk(
            api_key=api_key or "none",
            base_url=base_url,
            max_retries=0,
            timeout=timeout,
            # httpx drops the key from requests that are redirected to another host.
            http_client=self._direct or create_http_client(timeout, follow_redirects=True),
        )
        self._prepared: dict[bool, PreparedRequest] = {}
        """The first request that the SDK prepared and the server answered: for streams, and for complete responses."""
        # The complete URL, so that the SDK does not join it for every call. Its base URL may end with a slash.
        self._url = f"{str(self._sdk.base_url).rstrip('/')}/{_PATHS[api]}"
        self._api = api
        self._accepts_bytes = "content" in inspect.signature(self._sdk.post).parameters
        omitted = _TELEMETRY if base_url is None else (*_TELEMETRY, *_ACCOUNT)
        # Repeats the client's options: without them, the SDK copies its defaults for each request.
        self._options: RequestOptions = {
            "headers": dict.fromkeys(omitted, omit),
            "max_retries": 0,
            "timeout": timeout,
            "security": {"bearer_auth": True},
        }

    def _create_sdk(self, **options: Any) -> AsyncOpenAI:
        return AsyncOpenAI(**options)

    async def post(self, body: bytes) -> Any:
        """Return the response's JSON, or its text if it declares another content type.

        Raises OpenAIError, httpx2.HTTPError or ValueError.
        """
        if not self._accepts_bytes:
            completion = await self._create(body)
            return completion if isinstance(completion, str) else as_dict(completion)
        content, content_type = await self._exchange(body)
        try:
            return orjson.loads(content)
        except ValueError:
            if "json" not in content_type:
                return content.decode(errors="replace")
            raise

    async def stream(self, body: bytes) -> EventStream:
        """Return the events of the response, for a body that requests a stream; raises the same errors as `post`."""
        if not self._accepts_bytes:
            typed: AsyncStream[Any] = await self._create(body)
            return EventStream(typed.response)
        prepared = self._prepared.get(True)
        if self._direct is None or prepared is None:
            return EventStream(await self._send_by_sdk(body, stream=True))
        response = await self._direct.open(prepared, body)
        return EventStream(await self._successful(response, body, stream=True))

    async def fetch(self, url: str, body: dict[str, Any] | None = None) -> object:
        """Return the JSON at another URL of the server, for GET, or for POST with a body; None if there is none.

        Raises OpenAIError if the server fails or cannot be reached, httpx2.HTTPError or ValueError.
        """
        options: RequestOptions = {**self._options, "follow_redirects": False}
        try:
            if body is None:
                response = await self._sdk.get(url, cast_to=httpx2.Response, options=options)
            else:
                response = await self._sdk.post(url, body=body, cast_to=httpx2.Response, options=options)
        except APIStatusError as error:
            if error.status_code >= 500:  # it may be loading its model
                raise
            return None
        content = await read_content(response)
        if len(content) > _MAX_PROPERTIES or "json" not in response.headers.get("content-type", ""):
            return None
        value: object = orjson.loads(content)
        return value

    async def close(self) -> None:
        """Close the connections."""
        await self._sdk.close()

    # The SDK sends the first request, and each one that the server redirects. All others repeat the URL and headers of
    # the first: to prepare them again would take longer than everything else that is done here.

    async def _exchange(self, body: bytes) -> tuple[bytes, str]:
        """Return the decoded body of the response, and its content type; `json` if it declares none."""
        prepared = self._prepared.get(False)
        if self._direct is None or prepared is None:
            response = await self._send_by_sdk(body, stream=False)
        else:
            answer = await self._direct.exchange(prepared, body)
            if answer.is_plain:
                return answer.content, answer.response.headers.get("content-type", "json")
            response = await self._successful(answer.to_httpx(), body, stream=False)
        return await read_content(response), response.headers.get("content-type", "json")

    async def _successful(self, response: httpx2.Response, body: bytes, *, stream: bool) -> httpx2.Response:
        """Return the response, or the one that a redirect leads to; raise an error of the SDK if it reports one."""
        if response.is_success:
            return response
        if response.has_redirect_location:
            await response.aclose()
            return await self._send_by_sdk(body, stream=stream)
        raise await _status_error(response)

    async def _send_by_sdk(self, body: bytes, *, stream: bool) -> httpx2.Response:
        if stream:
            events = await self._sdk.post(
                self._url,
                content=body,
                cast_to=object,
                options=self._options,
                stream=True,
                stream_cls=AsyncStream[object],
            )
            response = events.response
        else:
            response = await self._sdk.post(self._url, content=body, cast_to=httpx2.Response, options=self._options)
        if self._direct is not None and not response.history:  # not a request that a redirect made
            self._prepared[stream] = PreparedRequest.of(response.request).without_body()
        return response

    async def _create(self, body: bytes) -> Any:
        """Call the typed `create`, with the conversation in `extra_body`, which it does not inspect."""
        fields = orjson.loads(body)
        create: Any = self._sdk.responses.create if self._api == "responses" else self._sdk.chat.completions.create
        required: dict[str, Any] = {} if self._api == "responses" else {"messages": []}
        if fields.pop("stream", False):
            required["stream"] = True
        return await create(
            model=fields.pop("model"), **required, extra_body=fields, extra_headers=self._options["headers"]
        )


async def _status_error(response: httpx2.Response) -> APIStatusError:
    """Return the SDK's error for a response that reports one; raise httpx2.HTTPError if its body cannot be read."""
    try:
        text = (await response.aread()).decode(errors="replace")
    finally:
        await response.aclose()
    try:
        body: object = json.loads(text)
    except ValueError:
        body = text
    detail = body.get("error", body) if isinstance(body, dict) else body
    return APIStatusError(f"status {response.status_code}", response=response, body=detail)


class AzureConnection(Connection):
    """A connection to a deployment of a model in Azure OpenAI. The key is sent as `api-key`.

    Args:
        api_key: key of the resource.
        base_url: the resource's URL, such as `https://example.openai.azure.com`.
        timeout: seconds without a byte.
        api: the API to which requests are sent.
        deployment: name of the deployment.
        version: `api-version` of each request.
    """

    def __init__(
        self, api_key: str, base_url: str, timeout: float, api: OpenAIApi, deployment: str, version: str
    ) -> None:
        root = base_url.removesuffix("/openai")
        # Azure has chat completions for each deployment; the Responses API finds it by the model in the request.
        path = f"/openai/deployments/{quote(deployment, safe='')}" if api == "chat" else "/openai"
        self._version = version
        super().__init__(api_key, root + path, timeout, api)
        # Set here, so that the SDK does not send a token from its own environment variable instead.
        headers: dict[str, str | Omit] = {**self._options["headers"], "api-key": api_key, "Authorization": omit}
        self._options["headers"] = headers

    def _create_sdk(self, **options: Any) -> AsyncOpenAI:
        return AsyncAzureOpenAI(api_version=self._version, **options)
