"""Logins at MCP servers and APIs with OAuth: what is stored of them, and how they are obtained, renewed and used.

The SDK's providers know the protocol. They are driven by hand, as HTTP libraries drive them: so every request to an
authorization server, whose address a tool server names, passes the guarded client.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.utils import (
    extract_field_from_www_auth,
    extract_resource_metadata_from_www_auth,
    extract_scope_from_www_auth,
    issuers_match,
    union_scopes,
)
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import SecretStr, ValidationError

from framework.tools.http import (
    HttpClient,
    HttpReply,
    WebUrl,
    ascii_url,
    is_address,
    is_allowed_address,
    parse_http_url,
)
from framework.tools.logins import Account, LoginStore, StoredLogin
from framework.tools.tool import Inquiry, ToolContext
from framework.types.errors import ToolError
from framework.types.http import HttpLimits
from framework.types.state import Approve, Reject
from framework.types.text import one_line
from framework.types.tool_servers import OAuth

_EARLY_SECONDS = 30.0
"""Time before its end at which a token is renewed, in seconds."""
_REQUEST_SECONDS = 20.0
_REFUSALS = {400, 401, 403}
"""HTTP statuses with which an authorization server ends a login."""
_MAX_LOGINS = 5
"""How often one call may wait for a login."""
_SENT_HEADERS = ("accept", "authorization", "content-type", "mcp-protocol-version")
_KEPT_HEADERS = ("content-type", "location", "www-authenticate")
_RESOURCE_METADATA = "/.well-known/oauth-protected-resource"
_PROTOCOL = {"mcp-protocol-version": "2025-11-25"}
_PING = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
_PING_HEADERS = {**_PROTOCOL, "content-type": "application/json", "accept": "application/json, text/event-stream"}


class _Storage:
    """The `TokenStorage` of one flow of the SDK."""

    def __init__(self, login: Login, redirect_uri: str, *, renews: bool) -> None:
        self._login, self._redirect_uri, self._renews = login, redirect_uri, renews
        self.stored = login.store.read(login.account)
        self.provider: OAuthClientProvider | None = None

    async def get_tokens(self) -> OAuthToken | None:
        """Return the stored tokens if they are to be renewed; a new login starts without."""
        return OAuthToken.model_validate(self.stored.tokens) if self.stored.tokens and self._renews else None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store new tokens with what is needed to renew them."""
        assert self.provider
        context = self.provider.context
        metadata, resource, client = context.oauth_metadata, context.protected_resource_metadata, context.client_info
        self.stored = self.stored.model_copy(
            update={
                "tokens": tokens.model_dump(mode="json", exclude_none=True),
                "expires_at": time.time() + tokens.expires_in if tokens.expires_in else None,
                "issuer": str(metadata.issuer) if metadata else self.stored.issuer,
                "metadata": metadata.model_dump(mode="json", exclude_none=True) if metadata else None,
                "resource": resource.model_dump(mode="json", exclude_none=True) if resource else None,
                "client": client.model_dump(mode="json", exclude_none=True) if client else None,
                "challenge": "",
            }
        )
        self._login.store.write(self._login.account, self.stored)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the client of the file or, if its redirect URI fits, the one that was registered."""
        if client := self._login.configured_client(self._redirect_uri):
            return client
        if self.stored.client is None:
            return None
        known = OAuthClientInformationFull.model_validate(self.stored.client)
        is_usable = self._renews or self._redirect_uri in map(str, known.redirect_uris or ())
        return known if is_usable else None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep a client for `set_tokens`; refuse one that replaces the client of the file."""
        config = self._login.config
        if config.client_id is not None and client_info.client_id != config.client_id:
            raise OAuthFlowError("the server names an authorization server other than `issuer`")


class Login:
    """The login of one account."""

    def __init__(self, store: LoginStore, account: Account, config: OAuth) -> None:
        self.store, self.account, self.config = store, account, config
        self.is_needed = False
        """Whether the server has refused the last request, and nothing but a person can change that."""
        self._refused_at = self._last_status = 0

    @property
    def command(self) -> str:
        """The command that logs in."""
        names = (("--user", self.account.user), ("--tenant", self.account.tenant))
        options = "".join(f" {option} {shlex.quote(name)}" for option, name in names if name)
        return f"agentsd tools login {self.account.server}{options}"

    def refuse(self) -> None:
        """Note that nothing but a person can help."""
        self.is_needed, self._refused_at = True, self.store.version(self.account)

    def has_changed(self) -> bool:
        """Return whether the stored login has changed since the server refused it."""
        return self.store.version(self.account) != self._refused_at

    @property
    def is_automatic(self) -> bool:
        """Whether no person is needed."""
        return self.config.grant == "client_credentials"

    def configured_client(self, redirect_uri: str) -> OAuthClientInformationFull | None:
        """Return the client of the file, if it is registered at the authorization server beforehand."""
        config = self.config
        if config.client_id is None or config.metadata_url is not None:
            return None
        secret = _plain(config.client_secret)
        return OAuthClientInformationFull.model_validate(
            {
                "client_id": config.client_id,
                "client_secret": secret,
                "redirect_uris": [redirect_uri],
                "token_endpoint_auth_method": config.secret_in if secret else "none",
                "issuer": config.issuer,
            }
        )

    async def token(self, refused: str | None = None) -> str | None:
        """Return an access token, renewed if it is due or `refused`; None if a person must log in.

        Raises:
            ToolError: the authorization server cannot be reached, or refuses the client.
        """
        stored = self.store.read(self.account)
        if (token := self._usable(stored, refused)) or (stored.tokens is None and not self.is_automatic):
            return token
        async with self.store.locked(self.account):
            stored = self.store.read(self.account)
            if token := self._usable(stored, refused):  # another process was first
                return token
            if self.is_automatic:
                await self._obtain(stored.challenge)
            elif stored.tokens and stored.tokens.get("refresh_token"):
                await self._renew(stored)
            return self._usable(self.store.read(self.account), refused)

    def note_challenge(self, challenge: str) -> None:
        """Store the server's request to log in, for the scopes of the next login."""
        stored = self.store.read(self.account)
        if stored.challenge != challenge:
            self.store.write(self.account, stored.model_copy(update={"challenge": challenge}))

    async def log_in(
        self,
        redirect_uri: str,
        show: Callable[[str], Awaitable[None]],
        answer: Callable[[], Awaitable[AuthorizationCodeResult]],
    ) -> StoredLogin:
        """Log a person in.

        Args:
            redirect_uri: where the authorization server sends the browser afterwards.
            show: gets the address at which the person logs in.
            answer: returns what the browser brought back.

        Raises:
            ToolError: the login failed; the message says why.
        """
        metadata = OAuthClientMetadata.model_validate(
            {
                "redirect_uris": [redirect_uri],
                "client_name": "agentsd",
                "application_type": "native" if redirect_uri.startswith("http://") else "web",
                "token_endpoint_auth_method": None if self.config.client_secret else "none",
            }
        )
        storage = _Storage(self, redirect_uri, renews=False)
        provider = OAuthClientProvider(
            self.account.url, metadata, storage, show, answer, client_metadata_url=self.config.metadata_url
        )
        storage.provider = provider
        asked = storage.stored.model_copy(update={"challenge": await self._ask(storage.stored)})
        await self._drive(provider, self._challenge(asked))
        self.is_needed = False
        return self.store.read(self.account)

    async def _obtain(self, challenge: str) -> None:
        """Get a token for the client itself, without a person."""
        config, storage = self.config, _Storage(self, "", renews=False)
        assert config.client_id
        scope = " ".join(config.scopes) or None
        provider: OAuthClientProvider
        if key := _plain(config.private_key):
            signed = SignedJWTParameters(
                issuer=config.client_id,
                subject=config.client_id,
                signing_key=key,
                signing_algorithm=config.algorithm,
            )
            provider = PrivateKeyJWTOAuthProvider(
                self.account.url,
                storage,
                config.client_id,
                signed.create_assertion_provider(),
                scope,
                config.issuer,
            )
        else:
            provider = ClientCredentialsOAuthProvider(
                self.account.url,
                storage,
                config.client_id,
                _plain(config.client_secret) or "",
                config.secret_in,
                scope,
                config.issuer,
            )
        storage.provider = provider
        await self._drive(provider, self._challenge(storage.stored.model_copy(update={"challenge": challenge})))

    async def _renew(self, stored: StoredLogin) -> None:
        """Exchange the refresh token; if the authorization server refuses it, the tokens are forgotten."""
        storage = _Storage(self, "http://127.0.0.1/", renews=True)
        metadata = OAuthClientMetadata.model_validate({"redirect_uris": ["http://127.0.0.1/"]})
        provider = OAuthClientProvider(self.account.url, metadata, storage)
        storage.provider = provider
        known = provider.context
        if stored.metadata is None:  # its tokens may be sent to the server that issued them only
            return
        known.oauth_metadata = OAuthMetadata.model_validate(stored.metadata)
        known.auth_server_url = stored.issuer
        if stored.resource:
            known.protected_resource_metadata = ProtectedResourceMetadata.model_validate(stored.resource)
        known.token_expiry_time = 1.0  # long ago
        await self._drive(provider, None)
        if storage.stored != stored:
            return
        if self._last_status not in _REFUSALS:
            raise ToolError(f"the login at {self.account.server} was not renewed: HTTP {self._last_status}")
        self.store.write(self.account, stored.model_copy(update={"tokens": None, "expires_at": None}))

    def _usable(self, stored: StoredLogin, refused: str | None) -> str | None:
        if stored.tokens is None or not issuers_match(self.config.issuer or stored.issuer, stored.issuer):
            return None
        token = str(stored.tokens.get("access_token") or "")
        is_due = stored.expires_at is not None and stored.expires_at - _EARLY_SECONDS <= time.time()
        return token if token and not is_due and token != refused else None

    async def _ask(self, stored: StoredLogin) -> str:
        """Return the server's request to log in: before the first login, its refusal of a ping, which may be empty."""
        if stored.challenge or stored.tokens or self.config.issuer:
            return stored.challenge
        request = httpx2.Request("POST", self.account.url, headers=_PING_HEADERS, content=_PING)
        with suppress(ToolError):  # the flow reports it
            response = await self._send(request)
            return response.headers.get("www-authenticate", "") if response.status_code == 401 else ""
        return ""

    def _challenge(self, stored: StoredLogin) -> str:
        """Return the request to log in that the flow answers: the server's, with the scopes of the file."""
        response = httpx2.Response(401, headers={"www-authenticate": stored.challenge or "Bearer"})
        granted = str((stored.tokens or {}).get("scope") or "") or None
        asked = extract_scope_from_www_auth(response)
        if extract_field_from_www_auth(response, "error") == "insufficient_scope":
            asked = union_scopes(granted, asked)
        scope = union_scopes(" ".join(self.config.scopes) or None, asked)
        resource = extract_resource_metadata_from_www_auth(response)
        parts = [f'resource_metadata="{resource}"'] if resource else []
        parts += [f'scope="{scope}"'] if scope else []
        return f"Bearer {', '.join(parts)}".strip()

    async def _drive(self, provider: OAuthClientProvider, challenge: str | None) -> None:
        """Run a flow of the SDK: answer its first request with `challenge`, and send its other requests.

        Raises:
            ToolError: the flow failed.
        """
        request = httpx2.Request("POST", self.account.url, headers=_PROTOCOL)
        try:
            async with aclosing(provider.async_auth_flow(request)) as flow:
                outgoing = await anext(flow)
                while True:
                    if outgoing is not request:
                        response = await self._send(outgoing)
                    elif challenge is None:
                        return
                    else:
                        response = httpx2.Response(401, headers={"www-authenticate": challenge}, request=request)
                        challenge = None
                    outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        except ToolError as error:
            raise ToolError(f"the login at {self.account.server} failed: {error.message}") from None
        except (OAuthFlowError, ValidationError, ValueError) as error:
            why = one_line(str(error), 300) if not isinstance(error, ValidationError) else "invalid data"
            raise ToolError(f"the login at {self.account.server} failed: {why}") from None

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request of a flow with the guarded client."""
        url = parse_http_url(str(request.url))
        headers = {name: request.headers[name] for name in _SENT_HEADERS if name in request.headers}
        body = await request.aread()
        reply = await self._client(url).request(request.method, url, headers=headers, body=body or None, follow=False)
        self._last_status = reply.status
        if reply.status == 404 and url.target == _RESOURCE_METADATA and self.config.issuer:
            found = {"resource": self.account.url, "authorization_servers": [self.config.issuer]}
            return httpx2.Response(200, json=found, request=request)  # most APIs do not describe themselves
        kept = {name: value for name, value in reply.headers.items() if name in _KEPT_HEADERS}
        return httpx2.Response(reply.status, headers=kept, content=reply.body, request=request)

    def require_reachable(self, url: WebUrl) -> None:
        """Raise ToolError for an address to which no one must send a password."""
        self._client(url)

    def _client(self, url: WebUrl) -> HttpClient:
        """Return a client for a host: those of the file may be private, others as `tools.http` says."""
        chosen = {parse_http_url(text).origin for text in (self.account.url, self.config.issuer) if text}
        if url.origin in chosen:
            return HttpClient.to(url, timeout=_REQUEST_SECONDS)
        limits = self.store.limits()
        if url.scheme == "http" and not limits.private_networks:
            raise ToolError(f"the authorization server {url.origin} is not encrypted")
        if is_address(url.host) and not is_allowed_address(url.host, limits.private_networks):
            raise ToolError(f"the authorization server {url.origin} has an address that is not public")
        return HttpClient(
            HttpLimits(
                domains=(f"{url.url_host}:{url.port}",),
                methods=("GET", "POST"),
                private_networks=limits.private_networks,
                timeout=_REQUEST_SECONDS,
            )
        )


class BegunLogin:
    """A login for which the browser of a person is expected."""

    def __init__(self, login: Login, redirect_uri: str) -> None:
        """Begin a login; `redirect_uri` is where the authorization server sends the browser afterwards."""
        loop = asyncio.get_running_loop()
        self.account = login.account
        self._login = login
        self._address: asyncio.Future[str] = loop.create_future()
        self._answer: asyncio.Future[AuthorizationCodeResult] = loop.create_future()
        self._task = asyncio.create_task(login.log_in(redirect_uri, self._show, self._wait))

    async def address(self) -> str:
        """Return the address at which the person logs in; raise ToolError if the login fails before."""
        first: set[asyncio.Future[Any]] = {self._address, self._task}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not self._address.done():
            await self._task
            raise ToolError(f"{self.account.server} needs no person to log in")
        return self._address.result()

    def answer(self, query: Mapping[str, str]) -> None:
        """Take over what the browser has brought back."""
        if self._answer.done():
            return
        if error := query.get("error"):
            why = one_line(query.get("error_description") or error, 200)
            self._answer.set_exception(ToolError(f"the authorization server says: {why}"))
        else:
            found = {key: query.get(key) for key in ("state", "iss")}
            self._answer.set_result(AuthorizationCodeResult(code=query.get("code", ""), **found))

    async def finish(self, timeout: float) -> StoredLogin:
        """Wait until the person has logged in.

        Args:
            timeout: how long to wait, in seconds.

        Raises:
            ToolError: the login failed, or nobody came back in time.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._task
        except TimeoutError:
            raise ToolError(f"nobody logged in within {timeout:g} s") from None

    def close(self) -> None:
        """Give the login up, if it is not finished."""
        self._task.cancel()
        self._task.add_done_callback(lambda task: None if task.cancelled() else task.exception())

    async def _show(self, address: str) -> None:
        self._login.require_reachable(ascii_url(address))
        self._address.set_result(address)

    async def _wait(self) -> AuthorizationCodeResult:
        return await self._answer


class LoginAuth(httpx2.Auth):
    """Adds the token of a login to the requests to its server. An HTTP client's authentication."""

    def __init__(self, login: Login) -> None:
        self._login = login

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send the request with a token; once more with a new one if the server refuses it."""
        login, token = self._login, await self._token(request)
        if token:
            request.headers["authorization"] = f"Bearer {token}"
        response = yield request
        if not _is_challenge(response):
            login.is_needed = False
            return
        login.note_challenge(response.headers.get("www-authenticate", ""))
        needs_more = response.status_code == 403
        fresh = await self._token(request, token) if token or login.is_automatic else None
        if fresh is None or (needs_more and not login.is_automatic):
            if not login.is_automatic:
                login.refuse()
            return
        request.headers["authorization"] = f"Bearer {fresh}"
        response = yield request
        if _is_challenge(response) and not login.is_automatic:
            login.refuse()

    async def _token(self, request: httpx2.Request, refused: str | None = None) -> str | None:
        try:
            return await self._login.token(refused)
        except ToolError as error:  # as a failure of the connection, which is reported and repeated
            raise httpx2.TransportError(error.message, request=request) from None


def _is_challenge(response: httpx2.Response) -> bool:
    missing = response.status_code == 403 and extract_field_from_www_auth(response, "error") == "insufficient_scope"
    return response.status_code == 401 or missing


def _plain(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret is not None else None


async def send_logged_in(
    login: Login, send: Callable[[str | None], Awaitable[HttpReply]], context: ToolContext
) -> HttpReply:
    """Send a request of a tool call with the token of a login, once more with a new one if the server refuses it.

    A refused request had no effect. If only a person can log in, the run pauses. `send` sends the request with a
    token, or without one.

    Raises:
        ToolError: the request or the login failed.
    """
    await wait_for_login(login, context)
    token = await login.token()
    reply = await send(token)
    if not _is_refusal(reply):
        return reply
    login.note_challenge(reply.headers.get("www-authenticate", ""))
    fresh = await login.token(token) if login.is_automatic or (token and reply.status == 401) else None
    if fresh:
        reply = await send(fresh)
    if _is_refusal(reply) and not login.is_automatic:
        await ask_for_login(login, context)
    return reply


def _is_refusal(reply: HttpReply) -> bool:
    challenge = httpx2.Response(reply.status, headers={"www-authenticate": reply.headers.get("www-authenticate", "")})
    return _is_challenge(challenge)


async def wait_for_login(login: Login, context: ToolContext) -> None:
    """Read the decision on the login that this call has waited for; ask for one if the user has none.

    Raises:
        ToolError: a person has decided not to log in.
    """
    number = context.continuation.get("logins", 0)
    if number:
        (decision,) = await context.inquire([_inquiry(login, number)], context.continuation)
        if not isinstance(decision, Approve):
            reason = f": {decision.reason}" if isinstance(decision, Reject) and decision.reason else ""
            raise ToolError(f"{login.account.server} needs a login, which was rejected{reason}")
    if login.config.per == "user" and not await login.token():
        await ask_for_login(login, context)


async def ask_for_login(login: Login, context: ToolContext) -> None:
    """Pause the run until someone has logged in; raise ToolError if that has not helped."""
    number = context.continuation.get("logins", 0) + 1
    if number > _MAX_LOGINS:
        raise ToolError(f"{login.account.server} refuses every login")
    await context.inquire([_inquiry(login, number)], {**context.continuation, "logins": number})


def _inquiry(login: Login, number: int) -> Inquiry:
    account = login.account
    message = f"Log in at {account.words}: its server refuses the call without"
    return Inquiry("login", f"login{number}", message, f"log in with: {login.command}", url=str(ascii_url(account.url)))
