"""`POST /agui/{agent}`: runs an agent for a user interface that speaks AG-UI."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from framework.server.errors import NotInstalled
from framework.server.identity import requires
from framework.server.openapi import STREAM_RESPONSE, error_responses
from framework.server.run_service import RunService

_Respond = Callable[[Request, RunService, str], Awaitable[Response]]
_ROLES = ["developer", "system", "assistant", "user", "tool", "activity", "reasoning"]
_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "description": "RunAgentInput of AG-UI 1.0.",
                "required": ["threadId", "runId", "messages"],
                "anyOf": [
                    {"properties": {"messages": {"type": "array", "items": {}, "minItems": 1}}},
                    {"required": ["resume"], "properties": {"resume": {"type": "array", "items": {}, "minItems": 1}}},
                ],
                "properties": {
                    "threadId": {"type": "string", "description": "Id of the conversation."},
                    "runId": {"type": "string"},
                    "messages": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["id", "role"],
                            "properties": {
                                "id": {"type": "string"},
                                "role": {"enum": _ROLES},
                                "content": {"description": "A text, or a list of parts."},
                            },
                        },
                    },
                    "context": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["description", "value"],
                            "properties": {"description": {"type": "string"}, "value": {"type": "string"}},
                        },
                    },
                    "forwardedProps": {"type": "object"},
                    "resume": {
                        "type": "array",
                        "description": "The answers to the interrupts of the run that is paused.",
                        "items": {
                            "type": "object",
                            "required": ["interruptId", "status"],
                            "properties": {
                                "interruptId": {"type": "string"},
                                "status": {"type": "string", "enum": ["resolved", "cancelled"]},
                                "payload": {"description": "The answer, as the interrupt asks for it."},
                            },
                        },
                    },
                },
            },
        }
    },
}


def add_agui_routes(routes: APIRouter, service: RunService) -> None:
    """Add `/agui/{agent}`."""

    @routes.post(
        "/agui/{agent}",
        response_class=StreamingResponse,
        dependencies=[requires("chat")],
        responses={200: STREAM_RESPONSE, **error_responses(404, 409, 413, 501, 503)},
        openapi_extra={"requestBody": _BODY},
    )
    async def run_agui(request: Request, agent: str) -> Response:
        """Run an agent, or continue it after an interrupt, and stream AG-UI events.

        The agent `auto` is chosen by the router.
        """
        respond = await asyncio.to_thread(_load)  # the first import takes 0.1 s
        return await respond(request, service, agent)


def _load() -> _Respond:
    """Import the protocol's SDK, which not every server has; raises NotInstalled."""
    try:
        from framework.server.agui.run import respond
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "ag_ui":
            raise
        raise NotInstalled("AG-UI needs the package ag-ui-protocol: install agentsd with the extra `serve`") from None
    return respond
