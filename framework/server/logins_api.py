"""`/logins` and `/oauth/callback`: people log in at tool servers with a browser, and runs that waited continue."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from hmac import compare_digest
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse, Response

from framework.engine.runtime.runtime import Runtime
from framework.server.errors import AccessDenied, ServerNotFound
from framework.server.identity import Chatter, Identity
from framework.server.request_handling import (
    MessageRoute,
    ServerRoute,
    api_router,
    shared,
    verbatim_response,
    with_security_headers,
)
from framework.server.schemas import Id, ResponseModel
from framework.store.types import RunInfo, RunQuery
from framework.tools.logins import Account, account_at, login_name
from framework.types.errors import AgentsdError, RequestError, ToolError
from framework.types.report import Status
from framework.types.state import Approve

if TYPE_CHECKING:
    from framework.tools.mcp.login import BegunLogin

log = logging.getLogger(__name__)
CALLBACK = "/oauth/callback"
_SECONDS = 600.0
"""Time for a person to log in, in seconds."""
_MAX_BEGUN = 200
"""Number of logins that wait for a browser at the same time; the oldest one is given up."""
_MAX_WAITING = 1000
"""Number of paused runs among which those that wait for a login are looked for."""
_PAUSED: tuple[Status, ...] = ("paused",)


class LoginAddress(ResponseModel):
    """Where a person logs in. The browser that asks for it must also be the one that opens it."""

    server: str
    user: str | None
    """Whose login it is; null if it is that of all runs."""
    tenant: str | None
    url: str
    """Address at the authorization server."""
    host: str
    """Its host, in ASCII."""
    expires_in: float
    """Time to log in, in seconds."""


@dataclass(frozen=True, slots=True)
class _Begun:
    login: BegunLogin
    cookie: str
    """Secret of the browser that started the login: another one cannot end it."""
    by: str
    """Who started it."""
    is_shared: bool
    """Whether it is the login of all runs."""


class Logins:
    """The logins that this process has started."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._begun: dict[str, _Begun] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, identity: Identity, server: str, user: str | None, callback: str) -> tuple[str, str, Account]:
        """Begin a login; return the address for the person, the secret for the browser, and the account.

        Raises:
            ServerNotFound: there is no such server.
            RequestError: its authorization server cannot be used.
            AccessDenied: the login of all runs needs the role `admin`.
        """
        from framework.tools.mcp.login import BegunLogin, Login

        catalog = self._runtime.catalog
        try:
            account, oauth = account_at(catalog.current.external.configs, server, identity.tenant, user)
        except ToolError as error:
            raise ServerNotFound(error.message, param="server") from None
        try:
            if oauth.per == "server" and "admin" not in identity.roles:
                raise AccessDenied(
                    f"the key {identity.name!r} lacks the role 'admin', which the login of all runs needs"
                )
            begun = BegunLogin(Login(catalog.logins, account, oauth), callback)
            address = await begun.address()
        except ToolError as error:
            raise RequestError(error.message, param="server") from None
        (state,) = parse_qs(urlsplit(address).query)["state"]
        while len(self._begun) >= _MAX_BEGUN:
            self._begun.pop(next(iter(self._begun))).login.close()
        cookie = secrets.token_urlsafe(32)
        by, is_shared = identity.user or identity.name, oauth.per == "server"
        self._begun[state] = _Begun(begun, cookie, by, is_shared)
        task = asyncio.create_task(self._finish(state, self._begun[state]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return address, cookie, account

    async def end(self, query: Mapping[str, str], cookies: Mapping[str, str]) -> Account:
        """End the login that a browser comes back from; return whose it is.

        Raises:
            RequestError: there is no such login in this browser, or it failed.
        """
        state = query.get("state", "")
        begun = self._begun.get(state)
        if begun is None or not compare_digest(cookies.get(cookie_of(state), "").encode(), begun.cookie.encode()):
            raise RequestError("this login was not begun in this browser, or it took too long: begin it again")
        begun.login.answer(query)
        try:
            await begun.login.finish(_SECONDS)
        except ToolError as error:
            raise RequestError(error.message) from None
        return begun.login.account

    async def _finish(self, state: str, begun: _Begun) -> None:
        """Wait for the person, then continue the runs that waited for this login."""
        try:
            await begun.login.finish(_SECONDS)
        except ToolError as error:
            log.info("%s", error.message)
            return
        finally:
            self._begun.pop(state, None)
            begun.login.close()
        account = begun.login.account
        query = RunQuery(statuses=_PAUSED, user=account.user, tenant=account.tenant, limit=_MAX_WAITING)
        for info in await self._runtime.store.runs(query):
            if begun.is_shared or (info.tenant, info.user) == (account.tenant, account.user):
                await self._continue(info, account, begun.by)

    async def _continue(self, info: RunInfo, account: Account, by: str) -> None:
        """Continue a run if it waits for the login of this account."""
        owner = {"user": info.user, "tenant": info.tenant}
        try:
            pending = await self._runtime.pending(info.run_id, **owner)
            waiting = [one for one in pending if one.kind == "login" and login_name(one.tool) == account.server]
            if waiting:
                decisions = {one.id: Approve() for one in waiting}
                await self._runtime.decide(info.run_id, decisions, **owner, by=by, execute=True)
        except AgentsdError as error:
            log.info("run %s does not continue after the login: %s", info.run_id, error.message)


def cookie_of(state: str) -> str:
    """Return the name of the cookie for a login: several may wait in one browser."""
    return f"agentsd_login_{hashlib.sha256(state.encode()).hexdigest()[:16]}"


routes = api_router("runs", MessageRoute)
callback_route = APIRouter(route_class=ServerRoute)
"""The route without access control: it has its own."""
_Logins = Annotated[Logins, shared(lambda state: Logins(state.runtime))]


@routes.post("/logins/{server}", response_model=LoginAddress)
async def begin_login(
    request: Request,
    identity: Chatter,
    logins: _Logins,
    server: Id,
    user: Annotated[Id | None, Query(description="Whose login it is, for a key without a user.")] = None,
) -> Response:
    """Begin a login at an MCP server or API with `auth`; open the returned address in the same browser."""
    callback = f"{str(request.base_url).rstrip('/')}{CALLBACK}"
    address, cookie, account = await logins.begin(identity, server, identity.user_of(user), callback)
    host = urlsplit(address).hostname or ""
    login = LoginAddress.of_parts(account, url=address, host=host, expires_in=_SECONDS)
    response = verbatim_response(login)
    (state,) = parse_qs(urlsplit(address).query)["state"]
    response.set_cookie(
        cookie_of(state),
        cookie,
        max_age=int(_SECONDS),
        path=CALLBACK,
        secure=callback.startswith("https://"),
        httponly=True,
        samesite="lax",
    )
    return response


@callback_route.get(CALLBACK, include_in_schema=False)
async def end_login(request: Request, logins: _Logins) -> Response:
    """End the login that a browser comes back from."""
    try:
        account = await logins.end(request.query_params, request.cookies)
    except RequestError as error:
        return with_security_headers(PlainTextResponse(f"The login failed: {error.message}.", 400))
    text = f"Logged in at {account.words}. You can close this page; runs that waited for it continue."
    return with_security_headers(PlainTextResponse(text))
