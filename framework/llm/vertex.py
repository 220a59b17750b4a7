"""Clients for models in Google Cloud's Vertex AI: Claude and Gemini with other addresses and credentials.

The credentials are Google Cloud's application default credentials. The SDKs load and renew them, in threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from framework.llm.anthropic.client import AnthropicModel
from framework.llm.gemini.client import GeminiModel
from framework.llm.provider_client import ProviderClient
from framework.llm.provider_errors import ProviderErrors
from framework.types.errors import ModelError

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from google.genai import Client
    from google.genai.types import HttpOptions

_ADVICE = "set GOOGLE_APPLICATION_CREDENTIALS to a file of credentials, or run: gcloud auth application-default login"


class _VertexModel(ProviderClient):
    """A model in Vertex AI; the options are those of `ProviderClient`.

    Args:
        model: the model's name in Vertex AI, such as `claude-sonnet-4-5@20250929`.
        project: the id of the Google Cloud project.
        location: a region, or `global`.
    """

    provider = "vertex"
    credential = "Google Cloud account"

    def __init__(self, model: str, *, project: str, location: str, **options: Any) -> None:
        super().__init__(model, api_key="", **options)
        self._project, self._location = project, location

    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        from google.auth.exceptions import GoogleAuthError

        return (*super()._sdk_errors(), GoogleAuthError)

    def _explain(self, error: Any) -> ModelError | None:
        return _credentials_error(self._errors, error) or super()._explain(error)


class VertexClaudeModel(_VertexModel, AnthropicModel):
    """A Claude model in Vertex AI."""

    sampling_version = "vertex-2023-10-16"

    def _create_sdk(self, **options: Any) -> AsyncAnthropic:
        from anthropic import AsyncAnthropicVertex

        url = f"{self._base_url}/v1" if self._base_url else None
        sdk: Any = AsyncAnthropicVertex(region=self._location, project_id=self._project, base_url=url, **options)
        return sdk  # type: ignore[no-any-return]  # has the same methods, but no common base class


class VertexGeminiModel(_VertexModel, GeminiModel):
    """A Gemini model in Vertex AI."""

    def _create_sdk(self, options: HttpOptions) -> Client:
        from google.genai import Client

        return Client(enterprise=True, project=self._project, location=self._location, http_options=options)


def _credentials_error(errors: ProviderErrors, error: Exception) -> ModelError | None:
    """Return the error for credentials that are missing or rejected; None for any other error.

    Messages of Google's library are not quoted: they may contain the response of a server that issues tokens.
    """
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError

    if not isinstance(error, GoogleAuthError):
        return None
    if isinstance(error, DefaultCredentialsError):
        return errors.error(f"the credentials of Google Cloud are missing or unreadable: {_ADVICE}", permanent=True)
    if isinstance(error, TransportError) or error.retryable:
        return errors.error("the server that issues Google Cloud's tokens did not answer", retryable=True)
    return errors.error(f"the credentials of Google Cloud were rejected: {_ADVICE}", permanent=True)
