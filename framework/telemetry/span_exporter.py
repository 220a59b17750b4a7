"""Exports spans over OTLP with OpenTelemetry's exporter and a faster encoder.

OpenTelemetry's encoder builds a protobuf message for every attribute and copies it four times. Most attributes of a run
repeat in all its spans, so this one encodes each value once per batch. It encodes ordinary spans only, and leaves the
others (with events, links, an error or unusual values) to OpenTelemetry's encoder.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, cast

from opentelemetry.exporter.otlp.proto.common import trace_encoder
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import StatusCode

KnownAttributes = dict[tuple[str, type, Any], bytes]
"""Encoded attributes by name, type and value. The type is part of the key because `1 == True`."""

_INT_BITS = 63
_KNOWN_BYTES = 256
"""Longer attributes are not remembered: content rarely repeats, and would be in memory twice."""
_LOCAL_FLAGS = struct.pack("<I", 0x100)
"""The flags of a span whose parent is in this process: the bit that says whether it is remote is known, and not set."""
_ONE_BYTE = tuple(bytes((number,)) for number in range(0x80))
"""Numbers that are encoded in one byte."""
_UNSET_STATUS = b"\x7a\x00"
_FLAGS_FIELD = b"\x85\x01"


class _UnusualValueError(Exception):
    """An attribute value that OpenTelemetry's encoder has to encode."""


def encode_request(spans: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
    """Return the message that OpenTelemetry's `encode_spans` returns for these spans."""
    groups: dict[Resource, dict[InstrumentationScope | None, list[ReadableSpan]]] = {}
    by_identity: dict[tuple[int, int], list[ReadableSpan]] = {}  # the hash of a resource serializes it
    for span in spans:
        identity = id(span.resource), id(span.instrumentation_scope)
        if identity not in by_identity:
            scopes = groups.setdefault(span.resource, {})
            by_identity[identity] = scopes.setdefault(span.instrumentation_scope, [])
        by_identity[identity].append(span)
    members = [group for scopes in groups.values() for group in scopes.values()]
    request = trace_encoder.encode_spans([group[0] for group in members])  # for the resources and scopes
    messages = [scope for resource in request.resource_spans for scope in resource.scope_spans]
    known: KnownAttributes = {}
    for message, group in zip(messages, members, strict=True):
        del message.spans[:]
        encoded = (encode_ordinary(span, known) or _encode_unusual(span) for span in group)
        message.MergeFromString(b"".join(_field(b"\x12", span) for span in encoded))
    return request


def encode_ordinary(span: ReadableSpan, known: KnownAttributes) -> bytes | None:
    """Return an ordinary span as a protobuf message, or None if OpenTelemetry's encoder has to encode it.

    Args:
        span: an ended span.
        known: attributes that have been encoded already; short new ones are added.
    """
    context, parent = span.context, span.parent
    if (
        context is None
        or context.trace_state
        or (parent is not None and parent.is_remote)
        or span.status.status_code is not StatusCode.UNSET
        or span.events
        or span.links
        or span.dropped_attributes
        or span.dropped_events
        or span.dropped_links
        or span.start_time is None
        or span.end_time is None
    ):
        return None
    try:
        return b"".join(
            (
                b"\x0a\x10",
                context.trace_id.to_bytes(16, "big"),
                b"\x12\x08",
                context.span_id.to_bytes(8, "big"),
                b"" if parent is None else b"\x22\x08" + parent.span_id.to_bytes(8, "big"),
                _field(b"\x2a", span.name.encode()),
                bytes((0x30, span.kind.value + 1)),
                struct.pack("<BQBQ", 0x39, span.start_time, 0x41, span.end_time),
                *_attributes(span, known),
                _UNSET_STATUS,
                _FLAGS_FIELD,
                _LOCAL_FLAGS,
            )
        )
    except (_UnusualValueError, UnicodeEncodeError, struct.error):
        return None


def _encode_unusual(span: ReadableSpan) -> bytes:
    (message,) = trace_encoder.encode_spans((span,)).resource_spans[0].scope_spans[0].spans
    return bytes(message.SerializeToString())


def _attributes(span: ReadableSpan, known: KnownAttributes) -> list[bytes]:
    encoded = []
    for name, value in cast("dict[str, Any]", span.attributes).copy().items():  # items() of a copy takes a tenth
        kind = type(value)
        if kind is not str and kind is not int and kind is not bool:
            encoded.append(_attribute(name, value))
            continue
        key = name, kind, value
        attribute = known.get(key)
        if attribute is None:
            attribute = _attribute(name, value)
            if len(attribute) <= _KNOWN_BYTES:
                known[key] = attribute
        encoded.append(attribute)
    return encoded


def _attribute(name: str, value: Any) -> bytes:
    return _field(b"\x4a", _field(b"\x0a", name.encode()) + _field(b"\x12", _value(value)))


def _value(value: Any) -> bytes:
    """Return an `AnyValue` of the protocol."""
    kind = type(value)
    if kind is str:
        return _field(b"\x0a", value.encode())
    if kind is bool:
        return b"\x10\x01" if value else b"\x10\x00"
    if kind is int and value.bit_length() <= _INT_BITS:
        return b"\x18" + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    if kind is float:
        return b"\x21" + struct.pack("<d", value)
    if kind is tuple:
        return _field(b"\x2a", b"".join(_field(b"\x0a", _value(item)) for item in value))
    raise _UnusualValueError


def _field(tag: bytes, content: bytes) -> bytes:
    """Return a length-delimited field."""
    size = len(content)
    return tag + (_ONE_BYTE[size] if size < 0x80 else _varint(size)) + content


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _with_encoder(export: Callable[..., Any]) -> Any:
    """Return the method `export` with the encoder of this module behind the name `encode_spans`.

    OpenTelemetry's exporter has no parameter for it. Its module is not changed, so other exporters of the process keep
    their encoder, and so does this one if a later version calls it differently.
    """
    if not isinstance(export, FunctionType):
        return export
    names = {**export.__globals__, "encode_spans": encode_request}
    copy = FunctionType(export.__code__, names, export.__name__, export.__defaults__, export.__closure__)
    copy.__kwdefaults__ = export.__kwdefaults__
    return copy


class FastSpanExporter(OTLPSpanExporter):
    """OpenTelemetry's exporter with the encoder of this module: same options, requests, retries and errors."""

    export = _with_encoder(OTLPSpanExporter.export)
