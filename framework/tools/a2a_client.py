"""A remote agent as a client sees it: its card, the tasks that are sent to it, and their results."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
from a2a import types
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.helpers import get_data_parts, get_text_parts, get_url_parts
from a2a.utils.errors import A2AError

from framework.tools.http import (
    HttpClient,
    HttpFailed,
    HttpRefused,
    HttpReply,
    UrlRefused,
    WebUrl,
    parse_http_url,
    refuse_ambiguous_path,
)
from framework.tools.tool import Inquiry, ToolContext
from framework.tools.tool_source import configured_headers, configured_url
from framework.types.errors import AgentsdError, RequestError, ToolError
from framework.types.file import File
from framework.types.http import backoff
from framework.types.state import Approve, Decision, Respond
from framework.types.text import bytes_digest, check_json_size, shorten
from framework.types.tool_servers import A2aAgent

BINDINGS = ("JSONRPC", "HTTP+JSON")
"""Forms of requests that are used, the preferred one first."""
MAX_VALUES = 10_000
"""Limit of JSON values in a response: the SDK parses it in the event loop."""
_VERSION = re.compile(r"1(\.\d{1,4}){0,2}\Z")
_ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._:~-]{1,256}\Z")
_OF_CLIENT = frozenset({"host", "content-length", "accept-encoding", "connection", "user-agent"})
"""Headers that the guarded client writes itself."""
_MAX_CARD_BYTES = 256_000
_SERVER_ERROR, _TOO_MANY_REQUESTS = 500, 429


class RemoteAgentError(ToolError):
    """A remote agent failed, or answered with what the protocol does not allow."""

    code = "remote_agent_failed"


@dataclass(frozen=True, slots=True)
class Card:
    """What is used of a remote agent's description of itself."""

    description: str
    url: str
    binding: str


def server_of(agent: A2aAgent) -> tuple[WebUrl, WebUrl]:
    """Return the URL of the card, and that of the server that gets the messages; raise ConfigError."""
    card = configured_url(agent.card)
    return card, configured_url(agent.url) if agent.url else card


async def read_card(agent: A2aAgent, headers: Mapping[str, str]) -> Card:
    """Return the card of an agent; raise ToolError if there is none that can be used."""
    url, server = server_of(agent)
    guarded = HttpClient.to(url, timeout=agent.timeout, max_bytes=_MAX_CARD_BYTES)
    try:
        async with httpx.AsyncClient(transport=GuardedTransport(guarded, headers), trust_env=False) as http:
            card = await A2ACardResolver(http, str(url)).get_agent_card("/")
    except ToolError:
        raise
    except Exception as error:  # noqa: BLE001 - the SDK raises errors of all kinds for what a server sends
        place = str(url).partition("?")[0]  # the query may contain a key
        raise RemoteAgentError(f"{place} responded without a card of A2A 1.0 ({type(error).__name__})") from None
    found = card.supported_interfaces
    usable = [one for one in found if one.protocol_binding in BINDINGS and _VERSION.match(one.protocol_version)]
    if not usable:
        offered = sorted({f"{one.protocol_binding[:20]} {one.protocol_version[:20]}" for one in found})
        raise RemoteAgentError(f"the card names no interface of A2A 1.0 (JSONRPC, HTTP+JSON): {offered[:5]}")
    for one in sorted(usable, key=lambda one: BINDINGS.index(one.protocol_binding)):
        if _leads_to(one.url, server) and not one.tenant:
            return Card(card.description, one.url, one.protocol_binding)
    raise RemoteAgentError(
        f"the card leads to another server, {usable[0].url[:200]!r}: if that is right, write its address as `url`"
    )


def _leads_to(url: str, server: WebUrl) -> bool:
    try:
        target = parse_http_url(url)
        refuse_ambiguous_path(target)
    except UrlRefused:
        return False
    return target.origin == server.origin


def checked_body(reply: HttpReply) -> bytes:
    """Return the body of a response that the SDK may parse; raise RemoteAgentError if it is too large."""
    if reply.truncated:
        raise RemoteAgentError(f"the response is larger than {len(reply.body)} bytes (`max_bytes`)")
    try:
        check_json_size(reply.body.decode(), MAX_VALUES)
    except ValueError as error:
        raise RemoteAgentError(f"the response is no JSON that can be read: {error}") from None
    return reply.body


def checked_id(text: str, what: str) -> str:
    """Return an id that a remote agent chose; raise RemoteAgentError if it could change a URL."""
    if not _ID.match(text):
        raise RemoteAgentError(f"the {what} {text[:80]!r} is not one of at most 256 letters, digits and .-_:~")
    return text


class GuardedTransport(httpx.AsyncBaseTransport):
    """Sends the SDK's requests by the guarded client, to one server only."""

    def __init__(self, client: HttpClient, headers: Mapping[str, str]) -> None:
        logging.getLogger("a2a").setLevel(logging.CRITICAL)  # the SDK logs what servers send
        self._client, self._headers = client, dict(headers)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; raise HttpFailed if a repetition may succeed, HttpRefused or RemoteAgentError otherwise."""
        sent = {name: value for name, value in request.headers.items() if name not in _OF_CLIENT} | self._headers
        url = parse_http_url(str(request.url))
        body = await request.aread() or None
        reply = await self._client.request(request.method, url, headers=sent, body=body, follow=body is None)
        if reply.status >= _SERVER_ERROR or reply.status == _TOO_MANY_REQUESTS:
            raise HttpFailed(f"{url.host} responded with HTTP {reply.status}")
        if reply.status >= 300 and reply.content_type not in ("application/json", "application/a2a+json"):
            raise HttpRefused(f"{url.host} responded with HTTP {reply.status}")
        content_type = {"content-type": reply.headers.get("content-type", "application/json")}
        return httpx.Response(reply.status, headers=content_type, content=checked_body(reply), request=request)


def connect_to(agent: A2aAgent, card: Card, headers: Mapping[str, str]) -> Client:
    """Return a client for the interface of a card. It polls: nothing is lost with a connection."""
    _, server = server_of(agent)
    guarded = HttpClient.to(server, timeout=agent.timeout, max_bytes=agent.max_bytes)
    http = httpx.AsyncClient(transport=GuardedTransport(guarded, headers), trust_env=False)
    interface = types.AgentInterface(url=card.url, protocol_binding=card.binding, protocol_version="1.0")
    config = ClientConfig(streaming=False, polling=True, httpx_client=http, supported_protocol_bindings=[card.binding])
    return ClientFactory(config).create(types.AgentCard(supported_interfaces=[interface]))


# The ids of the task are stored with the call before anything else happens, so that another process continues with the
# same task. A task that asks is a pause of the run: `INPUT_REQUIRED` is answered with a message of the task; after
# `AUTH_REQUIRED`, which is decided where the agent runs, the task is only looked at again.


MAX_TASK_QUESTIONS = 20
"""How often a task may ask during one call."""
_MAX_QUESTION_CHARS, _MAX_REASON_CHARS, _MAX_PROGRESS_CHARS = 4000, 2000, 200
_MAX_FAILURES = 8
"""Requests for the state of a task that may fail in a row, over about half a minute."""
_PATIENCE = 6
"""Looks at a task whose question has been answered before it is taken to ask the same again."""
_CANCEL_SECONDS = 10.0
_EXACT = 2.0**53
"""Floats below it are exact as integers."""
_State = types.TaskState
_WORKING = (_State.TASK_STATE_SUBMITTED, _State.TASK_STATE_WORKING)
_ASKING = (_State.TASK_STATE_INPUT_REQUIRED, _State.TASK_STATE_AUTH_REQUIRED)
_FAILED = {
    _State.TASK_STATE_FAILED: "failed",
    _State.TASK_STATE_REJECTED: "rejected the task",
    _State.TASK_STATE_CANCELED: "cancelled the task",
}
_WAITS = "waits for a decision or a login where it runs"
_ELSEWHERE = (
    "{name} waits for a decision or a login where it runs, which an approval here does not give: decide it there, then "
    "approve to look at its task again"
)


class RemoteAgent:
    """An agent of another server. Failures raise ToolError."""

    def __init__(self, name: str, agent: A2aAgent) -> None:
        """Use the entry of an agent.

        `name` is its name in messages.

        Raises:
            ConfigError: a URL or a header is invalid.
        """
        self._name, self._agent = name, agent
        self._headers = configured_headers({name: one.get_secret_value() for name, one in agent.headers.items()})
        server_of(agent)

    async def card(self) -> Card:
        """Return the agent's card."""
        return await read_card(self._agent, self._headers)

    async def call(self, card: Card, message: str, context: ToolContext) -> Any:
        """Return the result of a task, as `RemoteTask.result` does."""
        async with connect_to(self._agent, card, self._headers) as client:
            return await RemoteTask(self._name, client, context, self._agent.task_timeout).result(message)

    async def abandon(self, card: Card, continuation: Mapping[str, Any]) -> None:
        """Cancel the task of a call that will not be continued."""
        if task := continuation.get("task"):
            async with connect_to(self._agent, card, self._headers) as client:
                await cancel_task(client, task)


class RemoteTask:
    """The task of one call. What it keeps is stored with the call."""

    def __init__(self, name: str, client: Client, context: ToolContext, seconds: float) -> None:
        """Continue from the last attempt of the call. `seconds` is the time limit of the task, without pauses."""
        self._name, self._client, self._context, self._seconds = name, client, context, seconds
        stored = context.continuation
        self._task: str = stored.get("task", "")
        self._conversation: str = stored.get("context", "")
        self._asked: list[dict[str, Any]] = [dict(one) for one in stored.get("asked", [])]
        """The questions so far: digest and text, whether it is decided elsewhere, and whether an answer was sent."""
        self._looks: int | None = None
        """How often the task was looked at since the last answer of this attempt; None before it."""
        self._progress = ""

    async def result(self, message: str) -> Any:
        """Return the result of the task, which is started with the message unless it has been already.

        Raises:
            Paused: the task waits for a person.
            RemoteAgentError: the task failed, or is not one of the protocol.
        """
        try:
            async with asyncio.timeout(self._seconds) as limit:
                return await self._driven(message)
        except TimeoutError as error:
            await self._cancel()
            why = f"did not finish within {self._seconds:g}s" if limit.expired() else f"failed: {error}"
            raise RemoteAgentError(f"{self._name} {why}: its task was cancelled") from None
        except ToolError:
            await self._cancel()
            raise
        except AgentsdError:
            raise
        except Exception as error:  # noqa: BLE001 - the SDK raises errors of all kinds for what a server sends
            await self._cancel()
            raise RemoteAgentError(f"{self._name}: {_described(error)}") from None

    async def _cancel(self) -> None:
        if self._task:
            await cancel_task(self._client, self._task)

    async def _driven(self, message: str) -> Any:
        if self._task:
            task = await self._look()
        else:
            response = await self._sent(message, self._context.idempotency_key)
            if response.HasField("message"):
                return _output(response.message.parts)
            task = response.task
            self._task, self._conversation = checked_id(task.id, "task id"), task.context_id[:256]
            await self._keep()
        for number in range(1_000_000):
            state = task.status.state
            if state == _State.TASK_STATE_COMPLETED:
                return _output([part for artifact in task.artifacts for part in artifact.parts] or _said(task))
            if state in _ASKING:
                if not await self._answered(task):
                    await self._pause(number)
            elif state in _WORKING:
                await self._report(task)
                await self._pause(number)
            else:
                reason = readable(_text(_said(task)), _MAX_REASON_CHARS)
                what = _FAILED.get(state, f"is in the unknown state {state}")
                raise RemoteAgentError(f"{self._name} {what}{f': {reason}' if reason else ''}")
            task = await self._look()
        raise AssertionError("the time limit ends the loop")

    async def _pause(self, number: int) -> None:
        await asyncio.sleep(min(0.2 * 1.3 ** min(number, 20), 5.0))

    # --- requests

    async def _sent(self, text: str, message_id: str) -> types.StreamResponse:
        message = types.Message(
            message_id=message_id,
            role=types.Role.ROLE_USER,
            parts=[types.Part(text=text)],
            task_id=self._task,
            context_id=self._conversation,
        )
        configuration = types.SendMessageConfiguration(return_immediately=True)
        request = types.SendMessageRequest(message=message, configuration=configuration)
        async for response in self._client.send_message(request):
            if response.HasField("task"):
                self._check(response.task)
            return response
        raise RemoteAgentError(f"{self._name} did not answer")

    async def _look(self) -> types.Task:
        """Return the task as it is now. A server that is down is asked again for a while."""
        for failures in range(_MAX_FAILURES):
            try:
                task = await self._client.get_task(types.GetTaskRequest(id=self._task, history_length=0))
            except HttpFailed:
                if failures == _MAX_FAILURES - 1:
                    raise
                await asyncio.sleep(backoff(failures, base=0.5, cap=8.0, spread=0.2))
            else:
                self._check(task)
                return task
        raise AssertionError("the last failure is raised")

    def _check(self, task: types.Task) -> None:
        """Raise RemoteAgentError for a task that is not the one of this call."""
        same_context = not self._conversation or task.context_id[:256] == self._conversation
        if self._task and (task.id != self._task or not same_context):
            raise RemoteAgentError(f"{self._name} answered with another task, {task.id[:80]!r}")

    async def _report(self, task: types.Task) -> None:
        text = readable(_text(_said(task)), _MAX_PROGRESS_CHARS)
        if self._context.progress and text and text != self._progress:
            self._progress = text
            await self._context.progress(0.0, text)

    # --- questions

    async def _answered(self, task: types.Task) -> bool:
        """Answer the task's question, and return whether that was done now. Pauses until a person has decided."""
        mark = bytes_digest(task.status.message.SerializeToString(deterministic=True) + bytes([task.status.state]))
        last = self._asked[-1] if self._asked and self._asked[-1]["mark"] == mark else None
        if last and last["sent"]:
            if self._looks is None and not last["elsewhere"]:
                last["sent"] = False  # the process may have ended before the answer was sent: it has the same id
            elif (self._looks or 0) < _PATIENCE:
                self._looks = (self._looks or 0) + 1
                return False  # the agent has not read the answer yet
            else:
                last = None  # it asks the same again
        if last is None:
            last = self._add(task, mark)
        (decision,) = await self._context.inquire([self._inquiry(last)], self._stored())
        text = _answer_of(decision, bool(last["elsewhere"]))
        if text is None:
            raise RemoteAgentError(f"a human did not answer the question of {self._name}: its task was cancelled")
        last["sent"], self._looks = True, 0
        await self._keep()
        if not last["elsewhere"]:
            with suppress(HttpFailed, A2AError):  # the state of the task says whether it has been answered
                await self._sent(text, f"{self._context.idempotency_key}?{len(self._asked)}")
        return True

    def _add(self, task: types.Task, mark: str) -> dict[str, Any]:
        if len(self._asked) == MAX_TASK_QUESTIONS:
            raise RemoteAgentError(f"{self._name} asked more than {MAX_TASK_QUESTIONS} times: its task was cancelled")
        text = readable(_text(_said(task)), _MAX_QUESTION_CHARS) or "(it does not say what it waits for)"
        elsewhere = task.status.state == _State.TASK_STATE_AUTH_REQUIRED
        question = {"mark": mark, "text": text, "elsewhere": elsewhere, "sent": False}
        self._asked = [*self._asked, question]
        return question

    def _inquiry(self, question: Mapping[str, Any]) -> Inquiry:
        key = str(len(self._asked))
        if question["elsewhere"]:
            return Inquiry("login", key, question["text"], _ELSEWHERE.format(name=self._name), waits_for=_WAITS)
        return Inquiry("question", key, question["text"])

    def _stored(self) -> dict[str, Any]:
        return {"task": self._task, "context": self._conversation, "asked": self._asked}

    async def _keep(self) -> None:
        await self._context.keep(self._stored())


async def cancel_task(client: Client, task_id: str) -> None:
    """Cancel a task. A failure is not reported: the task may have ended."""
    with suppress(Exception):
        async with asyncio.timeout(_CANCEL_SECONDS):
            await client.cancel_task(types.CancelTaskRequest(id=task_id))


def readable(text: str, most: int) -> str:
    """Return a text of an agent without characters that people cannot see, shortened."""
    visible = "".join(char for char in text[: 4 * most] if char in "\n\t" or unicodedata.category(char)[0] != "C")
    return shorten(visible.strip(), most)


def _answer_of(decision: Decision, elsewhere: bool) -> str | None:
    """Return what a person answers; None if they decline."""
    match decision:
        case Respond(text=text):
            return text
        case Approve():
            return "" if elsewhere else "yes"
    return None


def _said(task: types.Task) -> list[types.Part]:
    return [*task.status.message.parts]


def _text(parts: Sequence[types.Part]) -> str:
    return "\n".join(get_text_parts(parts))


def _with_integers(value: Any) -> Any:
    """Return JSON data in which whole numbers are integers: the protocol sends all numbers as floats."""
    match value:
        case dict():
            return {key: _with_integers(one) for key, one in sorted(value.items())}  # they come in any order
        case list():
            return [_with_integers(one) for one in value]
        case float() if value.is_integer() and abs(value) < _EXACT:
            return int(value)
    return value


def _output(parts: Sequence[types.Part]) -> Any:
    """Return the parts of an answer as the result of a call: data if it is nothing else, or text; and its files."""
    data, texts = [_with_integers(one) for one in get_data_parts(parts)], list(filter(None, get_text_parts(parts)))
    texts += [f"(a file at {url[:500]}, which was not read)" for url in get_url_parts(parts)]
    files = []
    for part in (part for part in parts if part.WhichOneof("content") == "raw"):
        try:
            files.append(File.from_bytes(part.raw, name=part.filename or None, media_type=part.media_type or None))
        except RequestError as error:
            texts.append(f"(a file that cannot be read: {error.message})")
    if files:
        return [*texts, *(json.dumps(one, ensure_ascii=False) for one in data), *files]
    if len(data) == 1 and not texts:
        return data[0]
    return "\n".join([*texts, *(json.dumps(one, ensure_ascii=False) for one in data)])


def _described(error: Exception) -> str:
    """Describe an error of the SDK. Those of the protocol contain a text of the agent."""
    if isinstance(error, A2AError):
        return readable(str(error), _MAX_REASON_CHARS) or type(error).__name__
    return f"an answer that cannot be read ({type(error).__name__})"
