"""Sends the traces of a program of ours to a backend: the one place that makes providers. Embedders make their own."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from opentelemetry import metrics, trace
from opentelemetry.trace import ProxyTracerProvider

from framework.types.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

log = logging.getLogger(__name__)

QUEUE_SPANS = 65_536
"""Spans that may wait to be sent, of some 1 kB each: a thousand runs that end at once lose none."""
BATCH_SPANS = 1024
_SEND_TIMEOUT_SECONDS = 30.0
"""Of one sending: MLflow takes ten seconds for the first."""
_CONNECT_TIMEOUT_SECONDS = 3.0
_TRACES_PATH = "/v1/traces"
_ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@contextmanager
def export_traces(endpoint: str | None, headers: Mapping[str, str], service: str) -> Iterator[None]:
    """Send spans while the context is open, and what is left at its end. A provider that is there already stays.

    Args:
        endpoint: where OTLP over HTTP is taken, with or without `/v1/traces`; none: what OTEL_* variables say, if they
            say anything.
        headers: sent along; with none, those of OTEL_* variables.
        service: what backends call this process.

    Raises:
        ConfigError: the exporter's package is missing, or the endpoint is none.
    """
    if not _should_export(endpoint):
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(f"sending traces needs a package ({error}): pip install 'agentsd[otlp]'") from None
    resource = _resource(service)
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(
        endpoint=None if endpoint is None else traces_url(endpoint),
        headers=dict(headers) or None,
        timeout=None if os.environ.get("OTEL_EXPORTER_OTLP_TIMEOUT") else _SEND_TIMEOUT_SECONDS,
    )
    size = None if os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE") else QUEUE_SPANS
    batch = None if os.environ.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE") else BATCH_SPANS
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=size, max_export_batch_size=batch))
    trace.set_tracer_provider(provider)
    with _export_metrics(resource):
        try:
            yield
        finally:
            address = endpoint or next(url for name in _ENDPOINT_VARIABLES if (url := os.environ.get(name)))
            if not _is_listening(address):
                log.warning("traces are not sent: nothing listens at %s", address)
                logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)  # it would say so many times
                # else it tries again for half a minute
                exporter.shutdown()  # type: ignore[no-untyped-call]  # the package says no types there
            provider.shutdown()


def _is_listening(address: str) -> bool:
    """Whether anything listens there; of what lies behind a proxy that is not known, and taken for granted."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    if parts.scheme in getproxies() and not proxy_bypass(host):
        return True
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((host, port), _CONNECT_TIMEOUT_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def traces_url(endpoint: str) -> str:
    """Where spans are sent to; raises ConfigError for what is no address."""
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"{endpoint!r} is no address for traces: write it like http://127.0.0.1:6006")
    return endpoint if endpoint.rstrip("/").endswith(_TRACES_PATH) else endpoint.rstrip("/") + _TRACES_PATH


def _should_export(endpoint: str | None) -> bool:
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if not isinstance(trace.get_tracer_provider(), ProxyTracerProvider):
        return False
    if endpoint is not None:
        return True
    return os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "none" and any(
        os.environ.get(name) for name in _ENDPOINT_VARIABLES
    )


def _resource(service: str) -> Resource:
    """What is said of this process with every span; what OTEL_* variables say of it wins."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    own = {"service.name": service, "openinference.project.name": service}
    with suppress(PackageNotFoundError):
        own["service.version"] = version("agentsd")
    given = {key: value for key, value in OTELResourceDetector().detect().attributes.items() if value}
    project = {"openinference.project.name": str(given["service.name"])} if "service.name" in given else {}
    return Resource.create({**own, **project, **given})


@contextmanager
def _export_metrics(resource: Resource) -> Iterator[None]:
    """Numbers go the same way, but only where that is asked for: not every backend of traces takes them."""
    if os.environ.get("OTEL_METRICS_EXPORTER") != "otlp":
        yield
        return
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource=resource)
    metrics.set_meter_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()
