"""Start-up time of a new process, and the heavy packages that it avoids importing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.harness import Row, Table, paired
from benchmarks.loop import CALCULATOR
from benchmarks.model_server import serving
from benchmarks.wire import project
from framework.cli.init import copy_starter

FLOOR = "from pydantic import BaseModel; import yaml, jinja2"
FLOOR_NAME = "import pydantic, yaml, jinja2"
RUN_NAME = "offline run, agentsd run"
OFFLINE = """
import sys
from framework import Runtime
result = Runtime.run_sync(sys.argv[1], "What is 12 * 7?")
assert result.output == "84", result
print(*sorted(sys.modules))
"""
STEP = """
import asyncio, sys
from framework import Runtime
async def main():
    async with Runtime.open(sys.argv[1], watch=False) as runtime:
        assert (await runtime.run("go")).output == "done"
asyncio.run(main())
"""
BY_HAND = """
import asyncio, sys
from openai import AsyncOpenAI
async def main():
    client = AsyncOpenAI(base_url=sys.argv[1], api_key="k")
    messages = [{"role": "system", "content": "Call the tool."}, {"role": "user", "content": "go"}]
    completion = await client.chat.completions.create(model="m", messages=messages)
    assert completion.choices[0].message.content == "done"
    await client.close()
asyncio.run(main())
"""
HEAVY = ("openai", "instructor", "httpx2", "aiohttp", "watchfiles", "rich", "opentelemetry.sdk", "sqlalchemy")
HERE = Path(__file__).parent.parent


COMPLETION = {"_AGENTSD_COMPLETE": "bash_complete", "COMP_WORDS": "agentsd run -a l", "COMP_CWORD": "3"}
"""Environment with which a shell asks for the completions of `agentsd run -a l`."""
COMPLETES = "completion of an agent's name"
LIMITS = {"agentsd --help": 300, "agentsd check, starter": 600, COMPLETES: 110}
"""Milliseconds that these commands may take on an idle machine."""
AT_MOST = {RUN_NAME: 3}
"""Highest promised ratios to the imports that every command needs."""


def process(arguments: Sequence[str], added: Mapping[str, str] | None = None) -> tuple[float, str]:
    """Run a new interpreter. Return its wall time in milliseconds and its standard output."""
    # Bytecode files are written as for an installed package, even if this shell disables them.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment |= added or {}
    command = [sys.executable, *arguments]
    started = perf_counter()
    process = subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE, env=environment)
    return (perf_counter() - started) * 1000, process.stdout


def timed(commands: Mapping[str, Sequence[str]], turns: int) -> dict[str, list[float]]:
    """Return the wall times of commands in milliseconds, which run in turn, so that all have the same load."""
    added = {COMPLETES: COMPLETION}
    for name, arguments in commands.items():  # untimed, so that all modules are compiled
        process(arguments, added.get(name))
    walls: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(turns):
        for name, arguments in commands.items():
            walls[name].append(process(arguments, added.get(name))[0])
    return walls


def tables(*, quick: bool) -> Iterator[Table]:
    """Measure new processes."""
    turns = 2 if quick else 3
    with TemporaryDirectory() as folder:
        agent = Path(folder) / "calculator.yaml"
        agent.write_text(CALCULATOR, "utf-8")
        starter = Path(folder) / "starter"
        copy_starter(starter)
        commands = {
            FLOOR_NAME: ["-c", FLOOR],
            "empty interpreter": ["-c", "pass"],
            "agentsd --help": ["-m", "framework", "--help"],
            COMPLETES: ["-c", "from framework.cli.entry import main; main()"],
            "agentsd check, starter": ["-m", "framework", "check", str(starter)],
            RUN_NAME: ["-m", "framework", "run", str(agent), "What is 12 * 7?"],
        }
        walls = timed(commands, turns)
        loaded = set(process(["-c", OFFLINE, str(agent)])[1].split())
    ratios = {name: paired(times, walls[FLOOR_NAME]) for name, times in walls.items()}
    rows = [Row(name, min(times), ratios[name], at_most=AT_MOST.get(name)) for name, times in walls.items()]
    imported = ", ".join(name for name in HEAVY if name in loaded) or "none"
    heavy = f"heavy packages imported by an offline run: {imported} (of {', '.join(HEAVY)})"
    yield Table("A new process, lowest wall time", "ms", rows, heavy)
    limited = [Row.limited(name, min(walls[name]), limit) for name, limit in LIMITS.items()]
    yield Table("Commands with a limit on an idle machine", "ms", limited)
    yield one_step(turns)


def one_step(turns: int) -> Table:
    """Compare processes that call an OpenAI-compatible model once, which answers immediately."""
    with serving(0) as url, project(url, stream=False) as root:
        walls = timed({"by hand": ["-c", BY_HAND, url], "agentsd": ["-c", STEP, str(root)]}, turns)
    by_hand, agentsd = walls["by hand"], walls["agentsd"]
    rows = [
        Row("call on the openai SDK", min(by_hand), 1),
        Row("one step of an agent", min(agentsd), paired(agentsd, by_hand), at_most=1.1),
    ]
    return Table("A new process with one call of an OpenAI-compatible model, lowest wall time", "ms", rows)
