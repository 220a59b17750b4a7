"""`POST /v1/chat/completions`."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from framework.server.identity import identity_of
from framework.server.openai.background_tasks import BackgroundTasks, is_background_task
from framework.server.openai.bodies import ChatCompletionBody
from framework.server.openai.chat_format import ChatWriter
from framework.server.openai.client_request import read_body, read_chat
from framework.server.openai.exchange import Exchange
from framework.server.roles import requires


def add_chat_completions_route(routes: APIRouter, exchange: Exchange, tasks: BackgroundTasks) -> None:
    """Add `/chat/completions`."""

    @routes.post("/chat/completions", response_class=Response, dependencies=[requires("chat")])
    async def chat_completions(request: Request, body: ChatCompletionBody) -> Response:
        """Answer the last message with an agent, as a completion or, with `stream`, in chunks."""
        asked, identity = await read_body(read_chat, body, body.messages), identity_of(request)
        if is_background_task(asked, request.headers):
            return await tasks.answer(asked, identity)
        new_writer = partial(ChatWriter, include_usage=asked.include_usage)
        return await exchange.answer(asked, identity, request, new_writer)
