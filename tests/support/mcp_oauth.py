"""An MCP server with its authorization server, both of the SDK, in the event loop of the test."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


@dataclass
class Accounts(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """The accounts of the authorization server. Everybody who comes is logged in as `subject`."""

    subject: str = "ann"
    lifetime: int = 3600
    clients: dict[str, OAuthClientInformationFull] = field(default_factory=dict)
    codes: dict[str, AuthorizationCode] = field(default_factory=dict)
    access: dict[str, AccessToken] = field(default_factory=dict)
    refresh: dict[str, RefreshToken] = field(default_factory=dict)
    renewals: int = 0
    notes: int = 0
    """Number of notes that `guarded_api` was sent."""

    def revoke(self) -> None:
        """End all logins."""
        self.access.clear()
        self.refresh.clear()

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = AuthorizationCode(
            code=secrets.token_urlsafe(20),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
            subject=self.subject,
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._issue(client.client_id, authorization_code.scopes, authorization_code.subject)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        self.renewals += 1
        del self.refresh[refresh_token.token]
        return self._issue(client.client_id, scopes, refresh_token.subject)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.pop(token.token, None)

    def _issue(self, client_id: str, scopes: list[str], subject: str | None) -> OAuthToken:
        common: dict[str, Any] = {"client_id": client_id, "scopes": scopes, "subject": subject}
        access, refresh = secrets.token_urlsafe(20), secrets.token_urlsafe(20)
        self.access[access] = AccessToken(token=access, expires_at=int(time.time()) + self.lifetime, **common)
        self.refresh[refresh] = RefreshToken(token=refresh, **common)
        scope = " ".join(scopes)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=self.lifetime, scope=scope)


@asynccontextmanager
async def guarded_server(accounts: Accounts) -> AsyncIterator[str]:
    """Run the server; yield its URL. Its tool `whoami` returns the user of the login."""
    listening = socket.create_server(("127.0.0.1", 0))
    base = f"http://127.0.0.1:{listening.getsockname()[1]}"
    auth = AuthSettings.model_validate(
        {
            "issuer_url": base,
            "resource_server_url": f"{base}/mcp",
            "client_registration_options": ClientRegistrationOptions(enabled=True, valid_scopes=["read", "write"]),
            "required_scopes": ["read"],
            "validate_token_resource": False,
        }
    )
    server = MCPServer("guarded", auth_server_provider=accounts, auth=auth)

    def whoami() -> str:
        """Return the user."""
        token = get_access_token()
        return str(token.subject if token else None)

    server.add_tool(whoami)
    async with _listening(server.streamable_http_app(), listening):
        yield f"{base}/mcp"


@asynccontextmanager
async def guarded_api(accounts: Accounts) -> AsyncIterator[str]:
    """Run an API on a server of its own, which does not describe itself; yield its URL.

    `GET /v1/me` returns the user of the login, and `POST /v1/notes` adds one to `accounts.notes`.
    """

    async def answer(request: Request) -> Response:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        token = await accounts.load_access_token(given)
        if token is None:
            return Response(status_code=401, headers={"www-authenticate": 'Bearer error="invalid_token"'})
        if request.method == "POST":
            accounts.notes += 1
        return JSONResponse({"user": token.subject, "token": given})

    listening = socket.create_server(("127.0.0.1", 0))
    routes = [Route("/v1/me", answer), Route("/v1/notes", answer, methods=["POST"])]
    async with _listening(Starlette(routes=routes), listening):
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"


@asynccontextmanager
async def secretive_server(issuer: str, scope: str, resource: str = "mcp") -> AsyncIterator[str]:
    """Run a server that says only in its refusals where its metadata are, and which scope it needs; yield its URL.

    Its metadata are those of `resource`, the last part of a URL.
    """

    async def refuse(request: Request) -> Response:
        challenge = f'Bearer resource_metadata="{request.base_url}elsewhere", scope="{scope}"'
        return Response(status_code=401, headers={"www-authenticate": challenge})

    async def describe(request: Request) -> Response:
        return JSONResponse({"resource": f"{request.base_url}{resource}", "authorization_servers": [issuer]})

    listening = socket.create_server(("127.0.0.1", 0))
    routes = [Route("/mcp", refuse, methods=["POST"]), Route("/elsewhere", describe)]
    async with _listening(Starlette(routes=routes), listening):
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"


@asynccontextmanager
async def _listening(app: Starlette, listening: socket.socket) -> AsyncIterator[None]:
    running = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
    task = asyncio.create_task(running.serve(sockets=[listening]))
    try:
        yield
    finally:
        running.should_exit = True
        await task


async def browse(address: str, *, follow: bool = False) -> dict[str, str]:
    """Open an address as a browser does whose user agrees; return what it brings back, or also `follow` it there."""
    async with httpx2.AsyncClient(follow_redirects=False) as http:
        response = await http.get(address)
        assert response.status_code == 302, response.text
        back = response.headers["location"]
        if follow:
            assert (await http.get(back)).status_code == 200
        return dict(parse_qsl(urlsplit(back).query))
