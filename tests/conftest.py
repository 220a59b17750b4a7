"""Fixtures of all tests."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from examples.scale_demo.postgres import server
from framework.cli.init import copy_starter
from tests.support.cases import FACTOR
from tests.support.exit_status import pytest_sessionfinish  # noqa: F401 - a hook of pytest
from tests.support.llama_cpp import LlamaCpp, is_installed, llama_cpp_server
from tests.support.paths import SUPPORT
from tests.support.stores import ReusedDatabases


def pytest_sessionstart() -> None:
    """Prepare this process and those that tests start.

    Disables garbage collection while modules are imported, which makes the imports a third faster. HTTP clients trust
    one certificate instead of those of the system, whose reading takes 20 to 80 ms of CPU time in each client and each
    process: no test connects to another machine. For the same reason there are no settings and API keys.
    """
    for name in [*os.environ]:
        if name.startswith(("AGENTSD_", "OPENAI_")):
            del os.environ[name]
    gc.disable()
    os.environ["SSL_CERT_FILE"] = str(SUPPORT / "certificate.pem")


def pytest_collection_finish() -> None:
    """Exempt the objects of imported modules from later garbage collections, and make these rarer.

    Workers keep many objects; with the default thresholds, searching them takes 15 % of their CPU time.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def initial_log_levels() -> dict[str, int]:
    """Levels of the loggers whose level the `agentsd` command sets, before any test or fixture has called it."""
    names = (
        "agentsd.requests",
        "agentsd.runs",
        "agentsd.server",
        "framework.config.generations.catalog",
        "framework.engine.procrastinate",
        "framework.server",
        "procrastinate",
        "psycopg.pool",
    )
    return {name: logging.getLogger(name).level for name in names}


@pytest.fixture(autouse=True)
def log_levels(initial_log_levels: dict[str, int]) -> Iterator[None]:
    """Restore the levels of loggers: the `agentsd` command, called within a test, sets them for its process."""
    yield
    for name, level in initial_log_levels.items():
        logger = logging.getLogger(name)
        if logger.level != level:  # setting a level clears the caches of all loggers: 2 ms a test
            logger.setLevel(level)


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the starter project, shared by the tests of a module."""
    folder = tmp_path_factory.mktemp("starter")
    copy_starter(folder)
    return folder


class SpanRecorder(InMemorySpanExporter):
    """Keeps the spans of tests that use the fixture `spans`. Those of all others would fill the memory."""

    is_used = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return super().export(spans) if self.is_used else SpanExportResult.SUCCESS


@pytest.fixture(scope="session")
def exporter() -> SpanRecorder:
    """The exporter of the process's TracerProvider, which can be set only once."""
    exporter = SpanRecorder()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter: SpanRecorder) -> Iterator[InMemorySpanExporter]:
    """Finished spans of one test."""
    exporter.clear()
    exporter.is_used = True
    yield exporter
    exporter.is_used = False
    exporter.clear()


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    """A reader of the metrics of one test."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    monkeypatch.setattr(metrics, "get_meter", provider.get_meter)
    yield reader
    provider.shutdown()


@pytest.fixture(scope="session")
def llama_cpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCpp]:
    """A llama.cpp server that tests share, with 4 slots of 16,384 tokens."""
    if not is_installed():
        pytest.skip("no llama.cpp: `make test` installs it where it finds the package index")
    with llama_cpp_server(tmp_path_factory.mktemp("llama_cpp")) as running:
        yield running


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a PostgreSQL server that all tests share."""
    try:
        with server() as running:
            yield running.url
    except LookupError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def databases(postgres: str) -> ReusedDatabases:
    """Databases of the PostgreSQL server with the empty tables of a store."""
    return ReusedDatabases(postgres)


@contextmanager
def new_databases(kind: str, request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """Give a function that returns empty databases: new SQLite files, or databases of the PostgreSQL server."""
    if kind == "sqlite":
        folder, numbers = request.getfixturevalue("tmp_path"), count(1)
        yield lambda: f"sqlite:///{folder}/store/{next(numbers)}.db"
        return
    databases: ReusedDatabases = request.getfixturevalue("databases")
    given: list[str] = []

    def give() -> str:
        given.append(databases.give())
        return given[-1]

    yield give
    for url in given:
        databases.take_back(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def new_store(request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """Return a function that returns empty databases: new SQLite files, or databases of a PostgreSQL server."""
    with new_databases(request.param, request) as give:
        yield give


@pytest.fixture
def store_url(new_store: Callable[[], str]) -> str:
    """URL of an empty database of each kind: for rules of the store, and for what processes do at the same time."""
    return new_store()


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """URL of an empty SQLite file: for what runtimes do with any database."""
    return f"sqlite:///{tmp_path}/store/1.db"


@pytest.fixture(params=["memory", "sqlite"])
def local_url(request: pytest.FixtureRequest) -> str | None:
    """URL of an empty SQLite file, written at each step; None for a store in memory, written at pauses and ends."""
    url: str = request.getfixturevalue("file_url")
    return url if request.param == "sqlite" else None


@pytest.fixture(params=["memory", "postgresql", *(["sqlite"] if FACTOR > 1 else [])])
def any_url(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """URL of an empty database; None for a store in memory, which is SQLite, too."""
    if request.param == "memory":
        yield None
        return
    with new_databases(request.param, request) as give:
        yield give()


def tree(spans: tuple[ReadableSpan, ...]) -> str:
    """Draw finished spans as indented names, in the order of their start."""
    span_ids = {span.context.span_id for span in spans}
    lines: list[str] = []

    def add(parent: int | None, depth: int) -> None:
        for span in sorted(spans, key=lambda span: span.start_time or 0):
            above = span.parent.span_id if span.parent and span.parent.span_id in span_ids else None
            if above == parent:
                lines.append("  " * depth + span.name)
                add(span.context.span_id, depth + 1)

    add(None, 0)
    return "\n".join(lines)
