"""Properties that determine speed, checked without a clock."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from framework import RunResult, Runtime
from tests.support.paths import ROOT
from tests.support.projects import agent, write

OFFLINE_RUN = """
import asyncio, sys
from framework import Runtime

async def main():
    async with Runtime.open(sys.argv[1], watch=False) as runtime:
        result = await runtime.run("What is 12 * 7?")
    print(result.status, result.output)

asyncio.run(main())
print(*sorted(name for name in sys.modules if "." not in name))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {"agents.d/calc.yaml": agent("calc", model="offline", skill_policy="{allow: [calculator]}")}
    return write(tmp_path_factory.mktemp("offline"), files)


@pytest.fixture(scope="module")
def loaded(project: Path) -> set[str]:
    """Return the modules that a process has imported after one offline run."""
    command = [sys.executable, "-c", OFFLINE_RUN, str(project)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    answer, names = done.stdout.splitlines()
    assert answer == "completed 84"
    return set(names.split())


@pytest.mark.parametrize(
    "package",
    ["openai", "instructor", "httpx2", "httpx", "aiohttp", "watchfiles", "sqlalchemy"],
)
def test_a_run_without_network_or_watcher_imports_neither(loaded: set[str], package: str) -> None:
    assert {"framework", "pydantic", "jinja2"} <= loaded, "the process has imported something"
    assert package not in loaded


def test_a_hundred_concurrent_runs_end_with_their_own_answers(project: Path) -> None:
    async def main() -> list[RunResult]:
        async with Runtime.open(project, watch=False) as runtime, asyncio.TaskGroup() as group:
            tasks = [group.create_task(runtime.run(f"What is {n} * 7?")) for n in range(100)]
        return [task.result() for task in tasks]

    results = asyncio.run(main())

    assert {result.status for result in results} == {"completed"}
    assert [result.output for result in results] == [str(n * 7) for n in range(100)]
    assert [result.tool_calls[0].arguments for result in results] == [{"expression": f"{n} * 7"} for n in range(100)]
    assert len({result.run_id for result in results}) == 100
