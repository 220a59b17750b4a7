"""Trace export with a real OTLP exporter to a local collector, from separate processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from framework import ConfigError
from framework.telemetry.setup import metrics_url, traces_url
from tests.support.forks import run
from tests.support.otlp_sink import Sink, sink
from tests.support.projects import agent, write

BURST = """
import logging, sys
from opentelemetry import trace
from framework.telemetry.setup import export_traces

logging.basicConfig(level=logging.WARNING)
with export_traces(sys.argv[1], {}, "burst"):
    sys.setswitchinterval(60)  # nothing is exported meanwhile
    for _ in range(int(sys.argv[2])):
        trace.get_tracer("test").start_span("work").end()
    sys.setswitchinterval(0.005)
"""


SILENT = """
import logging, sys
from opentelemetry import metrics, trace
from framework.telemetry.setup import export_traces

logging.basicConfig(level=logging.WARNING)
with export_traces(sys.argv[1], {}, "silent", exit_seconds=0.3):
    with trace.get_tracer("test").start_as_current_span("work"):
        metrics.get_meter("test").create_counter("calls").add(1)
print("ended")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {"agents.d/calc.yaml": agent("calc", model="offline", skill_policy="{allow: [calculator]}")}
    return write(tmp_path_factory.mktemp("project"), files)


def command(project: Path, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `agentsd run` in a separate process."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return run(["run", "-C", str(project), *options, "What is 12 * 7?"], cwd=project, env=clean | environ)


def names(collector: Sink) -> set[str]:
    return {span.name for span in collector.spans}


WHOLE = {
    "invoke_workflow calc",
    "agent.route",
    "invoke_agent calc",
    "agent.step 1",
    "agent.step 2",
    "chat offline",
    "execute_tool calculator",
}


def test_the_otlp_option_sets_the_endpoint(project: Path) -> None:
    with sink() as collector:
        done = command(project, "--otlp", collector.url)
    assert (done.returncode, done.stdout.strip()) == (0, "84")
    assert names(collector) == WHOLE
    assert (collector.paths, collector.services) == ({"/v1/traces", "/v1/metrics"}, {"agentsd"})
    assert {"agentsd.runs", "gen_ai.execute_tool.duration", "gen_ai.client.token.usage"} <= collector.metrics
    runs = {span.trace_id for span in collector.spans if not span.name.startswith("config.")}
    assert len(runs) == 1


def test_settings_set_endpoint_headers_and_service_name(tmp_path: Path) -> None:
    with sink() as collector:
        text = f"telemetry: {{otlp_endpoint: '{collector.url}', otlp_headers: {{x-key: k-1}}, service_name: shop}}\n"
        files = {"agents.d/calc.yaml": agent("calc", model="offline", skill_policy="{allow: [calculator]}")}
        command(write(tmp_path, {**files, "agentsd.yaml": text}))
    assert names(collector) == WHOLE
    assert collector.services == {"shop"}
    assert {headers["x-key"] for headers in collector.headers} == {"k-1"}


def test_opentelemetry_variables_set_the_endpoint(project: Path) -> None:
    with sink() as collector:
        command(project, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_SERVICE_NAME="by-env")
        assert (names(collector), collector.services) == (WHOLE, {"by-env"})
        before = len(collector.spans)
        command(project, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_SDK_DISABLED="true")
        command(project, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_TRACES_EXPORTER="none")
        command(project, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_TRACES_SAMPLER="always_off")
        assert len(collector.spans) == before


def test_metrics_can_be_left_out_and_a_backend_may_take_only_traces(project: Path) -> None:
    with sink() as collector:
        command(project, "--otlp", collector.url, OTEL_METRICS_EXPORTER="none")
        command(project, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{collector.url}/v1/traces")
        assert (names(collector), collector.paths) == (WHOLE, {"/v1/traces"})
        collector.refused = "/v1/metrics"
        done = command(project, "--otlp", collector.url)
    assert (done.returncode, done.stdout.strip()) == (0, "84")
    assert "/v1/metrics" in collector.paths
    assert "metric" not in done.stderr


def test_content_is_exported_only_if_enabled(project: Path) -> None:
    with sink() as collector:
        command(project, "--otlp", collector.url)
        default = b"".join(span.SerializeToString() for span in collector.spans)
        collector.spans.clear()
        command(project, "--otlp", collector.url, AGENTSD_TELEMETRY__CONTENT="full")
        full = b"".join(span.SerializeToString() for span in collector.spans)
    assert b"12 * 7" not in default
    assert b"What is 12 * 7?" in full


def test_an_unreachable_backend_does_not_fail_the_run(project: Path) -> None:
    done = command(project, "--otlp", "http://127.0.0.1:9")
    assert (done.returncode, done.stdout.strip()) == (0, "84")
    (warning,) = (line for line in done.stderr.splitlines() if "WARNING" in line)
    assert warning.endswith("traces were not exported: nothing is listening at http://127.0.0.1:9")
    assert "ERROR" not in done.stderr


def test_a_backend_that_never_answers_does_not_hold_the_exit(project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and reads nothing
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        words = [sys.executable, "-c", SILENT, url]
        done = subprocess.run(words, capture_output=True, text=True, timeout=25, check=True)
    assert done.stdout == "ended\n"
    (line,) = done.stderr.splitlines()
    assert (
        line == f"WARNING:framework.telemetry.setup:traces were not all exported: {url} did not take them within 0.3 s"
    )


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
def test_a_protocol_that_is_not_sent_is_rejected_before_the_run(project: Path, name: str) -> None:
    done = command(project, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", **{name: "grpc"})
    assert (done.returncode, done.stdout) == (78, "")
    assert f"{name}: the protocol 'grpc' is not supported: set it to http/protobuf" in done.stderr


def test_an_invalid_endpoint_is_rejected_before_the_run(project: Path) -> None:
    done = command(project, "--otlp", "127.0.0.1:6006")
    assert (done.returncode, done.stdout) == (78, "")
    assert "write it as http://127.0.0.1:6006" in done.stderr


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://h:1", "http://h:1/v1/traces"),
        ("http://h:1/", "http://h:1/v1/traces"),
        ("https://h/api/public/otel", "https://h/api/public/otel/v1/traces"),
        ("http://h:1/v1/traces", "http://h:1/v1/traces"),
    ],
)
def test_an_endpoint_may_omit_its_path(given: str, used: str) -> None:
    assert traces_url(given) == used
    assert metrics_url(given) == used.replace("/v1/traces", "/v1/metrics")


def test_an_endpoint_requires_a_scheme() -> None:
    with pytest.raises(ConfigError, match="invalid traces endpoint"):
        traces_url("localhost:4318")


def test_a_burst_of_the_spans_of_a_thousand_runs_loses_none(project: Path) -> None:
    with sink() as collector:
        command(project, "--otlp", collector.url)
        spans = 1000 * len(collector.spans)
        collector.spans.clear()
        words = [sys.executable, "-c", BURST, collector.url, str(spans)]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=55)
    assert len(collector.spans) == spans
    assert done.stderr == "", "nothing was dropped"
