"""The openai SDK, given requests that are bytes already."""

from __future__ import annotations

import inspect
from typing import Any

import httpx2
import orjson
from openai import AsyncOpenAI, AsyncStream, RequestOptions, omit

from framework.llm.http_client import create_http_client
from framework.llm.openai.transport import create_direct_client, read_content
from framework.llm.stream_assembler import as_dict

_TELEMETRY = (
    *("X-Stainless-Lang", "X-Stainless-Package-Version", "X-Stainless-OS", "X-Stainless-Arch"),
    *("X-Stainless-Runtime", "X-Stainless-Runtime-Version", "X-Stainless-Async"),
    *("X-Stainless-Retry-Count", "X-Stainless-Read-Timeout"),
)
"""What the SDK tells every server of this machine; none needs it to answer."""
_ACCOUNT = ("OpenAI-Organization", "OpenAI-Project")
"""What it tells, from its environment variables, also servers that are not OpenAI's."""


class Connection:
    """One server, asked through the SDK's public `post`: its `create` looks at every part of every message first.

    An SDK whose `post` takes no bytes is asked through `create` all the same: the answers are alike.

    Args:
        api_key: empty for a server that asks for none.
        base_url: up to and with `/v1`; None is the SDK's own choice.
        timeout: seconds without a byte.
    """

    def __init__(self, api_key: str, base_url: str | None, timeout: float) -> None:
        self._sdk = AsyncOpenAI(
            # Never None: the SDK would then send the key of its own environment variable to any server.
            api_key=api_key or "none",
            base_url=base_url,
            max_retries=0,
            timeout=timeout,
            # httpx takes the key from what it sends to another server.
            http_client=create_direct_client(base_url, timeout) or create_http_client(timeout, follow_redirects=True),
        )
        # Whole: the SDK would put it together for every call. An address without a path comes without its slash.
        self._url = f"{str(self._sdk.base_url).rstrip('/')}/chat/completions"
        self._takes_bytes = "content" in inspect.signature(self._sdk.post).parameters
        left_out = _TELEMETRY if base_url is None else (*_TELEMETRY, *_ACCOUNT)
        # Said again here, because the SDK copies its own defaults, each of them for each request.
        self._options: RequestOptions = {
            "headers": dict.fromkeys(left_out, omit),
            "max_retries": 0,
            "timeout": timeout,
            "security": {"bearer_auth": True},
        }

    async def whole(self, body: bytes) -> Any:
        """The answer's JSON, or the text of one that is none; raises OpenAIError, httpx2.HTTPError or ValueError."""
        if not self._takes_bytes:
            completion = await self._create(body)
            return completion if isinstance(completion, str) else as_dict(completion)
        response = await self._sdk.post(self._url, content=body, cast_to=httpx2.Response, options=self._options)
        content = await read_content(response)
        try:
            return orjson.loads(content)
        except ValueError:
            if "json" not in response.headers.get("content-type", "json"):
                return content.decode(errors="replace")
            raise

    async def stream(self, body: bytes) -> AsyncStream[Any]:
        """The answer's chunks, where the body asks for a stream; raises as `whole`."""
        if not self._takes_bytes:
            chunks: AsyncStream[Any] = await self._create(body)
            return chunks
        # As `object`, chunks stay the dicts that they are in JSON.
        return await self._sdk.post(
            self._url,
            content=body,
            cast_to=object,
            options=self._options,
            stream=True,
            stream_cls=AsyncStream[object],
        )

    async def close(self) -> None:
        """Give connections back."""
        await self._sdk.close()

    async def _create(self, body: bytes) -> Any:
        """The typed call; what it would look through goes beside it."""
        fields = orjson.loads(body)
        create: Any = self._sdk.chat.completions.create
        more = {"stream": True} if fields.pop("stream", False) else {}
        return await create(
            model=fields.pop("model"), messages=[], **more, extra_body=fields, extra_headers=self._options["headers"]
        )
