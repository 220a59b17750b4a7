"""Runs benchmarks: `python -m benchmarks [--only NAMES] [--quick] [--json FILE] [--compare OLD.json]`."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.harness import Table, load, measure, promise, ratios, results_file, save

SUITE = (
    "filtering",
    "wire",
    "function_calls",
    "concurrency",
    "streaming",
    "store",
    "memory",
    "reload",
    "plans",
    "tokens",
    "arguments",
    "serving",
    "terminal",
    "imports",
)
"""Run if no names are given; they need nothing but Python."""
ON_REQUEST = ("large", "peers", "durable")
"""Need PostgreSQL or other frameworks, or several minutes."""
LIBRARIES = ("openai", "pydantic", "aiohttp", "opentelemetry-sdk")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the chosen benchmarks one after another, each in a process of its own.

    In one process, each garbage collection would also traverse what the benchmarks before have imported and left.
    """
    options = _options(arguments)
    before = load(options.compare)[0] if options.compare else {}
    print(f"Python {platform.python_version()} on {platform.machine()}; compare ratios, not values", flush=True)
    results: dict[str, list[Table]] = {}
    seconds = dict[str, float]()
    context = get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.loop"])  # which imports the runtime, once for all of them
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as processes:
        for name in options.only or SUITE:
            started = perf_counter()
            earlier = ratios(before.get(name, ()))
            results[name] = processes.submit(measure, name, earlier, quick=options.quick).result()
            seconds[name] = round(perf_counter() - started, 1)
            print(f"[{name}: {seconds[name]:.0f} s]", flush=True)
    rows = [(name, row) for name, found in results.items() for table in found for row in table.rows]
    missed = "".join(f"\n  {name}: {row.name}: {promise(row)}" for name, row in rows if row.kept is False)
    print(f"\npromises that were missed: {missed or 'none'}\n[all: {sum(seconds.values()):.0f} s]")
    if options.json:
        save(options.json, results, {**facts(), "seconds": seconds})


def facts() -> dict[str, Any]:
    """Return what identifies a measurement: when, on what, with which versions."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} processors, {platform.machine()}",
        "versions": {library: version(library) for library in ("agentsd", *LIBRARIES)},
    }


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure the runtime, beside baselines that run in turn with it."
    )
    known = (*SUITE, *ON_REQUEST)
    parser.add_argument("--only", type=partial(_names, known), metavar="NAME,…", help=f"of {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to a file")
    parser.add_argument("--compare", type=results_file, metavar="FILE", help="also show the ratios of an earlier file")
    return parser.parse_args(arguments)


def _names(known: Sequence[str], text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    return names


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)  # as shells report it; the processes of the benchmark have received the signal, too
