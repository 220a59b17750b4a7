"""Start-up time of a new process, and the heavy packages that it avoids importing."""

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
HEAVY = ("openai", "instructor", "httpx2", "aiohttp", "watchfiles", "rich", "opentelemetry.sdk", "sqlalchemy")
HERE = Path(__file__).parent.parent


def process(arguments: Sequence[str]) -> tuple[float, str]:
    """Run a new interpreter. Return its wall time in milliseconds and its standard output."""
    # Bytecode files are written as for an installed package, even if this shell disables them.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, *arguments]
    started = perf_counter()
    process = subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE, env=environment)
    return (perf_counter() - started) * 1000, process.stdout


def main(*, quick: bool) -> None:
    """Print the table."""
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
        for arguments in commands.values():  # untimed, so that all modules are compiled
            process(arguments)
        walls: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(3 if quick else 9):  # interleaved, so that all commands run under the same load
            for name, arguments in commands.items():
                walls[name].append(process(arguments)[0])
        loaded = set(process(commands["offline run, from Python"])[1].split())
    floor = min(walls["import pydantic, yaml, jinja2"])
    rows = [Row(name, min(times), min(times) / floor) for name, times in walls.items()]
    table("A new process, lowest wall time", "ms", rows)
    imported = [name for name in HEAVY if name in loaded]
    print(f"\nheavy packages imported by an offline run: {', '.join(imported) or 'none'} (of {', '.join(HEAVY)})")
