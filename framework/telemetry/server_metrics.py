"""Metrics of the HTTP server and the store, reported like those of runs.

FastAPI itself reports the duration of requests: `http.server.request.duration`.
"""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import metrics

from framework.telemetry import names
from framework.types.report import Status


class ServerMetrics:
    """Metrics of one server. Attributes are route templates, error codes and statuses, never values of a request."""

    def __init__(self) -> None:
        meter = metrics.get_meter(names.TRACER)
        self._streams = meter.create_up_down_counter("agentsd.server.streams", description="Open event streams.")
        self._rejected = meter.create_counter(
            "agentsd.server.rejected", description="Rejected requests and connections, by reason."
        )
        self._store_errors = meter.create_counter(
            "agentsd.store.errors", description="Requests and periodic work that failed because of the store."
        )
        for work in ("request", "housekeeping"):
            self._store_errors.add(0, {"work": work})  # otherwise Prometheus would not see the first error as a rise
        self._waiting = meter.create_gauge(
            "agentsd.store.runs", description="Runs in the store, of all processes, that are queued or paused."
        )

    def count_streams(self, change: int, route: str) -> None:
        """Count an event stream that opened (1) or ended (-1). `route` is the template of its path."""
        self._streams.add(change, {names.ROUTE: route})

    def count_rejected(self, reason: str) -> None:
        """Count a rejected request or connection. `reason` is an error code."""
        self._rejected.add(1, {"reason": reason})

    def count_store_error(self, work: str) -> None:
        """Count work that failed because of the store: a `request`, or `housekeeping`."""
        self._store_errors.add(1, {"work": work})

    def set_waiting(self, counts: Mapping[Status, int]) -> None:
        """Set the number of runs in the store by status."""
        for status, count in counts.items():
            self._waiting.set(count, {"status": status})
