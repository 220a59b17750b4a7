"""Results, errors and spans of MCP servers, as runs see them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio
import httpx2
from mcp import MCPError
from mcp import types as wire
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp.types import URL_ELICITATION_REQUIRED
from opentelemetry import metrics, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags
from pydantic import TypeAdapter, ValidationError

from framework.tools.form import checked_form, checked_values
from framework.tools.http import UrlRefused, ascii_url
from framework.tools.tool import Inquiry, ToolContext
from framework.types.errors import RequestError, ToolError
from framework.types.file import File
from framework.types.http import missing_certificates, server_address
from framework.types.state import EXPIRED, Approve, Decision, Respond
from framework.types.text import one_line, shorten
from framework.types.tool_servers import McpServer

if TYPE_CHECKING:
    from mcp import types
    from mcp.shared.dispatcher import ProgressFnT

CallResult = wire.CallToolResult | wire.InputRequiredResult

_MAX_CHARS = 300
_MIN_SECRET_CHARS = 6
"""Minimum length of a secret. Shorter values are words such as `debug`."""
UNINFORMATIVE_MESSAGES = {"Server returned an error response", "Not Found"}
"""Messages of the SDK for HTTP errors without details."""


class NotConnected(Exception):
    """There is no connection. The message states the reason."""


class ConnectionLost(NotConnected):
    """The connection ended during a call, whose outcome is unknown."""


class SessionExpired(NotConnected):
    """The server does not know the session any longer: the call was not executed."""


class InputRequested(Exception):
    """The server requested input from a person, a model or the file system, which is not supported."""


class RequestFailed(ToolError):
    """The server was connected but sent no valid answer."""


def describe_error(error: BaseException, server: McpServer, status: int | None = None) -> str:
    """Describe an error of a connection, with a fix and without secrets.

    `status` is that of the last failed HTTP response.
    """
    return mask_secrets(_description(error, server, status), server)


def first_error(error: BaseException) -> BaseException:
    """Return the first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def mask_secrets(text: str, server: McpServer) -> str:
    """Mask the values of the server's variables and headers in a message, and shorten it to one line."""
    for secret in (*server.env.values(), *server.headers.values()):
        for part in {secret.get_secret_value(), *secret.get_secret_value().split()}:
            text = text.replace(part, "***") if len(part) >= _MIN_SECRET_CHARS else text
    return one_line(text, _MAX_CHARS)


def _description(error: BaseException, server: McpServer, status: int | None) -> str:
    match error:
        case FileNotFoundError() if server.command:
            return f"no program {server.command[0]!r}: install it, or correct `command`"
        case PermissionError() if server.command:
            return f"cannot execute {server.command[0]!r}: correct `command`"
        case httpx2.ConnectError() if "CERTIFICATE_VERIFY_FAILED" in str(error) and (missing := missing_certificates()):
            return f"SSL_CERT_FILE names a file that does not exist ({missing}): correct or unset it"
        case httpx2.ConnectError() | httpx2.ConnectTimeout():
            return f"cannot connect to its `url`: {error}"
        case ValidationError():
            return "its response is not valid MCP"
        case MCPError() if status and error.message in UNINFORMATIVE_MESSAGES:
            return f"it responded with HTTP {status}: check {'`headers`' if status in {401, 403} else '`url`'}"
        case MCPError():
            details = error.data if isinstance(error.data, str) else json.dumps(error.data, ensure_ascii=False)
            return f"{error.message}: {details}" if error.data else error.message
    return f"{type(error).__name__}: {error}"


MAX_RESULT_CHARS = 200_000
MAX_RESULT_FILES = 20
"""Files that the model gets from one result; the remaining ones are mentioned in its text."""
_THREAD_CHARS = 1_000_000
"""Size from which on a result is converted in a thread."""


async def tool_output(result: types.CallToolResult) -> Any:
    """Return the output of a tool: its structured content, or its text; with files, a list that also contains them.

    Images, PDFs and audio become a `File` if their content is of a supported type, whatever the server declares.

    Raises:
        ToolError: the result is an error.
    """
    if result.is_error:
        details = result.structured_content and json.dumps(result.structured_content, ensure_ascii=False)
        text = text_of(result.content) or details or "the tool failed without an error message"
        raise ToolError(truncate(text))
    data = [_data(block) for block in result.content]
    if not any(data):
        return _plain_output(result, text_of(result.content))
    if sum(map(len, data)) < _THREAD_CHARS:
        return _output_with_files(result)
    return await asyncio.to_thread(_output_with_files, result)


def _plain_output(result: types.CallToolResult, text: str) -> Any:
    if result.structured_content is None:
        return truncate(text)
    encoded = json.dumps(result.structured_content, ensure_ascii=False)
    return result.structured_content if len(encoded) <= MAX_RESULT_CHARS else truncate(encoded)


def _output_with_files(result: types.CallToolResult) -> Any:
    """Return the output with files in place of blocks that contain one."""
    items: list[str | File] = []
    for block in result.content:
        data = _data(block)
        if not data:
            items.append(_block_text(block))
            continue
        count = sum(isinstance(item, File) for item in items)
        found = _read_file(block.type, data) if count < MAX_RESULT_FILES else f"at most {MAX_RESULT_FILES} files"
        if block.type == "resource":
            items.append(f"[resource {block.resource.uri}]")
        items.append(_blob(_kind(block), data, found) if isinstance(found, str) else found)
    files = [item for item in items if isinstance(item, File)]
    text = "\n".join(item for item in items if isinstance(item, str))
    if not files:
        return _plain_output(result, text)
    if result.structured_content is not None or len(text) > MAX_RESULT_CHARS:
        return [_plain_output(result, text), *files]
    return items


def _read_file(block_type: str, data: str) -> File | str:
    """Return the file in a block, or why the model cannot get it."""
    try:
        content = b64decode(data, validate=True)
        file = File.from_bytes(content)
    except ValueError:
        return "its data is not valid base64"
    except RequestError as error:
        return error.message
    if block_type in ("image", "audio") and file.part.kind != block_type:
        return f"its content is {file.media_type}"
    return file


def _data(block: types.ContentBlock) -> str:
    """Return the base64 data in a block; empty if it contains none."""
    if block.type == "resource":
        return getattr(block.resource, "blob", "")
    return block.data if block.type in ("image", "audio") else ""


def _kind(block: types.ContentBlock) -> str:
    if block.type == "resource":
        return block.resource.mime_type or "binary data"
    return f"{block.type} {block.mime_type}" if block.type in ("image", "audio") else block.type


def text_of(blocks: Iterable[types.ContentBlock]) -> str:
    """Return the text of content blocks. Other content is replaced by a placeholder."""
    return "\n".join(map(_block_text, blocks))


def resource_text(contents: Iterable[types.TextResourceContents | types.BlobResourceContents]) -> str:
    """Return the text of a resource."""
    return "\n".join(_contents_text(content) for content in contents)


def prompt_text(messages: Iterable[types.PromptMessage]) -> str:
    """Return the text of a prompt. Several messages are prefixed with their roles."""
    parts = [(message.role, _block_text(message.content)) for message in messages]
    return parts[0][1] if len(parts) == 1 else "\n\n".join(f"{role}: {text}" for role, text in parts)


def truncate(text: str) -> str:
    """Cut the text to the maximum length and append the number of omitted characters."""
    omitted = len(text) - MAX_RESULT_CHARS
    return text if omitted <= 0 else f"{text[:MAX_RESULT_CHARS]}… ({omitted} more characters omitted)"


def _block_text(block: types.ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return _blob(_kind(block), block.data)
        case "resource_link":
            about = f" ({block.description})" if block.description else ""
            return f"[resource {block.uri}: {block.title or block.name}{about}]"
        case "resource":
            return f"[resource {block.resource.uri}]\n{_contents_text(block.resource)}"


def _contents_text(content: types.TextResourceContents | types.BlobResourceContents) -> str:
    blob: str | None = getattr(content, "blob", None)
    return getattr(content, "text", "") if blob is None else _blob(content.mime_type or "binary data", blob)


def _blob(kind: str, base64: str, reason: str = "") -> str:
    return f"[{kind}, {len(base64) * 3 / 4 / 1024:.1f} kB, not shown{': ' if reason else ''}{reason}]"


_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Histogram boundaries in seconds, as the conventions recommend."""


class McpMetrics:
    """Durations of the requests and sessions of one server. Without a MeterProvider, the cost is negligible."""

    def __init__(self, name: str, server: McpServer) -> None:
        meter = metrics.get_meter("agentsd")
        self._where = server_attributes(name, server)
        self._requests = meter.create_histogram(
            "mcp.client.operation.duration",
            unit="s",
            description="Duration of a request to an MCP server, as the client observes it.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )
        self._sessions = meter.create_histogram(
            "mcp.client.session.duration",
            unit="s",
            description="Duration of a session with an MCP server, as the client observes it.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        )

    @contextmanager
    def request(self, method: str, *, tool: str = "", prompt: str = "") -> Iterator[dict[str, Any]]:
        """Measure a request. Yields its attributes, to which `error.type` can be added for a result with an error."""
        about: dict[str, Any] = {"mcp.method.name": method, **self._where}
        if tool:
            about |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
        if prompt:
            about["gen_ai.prompt.name"] = prompt
        began = time.perf_counter()
        try:
            yield about
        except BaseException as error:
            about["error.type"] = request_error_type(error)
            if isinstance(error, MCPError):
                about["rpc.response.status_code"] = str(error.code)
            raise
        finally:
            self._requests.record(time.perf_counter() - began, about)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Measure a session, from connecting to its end."""
        about, began = dict(self._where), time.perf_counter()
        try:
            yield
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                about["error.type"] = request_error_type(error)
            raise
        finally:
            self._sessions.record(time.perf_counter() - began, about)


def server_attributes(name: str, server: McpServer) -> dict[str, Any]:
    """Return the attributes of a server: its name in the file, the transport, and for HTTP its address and port."""
    about: dict[str, Any] = {"agentsd.tool.server": name, "network.transport": "pipe" if server.command else "tcp"}
    host, port = server_address(server.url)
    if host is not None and port is not None:
        about |= {"server.address": host, "server.port": port}
    return about


def request_error_type(error: BaseException) -> str:
    """Return `error.type` of a failed request: JSON-RPC error code, `timeout`, `cancelled`, or exception class."""
    if isinstance(error, BaseExceptionGroup):
        return request_error_type(error.exceptions[0])
    if isinstance(error, MCPError):
        return str(error.code)
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, asyncio.CancelledError):
        return "timeout" if anyio.current_effective_deadline() <= anyio.current_time() else "cancelled"
    return type(error).__name__


@contextmanager
def trace_failure(span: str, name: str, server: McpServer) -> Iterator[None]:
    """Suppress the SDK's spans for a request outside runs, and emit a root span if the request fails.

    `span` is the name of the root span.
    """
    began = time.time_ns()
    unsampled = SpanContext(random.getrandbits(128), random.getrandbits(64), False, TraceFlags(TraceFlags.DEFAULT))
    token = attach(trace.set_span_in_context(NonRecordingSpan(unsampled), Context()))
    try:
        yield
    except asyncio.CancelledError as error:
        if (error_type := request_error_type(error)) == "timeout":  # other cancellations are intended
            _emit_failure_span(span, name, server, began, error_type)
        raise
    except BaseException as error:
        _emit_failure_span(span, name, server, began, request_error_type(error))
        raise
    finally:
        detach(token)


def _emit_failure_span(span: str, name: str, server: McpServer, began: int, error_type: str) -> None:
    attributes = {"openinference.span.kind": "CHAIN", "error.type": error_type, **server_attributes(name, server)}
    failed = trace.get_tracer("agentsd").start_span(span, context=Context(), attributes=attributes, start_time=began)
    failed.set_status(Status(StatusCode.ERROR, error_type))
    failed.end()


# Since 2026-07-28 a server answers a call with its questions and an opaque state, and the call is repeated with both.
# Before, a server asks while the call is open. The call stays open for a while after the run has paused, and an answer
# in time, in this process, continues it. Else the question is answered with `cancel`, and the call is repeated when
# there is an answer, which the server gets when it asks the same question again. This also happens if a server refuses
# its own state: the states of the SDK's servers expire after ten minutes.


MAX_QUESTIONS = 10
"""How many questions a server may ask during one call."""
HOLD_SECONDS = 60.0
"""Time that a question of an older server waits for its answer, in seconds. The TypeScript SDK waits as long."""
CLOSE_SECONDS = 5.0
"""Time limit for closing a connection, and for a server to end a call whose question was cancelled, in seconds."""
_MAX_STATE_CHARS = 100_000
_MAX_MESSAGE_CHARS = 2000
_PARAMS: TypeAdapter[wire.ElicitRequestParams] = TypeAdapter(wire.ElicitRequestParams)
_COMPARED = {"mode", "message", "requested_schema", "url"}
"""Parts of a question that a person sees."""
_REPEATS = (
    f"the call starts again from its beginning unless this is answered within {HOLD_SECONDS:g} seconds in the process "
    "that asks, before the server gets another call: it speaks an older protocol"
)
_CANCEL = wire.ElicitResult(action="cancel")


class ServerQuestions:
    """What a server asks during one call, and what people answered. The run stores it between attempts."""

    def __init__(self, server: str, context: ToolContext, request: tuple[str, dict[str, Any]]) -> None:
        """Continue from the last attempt of the call.

        Args:
            server: name of the server in messages, such as `mcp.docs`.
            context: context of the call; that of the next attempt replaces it.
            request: the tool and its arguments.
        """
        self._server, self.context, self.request = server, context, request
        self.progress: ProgressFnT | None = None
        """Reports the progress of the call to the current attempt."""
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
        self.call: asyncio.Task[CallResult] | None = None
        """The call to an older server, from its start to its end."""
        self.token = ""
        """Names this call in what the run stores."""
        self._asking = asyncio.Lock()
        self._reply: asyncio.Future[wire.ElicitResult] | None = None

    @property
    def responses(self) -> wire.InputResponses | None:
        """Answers to the questions in the last answer of the server."""
        return {key: self._answers[place] for key, place in self._keys.items()} if self._answers else None

    @property
    def is_open(self) -> bool:
        """Whether the server waits, while the call is open, for the answer to a question."""
        is_asking = self._reply is not None and not self._reply.done()
        return is_asking and self.call is not None and not self.call.done()

    def continue_call(self) -> None:
        """Answer the question that the open call waits for. Questions that follow are new ones."""
        assert self._reply is not None, "the call is open"
        self._new = 0
        self.asks.clear()
        self._reply.set_result(self._answers[-1])

    def cancel(self) -> None:
        """Cancel the question that waits for an answer, and those that follow it."""
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(_CANCEL)

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Report the progress of the call, unless the run has paused. An MCP SDK callback."""
        if self.progress and not self.asks.is_set():
            await self.progress(progress, total, message)

    def begin(self) -> None:
        """Start an attempt to call the tool: from the state of the server, if there is one."""
        if not self._keys:
            self._used.clear()
        self._new, self._refusal = 0, ""
        self.asks.clear()

    def restart(self, error: MCPError) -> bool:
        """Forget a state that the server refuses, because it has expired or the server was restarted.

        The call starts from its start; questions that the server repeats are answered from those of before.

        Returns:
            Whether there was a state.
        """
        if error.code != wire.INVALID_PARAMS or not self._keys:
            return False
        self._keys, self.state = {}, None
        self.begin()
        return True

    async def answer(self, params: wire.ElicitRequestParams) -> wire.ElicitResult:
        """Return the answer to a question that comes while the call is open, or `cancel` if there is none in time."""
        async with self._asking:
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
            self._reply = asyncio.get_running_loop().create_future()
            self.asks.set()
            try:
                async with asyncio.timeout(HOLD_SECONDS):
                    return await self._reply
            except TimeoutError:  # perhaps in the moment of the answer, which then counts
                return _CANCEL if self._reply.cancelled() else self._reply.result()

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

    async def settle(self, result: CallResult | None) -> bool:
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
        """Wait for the answers to all questions: the run pauses, and a later attempt continues or repeats the call."""
        inquiries = [self._inquiry(place, one) for place, one in enumerate(self._asked)]
        if not inquiries:
            return
        kept = {"asked": self._asked, "keys": self._keys, "state": self.state, "open": self.token}
        decisions = await self.context.inquire(inquiries, {**self.context.continuation, **kept})
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
    """Calls of an older server, one at a time: its questions do not say which call they belong to.

    A call whose question has no answer stays open when its attempt ends, because the run pauses. The next attempt
    continues it. It is ended by the first other call of the server, after `HOLD_SECONDS`, or by `end_held`.
    """

    def __init__(self, drop: Callable[[str], None]) -> None:
        """Initialize. `drop` drops the connection, for a reason."""
        self._drop = drop
        self._turn = asyncio.Lock()
        self._questions: ServerQuestions | None = None
        """Those of the open call."""

    def questions(self, server: str, context: ToolContext, request: tuple[str, dict[str, Any]]) -> ServerQuestions:
        """Return the questions of the call that the last attempt has left open, or what that attempt has stored."""
        questions, token = self._questions, context.continuation.get("open")
        if questions is None or not questions.is_open or (questions.token, questions.request) != (token, request):
            return ServerQuestions(server, context, request)
        questions.context = context
        return questions

    @asynccontextmanager
    async def turn(self, questions: ServerQuestions) -> AsyncIterator[None]:
        """Wait until no other call is open, and end one that waits for a person; questions now belong to this one."""
        async with self._turn:
            if self._questions is not questions:
                await self._end(self._questions)
            self._questions = questions
            try:
                yield
            finally:
                if not questions.is_open:
                    self._questions = None

    async def send(
        self, send: Callable[[], Coroutine[Any, Any, CallResult]], questions: ServerQuestions
    ) -> CallResult | None:
        """Send a call, or continue the open one, until the server answers, or asks what has no answer yet.

        If the caller gives up, the connection is dropped, so that no later question comes from the call.

        Args:
            send: sends the call.
            questions: those of the call.

        Returns:
            The result of the call; None if a person must answer first.
        """
        if questions.is_open:
            with questions.context.span("mcp.continue_call", client=True):
                questions.continue_call()
                return await self._attend(questions)
        await self._end(questions)  # the answer came too late
        questions.begin()
        questions.call, questions.token = asyncio.create_task(send()), uuid4().hex
        questions.call.add_done_callback(retrieve)
        return await self._attend(questions)

    async def _attend(self, questions: ServerQuestions) -> CallResult | None:
        call, asked = questions.call, asyncio.create_task(questions.asks.wait())
        assert call is not None, "it was started"
        either: set[asyncio.Task[Any]] = {call, asked}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return None if questions.asks.is_set() else await call
        except BaseException:
            self._give_up(call)
            raise
        finally:
            asked.cancel()

    async def elicit(
        self,
        context: ClientRequestContext,  # noqa: ARG002 - the signature is the SDK's
        params: wire.ElicitRequestParams,
    ) -> wire.ElicitResult:
        """Answer a question. An MCP SDK callback."""
        questions = self._questions
        result = await questions.answer(params) if questions else _CANCEL
        if questions and questions.call and result is _CANCEL:
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._give_up, questions.call)
        return result

    async def end_held(self, token: str | None = None) -> None:
        """End the call that waits for a person: any, or that with a token."""
        questions = self._questions
        if questions and questions.is_open and token in (None, questions.token):
            await self._end(questions)

    async def _end(self, questions: ServerQuestions | None) -> None:
        """End a call that no attempt waits for. If the server does not end it, the connection is dropped."""
        if questions is None or questions.call is None:
            return
        questions.cancel()
        try:
            await asyncio.wait({questions.call}, timeout=CLOSE_SECONDS)
        finally:
            self._give_up(questions.call)

    def _give_up(self, call: asyncio.Task[CallResult]) -> None:
        if not call.done() and not call.cancelling():
            self._drop("a call was given up before the server answered it")
            call.cancel()


def retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of a task, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
