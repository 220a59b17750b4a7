"""Applies the trace context of an incoming HTTP request to the runs it starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from framework.types.trace import Inbound

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


def linked_caller() -> str:
    """Return the `traceparent` of the request to which runs are linked, or an empty string."""
    return _linked.get()
