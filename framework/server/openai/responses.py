"""`POST /v1/responses`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from framework.server.identity import identity_of
from framework.server.openai.bodies import ResponseBody
from framework.server.openai.client_request import read_body, read_response
from framework.server.openai.exchange import Exchange
from framework.server.openai.response_format import ResponseWriter
from framework.server.roles import requires


def add_responses_route(routes: APIRouter, exchange: Exchange) -> None:
    """Add `/responses`."""

    @routes.post("/responses", response_class=Response, dependencies=[requires("chat")])
    async def responses(request: Request, body: ResponseBody) -> Response:
        """Answer the last message with an agent, as a response or, with `stream`, as its events."""
        asked = await read_body(read_response, body, body.input)
        return await exchange.answer(asked, identity_of(request), request, ResponseWriter)
