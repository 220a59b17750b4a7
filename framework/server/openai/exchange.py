"""Answers a client's request: runs its agent, and sends the answer whole or as server-sent events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from fastapi.responses import JSONResponse, Response
from starlette.requests import Request

from framework.server.errors import client_message
from framework.server.event_stream import EventStreamResponse
from framework.server.identity import Identity
from framework.server.key_limits import KeyLimits
from framework.server.open_streams import OpenStreams
from framework.server.openai.answer import AnswerText, Ending
from framework.server.openai.client_request import ClientRequest
from framework.server.openai.repeated_requests import RepeatedRequests
from framework.server.openai.run_answer import RunAnswers, StartedRun
from framework.server.request_handling import internal_error_body
from framework.types.errors import AgentsdError, RunSuspended
from framework.types.events import Event, Routed, wire

log = logging.getLogger(__name__)
_NO_RETRY = {"x-should-retry": "false"}
"""Tells the openai SDK not to repeat a request. Others decide by the status: they repeat 409, 429 and 5xx."""


class AnswerWriter(Protocol):
    """Writes one answer in the format of an API."""

    def begin(self, agent: str) -> Iterator[bytes]:
        """Yield the first server-sent events."""
        ...

    def text(self, piece: AnswerText) -> Iterator[bytes]:
        """Yield the events for a piece of the answer."""
        ...

    def own_event(self, event: Mapping[str, Any]) -> bytes:
        """Return an event that clients accept and that contains an event of the run."""
        ...

    def end(self, ending: Ending) -> Iterator[bytes]:
        """Yield the last events."""
        ...

    def error(self, code: str, message: str) -> bytes:
        """Return the last event if the server fails in the middle of a stream."""
        ...

    def complete(self, agent: str, ending: Ending, reasoning: str) -> dict[str, Any]:
        """Return the whole answer as JSON data."""
        ...


NewWriter = Callable[[str, int], AnswerWriter]
"""Returns a writer. Arguments: the run's id and the Unix time."""


class Exchange:
    """Answers the requests of both APIs."""

    def __init__(self, answers: RunAnswers, limits: KeyLimits, streams: OpenStreams) -> None:
        self._answers, self._limits, self._streams, self._repeated = answers, limits, streams, RepeatedRequests()

    async def answer(
        self, asked: ClientRequest, identity: Identity, request: Request, new_writer: NewWriter
    ) -> Response:
        """Run the agent and return its answer. The run continues if the client leaves.

        Raises:
            RequestError, ConfigError, StoreError: the run did not begin.
        """
        own = request.headers.get("x-agentsd-events") == "1"
        if asked.stream:
            with self._limits.admit_stream(identity) as admitted:
                started = await self._start(asked, identity, request)
                return EventStreamResponse(
                    request,
                    self._stream(asked, started, request, new_writer, own=own),
                    headers=_headers(asked, started),
                    retry=False,
                    streams=self._streams,
                    ends_itself=True,
                    during=admitted.pop_all(),
                )
        started = await self._start(asked, identity, request)
        headers = _headers(asked, started)
        try:
            return await self._whole(asked, started, new_writer, headers, own=own)
        except asyncio.CancelledError:  # the server stops; a client that gets no response repeats the request
            return failure(RunSuspended.code, f"the server is stopping; the run continues: {started.url}", headers)
        except AgentsdError as error:
            return failure(error.code, client_message(error), headers)
        except Exception as error:  # noqa: BLE001 - sent to the client, and logged; a 5xx would make it repeat the run
            detail = internal_error_body(error, request)["error"]
            return failure(detail["code"], detail["message"], headers)

    async def _start(self, asked: ClientRequest, identity: Identity, request: Request) -> StartedRun:
        """Start the run of a request, or return that of the request which it repeats."""
        key, started = await self._repeated.first_run(request, identity)
        if started is None:
            started = await self._answers.start(asked, identity, request)
            self._repeated.remember(key, started)
            if asked.ignored:
                log.info("run %s: ignored %s of the client", started.run.run_id, " and ".join(asked.ignored))
        return started

    async def _whole(
        self,
        asked: ClientRequest,
        started: StartedRun,
        new_writer: NewWriter,
        headers: Mapping[str, str],
        *,
        own: bool,
    ) -> Response:
        """Return the answer once the run has ended or paused."""
        agent, thoughts, run = asked.model, defaultdict[str, str](str), started.run
        events: list[Mapping[str, Any]] = []
        ending: Ending | None = None
        async for item in self._answers.read(started, asked):
            match item:
                case AnswerText(kind="reasoning", message_id=message_id, text=text):
                    thoughts[message_id] += text
                case Ending():
                    ending = item
                case Routed(agent=chosen):
                    agent = chosen
            if own and not isinstance(item, AnswerText | Ending) and item.seq:
                events.append(wire(item))
        assert ending is not None
        if ending.finish_reason is None:
            return failure(ending.error_code, ending.error_message, headers)
        body = new_writer(run.run_id, int(time.time())).complete(agent, ending, "\n\n".join(thoughts.values()))
        if own:
            body["agentsd"] = {"run_id": run.run_id, "events": events, **body.get("agentsd", {})}
        return JSONResponse(body, headers=headers)

    async def _stream(
        self, asked: ClientRequest, started: StartedRun, request: Request, new_writer: NewWriter, *, own: bool
    ) -> AsyncGenerator[bytes]:
        """Yield the answer as it arrives."""
        writer, is_begun = new_writer(started.run.run_id, int(time.time())), False
        items = self._answers.read(started, asked)
        try:
            async for item in items:
                for chunk in () if is_begun else writer.begin(_agent_of(item, asked)):
                    yield chunk
                is_begun = True
                for chunk in _encoded(writer, item, own=own):
                    yield chunk
        except AgentsdError as error:
            yield writer.error(error.code, client_message(error))
        except Exception as error:  # noqa: BLE001 - sent to the client, and logged
            detail = internal_error_body(error, request)["error"]
            yield writer.error(detail["code"], detail["message"])
        finally:
            await items.aclose()


def _headers(asked: ClientRequest, started: StartedRun) -> dict[str, str]:
    ignored = {"x-agentsd-ignored": ", ".join(asked.ignored)} if asked.ignored else {}
    return {**started.run.headers, **ignored}


def failure(code: str, message: str, headers: Mapping[str, str] = MappingProxyType({})) -> Response:
    """Return the response for a run that began and failed. No client repeats it: the run may have had effects."""
    error = {"code": code, "type": "server_error", "message": message, "param": None}
    return JSONResponse({"error": error}, 422, {**headers, **_NO_RETRY})


def _encoded(writer: AnswerWriter, item: Event | AnswerText | Ending, *, own: bool) -> Iterator[bytes]:
    match item:
        case AnswerText():
            yield from writer.text(item)
        case Ending():
            yield from writer.end(item)
        case _ if own and item.seq:
            yield writer.own_event(wire(item))


def _agent_of(item: Event | AnswerText | Ending, asked: ClientRequest) -> str:
    """Return the name of the agent, once the router has chosen it."""
    return item.agent if isinstance(item, Routed) else asked.model
