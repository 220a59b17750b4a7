"""OpenTelemetry's TracerProvider with a faster tracer for agentsd's own spans.

The SDK asks the sampler for every span and copies, checks and locks each attribute. Below a sampled span the usual
samplers can only answer "record", and agentsd's attributes are texts and numbers already. Everything else, such as root
spans, other samplers, links and unusual attributes, is left to the SDK.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from time import time_ns
from types import FunctionType
from typing import Any, cast

from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler
from opentelemetry.sdk.util import BoundedList
from opentelemetry.trace import Link, SpanContext, SpanKind, Status
from opentelemetry.util.types import Attributes

from framework.telemetry import names

_TEXT, _PLAIN = frozenset({str}), frozenset({str, int, bool, float})
_OWN = (names.TRACER, None, None, None)
"""Arguments with which agentsd gets its tracer, once per run."""
# fmt: off
_SPAN_FIELDS = frozenset((
    "_attributes", "_context", "_end_time", "_events", "_instrumentation_info", "_instrumentation_scope", "_kind",
    "_limits", "_links", "_lock", "_name", "_parent", "_record_end_metrics", "_record_exception", "_resource",
    "_sampler", "_set_status_on_exception", "_span_processor", "_start_time", "_status", "_trace_config",
))
# fmt: on
"""Fields of the SDK's spans. A version whose spans have others is used without the faster tracer."""
_ATTRIBUTES_FIELDS = frozenset(("_dict", "_immutable", "_lock", "max_value_len", "maxlen"))
"""Fields of the SDK's attributes that the faster ones use."""
_OWN_FIELDS = frozenset(("_attributes", "_context", "_kind", "_lock", "_name", "_parent", "_resource", "_start_time"))
"""Those that differ from span to span, or after a fork. The others are the same in all spans until they are set."""


class FastTracerProvider(sdk.TracerProvider):
    """OpenTelemetry's provider; the tracer of agentsd is a `FastTracer`."""

    _own: FastTracer | None = None

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Attributes = None,
    ) -> trace.Tracer:
        """Return the tracer of a library."""
        is_own = (instrumenting_module_name, instrumenting_library_version, schema_url, attributes) == _OWN
        if is_own and self._own:
            return self._own
        tracer = super().get_tracer(instrumenting_module_name, instrumenting_library_version, schema_url, attributes)
        if is_own and isinstance(tracer, sdk.Tracer):
            self._own = FastTracer(tracer)
            return self._own
        return tracer


class FastTracer(trace.Tracer):
    """A tracer of the SDK that creates the children of its sampled spans itself."""

    def __init__(self, tracer: sdk.Tracer) -> None:
        self._tracer = tracer
        self._children: type[_FastSpan] | None = None
        """The class of the children; None until there was a span that they can take their fields over from."""
        self._records_children = _records_children(tracer.sampler)

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = (),
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> trace.Span:
        """Start a span."""
        parent = trace.get_current_span(context)
        if (
            self._records_children
            and not (links or record_exception or set_status_on_exception)
            and ((self._children and type(parent) is self._children) or self._is_template(parent))
        ):
            return self._child(parent, name, context, kind, attributes, start_time)
        return self._tracer.start_span(
            name, context, kind, attributes, links, start_time, record_exception, set_status_on_exception
        )

    def start_as_current_span(self, *args: Any, **options: Any) -> Any:
        """Start a span of the SDK as the current one."""
        return self._tracer.start_as_current_span(*args, **options)

    def _is_template(self, span: trace.Span) -> bool:
        """Return whether `span` is a sampled one of this tracer, with fields that a child can take over."""
        fields = vars(span) if isinstance(span, sdk.Span) else {}
        if (
            fields.keys() != _SPAN_FIELDS
            or not vars(fields["_attributes"]).keys() >= _ATTRIBUTES_FIELDS
            or fields["_instrumentation_scope"] is not getattr(self._tracer, "_instrumentation_scope", None)
            or fields["_span_processor"] is not self._tracer.span_processor
            or fields["_record_exception"]
            or fields["_set_status_on_exception"]
            or not span.get_span_context().trace_flags.sampled
            or not _counts_nothing(fields["_record_end_metrics"])
        ):
            return False
        if self._children is None:
            same = {name: fields[name] for name in _SPAN_FIELDS - _OWN_FIELDS}
            empty = {"_events": (), "_links": (), "_status": Status(), "_end_time": None, "_record_end_metrics": None}
            self._children = type("_FastSpan", (_FastSpan,), same | empty)
        return True

    def _child(
        self,
        parent: trace.Span,
        name: str,
        context: Context | None,
        kind: SpanKind,
        attributes: Attributes,
        start_time: int | None,
    ) -> trace.Span:
        tracer, above = self._tracer, parent.get_span_context()
        span: Any = object.__new__(self._children or _FastSpan)
        span._name, span._kind, span._parent, span._resource = name, kind, above, tracer.resource
        span._context = SpanContext(
            above.trace_id, tracer.id_generator.generate_span_id(), False, above.trace_flags, above.trace_state
        )
        limits = span._limits
        span._attributes = _FastAttributes(
            limits.max_span_attributes, attributes, immutable=False, max_value_len=limits.max_span_attribute_length
        )
        span._lock = Lock()
        span._start_time = time_ns() if start_time is None else start_time
        tracer.span_processor.on_start(span, parent_context=context)
        return cast("trace.Span", span)


def _records_children(sampler: Sampler) -> bool:
    """Return whether the sampler records every child of a sampled local span, without changing anything."""
    is_parent_based = type(sampler).should_sample is ParentBased.should_sample
    return sampler is ALWAYS_ON or (is_parent_based and getattr(sampler, "_local_parent_sampled", None) is ALWAYS_ON)


def _counts_nothing(end: Any) -> bool:
    """Return whether this function, which the SDK calls when a span ends, is not one that counts this span."""
    return end is None or (isinstance(end, FunctionType) and end.__closure__ is None)


class _FastSpan(sdk.Span):
    """A span of the SDK. Its lists of events and links are created with the first one, because most spans have none."""

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        self._create_lists()
        super().add_event(name, attributes, timestamp)

    def add_link(self, context: SpanContext, attributes: Attributes = None) -> None:
        self._create_lists()
        super().add_link(context, attributes)

    def _create_lists(self) -> None:
        with self._lock:
            if self._end_time is None and isinstance(self._events, tuple):
                self._events = BoundedList(self._limits.max_events)
                self._links = BoundedList(self._limits.max_links)


class _FastAttributes(BoundedAttributes):
    """Attributes of a span. Texts, numbers and tuples of them are added without copying each one."""

    def _set_items(self, attributes: Mapping[str, Any]) -> None:
        values = self._dict
        if (
            self.max_value_len is not None
            or self._immutable
            or (self.maxlen is not None and len(values) + len(attributes) > self.maxlen)
            or not _are_plain(attributes)
        ):
            super()._set_items(attributes)
            return
        with self._lock:
            if not values.keys().isdisjoint(attributes):  # the SDK moves an attribute that is set again to the end
                for name in attributes:
                    values.pop(name, None)
            values.update(attributes)


def _are_plain(attributes: Mapping[str, Any]) -> bool:
    """Return whether the SDK would store these attributes unchanged."""
    if not _TEXT.issuperset(map(type, attributes)) or "" in attributes:
        return False
    values = attributes.values()
    return _PLAIN.issuperset(map(type, values)) or all(
        _PLAIN.issuperset(map(type, value)) if type(value) is tuple else type(value) in _PLAIN for value in values
    )
