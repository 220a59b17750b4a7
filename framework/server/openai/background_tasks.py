"""Open WebUI's own requests, for titles, tags, follow-up questions and searches, which it sends to the chat's model.

They are answered by the agent's model alone: the agent would call tools for them, and each would be a recorded run.
"""

from __future__ import annotations

import time

from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers

from framework.engine.runtime.runtime import Runtime
from framework.server.errors import AccessDenied
from framework.server.identity import Identity
from framework.server.key_limits import KeyLimits
from framework.server.openai.answer import AnswerText, ending_of
from framework.server.openai.chat_format import ChatWriter
from framework.server.openai.client_request import ClientRequest
from framework.server.openai.exchange import failure
from framework.server.openai.run_answer import RunAnswers
from framework.types.file import File

_PROMPT_START = "### Task:"
_PROMPT_MARK = "<chat_history>"
"""Both are in each of Open WebUI's own prompts. That for questions about documents has the first one only."""


class BackgroundTasks:
    """Answers Open WebUI's own requests."""

    def __init__(self, runtime: Runtime, answers: RunAnswers, limits: KeyLimits) -> None:
        self._runtime, self._answers, self._limits = runtime, answers, limits
        self._is_on = runtime.settings.server.openwebui_tasks

    async def answer(self, asked: ClientRequest, identity: Identity) -> Response:
        """Return the answer of the agent's model.

        Raises:
            AccessDenied: `server.openwebui_tasks` is off.
            RequestError: there is no such agent, or the key sends too many requests.
        """
        if not self._is_on:
            raise AccessDenied("requests for titles, tags and the like are off: set server.openwebui_tasks")
        agent = self._answers.agent_of(asked.model, identity) or self._any_agent()
        self._limits.check_rate(identity)
        result = await self._runtime.ask_model(
            _text_of(asked), agent=agent, user=identity.user_of(asked.user), tenant=identity.tenant
        )
        ending = ending_of(result)
        if ending.finish_reason is None:
            return failure(ending.error_code, ending.error_message)
        writer = ChatWriter(result.run_id, int(time.time()), include_usage=asked.include_usage)
        if not asked.stream:
            return JSONResponse(writer.complete(result.agent, ending, ""))
        pieces = [
            *writer.begin(result.agent),
            *writer.text(AnswerText("content", "", ending.text)),
            *writer.end(ending),
        ]
        return Response(b"".join(pieces), media_type="text/event-stream")

    def _any_agent(self) -> str | None:
        """Return the default agent or, without one, the first: the router has no rules for such requests."""
        current = self._runtime.catalog.current
        return current.settings.routing.default_agent or min(current.agents, default=None)


def is_background_task(asked: ClientRequest, headers: Headers) -> bool:
    """Return whether a request is one of Open WebUI's own: by its header or, without it, by the form of its prompt."""
    task = headers.get("x-openwebui-task", "").strip()
    if task and not task.startswith("{{"):  # a placeholder that Open WebUI did not replace
        return True
    text = _text_of(asked)
    return not asked.history and text.startswith(_PROMPT_START) and _PROMPT_MARK in text


def _text_of(asked: ClientRequest) -> str:
    parts = [asked.message] if isinstance(asked.message, str | File) else asked.message
    return "\n\n".join(part for part in parts if isinstance(part, str))
