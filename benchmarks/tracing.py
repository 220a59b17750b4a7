"""What traces cost: the same run with nothing of them in it, without a provider, stored, and sent in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from openai import AsyncOpenAI
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from benchmarks.measure import Row, table
from benchmarks.wire import AGENT, by_hand, note, serving
from framework import Runtime
from framework.engine import drive, run
from framework.engine.model_call import retry as asking
from framework.engine.model_call.trace import ModelTrace
from framework.engine.runtime import launcher
from framework.engine.tool_call import call as calls
from framework.engine.tool_call.trace import ToolTrace
from framework.store.memory import MemoryStore
from framework.telemetry.setup import BATCH_SPANS, QUEUE_SPANS
from framework.telemetry.span import NOOP_SPAN, TraceSpan

STEPS = 10
PROVIDER = "_TRACER_PROVIDER"
BY_HAND, BARE = "a loop by hand on the openai SDK", "a run of ours, nothing of traces"


class _Nothing(TraceSpan):
    """Stands for a whole trace."""

    span = NOOP_SPAN

    def ended(self) -> None:
        """Nothing."""

    def set_pending(self, confirmations: object, step: object) -> None:
        """Nothing."""


NOTHING, NO_CALL, NO_TOOL = _Nothing(), ModelTrace(), ToolTrace()
STUBS: Mapping[tuple[Any, str], Any] = {
    (asking, "model_trace"): lambda *_, **__: NO_CALL,
    (calls, "trace_call"): lambda *_: NO_TOOL,
    (launcher, "RunTrace"): lambda *_: NOTHING,
    (drive, "AgentTrace"): lambda *_: NOTHING,
    (run, "open_step_span"): lambda *_: NOOP_SPAN,
    (run, "record_reply"): lambda *_: None,
}
"""What makes traces, replaced by what makes none."""


@contextmanager
def stubbed() -> Iterator[None]:
    """As if nobody had ever thought of traces."""
    kept = {(module, name): getattr(module, name) for module, name in STUBS}
    for (module, name), stub in STUBS.items():
        setattr(module, name, stub)
    try:
        yield
    finally:
        for (module, name), own in kept.items():
            setattr(module, name, own)


@contextmanager
def provided(provider: TracerProvider) -> Iterator[None]:
    """With a provider that can be taken away again, which the API itself does not offer."""
    setattr(trace, PROVIDER, provider)
    try:
        yield
        provider.force_flush()
    finally:
        setattr(trace, PROVIDER, None)


@contextmanager
def collector() -> Iterator[str]:
    """A process that takes whatever it is sent; its address."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_collect, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1/traces"
    finally:
        process.kill()
        process.join()


def _collect(told: Connection) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    told.send(server.server_port)
    server.serve_forever()


async def measure(rounds: int, runs: int) -> None:
    """All cases in turns, so that they see the same machine; CPU of this process, the sending included."""
    cases: dict[str, list[float]] = {BY_HAND: [], BARE: [], "without a provider": [], "stored": [], "sent": []}
    with serving(STEPS) as url, collector() as address, TemporaryDirectory() as folder:
        path, provider, client = _project(Path(folder), url), _provider(address), AsyncOpenAI(base_url=url, api_key="k")
        wire = [{"type": "function", "function": {**note.definition.model_dump(), "name": note.name}}]
        async with (
            Runtime.open(path, tools=[note], watch=False) as plain,
            Runtime.open(path, tools=[note], watch=False, store=MemoryStore(keep_spans=True)) as storing,
        ):
            for _ in range(rounds + 1):
                cases[BY_HAND].append(await _cpu(lambda: by_hand(client, wire, []), runs))
                with stubbed():
                    cases[BARE].append(await _cpu(lambda: plain.run("go"), runs))
                cases["without a provider"].append(await _cpu(lambda: plain.run("go"), runs))
                cases["stored"].append(await _cpu(lambda: storing.run("go"), runs))
                began = process_time()
                with provided(provider):
                    await _cpu(lambda: plain.run("go"), runs)
                cases["sent"].append((process_time() - began) / runs)
        await client.close()
        provider.shutdown()
    _tell({case: figures[1:] for case, figures in cases.items()})  # the first of each warms up


def _tell(cases: Mapping[str, Sequence[float]]) -> None:
    loop, bare = cases[BY_HAND], cases[BARE]
    rows = []
    for case, figures in cases.items():
        more = [one - without for one, without in zip(figures, bare, strict=True)]
        of_loop, of_run = (median(m / b for m, b in zip(more, base, strict=True)) for base in (loop, bare))
        note_ = f"{of_loop:+.1%} of the loop, {of_run:+.1%} of the run" if case not in (BY_HAND, BARE) else ""
        ratio = median(one / base for one, base in zip(figures, loop, strict=True))
        rows.append(Row(case, min(figures) * 1e6, ratio, note_))
    table(f"CPU of {STEPS} steps over HTTP, of which traces make {3 * STEPS + 5} spans", "µs", rows)


async def _cpu(run_once: Callable[[], Awaitable[object]], runs: int) -> float:
    """Seconds of CPU a run."""
    began = process_time()
    for _ in range(runs):
        await run_once()
    return (process_time() - began) / runs


def _provider(address: str) -> TracerProvider:
    """As `agentsd run --otlp` makes it."""
    provider = TracerProvider(shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=address)
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=QUEUE_SPANS, max_export_batch_size=BATCH_SPANS)
    )
    return provider


def _project(path: Path, url: str) -> Path:
    (path / "agents.d").mkdir()
    (path / "agents.d/looper.yaml").write_text(AGENT, "utf-8")
    alias = f"{{model: openai/m, base_url: '{url}', api_key: k}}"
    (path / "agentsd.yaml").write_text(f"models: {{wire: {alias}}}\n", "utf-8")
    return path


def main(*, quick: bool) -> None:
    """Print the tables of this part."""
    asyncio.run(measure(rounds=5 if quick else 30, runs=4))
