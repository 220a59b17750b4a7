"""Applies the trace context of an incoming HTTP request to the runs it starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from framework.types.trace import Inbound, TraceContext

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
