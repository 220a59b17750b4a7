"""A client of a running agentsd server, for commands."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr, ValidationError

from framework.cli.location import locate
from framework.config.settings import API_KEY_VARIABLE
from framework.server.listen_socket import server_url
from framework.types.errors import AgentsdError, RequestError

T = TypeVar("T", bound=BaseModel)

SECONDS = 60.0
"""Timeout of a request: a rollback sets plugins up."""


class NoServer(AgentsdError):
    """No server answers, or it is not an agentsd server. Start `agentsd serve`, or correct the URL."""

    code = "no_server"


@dataclass(frozen=True, slots=True)
class Remote:
    """A server, by its URL, and the key for it."""

    url: str
    key: SecretStr | None = None

    @classmethod
    def of(cls, url: str | None, key: str | None, project: str) -> Remote:
        """Return the server at `url`, by default that of a project's settings.

        A key of the settings is sent to the server of the settings only.
        """
        shown = SecretStr(key) if key else None
        if url is not None:
            if not _is_url(url):
                raise RequestError(f"not the URL of a server: {url}; write it like http://127.0.0.1:8321")
            return cls(url.rstrip("/"), shown)
        server = locate(project).settings().server
        plain = next((key for key in server.api_keys if isinstance(key, SecretStr)), None)  # of others, only the hash
        return cls(server_url(server.host, server.port), shown or plain)

    def get(self, path: str, reply: type[T]) -> T:
        """Send a GET request, and validate the response.

        Raises:
            NoServer: no agentsd server answers, or it fails.
            RequestError: the server rejects the request.
        """
        return self._request("GET", path, reply)

    def post(self, path: str, reply: type[T], body: dict[str, Any]) -> T:
        """Send a POST request, and validate the response; raises the same errors as `get`."""
        return self._request("POST", path, reply, body)

    def _request(self, method: str, path: str, reply: type[T], body: dict[str, Any] | None = None) -> T:
        import httpx2

        headers = {"authorization": f"Bearer {self.key.get_secret_value()}"} if self.key else {}
        try:
            # No proxy and no .netrc: the key must only reach the named server.
            with httpx2.Client(trust_env=False, timeout=SECONDS) as client:
                response = client.request(method, self.url + path, json=body, headers=headers)
        except httpx2.TimeoutException:
            raise NoServer(f"the server at {self.url} does not answer") from None
        except httpx2.ConnectError:
            raise NoServer(f"there is no server at {self.url}: start one with `agentsd serve`") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise NoServer(f"{self.url} is not an agentsd server: {type(error).__name__}") from None
        try:
            body = response.json()
            return reply.model_validate(body) if response.is_success else self._refused(response.status_code, body)
        except (ValidationError, ValueError, KeyError, TypeError, RecursionError):
            raise NoServer(f"{self.url} is not an agentsd server: it answered {response.status_code}") from None

    def _refused(self, status: int, body: Any) -> Any:
        message = str(body["error"]["message"])
        if status == HTTPStatus.UNAUTHORIZED:
            what = "wrong key" if self.key else "missing key"
            message = f"{what} for the server at {self.url}: pass it as --key or {API_KEY_VARIABLE}"
        if status < 500:
            raise RequestError(message)
        raise NoServer(f"the server at {self.url} failed: {message}")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0 and text.split() == [text]
    except ValueError:
        return False


def encoded(reply: BaseModel) -> str:
    """Format a response as indented JSON."""
    return json.dumps(reply.model_dump(mode="json", exclude_none=True), ensure_ascii=False, indent=2)
