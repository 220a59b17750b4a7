"""Logins at tool servers as files: one for each account, readable by the user of this process only."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from framework.types.errors import ToolError
from framework.types.frozen import Frozen
from framework.types.http import HttpLimits
from framework.types.installation import make_private_folder, write_private_file
from framework.types.text import did_you_mean
from framework.types.tool_servers import HttpTool, McpServer, OAuth, OpenApi

LOGINS_FOLDER = ".agentsd/logins"
"""Folder of a project with its logins."""
_LOCK_SECONDS = 0.05
"""Delay between two attempts to lock a login, in seconds."""


@dataclass(frozen=True, slots=True)
class Account:
    """Whose login it is: that of a server's entry for all, or for one user of one tenant."""

    server: str
    """Name of the server in its file."""
    url: str
    tenant: str | None = None
    user: str | None = None

    @property
    def words(self) -> str:
        """The account in messages."""
        owner = f" for {self.user or 'the user without a name'}" if self.user or self.tenant else ""
        return f"{self.server}{owner}{f' of {self.tenant}' if self.tenant else ''}"


class StoredLogin(Frozen):
    """What is stored of a login."""

    server: str
    url: str
    tenant: str | None = None
    user: str | None = None
    issuer: str = ""
    """The authorization server that issued the tokens."""
    tokens: dict[str, Any] | None = None
    """None while there is no login, or once it has ended."""
    expires_at: float | None = None
    """Unix time at which the access token ends."""
    client: dict[str, Any] | None = None
    """The client that is registered at the authorization server."""
    metadata: dict[str, Any] | None = None
    """Metadata of the authorization server."""
    resource: dict[str, Any] | None = None
    """Metadata of the tool server."""
    challenge: str = ""
    """The server's last request to log in, with the scopes that it needs."""


class LoginStore:
    """The logins of a project: one file each, readable by the user of this process only."""

    def __init__(self, folder: Path, limits: Callable[[], HttpLimits]) -> None:
        """Use a folder.

        `limits` returns the current limits of HTTP requests; its private networks may contain authorization servers.
        """
        self._folder, self.limits = folder, limits

    def path(self, account: Account) -> Path:
        """Return the file of an account: no part of a name decides the path."""
        key = json.dumps([account.url, account.tenant, account.user])
        return self._folder / f"{account.server}-{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    def read(self, account: Account) -> StoredLogin:
        """Return what is stored of an account; raise ToolError if its file cannot be read."""
        fresh = StoredLogin(server=account.server, url=account.url, tenant=account.tenant, user=account.user)
        try:
            found = StoredLogin.model_validate_json(self.path(account).read_bytes())
        except FileNotFoundError:
            return fresh
        except (OSError, ValidationError) as error:
            raise ToolError(f"cannot read the login {self.path(account)}: {type(error).__name__}") from None
        is_same = (found.url, found.tenant, found.user) == (account.url, account.tenant, account.user)
        return found if is_same else fresh

    def write(self, account: Account, login: StoredLogin) -> None:
        """Replace what is stored of an account; raise ToolError if it cannot be written."""
        try:
            write_private_file(self.path(account), login.model_dump_json(exclude_none=True, indent=2) + "\n")
        except OSError as error:
            raise ToolError(f"cannot write the login {self.path(account)}: {error}") from None

    def version(self, account: Account) -> int:
        """Return a number that changes when the login of an account changes."""
        try:
            return self.path(account).stat().st_mtime_ns
        except OSError:
            return 0

    def delete(self, account: Account) -> bool:
        """Delete the login of an account; return whether there was one."""
        had = self.read(account).tokens is not None
        self.path(account).unlink(missing_ok=True)
        return had

    def all(self) -> Iterator[StoredLogin]:
        """Yield all stored logins, sorted by server, tenant and user."""
        found = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                found.append(StoredLogin.model_validate_json(path.read_bytes()))
            except (OSError, ValidationError):
                continue
        yield from sorted(found, key=lambda one: (one.server, one.tenant or "", one.user or ""))

    @asynccontextmanager
    async def locked(self, account: Account) -> AsyncIterator[None]:
        """Wait until no other task or process renews this login."""
        path = self.path(account).with_suffix(".lock")
        make_private_folder(path.parent)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(_LOCK_SECONDS)
            yield
        finally:
            os.close(handle)


def account_at(
    configs: Mapping[str, object], server: str, tenant: str | None, user: str | None
) -> tuple[Account, OAuth]:
    """Return an account at a server, and how to log in there.

    The owner is ignored if there is one login for all.

    Raises:
        ToolError: there is no such server, or it needs no login.
    """
    known = login_servers(configs)
    if server not in known:
        others = did_you_mean(server, list(known))
        raise ToolError(f"there is no MCP server or API with `auth.oauth` named {server!r}{others}")
    url, oauth = known[server]
    owner = (tenant, user) if oauth.per == "user" else (None, None)
    return Account(server, url, *owner), oauth


def login_servers(configs: Mapping[str, object]) -> Mapping[str, tuple[str, OAuth]]:
    """Return the URL of each server that needs a login, and how to log in there, by the server's name."""
    known: dict[str, tuple[str, OAuth]] = {}
    for name, config in configs.items():
        if isinstance(config, McpServer | OpenApi | HttpTool) and config.auth and (oauth := config.auth.oauth):
            known.setdefault(login_name(name), (_login_url(config), oauth))
    return known


def login_name(tool: str) -> str:
    """Return the name of the login of a tool or source: that of its MCP server or API, or the begin of its name."""
    return tool.removeprefix("mcp.").partition(".")[0]


def _login_url(config: McpServer | OpenApi | HttpTool) -> str:
    """Return the URL that stands for a server in its logins; of an HTTP tool, that of its host."""
    if isinstance(config, HttpTool):
        scheme, _, rest = config.request[1].partition("://")
        return f"{scheme}://{rest.partition('/')[0]}"
    return str(config.base_url if isinstance(config, OpenApi) else config.url)
