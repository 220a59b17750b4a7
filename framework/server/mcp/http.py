"""MCP over streamable HTTP: sessions of clients that begin with a handshake, and single requests of newer ones."""

from __future__ import annotations

import asyncio
import json

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from framework.server.event_stream import AppResponse
from framework.server.identity import Identity, identity_of
from framework.server.mcp.agents import MAX_MCP_SESSIONS, AgentServer, Context, McpCaller
from framework.server.protocol_texts import pages_of
from framework.server.request_handling import CHAT_BODY_BYTES
from framework.server.run_service import RunService

_IDLE_SECONDS = 30 * 60.0
"""Time without requests after which a session ends."""
_DECIDE = (
    "A person must decide, but this client shows no forms, its key may not decide, or the form was closed. "
    "Ask the user to decide at {where}"
)


class McpEndpoint:
    """The MCP server of `/mcp`. It runs from the first request until the server's streams are closed."""

    def __init__(self, service: RunService) -> None:
        self._service = service
        self._server = AgentServer(service, _caller)
        # Host and Origin are checked by the access rules of all routes.
        self._sessions = StreamableHTTPSessionManager(
            self._server.server,
            session_idle_timeout=_IDLE_SECONDS,
            max_request_body_size=CHAT_BODY_BYTES,
            max_sessions=MAX_MCP_SESSIONS,
        )
        self._started, self._closing = asyncio.Event(), asyncio.Event()
        self._running = asyncio.create_task(self._run(), name="MCP sessions")

    async def _run(self) -> None:
        try:
            with self._service.streams.add(self._closing.set):
                async with self._sessions.run():
                    self._started.set()
                    await self._closing.wait()
        finally:
            self._server.close()

    async def response(self, identity: Identity, body: bytes) -> Response:
        """Return the response to a request of an identity with this body; raises RequestError if too many are open."""
        with self._service.limits.admit_stream(identity) as admitted:
            await self._started.wait()
            # A session accepts only requests of the identity that began it.
            user = AuthenticatedUser(AccessToken(token="", client_id=json.dumps(identity.owner), scopes=[]))

            async def answer(scope: Scope, receive: Receive, send: Send) -> None:
                await self._sessions.handle_request({**scope, "user": user}, receive, send)

            return AppResponse(answer, self._service.streams, body, admitted.pop_all())


def _caller(context: Context) -> McpCaller:
    assert context.request is not None
    return McpCaller(identity_of(context.request), _DECIDE, pages_of(context.request))
