"""`/hooks` and `/agent/triggers`: signed requests that start runs, and the triggers of the project."""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from framework.config.triggers import HmacScheme, LoadedTrigger, Webhook
from framework.engine.runtime.runtime import Runtime
from framework.engine.triggers import TriggerReport, Triggers, trigger_reports
from framework.server.errors import BodyTooLarge, InvalidSignature
from framework.server.identity import Admin, Identity, Reader, check_access
from framework.server.request_handling import (
    MessageRoute,
    ServedRuntime,
    api_router,
    error_responses,
    json_body,
    verbatim_response,
)
from framework.server.schemas import Id, ResponseModel
from framework.types.errors import RequestError, TriggerBusy, TriggerNotFound
from framework.types.strict_json import bytes_digest, content_digest, read_json

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
routes = api_router("configuration")


@webhook_routes.post("/hooks/{hook}", include_in_schema=False)
async def receive(request: Request, runtime: ServedRuntime, hook: Id) -> Response:
    """Start the run of a signed request."""
    trigger = runtime.catalog.current.triggers.get(hook)
    webhook = trigger.spec.webhook if trigger else None
    if trigger is None or webhook is None:
        raise InvalidSignature(f"there is no webhook {hook!r}, or the signature does not match")
    body, headers = await _read_body(request, webhook.max_bytes), _headers_of(request)
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


def _headers_of(request: Request) -> dict[str, str]:
    return {name.lower(): value for name, value in request.headers.items() if name.lower() not in _HIDDEN_HEADERS}


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
    states = await runtime.store.triggers()
    return verbatim_response(trigger_reports({trigger.name: trigger}, states, runtime.store.now())[0])


@routes.get("/triggers", response_model=TriggerList)
async def list_triggers(identity: Reader, runtime: ServedRuntime) -> Response:
    """Return the triggers: when each starts runs, next and last, and why it did not."""
    found = _visible(identity, runtime)
    states = await runtime.store.triggers() if found else {}
    return verbatim_response(TriggerList(items=trigger_reports(found, states, runtime.store.now())))


@routes.post("/triggers/{name}/run", response_model=TriggeredRun, status_code=202, responses=error_responses(404, 409))
async def run_trigger(identity: Admin, runtime: ServedRuntime, name: Id) -> Response:
    """Start the run of a cron trigger now, also while it is paused."""
    run_id = await Triggers(runtime).run(_find(identity, runtime, name))
    return verbatim_response(TriggeredRun(run_id=run_id), 202)


@routes.post("/triggers/{name}/pause", response_model=TriggerReport, responses=error_responses(404))
async def pause_trigger(identity: Admin, runtime: ServedRuntime, name: Id) -> Response:
    """Pause a trigger in all processes: it starts no run until it is resumed."""
    trigger = _find(identity, runtime, name)
    await Triggers(runtime).pause(trigger, identity.user or identity.name)
    return await _report(runtime, trigger)


@routes.post("/triggers/{name}/resume", response_model=TriggerReport, responses=error_responses(404))
async def resume_trigger(identity: Admin, runtime: ServedRuntime, name: Id) -> Response:
    """Resume a paused trigger. Times of its schedule during the pause start no run."""
    trigger = _find(identity, runtime, name)
    await Triggers(runtime).resume(trigger)
    return await _report(runtime, trigger)
