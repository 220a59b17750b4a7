"""Real tracing backends, each in its own environment (`make test-backends`), queried by their own APIs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tests.support.paths import ROOT

T = TypeVar("T")
PATIENCE = 180.0


@dataclass(frozen=True)
class Seen:
    """A span as a backend returns it."""

    name: str
    span_id: str
    parent_id: str | None
    kind: str
    failed: bool
    began: float
    text: str
    """Everything that the backend stores of the span, as JSON."""


class Backend(Protocol):
    """A running server."""

    @property
    def url(self) -> str:
        """Base URL of the server."""
        ...

    def project(self, name: str) -> list[str]:
        """Create a project; return the headers, as `NAME=VALUE`, that send spans to it."""
        ...

    def spans(self, project: str, trace_id: str) -> list[Seen]:
        """Return the spans of one trace."""
        ...

    def tokens(self, project: str, trace_id: str) -> int:
        """Return the token count that the backend computes for one trace."""
        ...

    def cost(self, project: str, trace_id: str) -> float:
        """Return the cost of one trace in US dollars, or 0 if the backend shows none."""
        ...

    def sessions(self, project: str, trace_ids: list[str]) -> set[str]:
        """Return the sessions of these traces."""
        ...


@dataclass(frozen=True)
class Phoenix:
    """Arize Phoenix: REST for spans, GraphQL for sums."""

    url: str

    def project(self, name: str) -> list[str]:
        return []  # the service name selects the project

    def spans(self, project: str, trace_id: str) -> list[Seen]:
        found = ask(f"{self.url}/v1/projects/{project}/spans?limit=1000")["data"]
        return [
            Seen(
                span["name"],
                span["context"]["span_id"],
                span["parent_id"],
                span["span_kind"],
                span["status_code"] == "ERROR",
                float(span["start_time"].partition("+")[0].rpartition(":")[2]),
                json.dumps(span),
            )
            for span in found
            if span["context"]["trace_id"] == trace_id
        ]

    def tokens(self, project: str, trace_id: str) -> int:
        query = """query($p: String!, $t: ID!) {
            getProjectByName(name: $p) { trace(traceId: $t) { rootSpan { cumulativeTokenCountTotal } } } }"""
        answer = ask(f"{self.url}/graphql", {"query": query, "variables": {"p": project, "t": trace_id}})
        return int(answer["data"]["getProjectByName"]["trace"]["rootSpan"]["cumulativeTokenCountTotal"] or 0)

    def cost(self, project: str, trace_id: str) -> float:
        query = """query($p: String!, $t: ID!) {
            getProjectByName(name: $p) { trace(traceId: $t) { costSummary { total { cost } } } } }"""
        answer = ask(f"{self.url}/graphql", {"query": query, "variables": {"p": project, "t": trace_id}})
        return float(answer["data"]["getProjectByName"]["trace"]["costSummary"]["total"]["cost"] or 0)

    def sessions(self, project: str, trace_ids: list[str]) -> set[str]:
        query = """query($p: String!, $t: ID!) {
            getProjectByName(name: $p) { trace(traceId: $t) { session { sessionId } } } }"""
        answers = [ask(f"{self.url}/graphql", {"query": query, "variables": {"p": project, "t": t}}) for t in trace_ids]
        return {answer["data"]["getProjectByName"]["trace"]["session"]["sessionId"] for answer in answers}


@dataclass(frozen=True)
class Mlflow:
    """MLflow's tracking server."""

    url: str

    def project(self, name: str) -> list[str]:
        experiment = ask(f"{self.url}/api/2.0/mlflow/experiments/create", {"name": name})
        return [f"x-mlflow-experiment-id={experiment['experiment_id']}"]

    def spans(self, project: str, trace_id: str) -> list[Seen]:
        found = ask(f"{self.url}/ajax-api/3.0/mlflow/get-trace-artifact?request_id=tr-{trace_id}")
        return [
            Seen(
                span["name"],
                span["span_id"],
                span["parent_span_id"],
                json.loads(span["attributes"].get("mlflow.spanType", '"none"')),
                span["status"]["code"] == "STATUS_CODE_ERROR",
                span["start_time_unix_nano"],
                json.dumps(span),
            )
            for span in found.get("spans", [])
        ]

    def tokens(self, project: str, trace_id: str) -> int:
        usage = self._metadata(trace_id).get("mlflow.trace.tokenUsage", '{"total_tokens": 0}')
        return int(json.loads(usage)["total_tokens"])

    def cost(self, project: str, trace_id: str) -> float:
        return float(json.loads(self._metadata(trace_id).get("mlflow.trace.cost", "{}")).get("total_cost", 0))

    def sessions(self, project: str, trace_ids: list[str]) -> set[str]:
        return {self._metadata(trace_id)["mlflow.trace.session"] for trace_id in trace_ids}

    def _metadata(self, trace_id: str) -> Mapping[str, str]:
        info = ask(f"{self.url}/api/3.0/mlflow/traces/tr-{trace_id}")["trace"]["trace_info"]
        metadata: Mapping[str, str] = info["trace_metadata"]
        return metadata


@contextmanager
def phoenix(venv: Path, data: Path) -> Iterator[Backend]:
    """Serve Phoenix on free ports."""
    port = free_port()
    environment = {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_WORKING_DIR": str(data),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    }
    with serving([str(venv / "bin/phoenix"), "serve"], environment, data, f"http://127.0.0.1:{port}/healthz"):
        yield Phoenix(f"http://127.0.0.1:{port}")


@contextmanager
def mlflow(venv: Path, data: Path) -> Iterator[Backend]:
    """Serve MLflow on a free port, without its jobs, which need three quarters of the memory."""
    port = free_port()
    environment = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    where = ["--backend-store-uri", f"sqlite:///{data}/m.db", "--default-artifact-root", str(data / "art")]
    command = [str(venv / "bin/mlflow"), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", *where]
    with serving(command, environment, data, f"http://127.0.0.1:{port}/health"):
        yield Mlflow(f"http://127.0.0.1:{port}")


@contextmanager
def serving(command: list[str], environ: Mapping[str, str], data: Path, health: str) -> Iterator[None]:
    """Run a server in a new process group; end it with all its child processes."""
    with (data / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **environ}, cwd=data, stdout=log, stderr=log, start_new_session=True
        )
    try:
        eventually(lambda: healthy(health), "the server does not answer")
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def healthy(url: str) -> bool:
    """Return whether the server responds."""
    with urllib.request.urlopen(url, timeout=2) as reply:
        return bool(reply.status == 200)


def eventually(look: Callable[[], T], failure: str) -> T:
    """Poll until a value is complete, because these servers do not report when they have stored it."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            if found := look():
                return found
        except (OSError, KeyError, TypeError):
            pass
        assert time.monotonic() < end, failure
        time.sleep(0.2)


def ask(url: str, body: Any = None) -> Any:
    """Send a request and return its JSON response."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as reply:
        return json.loads(reply.read() or b"null")


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def send(backend: Backend, project: str, content: str, headers: list[str]) -> dict[str, Any]:
    """Make the runs of `tests/support/backend_runs.py` in a separate process; return their results."""
    words = [sys.executable, "-m", "tests.support.backend_runs", backend.url, content, project, *headers]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    output: dict[str, Any] = json.loads(done.stdout)
    return output
