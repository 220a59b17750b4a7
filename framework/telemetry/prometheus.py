"""Collects the metrics of this process in Prometheus' text format.

Used by `agentsd serve` only: programs that embed agentsd configure their own export.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from opentelemetry import metrics

from framework.telemetry.setup import process_resource

Scrape = Callable[[str], tuple[bytes, str]]
"""Returns the metrics as text, and their content type, for an `Accept` header. Thread-safe; takes milliseconds."""


@contextmanager
def collect_metrics(service: str) -> Iterator[Scrape | None]:
    """Collect metrics while the context is open, also if they are exported elsewhere.

    The reader joins the MeterProvider of the process; if there is none, a new one is set.

    Args:
        service: the name of this process in `target_info`.

    Yields:
        The function that returns the metrics. None if the exporter is not installed, `OTEL_SDK_DISABLED` is set, or
        the existing provider accepts no further reader.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        yield None
        return
    try:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import MeterProvider
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.exposition import choose_encoder
    except ImportError:
        yield None
        return
    registry, lock = CollectorRegistry(), Lock()
    ProcessCollector(registry=registry)

    def scrape(accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        with lock:  # the reader would mix the results of concurrent scrapes
            return encode(registry), content_type

    provider = metrics.get_meter_provider()
    is_placeholder = type(provider).__module__.startswith("opentelemetry.metrics")
    if not is_placeholder and not hasattr(provider, "add_metric_reader"):
        yield None
        return
    reader = PrometheusMetricReader(scope_info_enabled=False, registry=registry)
    if is_placeholder:
        provider = MeterProvider([reader], resource=process_resource(service), shutdown_on_exit=False)
        metrics.set_meter_provider(provider)
    else:
        provider.add_metric_reader(reader)  # type: ignore[attr-defined]  # checked above; only the SDK's class has it
    try:
        yield scrape
    finally:
        provider.remove_metric_reader(reader)  # type: ignore[attr-defined]  # as above
