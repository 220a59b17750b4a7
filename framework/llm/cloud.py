"""Claude in Amazon Bedrock, and Claude and Gemini in Google Cloud's Vertex AI, with their credentials.

For Bedrock, botocore finds and renews credentials, for which it reads files and may send requests, and signs requests,
always in a thread. The SDK would do the same through boto3, which keeps rejected credentials until the process ends.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

import httpx2

from framework.llm.anthropic import AnthropicModel
from framework.llm.gemini import GeminiModel
from framework.llm.http_client import is_region
from framework.llm.provider_client import ProviderClient
from framework.llm.provider_errors import ProviderErrors, message_in
from framework.types.errors import ModelError

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from google.genai import Client
    from google.genai.types import HttpOptions

_SET_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run: aws sso login"
_SET_REGION = "set AWS_REGION, such as eu-central-1"
_SIGNED_HEADERS = ("authorization", "x-amz-date", "x-amz-security-token")
"""The headers that a signature adds."""
_ERROR_TYPE = re.compile(r"[A-Za-z]{1,60}")


class BedrockModel(AnthropicModel):
    """A Claude model in Amazon Bedrock.

    Args:
        model: the id of the model or of an inference profile, such as
            `eu.anthropic.claude-sonnet-4-5-20250929-v1:0`.
        region: the region of AWS; None for that of the AWS profile.
        options: as of `ProviderClient`. Without an API key of Bedrock, requests are signed with the credentials of an
            AWS account.
    """

    provider = "bedrock"
    credential = "AWS account"
    sampling_version = "bedrock-2023-05-31"

    def __init__(self, model: str, *, region: str | None, **options: Any) -> None:
        super().__init__(model, **options)
        self._region = region
        self._account: _Account | None = None
        self._is_rejected = False

    async def _connected(self) -> AsyncAnthropic:
        if self._account is None or self._is_rejected:
            self._account = await self._guard(asyncio.to_thread(_load_account, self._region, signs=not self._api_key))
            self._is_rejected = False
        return await super()._connected()

    def _create_sdk(self, **options: Any) -> AsyncAnthropic:
        from anthropic import AsyncAnthropicBedrock

        # With a key, the SDK neither signs requests nor searches for credentials.
        sdk: Any = AsyncAnthropicBedrock(
            api_key=self._api_key or "none",
            aws_region=self._account.region if self._account else self._region,
            base_url=self._base_url,
            **options,
        )
        return sdk  # type: ignore[no-any-return]  # has the same methods, but no common base class

    def _auth(self) -> httpx2.Auth | None:
        return None if self._api_key else _Signature(self._sign)

    def _sign(self, request: httpx2.Request) -> dict[str, str]:
        return self._account.sign(request) if self._account else {}

    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        return (*super()._sdk_errors(), _AccountError)

    def _explain(self, error: Exception) -> ModelError | None:
        from anthropic import PermissionDeniedError

        # The SDK wraps the error of a signature.
        problem = error if isinstance(error, _AccountError) else error.__cause__
        if isinstance(problem, _AccountError):
            return self._errors.error(str(problem), retryable=problem.retryable, permanent=not problem.retryable)
        if isinstance(error, PermissionDeniedError) and (name := _rejected_credentials(error)):
            self._is_rejected = True  # the next request loads them again, which may have been repaired
            return self._errors.error(f"AWS rejected the credentials ({name}): {_SET_CREDENTIALS}", permanent=True)
        return super()._explain(error)


class _Signature(httpx2.Auth):
    """Adds the headers of a signature to each request."""

    requires_request_body = True

    def __init__(self, sign: Callable[[httpx2.Request], dict[str, str]]) -> None:
        self._sign = sign

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        request.headers.update(await asyncio.to_thread(self._sign, request))
        yield request


class _AccountError(Exception):
    """Credentials or a region that cannot be used. It does not quote botocore, whose messages may contain secrets."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class _Account:
    """A region, and the credentials that sign requests: None to sign none."""

    def __init__(self, region: str, credentials: Any) -> None:
        self.region = region
        self.credentials = credentials

    def sign(self, request: httpx2.Request) -> dict[str, str]:
        """Return the headers with the signature of a request. Renews expired credentials, which blocks.

        Raises:
            _AccountError: the credentials cannot be renewed.
        """
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        headers = {"content-type": request.headers["content-type"]}  # proxies change other headers
        signed = AWSRequest(method=request.method, url=str(request.url), headers=headers, data=request.content)
        try:
            SigV4Auth(self.credentials.get_frozen_credentials(), "bedrock", self.region).add_auth(signed)
        except Exception as error:  # noqa: BLE001 - botocore raises errors of any class
            failure = _translated(error)
        else:
            return {name: value for name, value in signed.headers.items() if name.lower() in _SIGNED_HEADERS}
        raise failure


def _load_account(region: str | None, *, signs: bool) -> _Account:
    """Find the region and the credentials: the environment, the AWS profile, or the machine's role. Blocks.

    Raises:
        _AccountError: one of them is missing or unreadable.
    """
    import botocore.session

    try:
        session = botocore.session.Session()
        region = region or session.get_config_variable("region")
        credentials = session.get_credentials() if signs else None
    except Exception as error:  # noqa: BLE001 - botocore raises errors of any class
        failure = _translated(error)
    else:
        if not region:
            failure = _AccountError(f"the region of AWS is unknown: {_SET_REGION}")
        elif not is_region(region):
            failure = _AccountError(f"{region!r} is not a region of AWS: {_SET_REGION}")
        elif signs and credentials is None:
            failure = _AccountError(f"the credentials of AWS are missing: {_SET_CREDENTIALS}")
        else:
            return _Account(region, credentials)
    raise failure  # outside the except block, so without context


def _translated(error: Exception) -> _AccountError:
    from botocore.exceptions import CredentialRetrievalError, HTTPClientError, MetadataRetrievalError

    # Servers of a machine's role, of single sign-on or of tokens, which may answer later.
    retryable = isinstance(error, (CredentialRetrievalError, HTTPClientError, MetadataRetrievalError))
    name = type(error).__name__
    return _AccountError(f"the credentials of AWS cannot be loaded ({name}): {_SET_CREDENTIALS}", retryable=retryable)


def _rejected_credentials(error: Any) -> str:
    """Return the type of an error about the credentials; empty if the account lacks a permission.

    The message of such an error is not quoted: it may contain the signed headers.
    """
    name = str(error.response.headers.get("x-amzn-errortype", "")).partition(":")[0]
    if "signature" in message_in(error.body).lower():
        return name if _ERROR_TYPE.fullmatch(name) else "invalid signature"
    return name if _ERROR_TYPE.fullmatch(name) and name != "AccessDeniedException" else ""


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
