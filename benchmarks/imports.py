"""What a cold process costs, from its start to its end, and what it did not have to load."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.loop import CALCULATOR
from benchmarks.measure import Row, table

FLOOR = "from pydantic import BaseModel; import yaml, jinja2"
OFFLINE = """
import sys
from framework import Runtime
result = Runtime.run_sync(sys.argv[1], "What is 12 * 7?")
assert result.output == "84", result
print(*sorted(sys.modules))
"""
UNWANTED = ("openai", "instructor", "httpx2", "aiohttp", "watchfiles", "rich", "opentelemetry.sdk", "sqlalchemy")
HERE = Path(__file__).parent.parent


def process(arguments: Sequence[str]) -> tuple[float, str]:
    """Wall milliseconds of a new interpreter, and what it printed."""
    # As installed: with compiled modules beside the sources, whatever this shell says.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, *arguments]
    started = perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE, env=environment)
    return (perf_counter() - started) * 1000, done.stdout


def main(*, quick: bool) -> None:
    """Print the table of this part."""
    with TemporaryDirectory() as folder:
        agent = Path(folder) / "calculator.yaml"
        agent.write_text(CALCULATOR, "utf-8")
        commands = {
            "import pydantic, yaml, jinja2": ["-c", FLOOR],
            "empty interpreter": ["-c", "pass"],
            "import framework": ["-c", "import framework"],
            "agentsd --help": ["-m", "framework.cli.main", "--help"],
            "offline run, from Python": ["-c", OFFLINE, str(agent)],
            "offline run, agentsd run": ["-m", "framework.cli.main", "run", str(agent), "What is 12 * 7?"],
        }
        for arguments in commands.values():  # once before the clock, so that all modules are compiled
            process(arguments)
        walls: dict[str, list[float]] = {what: [] for what in commands}
        for _ in range(3 if quick else 9):  # in turn, so that all see the same machine
            for what, arguments in commands.items():
                walls[what].append(process(arguments)[0])
        loaded = set(process(commands["offline run, from Python"])[1].split())
    floor = min(walls["import pydantic, yaml, jinja2"])
    rows = [Row(what, min(taken), min(taken) / floor) for what, taken in walls.items()]
    table("A cold process, lowest wall time", "ms", rows)
    found = [name for name in UNWANTED if name in loaded]
    print(f"\nloaded after an offline run, of {', '.join(UNWANTED)}: {', '.join(found) or 'none'}")
