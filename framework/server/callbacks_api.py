"""`/hooks`, `/triggers`, `/logins` and `/oauth/callback`: what starts or continues runs from outside.

Webhooks are signed requests that start runs, as the other triggers of the project do by themselves; people come back
from logins at tool servers with a browser, and runs that waited continue.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hmac import compare_digest
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from framework.config.triggers import HmacScheme, LoadedTrigger, Webhook
from framework.engine.runtime.runtime import Runtime
from framework.engine.triggers import TriggerReport, Triggers, trigger_reports
from framework.server.errors import AccessDenied, BodyTooLarge, InvalidSignature, ServerNotFound
from framework.server.identity import Admin, Chatter, Identity, Reader, check_access
from framework.server.request_handling import (
    MessageRoute,
    ServedRuntime,
    ServerRoute,
    api_router,
    error_responses,
    json_body,
    shared,
    verbatim_response,
    with_security_headers,
)
from framework.server.schemas import Id, ResponseModel
from framework.store.types import RunInfo, RunQuery
from framework.tools.logins import Account, account_at, login_name
from framework.types.errors import AgentsdError, RequestError, ToolError, TriggerBusy, TriggerNotFound
from framework.types.report import Status
from framework.types.state import Approve
from framework.types.text import bytes_digest, content_digest, read_json

if TYPE_CHECKING:
    from framework.tools.mcp.login import BegunLogin

SENDER = Identity("webhook", roles=frozenset())
"""The sender of a signed request: it may do nothing else."""
_MAX_HEADER_CHARS = 4096
_MAX_SIGNATURES = 10
_MAX_ID_CHARS = 200
_FORM = "application/x-www-form-urlencoded"
_MAX_FIELDS = 1000
_HIDDEN_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization"})
_SCHEMES = {
    "github": HmacScheme(header="x-hub-signature-256", prefix="sha256="),
    "slack": HmacScheme(header="x-slack-signature", prefix="v0=", timestamp="x-slack-request-timestamp"),
    "stripe": HmacScheme(header="stripe-signature"),
}


class TriggerList(ResponseModel):
    """The triggers of the project, sorted by name."""

    items: tuple[TriggerReport, ...]


class TriggeredRun(ResponseModel):
    """The run that a trigger has started."""

    run_id: str


class WebhookAnswer(ResponseModel):
    """What a delivery has led to."""

    run_id: str | None = None
    """The run of this delivery. A repetition of the delivery has the same one."""
    reason: str | None = None
    """Why it starts no run."""


class _WebhookRoute(MessageRoute):
    """Admits every request: its signature is checked once its body is read."""

    def check_access(self, request: Request) -> None:
        check_access(lambda _: SENDER, request)


webhook_routes = api_router("runs", _WebhookRoute, prefix="")
trigger_routes = api_router("configuration")


@webhook_routes.post("/hooks/{hook}", include_in_schema=False)
async def receive(request: Request, runtime: ServedRuntime, hook: Id) -> Response:
    """Start the run of a signed request."""
    trigger = runtime.catalog.current.triggers.get(hook)
    webhook = trigger.spec.webhook if trigger else None
    if trigger is None or webhook is None:
        raise InvalidSignature(f"there is no webhook {hook!r}, or the signature does not match")
    body, sent = await _read_body(request, webhook.max_bytes), request.headers.items()
    headers = {name.lower(): value for name, value in sent if name.lower() not in _HIDDEN_HEADERS}
    now = runtime.store.now()
    _check_signature(hook, webhook, body, headers, now)
    data = await _parsed(request, body)
    if webhook.verify == "slack" and isinstance(data, dict) and data.get("type") == "url_verification":
        return JSONResponse({"challenge": data.get("challenge")})
    if unmet := trigger.unmet(data, headers):
        return verbatim_response(WebhookAnswer(reason=f"the condition on {unmet} is not met"))
    time = datetime.fromtimestamp(now, UTC)
    variables = {"body": data, "header": headers, "digest": bytes_digest(body), "time": time}
    delivery = _delivery_id(trigger, webhook, variables)
    try:
        run_id = await Triggers(runtime).deliver(trigger, variables, delivery)
    except TriggerBusy as busy:
        return verbatim_response(WebhookAnswer(reason=busy.message))
    return verbatim_response(WebhookAnswer(run_id=run_id), 202)


async def _read_body(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "0")
    if (declared.isascii() and declared.isdigit() and int(declared[:20]) > max_bytes) or len(
        body := await request.body()
    ) > max_bytes:
        raise BodyTooLarge(f"the request body exceeds {max_bytes} bytes (webhook.max_bytes)")
    return body


async def _parsed(request: Request, body: bytes) -> Any:
    """Return the JSON of a body, or the fields of a form; that of its only field `payload`, which is JSON."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        return await json_body(body)
    try:
        fields = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
        return read_json(fields["payload"]) if fields.keys() == {"payload"} else fields
    except ValueError as error:
        raise RequestError(f"invalid request: the body is not a form: {error}") from None


def _delivery_id(trigger: LoadedTrigger, webhook: Webhook, variables: Mapping[str, Any]) -> str:
    """Return the id by which repetitions of a delivery are recognized."""
    body, headers = variables["body"], variables["header"]
    own = body if isinstance(body, Mapping) else {}
    if webhook.dedupe is not None:
        found: Any = trigger.delivery_id(webhook.dedupe, variables)
    elif webhook.verify == "github":
        found = headers.get("x-github-delivery")
    elif webhook.verify == "stripe":
        found = own.get("id")
    elif webhook.verify == "slack":
        found = own.get("event_id") or headers.get("x-slack-signature")
    else:
        scheme = webhook.verify.hmac
        found = scheme.timestamp and f"{headers.get(scheme.timestamp.lower())}.{variables['digest']}"
    text = found if isinstance(found, str) and found else str(variables["digest"])
    return text if len(text) <= _MAX_ID_CHARS and text.isprintable() else content_digest(text)


def _check_signature(name: str, webhook: Webhook, body: bytes, headers: Mapping[str, str], now: float) -> None:
    """Raise InvalidSignature unless the body, with its time if that is signed, has a signature of the secret."""
    scheme = _SCHEMES[webhook.verify] if isinstance(webhook.verify, str) else webhook.verify.hmac
    given = [headers.get(scheme.header.lower(), "")]
    moment = headers.get(scheme.timestamp.lower(), "") if scheme.timestamp else None
    if webhook.verify == "stripe":
        parts = [part.partition("=") for part in given[0][:_MAX_HEADER_CHARS].split(",")]
        moment = next((value for key, _, value in parts if key.strip() == "t"), "")
        given = [value for key, _, value in parts if key.strip() == "v1"][:_MAX_SIGNATURES]
    before = "" if moment is None else f"v0:{moment}:" if webhook.verify == "slack" else f"{moment}."
    digest = hmac.new(webhook.secret.get_secret_value().encode(), before.encode() + body, scheme.algorithm).digest()
    expected = scheme.prefix + (digest.hex() if scheme.encoding == "hex" else b64encode(digest).decode())
    if not any(hmac.compare_digest(one.encode(), expected.encode()) for one in given):
        raise InvalidSignature(f"there is no webhook {name!r}, or the signature does not match")
    if moment is not None and not _is_recent(moment, now, webhook.tolerance):
        raise InvalidSignature(f"the time of the signature differs by more than {webhook.tolerance:.0f} s from now")


def _is_recent(moment: str, now: float, tolerance: float) -> bool:
    is_number = moment.isascii() and moment.isdigit() and len(moment) < 20
    return is_number and abs(now - int(moment)) <= tolerance


def _visible(identity: Identity, runtime: Runtime) -> dict[str, LoadedTrigger]:
    """Return the triggers whose runs exist for the client."""
    return {
        name: one
        for name, one in runtime.catalog.current.triggers.items()
        if identity.can_access(tenant=one.spec.tenant, user=one.user, agent=one.spec.agent)
    }


def _find(identity: Identity, runtime: Runtime, name: str) -> LoadedTrigger:
    if (found := _visible(identity, runtime).get(name)) is None:
        raise TriggerNotFound(f"there is no trigger {name!r}", param="name")
    return found


async def _report(runtime: Runtime, trigger: LoadedTrigger) -> Response:
    states = await runtime.store.triggers.all()
    return verbatim_response(trigger_reports({trigger.name: trigger}, states, runtime.store.now())[0])


@trigger_routes.get("/triggers", response_model=TriggerList)
async def list_triggers(identity: Reader, runtime: ServedRuntime) -> Response:
    """Return the triggers: when each starts runs, next and last, and why it did not."""
    found = _visible(identity, runtime)
    states = await runtime.store.triggers.all() if found else {}
    return verbatim_response(TriggerList(items=trigger_reports(found, states, runtime.store.now())))


@trigger_routes.post(
    "/triggers/{name}/run", response_model=TriggeredRun, status_code=202, responses=error_responses(404, 409)
)
async def run_trigger(identity: Admin, runtime: ServedRuntime, name: Id) -> Response:
    """Start the run of a cron trigger now, also while it is paused."""
    run_id = await Triggers(runtime).run(_find(identity, runtime, name))
    return verbatim_response(TriggeredRun(run_id=run_id), 202)


@trigger_routes.post("/triggers/{name}/pause", response_model=TriggerReport, responses=error_responses(404))
async def pause_trigger(identity: Admin, runtime: ServedRuntime, name: Id) -> Response:
    """Pause a trigger in all processes: it starts no run until it is resumed."""
    trigger = _find(identity, runtime, name)
    await Triggers(runtime).pause(trigger, identity.user or identity.name)
    return await _report(runtime, trigger)


@trigger_routes.post("/triggers/{name}/resume", response_model=TriggerReport, responses=error_responses(404))
async def resume_trigger(identity: Admin, runtime: ServedRuntime, name: Id) -> Response:
    """Resume a paused trigger. Times of its schedule during the pause start no run."""
    trigger = _find(identity, runtime, name)
    await Triggers(runtime).resume(trigger)
    return await _report(runtime, trigger)


log = logging.getLogger(__name__)
CALLBACK = "/oauth/callback"
_SECONDS = 600.0
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


login_routes = api_router("runs", MessageRoute)
callback_route = APIRouter(route_class=ServerRoute)
"""The route without access control: it has its own."""
_Logins = Annotated[Logins, shared(lambda state: Logins(state.runtime))]


@login_routes.post("/logins/{server}", response_model=LoginAddress)
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
