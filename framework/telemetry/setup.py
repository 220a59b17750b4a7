"""Configures the OpenTelemetry SDK to export traces and metrics over OTLP.

Used by the command line only: programs that embed agentsd configure their own providers.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from opentelemetry import metrics, trace
from opentelemetry.trace import ProxyTracerProvider

from framework.types.errors import ConfigError
from framework.types.installation import install_command

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

log = logging.getLogger(__name__)


class _Ends(Protocol):
    """An exporter or a provider."""

    def shutdown(self) -> Any:
        """Send what is left, and end."""
        ...


_Exported = tuple[_Ends, _Ends]
"""An exporter, and the provider whose data it sends."""

QUEUE_SPANS = 65_536
"""Length of the export queue, at about 1 kB per span: a thousand runs that end together lose none."""
BATCH_SPANS = 1024
_SEND_TIMEOUT_SECONDS = 30.0
"""Timeout of one export request. MLflow needs ten seconds for the first one."""
EXIT_SECONDS = 3.0
"""Time for the last export at the end of a process, in seconds; a longer OTEL_EXPORTER_OTLP_TIMEOUT extends it."""
_MIN_WAIT_SECONDS = 0.2
_TIMEOUT_VARIABLE = "OTEL_EXPORTER_OTLP_TIMEOUT"
_PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
_TRACES_PATH, _METRICS_PATH = "/v1/traces", "/v1/metrics"
_METRICS_ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@contextmanager
def export_traces(
    endpoint: str | None, headers: Mapping[str, str], service: str, exit_seconds: float = EXIT_SECONDS
) -> Iterator[None]:
    """Export spans while the context is open, and flush them at its end. An existing provider is not replaced.

    Args:
        endpoint: the OTLP/HTTP endpoint, with or without `/v1/traces`. None: the endpoint of the OTEL_* variables;
            without one, nothing is exported.
        headers: HTTP headers of the export; if empty, those of the OTEL_* variables.
        service: the name of this process in backends.
        exit_seconds: time for the last export at the end, in seconds; after it, a warning names the endpoint.

    Raises:
        ConfigError: the exporter's package is missing, the endpoint is not a URL, or the OTEL_* variables ask for
            another protocol.
    """
    if not _should_export(endpoint):
        yield
        return
    if endpoint is None:
        _check_protocol()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(
            f"cannot export traces: a package is missing ({error}): run {install_command('agentsd[otlp]')}"
        ) from None
    resource = process_resource(service)
    exporter = OTLPSpanExporter(
        endpoint=None if endpoint is None else traces_url(endpoint),
        headers=dict(headers) or None,
        timeout=None if os.environ.get(_TIMEOUT_VARIABLE) else _SEND_TIMEOUT_SECONDS,
    )
    provider = tracer_provider(exporter, resource)
    trace.set_tracer_provider(provider)
    exported: list[_Exported] = [(exporter, provider), *_metrics_export(resource, endpoint, headers)]
    try:
        yield
    finally:
        address = endpoint or next(url for name in _ENDPOINT_VARIABLES if (url := os.environ.get(name)))
        _shut_down(exported, address, max(exit_seconds, _send_timeout()))


def _shut_down(exported: Sequence[_Exported], address: str, seconds: float) -> None:
    """Send what is left, traces and metrics in parallel, and warn if the backend does not take it in time."""
    end = time.monotonic() + seconds
    listening = _is_listening(address, seconds)
    if not listening:
        log.warning("traces were not exported: nothing is listening at %s", address)
        _give_up(exported)
    # Daemon threads: one that waits for a backend does not hold the process.
    threads = [threading.Thread(target=provider.shutdown, daemon=True) for _, provider in exported]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(_MIN_WAIT_SECONDS, end - time.monotonic()))
    if listening and any(thread.is_alive() for thread in threads):
        log.warning("traces were not all exported: %s did not take them within %g s", address, seconds)
        _give_up(exported)


def _give_up(exported: Sequence[_Exported]) -> None:
    """End the retries of the exporters, which take half a minute, and the errors that they log for each batch."""
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    logging.getLogger("opentelemetry.sdk").setLevel(logging.CRITICAL)
    for exporter, _ in exported:
        exporter.shutdown()


def _send_timeout() -> float:
    """Return the timeout of OpenTelemetry's variable in seconds; 0 if it is not set, or not a number."""
    with suppress(ValueError):
        return float(os.environ.get(_TIMEOUT_VARIABLE) or 0)
    return 0.0


def _check_protocol() -> None:
    """Raise ConfigError if the OTEL_* variables ask for a protocol that is not sent."""
    name = next((name for name in _PROTOCOL_VARIABLES if os.environ.get(name, "").strip()), None)
    protocol = os.environ[name].strip().lower() if name else _PROTOCOL
    if protocol != _PROTOCOL:
        advice = f"set it to {_PROTOCOL}, and the endpoint to the collector's HTTP port, such as http://collector:4318"
        raise ConfigError(f"{name}: the protocol {protocol!r} is not supported: {advice}")


def tracer_provider(exporter: SpanExporter, resource: Resource | None = None) -> TracerProvider:
    """Return a provider that exports in batches; the OTEL_BSP_* variables take precedence over its queue's defaults."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    size = None if os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE") else QUEUE_SPANS
    batch = None if os.environ.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE") else BATCH_SPANS
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=size, max_export_batch_size=batch))
    return provider


def _is_listening(address: str, seconds: float) -> bool:
    """Return whether a server is listening at the address; behind a proxy this is unknown, and assumed."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    if parts.scheme in getproxies() and not proxy_bypass(host):
        return True
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((host, port), seconds).close()
    except (OSError, ValueError):
        return False
    return True


def metrics_url(endpoint: str) -> str:
    """Return the URL for metrics of an endpoint that `traces_url` accepts."""
    return traces_url(endpoint).rstrip("/").removesuffix(_TRACES_PATH) + _METRICS_PATH


def traces_url(endpoint: str) -> str:
    """Return the URL for spans; raise ConfigError if the endpoint is not a URL."""
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"invalid traces endpoint: {endpoint!r}: write it as http://127.0.0.1:6006")
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


def process_resource(service: str) -> Resource:
    """Return the resource attributes of this process; those of OTEL_* variables take precedence."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    defaults = {"service.name": service, "openinference.project.name": service}
    with suppress(PackageNotFoundError):
        defaults["service.version"] = version("agentsd")
    from_environment = {key: value for key, value in OTELResourceDetector().detect().attributes.items() if value}
    project = {}
    if "service.name" in from_environment:
        project = {"openinference.project.name": str(from_environment["service.name"])}
    return Resource.create({**defaults, **project, **from_environment})


def _metrics_export(resource: Resource, endpoint: str | None, headers: Mapping[str, str]) -> Iterator[_Exported]:
    """Export metrics beside the traces, unless OTEL_* variables exclude them; yield their exporter and provider.

    Many backends take only traces, so that what the exporter logs is hidden unless OTEL_METRICS_EXPORTER asks for it.
    """
    chosen = os.environ.get("OTEL_METRICS_EXPORTER")
    has_address = endpoint is not None or any(os.environ.get(name) for name in _METRICS_ENDPOINT_VARIABLES)
    if chosen not in (None, "otlp") or not (chosen or has_address):
        return
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    if chosen is None:
        logging.getLogger(OTLPMetricExporter.__module__).setLevel(logging.CRITICAL)
    url = None if endpoint is None else metrics_url(endpoint)
    exporter = OTLPMetricExporter(endpoint=url, headers=dict(headers) or None)
    provider = MeterProvider([PeriodicExportingMetricReader(exporter)], resource=resource, shutdown_on_exit=False)
    metrics.set_meter_provider(provider)
    yield exporter, provider


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
