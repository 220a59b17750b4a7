"""What the clients of all providers share: their options, and how errors of their SDKs are translated."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from framework.llm.capabilities import Capabilities, OpenAIApi
from framework.llm.client import ModelInfo, served_model
from framework.llm.provider_errors import ProviderErrors, option_secrets
from framework.types.errors import ModelError

T = TypeVar("T")


class ProviderClient:
    """A model at a provider. The SDK is loaded with the first request.

    Args:
        model: the model's name in the API.
        api_key: empty for a server that requires none.
        base_url: a different server with the same API; None for the provider's own.
        capabilities: override the known ones.
        stream: whether responses are always or never streamed; None to stream them if the request asks for it.
        extra_body: fields added to the body of each request.
        headers: headers added to each request.
        usual_path: the path that most servers' `base_url` ends with.
    """

    provider: str
    """The first part of the model name."""
    api: OpenAIApi | None = None
    """Which of OpenAI's APIs is used; None for other providers."""
    credential = "API key"
    """What the server authenticates, as errors call it."""
    media_types: frozenset[str]
    """Media types of files that the API can express."""

    def __init__(
        self,
        model: str,
        *,
        api_key: str,
        base_url: str | None = None,
        capabilities: Capabilities | None = None,
        stream: bool | None = None,
        extra_body: Mapping[str, Any] = MappingProxyType({}),
        headers: Mapping[str, str] = MappingProxyType({}),
        usual_path: str = "",
    ) -> None:
        self._info = served_model(
            self.provider, model, base_url, capabilities, media_types=self.media_types, stream=stream
        )
        self._api_key, self._base_url = api_key, base_url
        self._extra_body, self._headers = extra_body, headers
        self._errors = ProviderErrors(
            self._info.name,
            api_key,
            base_url,
            usual_path=usual_path,
            api=self.api,
            credential=self.credential,
            secrets=option_secrets(headers, extra_body),
        )

    @property
    def info(self) -> ModelInfo:
        """Provider, model and capabilities."""
        return self._info

    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        """Return the root classes of the SDK's errors."""
        return ()

    def _explain(self, error: Any) -> ModelError | None:  # noqa: ARG002 - for subclasses
        """Translate an error of the SDK; return None if it only wraps one of the transport."""
        return None

    async def _guard(self, call: Awaitable[T]) -> T:
        """Await a call of the SDK; raise ModelError for whatever it raises."""
        return await self._errors.guard(call, self._sdk_errors(), self._explain)
