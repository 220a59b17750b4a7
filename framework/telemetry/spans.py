"""Spans of one run: recorded, stored, linked to callers, set by plugins, as OTLP JSON; and their content.

Prompts, arguments and results become attributes as far as settings allow; by default nothing. Structured content is
JSON that remains valid when it is shortened, because backends drop JSON that they cannot parse.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, Self, cast

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import (
    INVALID_SPAN,
    ProxyTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from framework.telemetry import names
from framework.telemetry.redact import safe_traceback
from framework.types.media import MediaPart, TextPart
from framework.types.messages import Message, ToolDefinition
from framework.types.redact import MASK, redact, redact_data
from framework.types.report import (
    Attributes,
    AttributeValue,
    Inbound,
    SpanEvent,
    SpanLink,
    SpanRecord,
    TraceContext,
)
from framework.types.spec import CONTENT_MODES, ContentMode
from framework.types.state import Confirmation
from framework.types.text import shorten

PART_CHARS = 4096
"""Limit for one text of a message."""
ATTRIBUTE_CHARS = 32_768
"""Limit for one attribute; the middle of a longer conversation is omitted."""
_MESSAGE_CHARS = ATTRIBUTE_CHARS // 2 - 2
"""Limit for one message; the last of its parts are omitted if it is longer."""
TEXT, JSON = "text/plain", "application/json"
_CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURE_VALUES = frozenset({"true", "1", "span_only", "span_and_event"})

ContentAttributes = dict[str, AttributeValue]


def content_mode(settings: ContentMode | None, environ: Mapping[str, str]) -> ContentMode:
    """Return the mode from the settings, or else from OpenTelemetry's standard variable."""
    if settings is not None:
        return settings
    return "full" if environ.get(_CAPTURE_VARIABLE, "").lower() in _CAPTURE_VALUES else "none"


@dataclass(frozen=True, slots=True)
class Content:
    """Converts content to span attributes, as far as the mode allows."""

    mode: ContentMode = "none"
    secrets: tuple[str, ...] = ()
    """Secrets of the operator, which are masked in every mode."""

    def __bool__(self) -> bool:
        """Return whether any content may be recorded."""
        return self.mode != "none"

    def restricted_to(self, mode: ContentMode | None) -> Content:
        """Return a converter for the stricter of the two modes."""
        if mode is None or CONTENT_MODES.index(mode) >= CONTENT_MODES.index(self.mode):
            return self
        return Content(mode, self.secrets)

    def request(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> ContentAttributes:
        """Return the attributes of a model request: messages and tool definitions."""
        recorded = self._conversation(names.INPUT_MESSAGES, [self._message(message) for message in messages])
        if tools:
            definitions = [
                {"type": "function", "name": t.name, "description": t.description, "parameters": t.parameters}
                for t in tools
            ]
            text = _dumps(definitions)
            if len(text) <= ATTRIBUTE_CHARS:
                recorded[names.TOOL_DEFINITIONS] = self._safe(text)
            else:
                recorded[names.TRUNCATED] = True
        return recorded

    def reply(self, message: Message, finish_reason: str) -> ContentAttributes:
        """Return the attributes of a model's reply. Phoenix does not display a reply without a finish reason."""
        return self._conversation(names.OUTPUT_MESSAGES, [{**self._message(message), "finish_reason": finish_reason}])

    def arguments(self, arguments: Mapping[str, Any]) -> ContentAttributes:
        """Return the attributes of a tool call's arguments."""
        recorded = self.input(dict(arguments))
        return {names.TOOL_ARGUMENTS: recorded[names.INPUT], **recorded}

    def result(self, output: Any) -> ContentAttributes:
        """Return the attributes of a tool call's result."""
        recorded = self.output(output)
        text = recorded[names.OUTPUT]
        return {names.TOOL_RESULT: _dumps(text) if isinstance(output, str) else text, **recorded}

    def input(self, value: Any) -> ContentAttributes:
        """Return the input of a span: text or JSON."""
        text, kind = (self._text(value), TEXT) if isinstance(value, str) else (self._data(value), JSON)
        return {names.INPUT: text, names.INPUT_TYPE: kind}

    def output(self, value: Any) -> ContentAttributes:
        """Return the output of a span: text or JSON."""
        text, kind = (self._text(value), TEXT) if isinstance(value, str) else (self._data(value), JSON)
        return {names.OUTPUT: text, names.OUTPUT_MIME: kind}

    def turn(self, new_messages: Sequence[Message], reply: Message) -> ContentAttributes:
        """Return the input and output of one model turn.

        Args:
            new_messages: messages since the previous turn: the user's message, or tool results.
            reply: the model's message; its tool calls are written as `tool({"argument": value})`.
        """
        received = "\n".join(self._text(text) for message in new_messages if (text := message.description))
        calls = [f"{call.tool}({self._data(call.arguments)})" for call in reply.tool_calls]
        answered = "\n".join([*filter(None, [self._text(reply.content)]), *calls])
        return {
            names.INPUT: shorten(received, PART_CHARS),
            names.INPUT_TYPE: TEXT,
            names.OUTPUT: shorten(answered, PART_CHARS),
            names.OUTPUT_MIME: TEXT,
        }

    def text(self, name: str, value: str) -> ContentAttributes:
        """Return a single text attribute."""
        return {name: self._text(value)}

    def _conversation(self, name: str, messages: Sequence[dict[str, Any]]) -> ContentAttributes:
        """Return messages as JSON: the first one, and as many of the last ones as fit into `ATTRIBUTE_CHARS`."""
        full_texts = [_dumps(message) for message in messages]
        texts = [
            text if len(text) <= _MESSAGE_CHARS else _dumps(_fit_message(message))
            for text, message in zip(full_texts, messages, strict=True)
        ]
        remaining = ATTRIBUTE_CHARS - sum(map(len, texts[:1]))
        last: list[str] = []
        for text in reversed(texts[1:]):
            remaining -= len(text) + 1
            if remaining < 0:
                break
            last.append(text)
        is_complete = len(last) == len(texts[1:]) and texts == full_texts
        recorded: ContentAttributes = {name: self._safe("[" + ",".join([*texts[:1], *reversed(last)]) + "]")}
        return recorded if is_complete else {**recorded, names.TRUNCATED: True}

    def _message(self, message: Message) -> dict[str, Any]:
        return {"role": message.role, "parts": [*self._parts(message)]}

    def _parts(self, message: Message) -> Iterator[dict[str, Any]]:
        if message.tool_call_id is not None:
            response = self._text(message.content)
            yield {"type": "tool_call_response", "id": message.tool_call_id, "response": response}
            yield from map(self._file, message.media)
            return
        if message.reasoning and message.reasoning.text:
            yield {"type": "reasoning", "content": self._text(message.reasoning.text)}
        for part in message.parts or ([TextPart(text=message.content)] if message.content else ()):
            yield {"type": "text", "content": self._text(part.text)} if isinstance(part, TextPart) else self._file(part)
        for call in message.tool_calls:
            arguments = json.loads(self._data(call.arguments))
            yield {"type": "tool_call", "id": call.id, "name": call.tool, "arguments": arguments}

    def _file(self, part: MediaPart) -> dict[str, Any]:
        """Return a file as a `file` part of the conventions, without its bytes."""
        modality = "document" if part.kind == "pdf" else part.kind
        name = {"name": self._text(part.name)} if part.name else {}
        file = {"modality": modality, "mime_type": part.media_type, "file_id": part.digest, "size": part.size}
        return {"type": "file", **file, **name}

    def _text(self, text: str) -> str:
        """Mask and shorten a text. It is cut to twice the limit first, so that no secret is cut before it is masked."""
        shown = redact(text[: 2 * PART_CHARS]) if self.mode == "redacted" else text
        return self._safe(shorten(shown, PART_CHARS))

    def _data(self, value: Any) -> str:
        text = _dumps(redact_data(value) if self.mode == "redacted" else value)
        if len(text) > PART_CHARS:
            text = _dumps({"truncated": shorten(text, PART_CHARS)})
        return self._safe(text)

    def _safe(self, text: str) -> str:
        """Mask the operator's secrets and replace characters that cannot be encoded."""
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        return text.encode("utf-8", "replace").decode()


def _fit_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message with as many of its parts as fit into `_MESSAGE_CHARS`."""
    remaining = _MESSAGE_CHARS - len(_dumps({**message, "parts": []}))
    parts: list[Any] = []
    for part in message["parts"]:
        remaining -= len(_dumps(part)) + 2
        if remaining < 0:
            break
        parts.append(part)
    return {**message, "parts": parts}


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


OpenInferenceKind = Literal["LLM", "TOOL", "AGENT", "CHAIN"]
OptionalAttributes = Mapping[str, AttributeValue | None]
"""Attributes; those that are None are not recorded."""
SpanIds = tuple[str, str, int]
"""Trace id and span id in hexadecimal, and the flags, as in W3C trace context."""


def _link(traceparent: str, kind: str) -> SpanLink | None:
    """Return a link of this kind to the span of a W3C `traceparent`, or None if it has another format."""
    parts = traceparent.split("-")
    return SpanLink(parts[1], parts[2], {names.LINK_TYPE: kind}) if len(parts) == 4 else None


def _without_none(attributes: OptionalAttributes) -> Mapping[str, AttributeValue]:
    if None in attributes.values():
        return {key: value for key, value in attributes.items() if value is not None}
    return cast("Mapping[str, AttributeValue]", attributes)


class TraceSpan:
    """An open span. Entering it makes it the current one; leaving ends it.

    Exceptions are not recorded, except for cancellations: the code that knows what one means calls `fail`.
    """

    __slots__ = (
        *("_attached", "_attributes", "_entered", "_error", "_events", "_host", "_ids", "_kind", "_links", "_log"),
        *("_name", "_parent_id", "_started"),
    )

    def __init__(
        self,
        name: str,
        kind: Literal["internal", "client"],
        attributes: dict[str, AttributeValue],
        ids: SpanIds,
        parent: TraceSpan | None = None,
        host: Span = INVALID_SPAN,
        log: list[SpanRecord] | None = None,
        started_ns: int | None = None,
    ) -> None:
        """Initialize.

        Args:
            name: the span's name.
            kind: its kind, for the stored trace.
            attributes: its attributes, which may be changed.
            ids: its ids: those of `host`, if the host records spans.
            parent: the span above it.
            host: the same span of the host's provider, or OpenTelemetry's no-op span.
            log: gets the span's record when it ends, for the stored trace; None if it is not stored.
            started_ns: the start in Unix nanoseconds; None for now.
        """
        self._name, self._kind, self._attributes, self._ids, self._host = name, kind, attributes, ids, host
        self._parent_id = parent._ids[1] if parent and log is not None else None
        self._log, self._started = log, started_ns or time.time_ns()
        self._error: str | None = None
        self._events: tuple[SpanEvent, ...] = ()
        self._links: tuple[SpanLink, ...] = ()
        self._entered: Token[TraceSpan] | None = None
        self._attached: Token[Context] | None = None

    def __enter__(self) -> Self:
        if self is not NOOP_SPAN:
            self._entered = _current.set(self)
            if self._host is not INVALID_SPAN:
                self._attached = attach(trace.set_span_in_context(self._host))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._deactivate(error)
        self.end()

    def _deactivate(self, error: BaseException | None) -> None:
        """Restore the previous current span. A cancellation is recorded here, because it means the same everywhere."""
        if self._attached:
            detach(self._attached)
        if self._entered:
            _current.reset(self._entered)
            self._attached = self._entered = None
        if isinstance(error, asyncio.CancelledError):
            self.fail("cancelled")

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Make the span the current one while the context is open, without ending it."""
        self.__enter__()
        try:
            yield
        except BaseException as error:
            self._deactivate(error)
            raise
        self._deactivate(None)

    def is_recording(self) -> bool:
        """Return whether attributes are recorded, and so are worth computing."""
        return self._log is not None or self._host.is_recording()

    def set_attribute(self, name: str, value: AttributeValue | None) -> None:
        """Set an attribute; None is ignored."""
        self.set_attributes({name: value})

    def set_attributes(self, attributes: OptionalAttributes) -> None:
        """Set several attributes; those that are None are ignored."""
        present = _without_none(attributes)
        self._host.set_attributes(present)
        if self._log is not None:
            self._attributes.update(present)

    def add_event(self, name: str, attributes: OptionalAttributes | None = None) -> None:
        """Record an event at the current time."""
        present = _without_none(attributes or {})
        self._host.add_event(name, present)
        if self._log is not None:
            self._events += (SpanEvent(name, time.time_ns(), present),)

    def add_link(self, traceparent: str, kind: str) -> None:
        """Link the span to the one with this W3C `traceparent`; an empty or invalid one is ignored."""
        link = _link(traceparent, kind)
        if link is None:
            return
        target = SpanContext(int(link.trace_id, 16), int(link.span_id, 16), True, TraceFlags(TraceFlags.SAMPLED))
        self._host.add_link(target, link.attributes)
        if self._log is not None:
            self._links += (link,)

    def fail(self, error_type: str) -> None:
        """Mark the span as failed with a low-cardinality type, not a message. Later calls are ignored."""
        if self._error or not self.is_recording():
            return
        self._error = error_type
        self.set_attributes({names.ERROR_TYPE: error_type})
        self._host.set_status(Status(StatusCode.ERROR, error_type))

    def end(self, at_ns: int | None = None) -> None:
        """End the span, now or at a Unix time in nanoseconds. Idempotent."""
        self._host.end(at_ns)
        self._host = INVALID_SPAN
        if self._log is not None:
            self._log.append(self._record(at_ns or time.time_ns()))
            self._log = None

    @property
    def trace_id(self) -> str | None:
        """The trace id in hexadecimal; None when nothing is recorded."""
        return self._ids[0] or None

    @property
    def traceparent(self) -> str:
        """The W3C `traceparent` of the span; empty when nothing is recorded."""
        trace_id, span_id, flags = self._ids
        return f"00-{trace_id}-{span_id}-{flags:02x}" if trace_id else ""

    def _record(self, end_ns: int) -> SpanRecord:
        return SpanRecord(
            name=self._name,
            trace_id=self._ids[0],
            span_id=self._ids[1],
            parent_id=self._parent_id,
            kind=self._kind,
            start_ns=self._started,
            end_ns=end_ns,
            attributes=self._attributes,
            error=self._error,
            events=self._events,
            links=self._links,
        )


NOOP_SPAN = TraceSpan("", "internal", {}, ("", "", 0))
"""A span that is recorded nowhere."""
_current: ContextVar[TraceSpan] = ContextVar("agentsd_span", default=NOOP_SPAN)


def current_span() -> TraceSpan:
    """Return the innermost open span of agentsd in this context, or `NOOP_SPAN`."""
    return _current.get()


class Spans:
    """The spans of one run. All have the attributes that identify the run and its generation."""

    def __init__(self, shared: OptionalAttributes, *, keep: bool = False, traced: bool = True) -> None:
        """Detect the host's provider.

        Args:
            shared: attributes of every span.
            keep: add ended spans to `finished_spans`, for a store.
            traced: whether to record spans at all.
        """
        self._shared = _without_none(shared)
        provider = trace.get_tracer_provider()
        self._tracer: Tracer | None = (
            None if isinstance(provider, ProxyTracerProvider) else provider.get_tracer(names.TRACER)
        )
        self._keep = keep
        self.finished_spans: list[SpanRecord] = []
        """Ended spans that have not been drained yet."""
        self.recording = traced and (keep or self._tracer is not None)
        """Whether spans are recorded."""

    def span(
        self,
        name: str,
        kind: OpenInferenceKind,
        attributes: OptionalAttributes | None = None,
        *,
        client: bool = False,
        root: bool = False,
        started_ns: int | None = None,
    ) -> TraceSpan:
        """Open a span; entering it makes it the current one.

        Args:
            name: the span's name, of low cardinality: backends group spans by it.
            kind: the OpenInference span kind.
            attributes: the attributes known at the start; samplers see only these.
            client: whether the span calls another service; always true for `LLM`.
            root: start a new trace, even inside another span.
            started_ns: the start in Unix nanoseconds, if it was earlier.
        """
        if not self.recording:
            return NOOP_SPAN
        merged: dict[str, AttributeValue] = {**self._shared, names.OPENINFERENCE_KIND: kind}
        if attributes:
            merged.update(_without_none(attributes))
        is_client = client or kind == "LLM"
        parent = NOOP_SPAN if root else current_span()
        host: Span = INVALID_SPAN
        if self._tracer:
            host = self._tracer.start_span(
                name,
                context=Context() if root else None,
                kind=SpanKind.CLIENT if is_client else SpanKind.INTERNAL,
                attributes=merged,
                start_time=started_ns,
                record_exception=False,
                set_status_on_exception=False,
            )
        ids = _ids_of(host.get_span_context()) if self._tracer else _new_ids(parent, root=root)
        log = self.finished_spans if self._keep else None
        above = None if parent is NOOP_SPAN else parent
        return TraceSpan(name, "client" if is_client else "internal", merged, ids, above, host, log, started_ns)

    def drain(self, least: int = 1) -> Sequence[SpanRecord]:
        """Return and remove the ended spans; return none while there are fewer than `least`."""
        if len(self.finished_spans) < least:
            return ()
        drained, self.finished_spans[:] = self.finished_spans[:], []
        return drained


def _ids_of(context: SpanContext) -> SpanIds:
    return f"{context.trace_id:032x}", f"{context.span_id:016x}", context.trace_flags & TraceFlags.SAMPLED


def _new_ids(parent: TraceSpan, *, root: bool) -> SpanIds:
    """Create ids for a span that is only stored. It continues the trace of the current span, if there is one."""
    span_id = f"{random.getrandbits(64):016x}"
    if parent.trace_id:
        return parent.trace_id, span_id, TraceFlags.SAMPLED
    active = trace.get_current_span().get_span_context()
    trace_id = active.trace_id if active.is_valid and not root else random.getrandbits(128)
    return f"{trace_id:032x}", span_id, TraceFlags.SAMPLED


_linked: ContextVar[str] = ContextVar("agentsd_caller", default="")


@contextmanager
def apply_inbound(headers: Sequence[str], mode: Inbound) -> Iterator[None]:
    """Apply a request's trace context to the runs that are started inside this context.

    Args:
        headers: the request's `traceparent` headers. They are ignored unless there is exactly one and it is valid;
            `tracestate` and baggage are never read.
        mode: `ignore` the header; `link` runs to it, with their own traces and sampling; or use it as their `parent`:
            runs join the caller's trace, and its sampled flag decides whether they are recorded.
    """
    active = trace.get_current_span().get_span_context()
    if mode == "ignore" or active.is_valid or len(headers) != 1:  # if valid, the host has already applied the header
        yield
        return
    remote = TraceContextTextMapPropagator().extract({"traceparent": headers[0]}, Context())
    if not trace.get_current_span(remote).get_span_context().is_valid:
        yield
    elif mode == "parent":
        token = attach(remote)
        try:
            yield
        finally:
            detach(token)
    else:
        linked = _linked.set(headers[0].strip())
        try:
            yield
        finally:
            _linked.reset(linked)


def current_trace_context() -> TraceContext | None:
    """Return the trace context that applies to runs that are started now, to apply it to a run that starts later."""
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    if carrier:
        return TraceContext(traceparent=carrier["traceparent"], mode="parent")
    return TraceContext(traceparent=linked_caller(), mode="link") if linked_caller() else None


def apply_trace_context(context: TraceContext | None) -> AbstractContextManager[None]:
    """Apply the trace context of an earlier request to the runs that are started inside this context."""
    return apply_inbound([context.traceparent], context.mode) if context else nullcontext()


def linked_caller() -> str:
    """Return the `traceparent` of the request to which runs are linked, or an empty string."""
    return _linked.get()


_MAX_TEXT_CHARS = 4096
"""Length to which texts are cut."""
_INT_LIMIT = 2**63


class PluginSpan:
    """A span for part of a tool's work."""

    __slots__ = ("_span",)

    def __init__(self, span: TraceSpan) -> None:
        self._span = span

    def __enter__(self) -> Self:
        self._span.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._span.__exit__(kind, error, traceback)

    def set_attribute(self, name: str, value: Any, /) -> None:
        """Set an attribute of the span."""
        self._span.set_attributes(plugin_attributes({name: value}))

    def fail(self, error_type: str, /) -> None:
        """Mark the span as failed."""
        self._span.fail(_text(error_type))


def plugin_attributes(values: Mapping[Any, Any]) -> dict[str, AttributeValue | None]:
    """Convert a plugin's values to attributes: strings, numbers, booleans, string lists; anything else as a string."""
    return {_text(name): _attribute(value) for name, value in values.items()}


def _attribute(value: Any) -> AttributeValue | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and -_INT_LIMIT <= value < _INT_LIMIT:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, (list, tuple)):
        return [_text(item) for item in value]
    return _text(value)


def _text(value: object) -> str:
    return str(value)[:_MAX_TEXT_CHARS].encode("utf-8", "replace").decode()


_SPAN_KINDS = {"internal": 1, "client": 3}
_STATUS_ERROR = 2


def otlp_json(spans: Iterable[SpanRecord], service: str = "agentsd") -> dict[str, Any]:
    """Return the spans as one `ExportTraceServiceRequest`."""
    scope = {"scope": {"name": names.TRACER}, "spans": [_span(span) for span in spans]}
    resource = {"service.name": service, "openinference.project.name": service}
    return {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}]}


def _span(span: SpanRecord) -> dict[str, Any]:
    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        **({"parentSpanId": span.parent_id} if span.parent_id else {}),
        "name": span.name,
        "kind": _SPAN_KINDS[span.kind],
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
        "events": [
            {"name": event.name, "timeUnixNano": str(event.at_ns), "attributes": _attributes(event.attributes)}
            for event in span.events
        ],
        "links": [
            {"traceId": link.trace_id, "spanId": link.span_id, "attributes": _attributes(link.attributes)}
            for link in span.links
        ],
        "status": {"code": _STATUS_ERROR, "message": span.error} if span.error else {},
    }


def _attributes(attributes: Attributes) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: AttributeValue) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case _:
            return {"arrayValue": {"values": [_value(item) for item in value]}}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of evaluating a run, as the event `gen_ai.evaluation.result` of the GenAI conventions has it."""

    name: str
    """Name of the evaluation, of low cardinality."""
    score: float
    label: str
    explanation: str | None = None
    """Why; content, so None unless it may be recorded."""
    attributes: OptionalAttributes = field(default_factory=dict)
    """Further attributes of the event."""


def record_evaluations(traceparent: str, results: Sequence[Evaluation]) -> None:
    """Record the results of evaluating a finished run in its trace, on a span below its root span.

    Without a provider of the host, or for a trace that is not sampled, nothing is recorded.

    Args:
        traceparent: the W3C `traceparent` of the run's root span.
        results: the results, one event each.
    """
    provider = trace.get_tracer_provider()
    parent = TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())
    if isinstance(provider, ProxyTracerProvider) or not trace.get_current_span(parent).get_span_context().is_valid:
        return
    with provider.get_tracer(names.TRACER).start_as_current_span("evaluate", context=parent) as span:
        for result in results:
            span.add_event(names.EVALUATION_RESULT, _evaluation_attributes(result))


def _evaluation_attributes(result: Evaluation) -> Attributes:
    attributes: OptionalAttributes = {
        names.EVALUATION_NAME: result.name,
        names.EVALUATION_SCORE: result.score,
        names.EVALUATION_LABEL: result.label,
        names.EVALUATION_EXPLANATION: result.explanation,
        **result.attributes,
    }
    return _without_none(attributes)


def evaluation_span(traceparent: str, results: Sequence[Evaluation], now: float) -> SpanRecord | None:
    """Return the span that a store adds to a finished run's trace, with the results; None without a trace.

    Args:
        traceparent: the W3C `traceparent` of the run's root span.
        results: the results, one event each.
        now: Unix time of the evaluation.
    """
    parts, at = traceparent.split("-"), round(now * 1e9)
    if len(parts) != 4:
        return None
    marks = tuple(SpanEvent(names.EVALUATION_RESULT, at, _evaluation_attributes(result)) for result in results)
    span_id = f"{random.getrandbits(64):016x}"
    return SpanRecord("evaluate", parts[1], span_id, parts[2], "internal", at, at, events=marks)


_run_id: ContextVar[str] = ContextVar("agentsd_run_id", default="")


def log_as_run(run_id: str) -> None:
    """Attach the id of a run to the log records of the current task and the tasks and threads that it starts."""
    _run_id.set(run_id)


class JsonFormatter(logging.Formatter):
    """Formats a record as one line: a JSON object with secrets masked.

    `time` (UTC), `level`, `logger` and `message` are always present; `run_id` and `trace_id` if the record belongs to a
    run; the fields of `record.agentsd`; and `exception`: the class and the traceback, but not the message, of one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        if run_id := _run_id.get():
            entry |= {"run_id": run_id, "trace_id": current_span().trace_id}
        for name, value in getattr(record, "agentsd", {}).items():
            entry[name] = redact(value) if isinstance(value, str) else value
        if record.exc_info and record.exc_info[1]:
            entry["exception"] = safe_traceback(record.exc_info[1])
        present = {name: value for name, value in entry.items() if value is not None}
        return json.dumps(present, ensure_ascii=False, default=str)


def record_pending(span: TraceSpan, confirmations: Sequence[Confirmation]) -> None:
    """Record on a span which tools wait for a person. Names are not content, so every content mode records them."""
    if not confirmations or not span.is_recording():
        return
    waiting: dict[str, list[str]] = {}
    for confirmation in confirmations:
        same_kind = waiting.setdefault(f"waits for {confirmation.traits.awaits}", [])
        if (tool := confirmation.tool or "plan") not in same_kind:
            same_kind.append(tool)
    text = "; ".join(f"{what}: {', '.join(tools)}" for what, tools in waiting.items())
    tools = tuple(dict.fromkeys(tool for same_kind in waiting.values() for tool in same_kind))
    span.set_attributes({names.WAITING_FOR: tools, names.OUTPUT: text, names.OUTPUT_MIME: TEXT})
