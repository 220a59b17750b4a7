"""A collector that receives OTLP over HTTP and records it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Sink:
    """Received spans, names of metrics, and requests."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Any] = []
        self.metrics: set[str] = set()
        self.services: set[str] = set()
        self.headers: list[dict[str, str]] = []
        self.paths: set[str] = set()
        self.refused = ""
        """Path of requests that are answered with status 404."""

    def record(self, path: str, headers: dict[str, str], body: bytes) -> None:
        """Record one request."""
        self.paths.add(path)
        self.headers.append(headers)
        if path.endswith("/v1/metrics"):
            received = ExportMetricsServiceRequest.FromString(body)
            scopes = (scope for resource in received.resource_metrics for scope in resource.scope_metrics)
            self.metrics.update(metric.name for scope in scopes for metric in scope.metrics)
            return
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            names = [a.value.string_value for a in resource.resource.attributes if a.key == "service.name"]
            self.services.update(names)
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)


@contextmanager
def sink() -> Iterator[Sink]:
    """Run a collector on a free port."""
    collector = Sink()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collector.record(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(404 if self.path == collector.refused else 200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
