"""A server that runs, as commands ask it: where it is, the key it wants, and what it says."""

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
"""How long an answer may take: a rollback sets plugins up."""


class NoServer(AgentsdError):
    """Nothing answers there, or what answers is no server of ours."""

    code = "no_server"


@dataclass(frozen=True, slots=True)
class Remote:
    """A server by its URL."""

    url: str
    key: SecretStr | None = None

    @classmethod
    def of(cls, url: str | None, key: str | None, project: str) -> Remote:
        """Where the settings of a project say that its server is, unless a URL says where.

        A key of the settings is for the server of the settings: no other URL is given it.
        """
        shown = SecretStr(key) if key else None
        if url is not None:
            if not _is_url(url):
                raise RequestError(f"{url} is no URL of a server; write it like http://127.0.0.1:8321")
            return cls(url.rstrip("/"), shown)
        server = locate(project).settings().server
        return cls(server_url(server.host, server.port), shown or next(iter(server.api_keys), None))

    def get(self, path: str, reply: type[T]) -> T:
        """Ask for something.

        Raises:
            NoServer: nothing answers, or not as our servers do.
            RequestError: the server refuses.
        """
        return self._ask("GET", path, reply)

    def post(self, path: str, reply: type[T], body: dict[str, Any]) -> T:
        """Ask for something to be done; raises as `get`."""
        return self._ask("POST", path, reply, body)

    def _ask(self, method: str, path: str, reply: type[T], body: dict[str, Any] | None = None) -> T:
        import httpx2

        headers = {"authorization": f"Bearer {self.key.get_secret_value()}"} if self.key else {}
        try:
            # No proxy and no .netrc: the key goes to the server that was named, and the answer comes from there.
            with httpx2.Client(trust_env=False, timeout=SECONDS) as client:
                response = client.request(method, self.url + path, json=body, headers=headers)
        except httpx2.TimeoutException:
            raise NoServer(f"the server at {self.url} does not answer") from None
        except httpx2.ConnectError:
            raise NoServer(f"there is no server at {self.url}: start one with `agentsd serve`") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise NoServer(f"what is at {self.url} is no agentsd: {type(error).__name__}") from None
        try:
            said = response.json()
            return reply.model_validate(said) if response.is_success else self._refused(response.status_code, said)
        except (ValidationError, ValueError, KeyError, TypeError, RecursionError):
            raise NoServer(f"what is at {self.url} is no agentsd: it answered {response.status_code}") from None

    def _refused(self, status: int, said: Any) -> Any:
        message = str(said["error"]["message"])
        if status == HTTPStatus.UNAUTHORIZED:
            what = "the key is wrong" if self.key else "a key is needed"
            message = f"{what} for the server at {self.url}: give it as --key or {API_KEY_VARIABLE}"
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
    """A reply as people print it."""
    return json.dumps(reply.model_dump(mode="json", exclude_none=True), ensure_ascii=False, indent=2)
