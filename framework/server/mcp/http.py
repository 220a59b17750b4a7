"""MCP over streamable HTTP: sessions of clients that begin with a handshake, and single requests of newer ones."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from framework.server.event_stream import OpenStreams, send_pieces, until_client_leaves
from framework.server.identity import Identity, identity_of
from framework.server.mcp.agents import MAX_MCP_SESSIONS, AgentServer, Context, McpCaller
from framework.server.request_handling import CHAT_BODY_BYTES
from framework.server.run_service import RunService
from framework.server.wording import pages_of

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
            return _McpResponse(self._sessions, self._service.streams, identity, body, admitted.pop_all())


def _caller(context: Context) -> McpCaller:
    assert context.request is not None
    return McpCaller(identity_of(context.request), _DECIDE, pages_of(context.request))


class _McpResponse(Response):
    """Lets the MCP server answer a request."""

    def __init__(
        self,
        sessions: StreamableHTTPSessionManager,
        streams: OpenStreams,
        identity: Identity,
        body: bytes,
        admitted: ExitStack,
    ) -> None:
        super().__init__()
        self._sessions, self._streams, self._identity, self._admitted = sessions, streams, identity, admitted
        self._body: bytes | None = body
        """What the MCP server has not received yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, with the headers of all responses. A client that does not read it counts as gone."""
        # One task waits for the end of the connection, so that whether it has ended is known without waiting.
        leaving, deaf = asyncio.ensure_future(until_client_leaves(receive)), asyncio.get_running_loop().create_future()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                headers["cache-control"], headers["x-content-type-options"] = "no-store", "nosniff"
                await send(message)
            elif not deaf.done():
                try:
                    more = message.get("more_body", False)
                    await send_pieces(send, message.get("body", b""), self._streams, more=more)
                except TimeoutError:
                    if not deaf.done():
                        deaf.set_result(None)

        async def receive_again() -> Message:
            if self._body is not None:
                body, self._body = self._body, None
                return {"type": "http.request", "body": body, "more_body": False}
            if not (leaving.done() or deaf.done()):
                await asyncio.wait((leaving, deaf), return_when=asyncio.FIRST_COMPLETED)
            return {"type": "http.disconnect"}

        # A session accepts only requests of the identity that began it.
        user = AuthenticatedUser(AccessToken(token="", client_id=json.dumps(self._identity.owner), scopes=[]))
        with self._admitted:
            try:
                await self._sessions.handle_request({**scope, "user": user}, receive_again, send_with_headers)
            finally:
                leaving.cancel()
