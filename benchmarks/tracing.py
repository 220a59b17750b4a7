"""Cost of tracing: the same run without tracing code, without a provider, with stored and with exported spans."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any, Self

from openai import AsyncOpenAI
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider

from benchmarks.harness import Row, Table, end_on_interrupt, paired
from benchmarks.model_server import serving
from benchmarks.wire import AGENT, by_hand, note
from framework import Runtime
from framework.engine import run
from framework.engine.model_call import retry
from framework.engine.runtime import launcher
from framework.engine.tool_call import call
from framework.store.memory import MemoryStore
from framework.telemetry.setup import tracer_provider
from framework.telemetry.spans import NOOP_SPAN

STEPS = 10
BY_HAND, UNTRACED = "hand-written loop on the openai SDK", "agentsd run without tracing code"
EXPORTED = "exported"


class _NoopTrace:
    """No-op replacement for the traces of a run, of its agent, and of its calls."""

    span = NOOP_SPAN

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def attempt(self, *_: object, **__: object) -> Self:
        """Return this trace, for the attempt of a model call."""
        return self

    def ignore(self, *_: object) -> None:
        """Do nothing."""

    finish = set_pending = replied = failed = ignore


NOOP_TRACE = _NoopTrace()
STUBS: Mapping[tuple[Any, str], Any] = {
    (retry, "ModelTrace"): lambda *_, **__: NOOP_TRACE,
    (call, "ToolTrace"): lambda *_: NOOP_TRACE,
    (launcher, "RunTrace"): lambda *_: NOOP_TRACE,
    (run, "AgentTrace"): lambda *_: NOOP_TRACE,
    (run, "open_step_span"): lambda *_: NOOP_SPAN,
    (run, "record_reply"): lambda *_: None,
}
"""No-op replacements for the functions and classes that create spans."""


@contextmanager
def stubbed() -> Iterator[None]:
    """Replace all tracing code with no-ops."""
    originals = {(module, name): getattr(module, name) for module, name in STUBS}
    for (module, name), stub in STUBS.items():
        setattr(module, name, stub)
    try:
        yield
    finally:
        for (module, name), original in originals.items():
            setattr(module, name, original)


@contextmanager
def provided(provider: TracerProvider) -> Iterator[None]:
    """Use a tracer provider temporarily; OpenTelemetry's API can set one only once."""
    original = trace.get_tracer_provider
    trace.get_tracer_provider = lambda: provider
    try:
        yield
        provider.force_flush()
    finally:
        trace.get_tracer_provider = original


@contextmanager
def collector() -> Iterator[str]:
    """Start a process that accepts every export. Yield its URL."""
    context = get_context("spawn")
    receiver, sender = context.Pipe()
    process = context.Process(target=_collect, args=(sender,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{receiver.recv()}/v1/traces"
    finally:
        process.kill()
        process.join()


def _collect(address: Connection) -> None:
    end_on_interrupt()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    address.send(server.server_port)
    server.serve_forever()


async def measure(rounds: int, runs: int) -> Table:
    """Measure all cases, interleaved, so that they run under the same load: CPU time including exports."""
    cases: dict[str, list[float]] = {BY_HAND: [], UNTRACED: [], "without a provider": [], "stored": [], EXPORTED: []}
    with serving(STEPS) as url, collector() as address, TemporaryDirectory() as folder:
        path, client = _project(Path(folder), url), AsyncOpenAI(base_url=url, api_key="k")
        provider = tracer_provider(OTLPSpanExporter(endpoint=address))  # like that of `agentsd run --otlp`
        wire = [{"type": "function", "function": {**note.definition.model_dump(), "name": note.name}}]
        async with (
            Runtime.open(path, tools=[note], watch=False) as plain,
            Runtime.open(path, tools=[note], watch=False, store=MemoryStore(keep_spans=True)) as storing,
        ):
            for _ in range(rounds + 1):
                cases[BY_HAND].append(await _cpu(lambda: by_hand(client, wire, []), 1))
                with stubbed():
                    cases[UNTRACED].append(await _cpu(lambda: plain.run("go"), runs))
                cases["without a provider"].append(await _cpu(lambda: plain.run("go"), runs))
                cases["stored"].append(await _cpu(lambda: storing.run("go"), runs))
                started = process_time()
                with provided(provider):
                    await _cpu(lambda: plain.run("go"), runs)
                cases[EXPORTED].append((process_time() - started) / runs)
        await client.close()
        provider.shutdown()
    return _table({case: times[1:] for case, times in cases.items()})  # the first round is a warm-up


def _table(cases: Mapping[str, Sequence[float]]) -> Table:
    loop, untraced = cases[BY_HAND], cases[UNTRACED]
    rows = []
    for case, times in cases.items():
        overhead = [time - base for time, base in zip(times, untraced, strict=True)]
        of_loop, of_run = paired(overhead, loop), paired(overhead, untraced)
        share = f"{of_loop:+.1%} of the loop, {of_run:+.1%} of the run" if case not in (BY_HAND, UNTRACED) else ""
        rows.append(Row(case, min(times) * 1e6, paired(times, loop), share))
    exported = paired(cases[EXPORTED], untraced)
    rows.append(Row("exported, beside the run without tracing code", min(cases[EXPORTED]) * 1e6, exported))
    return Table(f"CPU time of {STEPS} steps over HTTP, with {3 * STEPS + 5} spans", "µs", rows)


async def _cpu(run_once: Callable[[], Awaitable[object]], runs: int) -> float:
    """Return the CPU seconds per run."""
    started = process_time()
    for _ in range(runs):
        await run_once()
    return (process_time() - started) / runs


def _project(path: Path, url: str) -> Path:
    (path / "agents.d").mkdir()
    (path / "agents.d/looper.yaml").write_text(AGENT, "utf-8")
    alias = f"{{model: openai/m, base_url: '{url}', api_key: k, stream: false}}"
    (path / "agentsd.yaml").write_text(f"models: {{wire: {alias}}}\n", "utf-8")
    return path


def tables(*, quick: bool) -> Iterator[Table]:
    """Measure all cases."""
    yield asyncio.run(measure(rounds=5 if quick else 15, runs=4))
