"""Requests to a remote agent: the SDK's client on the guarded HTTP client, and what a card must say."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from a2a import types
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory

from framework.tools.http.client import HttpClient, HttpFailed, HttpRefused, HttpReply, validate_headers
from framework.tools.http.urls import UrlRefused, WebUrl, parse_http_url, refuse_ambiguous_path
from framework.types.errors import ConfigError, ToolError
from framework.types.strict_json import check_json_size
from framework.types.tool_servers import A2aAgent

BINDINGS = ("JSONRPC", "HTTP+JSON")
"""Forms of requests that are used, the preferred one first."""
MAX_VALUES = 10_000
"""Limit of JSON values in a response: the SDK parses it in the event loop."""
_VERSION = re.compile(r"1(\.\d{1,4}){0,2}\Z")
_ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._:~-]{1,256}\Z")
_OF_CLIENT = frozenset({"host", "content-length", "accept-encoding", "connection", "user-agent"})
"""Headers that the guarded client writes itself."""
_MAX_CARD_BYTES = 256_000
_SERVER_ERROR, _TOO_MANY_REQUESTS = 500, 429


class RemoteAgentError(ToolError):
    """A remote agent failed, or answered with what the protocol does not allow."""

    code = "remote_agent_failed"


@dataclass(frozen=True, slots=True)
class Card:
    """What is used of a remote agent's description of itself."""

    description: str
    url: str
    binding: str


def fixed_headers(agent: A2aAgent) -> dict[str, str]:
    """Return the headers of every request; raise ConfigError if one is invalid."""
    try:
        return validate_headers({name: value.get_secret_value() for name, value in agent.headers.items()})
    except ToolError as error:
        raise ConfigError(error.message) from None


def server_of(agent: A2aAgent) -> tuple[WebUrl, WebUrl]:
    """Return the URL of the card, and that of the server that gets the messages; raise ConfigError."""
    try:
        card = parse_http_url(agent.card)
        return card, parse_http_url(agent.url) if agent.url else card
    except UrlRefused as error:
        raise ConfigError(error.message) from None


async def read_card(agent: A2aAgent, headers: Mapping[str, str]) -> Card:
    """Return the card of an agent; raise ToolError if there is none that can be used."""
    url, server = server_of(agent)
    guarded = HttpClient.to(url, timeout=agent.timeout, max_bytes=_MAX_CARD_BYTES)
    try:
        async with httpx.AsyncClient(transport=GuardedTransport(guarded, headers), trust_env=False) as http:
            card = await A2ACardResolver(http, str(url)).get_agent_card("/")
    except ToolError:
        raise
    except Exception as error:  # noqa: BLE001 - the SDK raises errors of all kinds for what a server sends
        raise RemoteAgentError(f"{url} responded without a card of A2A 1.0 ({type(error).__name__})") from None
    found = card.supported_interfaces
    usable = [one for one in found if one.protocol_binding in BINDINGS and _VERSION.match(one.protocol_version)]
    if not usable:
        offered = sorted({f"{one.protocol_binding[:20]} {one.protocol_version[:20]}" for one in found})
        raise RemoteAgentError(f"the card names no interface of A2A 1.0 (JSONRPC, HTTP+JSON): {offered[:5]}")
    for one in sorted(usable, key=lambda one: BINDINGS.index(one.protocol_binding)):
        if _leads_to(one.url, server) and not one.tenant:
            return Card(card.description, one.url, one.protocol_binding)
    raise RemoteAgentError(
        f"the card leads to another server, {usable[0].url[:200]!r}: if that is right, write its address as `url`"
    )


def _leads_to(url: str, server: WebUrl) -> bool:
    try:
        target = parse_http_url(url)
        refuse_ambiguous_path(target)
    except UrlRefused:
        return False
    return target.origin == server.origin


def checked_body(reply: HttpReply) -> bytes:
    """Return the body of a response that the SDK may parse; raise RemoteAgentError if it is too large."""
    if reply.truncated:
        raise RemoteAgentError(f"the response is larger than {len(reply.body)} bytes (`max_bytes`)")
    try:
        check_json_size(reply.body.decode(), MAX_VALUES)
    except ValueError as error:
        raise RemoteAgentError(f"the response is no JSON that can be read: {error}") from None
    return reply.body


def checked_id(text: str, what: str) -> str:
    """Return an id that a remote agent chose; raise RemoteAgentError if it could change a URL."""
    if not _ID.match(text):
        raise RemoteAgentError(f"the {what} {text[:80]!r} is not one of at most 256 letters, digits and .-_:~")
    return text


class GuardedTransport(httpx.AsyncBaseTransport):
    """Sends the SDK's requests by the guarded client, to one server only."""

    def __init__(self, client: HttpClient, headers: Mapping[str, str]) -> None:
        logging.getLogger("a2a").setLevel(logging.CRITICAL)  # the SDK logs what servers send
        self._client, self._headers = client, dict(headers)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; raise HttpFailed if a repetition may succeed, HttpRefused or RemoteAgentError otherwise."""
        sent = {name: value for name, value in request.headers.items() if name not in _OF_CLIENT} | self._headers
        url = parse_http_url(str(request.url))
        body = await request.aread() or None
        reply = await self._client.request(request.method, url, headers=sent, body=body, follow=body is None)
        if reply.status >= _SERVER_ERROR or reply.status == _TOO_MANY_REQUESTS:
            raise HttpFailed(f"{url.host} responded with HTTP {reply.status}")
        if reply.status >= 300 and reply.content_type not in ("application/json", "application/a2a+json"):
            raise HttpRefused(f"{url.host} responded with HTTP {reply.status}")
        content_type = {"content-type": reply.headers.get("content-type", "application/json")}
        return httpx.Response(reply.status, headers=content_type, content=checked_body(reply), request=request)


def connect_to(agent: A2aAgent, card: Card, headers: Mapping[str, str]) -> Client:
    """Return a client for the interface of a card. It polls: nothing is lost with a connection."""
    _, server = server_of(agent)
    guarded = HttpClient.to(server, timeout=agent.timeout, max_bytes=agent.max_bytes)
    http = httpx.AsyncClient(transport=GuardedTransport(guarded, headers), trust_env=False)
    interface = types.AgentInterface(url=card.url, protocol_binding=card.binding, protocol_version="1.0")
    config = ClientConfig(streaming=False, polling=True, httpx_client=http, supported_protocol_bindings=[card.binding])
    return ClientFactory(config).create(types.AgentCard(supported_interfaces=[interface]))
