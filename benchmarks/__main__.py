"""Runs every benchmark: `python -m benchmarks [--quick]`."""

from __future__ import annotations

import argparse
import platform

from benchmarks import filtering, imports, loop, plans, plugins, readers, reload, serving, store, tracing, wire


def main() -> None:
    """Run every benchmark in sequence."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure the cost of the runtime, as ratios."
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds and sizes")
    quick: bool = parser.parse_args().quick
    print(f"Python {platform.python_version()} on {platform.machine()}; compare ratios, not figures")
    for benchmark in (filtering, loop, readers, wire, tracing, store, reload, plugins, plans, serving, imports):
        benchmark.main(quick=quick)


if __name__ == "__main__":
    main()
