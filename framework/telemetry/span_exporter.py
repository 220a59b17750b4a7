"""Exports spans over OTLP with OpenTelemetry's exporter and a faster encoder.

OpenTelemetry's encoder builds a protobuf message for every attribute and copies it four times. Most attributes of a run
repeat in all its spans, so this one encodes each value once per batch. It encodes ordinary spans only, and leaves the
others (with events, links, an error or unusual values) to OpenTelemetry's encoder.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType
from typing import Any

from opentelemetry.exporter.otlp.proto.common import trace_encoder
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import StatusCode

_INT_BITS = 63
_KNOWN_BYTES = 256
"""Longer attributes are not remembered: content rarely repeats, and would be in memory twice."""
_UNIQUE = frozenset({str, int})
"""Types of values that equal no value of another type."""
_STATUS_AND_FLAGS = b"\x7a\x00\x85\x01" + struct.pack("<I", 0x100)
"""No status, and the flags of a span whose parent is local: the bit `remote` is known, and not set."""
_KIND_AND_TIMES = struct.Struct("<BBBQBQ").pack
_ONE_BYTE = tuple(bytes((number,)) for number in range(0x80))
"""Numbers that are encoded in one byte."""


class _UnusualValueError(Exception):
    """An attribute value that OpenTelemetry's encoder has to encode."""


class KnownAttributes(dict[tuple[str, Any], bytes]):
    """Encoded attributes by name and value; a missing one is encoded.

    Only texts and integers are remembered. Others must not be looked up: they can equal an integer (`1 == True`), or
    cannot be hashed.
    """

    def __missing__(self, attribute: tuple[str, Any]) -> bytes:
        name, value = attribute
        encoded = _field(b"\x4a", _field(b"\x0a", name.encode()) + _field(b"\x12", _value(value)))
        if type(value) in _UNIQUE and len(encoded) <= _KNOWN_BYTES:
            self[attribute] = encoded
        return encoded


class EncodedRequest(bytes):
    """An encoded request that can be used like the message it contains."""

    def SerializePartialToString(self) -> bytes:  # noqa: N802 - the name of protobuf
        """Return the encoded message."""
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(ExportTraceServiceRequest.FromString(self), name)


def encode_request(spans: Sequence[ReadableSpan]) -> EncodedRequest:
    """Return the encoding of the message that OpenTelemetry's `encode_spans` returns for these spans."""
    groups: dict[Resource, dict[InstrumentationScope | None, list[ReadableSpan]]] = {}
    by_identity: dict[tuple[int, int], list[ReadableSpan]] = {}  # the hash of a resource serializes it
    for span in spans:
        identity = id(span.resource), id(span.instrumentation_scope)
        if identity not in by_identity:
            scopes = groups.setdefault(span.resource, {})
            by_identity[identity] = scopes.setdefault(span.instrumentation_scope, [])
        by_identity[identity].append(span)
    members = [group for scopes in groups.values() for group in scopes.values()]
    remaining = iter(members)
    request = trace_encoder.encode_spans([group[0] for group in members])  # for the resources and scopes
    known = KnownAttributes()
    return EncodedRequest(
        b"".join(
            _enclosing(
                b"\x0a",
                resource,
                "scope_spans",
                b"".join(
                    _enclosing(b"\x12", scope, "spans", b"".join(_encode_group(next(remaining), known)))
                    for scope in resource.scope_spans
                ),
            )
            for resource in request.resource_spans
        )
    )


def _enclosing(tag: bytes, message: Any, repeated: str, content: bytes) -> bytes:
    """Return a message as a field, with `content` instead of its field `repeated`, the second of three."""
    message = type(message).FromString(message.SerializeToString())
    message.ClearField(repeated)
    after = type(message)(schema_url=message.schema_url).SerializeToString()
    message.ClearField("schema_url")
    return _field(tag, message.SerializeToString() + content + after)


def _encode_group(spans: Sequence[ReadableSpan], known: KnownAttributes) -> Iterator[bytes]:
    for span in spans:
        yield _field(b"\x12", encode_ordinary(span, known) or _encode_unusual(span))


def encode_ordinary(span: ReadableSpan, known: KnownAttributes) -> bytes | None:
    """Return an ordinary span as a protobuf message, or None if OpenTelemetry's encoder has to encode it.

    Args:
        span: an ended span.
        known: attributes that have been encoded already; short new ones are added.
    """
    if type(span) is not ReadableSpan:  # its properties can return something else than its fields
        return None
    try:
        fields = vars(span)
        attributes, context, parent = fields["_attributes"], fields["_context"], fields["_parent"]
        if (
            fields["_status"].status_code is not StatusCode.UNSET
            or not (_is_empty(fields["_events"]) and _is_empty(fields["_links"]))
            or getattr(attributes, "dropped", False)
            or context.trace_state
            or (parent is not None and parent.is_remote)
        ):
            return None
        return b"".join(
            (
                b"\x0a\x10",
                context.trace_id.to_bytes(16, "big"),
                b"\x12\x08",
                context.span_id.to_bytes(8, "big"),
                b"" if parent is None else b"\x22\x08" + parent.span_id.to_bytes(8, "big"),
                _field(b"\x2a", fields["_name"].encode()),
                _KIND_AND_TIMES(
                    0x30, fields["_kind"].value + 1, 0x39, fields["_start_time"], 0x41, fields["_end_time"]
                ),
                *(_attributes(attributes.copy(), known) if attributes else ()),
                _STATUS_AND_FLAGS,
            )
        )
    except (_UnusualValueError, KeyError, AttributeError, UnicodeEncodeError, struct.error):
        return None


def _is_empty(values: Any) -> bool:
    """Return whether a list of events or links is empty, and none has been dropped from it."""
    return values == () or not (values or getattr(values, "dropped", 0))


def _encode_unusual(span: ReadableSpan) -> bytes:
    (message,) = trace_encoder.encode_spans((span,)).resource_spans[0].scope_spans[0].spans
    return bytes(message.SerializeToString())


def _attributes(attributes: dict[str, Any], known: KnownAttributes) -> Iterable[bytes]:
    if _UNIQUE.issuperset(map(type, attributes.values())):
        return map(known.__getitem__, attributes.items())
    return [known[item] if type(item[1]) in _UNIQUE else known.__missing__(item) for item in attributes.items()]


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
    if size < 0x80:
        return tag + _ONE_BYTE[size] + content
    return tag + (bytes((size & 0x7F | 0x80, size >> 7)) if size < 0x4000 else _varint(size)) + content


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
