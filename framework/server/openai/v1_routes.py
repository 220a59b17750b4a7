"""The router of `/v1`."""

from __future__ import annotations

from fastapi import APIRouter

from framework.server.identity import Identify
from framework.server.openai.background_tasks import BackgroundTasks
from framework.server.openai.chat_completions import add_chat_completions_route
from framework.server.openai.exchange import Exchange
from framework.server.openai.models import add_models_routes
from framework.server.openai.responses import add_responses_route
from framework.server.openai.run_answer import RunAnswers
from framework.server.openai.v1_route import with_request_ids
from framework.server.request_handling import CHAT_BODY_BYTES, guarded_route
from framework.server.run_service import RunService


def v1_routes(service: RunService, identify: Identify) -> APIRouter:
    """Return the routes below `/v1`.

    Args:
        service: the operations on runs, shared with the other routes.
        identify: the access check.
    """
    runtime = service.runtime
    guarded = guarded_route(
        identify, lambda: runtime.settings.telemetry.inbound, CHAT_BODY_BYTES, service.limits.bodies
    )
    routes = APIRouter(prefix="/v1", route_class=with_request_ids(guarded), tags=["openai"])
    answers = RunAnswers(service)
    exchange = Exchange(answers, service.limits, service.streams)
    add_models_routes(routes, runtime)
    add_chat_completions_route(routes, exchange, BackgroundTasks(runtime, answers, service.limits))
    add_responses_route(routes, exchange)
    return routes
