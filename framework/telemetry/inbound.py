"""Trace context of a request that comes in over HTTP: what a run makes of its caller's `traceparent`."""

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
    """Apply a request's trace context to what is started inside.

    Args:
        headers: its `traceparent` headers. Anything but one valid header counts as none; `tracestate` and baggage are
            never read.
        mode: `ignore` the header; `link` runs, which keep traces and sampling of their own; or make it the `parent`:
            runs join the caller's trace, and its sampled flag decides whether they are recorded.
    """
    around = trace.get_current_span().get_span_context()
    if mode == "ignore" or around.is_valid or len(headers) != 1:  # a valid one: the host has read the header itself
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
    """`traceparent` of the request that started this run and is to be linked; empty if there is none."""
    return _linked.get()
