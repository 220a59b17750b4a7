"""Questions of an MCP server to a person (elicitation), during one call of a tool.

Since 2026-07-28 a server answers a call with its questions and an opaque state, and the call is repeated with both.
Before, a server asks while the call is open: the question is answered with `cancel`, and the call is made anew when
there is an answer, which the server gets when it asks the same question again. This also happens if a server refuses
its own state: the states of the SDK's servers expire after ten minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from mcp import MCPError
from mcp import types as wire
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp.types import URL_ELICITATION_REQUIRED
from pydantic import TypeAdapter, ValidationError

from framework.tools.form import checked_form, checked_values
from framework.tools.http.urls import UrlRefused, ascii_url
from framework.tools.tool import Inquiry, ToolContext
from framework.types.errors import ToolError
from framework.types.state import EXPIRED, Approve, Decision, Respond
from framework.types.text import shorten

MAX_QUESTIONS = 10
"""How many questions a server may ask during one call."""
_MAX_STATE_CHARS = 100_000
_MAX_MESSAGE_CHARS = 2000
_PARAMS: TypeAdapter[wire.ElicitRequestParams] = TypeAdapter(wire.ElicitRequestParams)
_COMPARED = {"mode", "message", "requested_schema", "url"}
"""Parts of a question that a person sees."""
_REPEATS = "the call starts again from its beginning when this is answered: the server speaks an older protocol"
_CANCEL = wire.ElicitResult(action="cancel")


class ServerQuestions:
    """What a server asks during one call, and what people answered. The run stores it between attempts."""

    def __init__(self, server: str, context: ToolContext) -> None:
        """Continue from the last attempt of the call.

        Args:
            server: name of the server in messages, such as `mcp.docs`.
            context: context of the call.
        """
        self._server, self._context = server, context
        stored = context.continuation
        self._asked: list[dict[str, Any]] = stored.get("asked", [])
        """All questions so far."""
        self._keys: dict[str, int] = stored.get("keys", {})
        """Places of the questions in the last answer of the server, by the server's keys."""
        self.state: str | None = stored.get("state")
        """State of the server, which the next request returns to it."""
        self._answers: list[wire.ElicitResult] = []
        self._used = set(range(len(self._asked))) if self._keys else set()
        """Places of the questions that were asked in this attempt to call the tool."""
        self._refusal = ""
        self._new = 0
        self.asks = asyncio.Event()
        """Set once the server has asked, while the call is open, what has no answer."""

    @property
    def responses(self) -> wire.InputResponses | None:
        """Answers to the questions in the last answer of the server."""
        return {key: self._answers[place] for key, place in self._keys.items()} if self._answers else None

    def begin(self) -> None:
        """Start an attempt to call the tool: from the state of the server, if there is one."""
        if not self._keys:
            self._used.clear()
        self._new, self._refusal = 0, ""
        self.asks.clear()

    def restart(self, error: MCPError) -> bool:
        """Forget a state that the server refuses, because it has expired or the server was restarted.

        The call starts from its beginning; questions that the server repeats are answered from those of before.

        Returns:
            Whether there was a state.
        """
        if error.code != wire.INVALID_PARAMS or not self._keys:
            return False
        self._keys, self.state = {}, None
        self.begin()
        return True

    def answer(self, params: wire.ElicitRequestParams) -> wire.ElicitResult:
        """Return the stored answer to a question that comes while the call is open, or `cancel` if there is none."""
        question = _stored(params)
        place = self._known(question)
        if place is not None and place < len(self._answers):
            return self._answers[place]
        if self._new:  # it follows from the cancellation of another one
            return _CANCEL
        try:
            self._inquiry(0, question)
        except ToolError as error:
            self._refusal = error.message
            return wire.ElicitResult(action="decline")
        self._add(question)
        self.asks.set()
        return _CANCEL

    def require(self, error: MCPError) -> bool:
        """Take over the addresses that an error demands to visit first; return whether it does so."""
        if error.code != URL_ELICITATION_REQUIRED:
            return False
        try:
            demanded = UrlElicitationRequiredError.from_error(error.error).elicitations
        except (ValidationError, ValueError, TypeError):
            return False
        for params in demanded[: MAX_QUESTIONS + 1]:
            self._add(_stored(params))
        return bool(demanded)

    async def settle(self, result: wire.CallToolResult | wire.InputRequiredResult | None) -> bool:
        """Return whether the call has ended with this result; otherwise wait for the answers, then it is repeated.

        Args:
            result: what the server answered; None if the call was given up.

        Raises:
            ToolError: the server asks too much, or for what it must not.
        """
        if isinstance(result, wire.InputRequiredResult):
            self._take(result)
        elif self._refusal:
            raise ToolError(f"{self._refusal}; it was declined")
        elif not self._new:
            return True
        if len(self._asked) > MAX_QUESTIONS:
            raise ToolError(f"{self._server} asked more than {MAX_QUESTIONS} questions: the call was given up")
        await self.wait()
        return False

    async def wait(self) -> None:
        """Wait for the answers to all questions: the run pauses, and a later attempt makes the call again."""
        inquiries = [self._inquiry(place, one) for place, one in enumerate(self._asked)]
        if not inquiries:
            return
        kept = {"asked": self._asked, "keys": self._keys, "state": self.state}
        decisions = await self._context.inquire(inquiries, {**self._context.continuation, **kept})
        self._answers = [_result(one, made) for one, made in zip(inquiries, decisions, strict=True)]

    def _take(self, result: wire.InputRequiredResult) -> None:
        """Take over the questions in an answer of the server."""
        requests = result.input_requests or {}
        other = next((one.method for one in requests.values() if not isinstance(one, wire.ElicitRequest)), None)
        if other:
            raise ToolError(f"{self._server} sends the request {other!r}, which is not supported")
        if len(result.request_state or "") > _MAX_STATE_CHARS:
            raise ToolError(f"{self._server} sent a state of more than {_MAX_STATE_CHARS} characters with its question")
        self.state, self._keys = result.request_state, {}
        for key, request in requests.items():
            assert isinstance(request, wire.ElicitRequest)
            question = _stored(request.params)
            place = self._known(question)
            self._keys[key] = self._add(question) if place is None else place

    def _known(self, question: Mapping[str, Any]) -> int | None:
        """Return the place of a question of an earlier attempt that this one has not repeated yet."""
        places = (place for place, one in enumerate(self._asked) if one == question and place not in self._used)
        if (place := next(places, None)) is not None:
            self._used.add(place)
        return place

    def _add(self, question: dict[str, Any]) -> int:
        self._asked = [*self._asked, question]
        self._new += 1
        self._used.add(len(self._asked) - 1)
        return len(self._asked) - 1

    def _inquiry(self, place: int, question: Mapping[str, Any]) -> Inquiry:
        """Return what a person is asked; raises ToolError for what no server may ask."""
        message = shorten(question["message"], _MAX_MESSAGE_CHARS)
        key, note = str(place + 1), "" if self._keys else _REPEATS
        try:
            if question["mode"] == "url":
                return Inquiry("elicitation", key, message, note, url=str(ascii_url(question["url"])))
            return Inquiry("elicitation", key, message, note, form=checked_form(message, question["requested_schema"]))
        except UrlRefused as error:
            raise ToolError(f"{self._server} asks to visit an address that is not allowed: {error.message}") from None
        except ToolError as error:
            raise ToolError(f"{self._server} asked a question that is not shown: {error.message}") from None


def _stored(params: wire.ElicitRequestParams) -> dict[str, Any]:
    return _PARAMS.dump_python(params, mode="json", by_alias=False, include=_COMPARED)  # type: ignore[no-any-return]


def _result(inquiry: Inquiry, decision: Decision) -> wire.ElicitResult:
    match decision:
        case Respond(values=dict(values)) if inquiry.form is not None:
            return wire.ElicitResult(action="accept", content=checked_values(inquiry.form, values))
        case Approve() if inquiry.url:
            return wire.ElicitResult(action="accept")
    return wire.ElicitResult(action="cancel" if decision == EXPIRED else "decline")


class OpenCalls:
    """Questions that come while a call is open do not say which call they belong to, so there is one call at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._questions: ServerQuestions | None = None

    @asynccontextmanager
    async def turn(self, questions: ServerQuestions) -> AsyncIterator[None]:
        """Wait until no other call is open; questions that come meanwhile belong to this one."""
        async with self._turn:
            self._questions = questions
            try:
                yield
            finally:
                self._questions = None

    async def elicit(
        self,
        context: ClientRequestContext,  # noqa: ARG002 - the signature is the SDK's
        params: wire.ElicitRequestParams,
    ) -> wire.ElicitResult:
        """Answer a question. An MCP SDK callback."""
        return self._questions.answer(params) if self._questions else _CANCEL
