"""Properties that determine speed, checked without a clock."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import tokens
from benchmarks.harness import load
from framework import RunResult, Runtime
from tests.support.paths import ROOT
from tests.support.projects import agent, write
from tests.support.wire import says, wire_server

RUN = """
import asyncio, sys
from framework import Runtime

async def main():
    async with Runtime.open(sys.argv[1], watch=False, store=[*sys.argv[2:], None][0]) as runtime:
        result = await runtime.run("What is 12 * 7?")
    print(result.status, result.output)

asyncio.run(main())
print(*sorted(sys.modules))
"""
OTHER_CLIENTS = ("framework.llm.anthropic", "framework.llm.gemini", "framework.llm.cloud")
UNUSED = (
    *("framework.llm.message_formats", "framework.evals.runner", "framework.evals.suite", "framework.types.case"),
    *("framework.replay", "framework.server", "framework.cli", "framework.tools.mcp.client"),
    *(
        "instructor",
        "mcp",
        "anthropic",
        "google.genai",
        "watchfiles",
        "rich",
        "click",
        "opentelemetry.sdk",
    ),
)
"""Modules and packages that no run without a history, test cases, a store file or external tools uses."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {"agents.d/calc.yaml": agent("calc", model="offline", skill_policy="{allow: [calculator]}")}
    return write(tmp_path_factory.mktemp("offline"), files)


def modules_after_a_run(project: Path, output: str, *store: str) -> set[str]:
    """Run an agent in a new process. Return the modules, and their packages, that the process has imported."""
    command = [sys.executable, "-c", RUN, str(project), *store]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    answer, names = done.stdout.splitlines()
    assert answer == f"completed {output}"
    return set(names.split())


@pytest.fixture(scope="module")
def loaded(project: Path) -> set[str]:
    """Return the modules that a process has imported after one offline run."""
    return modules_after_a_run(project, "84")


@pytest.fixture(scope="module")
def loaded_with_openai(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the modules that a process has imported after one run on a server with OpenAI's API, in a file."""

    async def run() -> set[str]:
        async with wire_server([says("84")]) as server:
            alias = f"{{model: openai/m, base_url: '{server.url}', api_key: k}}"
            files = {"agents.d/calc.yaml": agent("calc", model="wire"), "agentsd.yaml": f"models: {{wire: {alias}}}\n"}
            root = write(tmp_path_factory.mktemp("openai"), files)
            return await asyncio.to_thread(modules_after_a_run, root, "84", f"sqlite:///{root / 'state.db'}")

    return asyncio.run(run())


@pytest.mark.parametrize(
    "package",
    [*("openai", "httpx2", "httpx", "aiohttp", "framework.llm.openai.client"), *UNUSED, *OTHER_CLIENTS],
)
def test_an_offline_run_imports_neither_network_nor_what_it_does_not_use(loaded: set[str], package: str) -> None:
    assert {"framework", "pydantic", "jinja2", "framework.llm.offline"} <= loaded, "the process has run"
    assert package not in loaded


@pytest.mark.parametrize(
    "package",
    [
        *("framework.llm.offline", "framework.llm.openai.responses"),
        *UNUSED,
        *OTHER_CLIENTS,
    ],
)
def test_a_run_on_a_server_with_openais_api_imports_nothing_that_it_does_not_use(
    loaded_with_openai: set[str], package: str
) -> None:
    assert {"openai", "aiohttp", "framework.llm.openai.client"} <= loaded_with_openai, "the process has run"
    assert package not in loaded_with_openai


def test_a_run_with_a_file_as_its_store_imports_nothing_of_postgresql(loaded_with_openai: set[str]) -> None:
    assert "sqlalchemy.dialects.sqlite" in loaded_with_openai, "the process has a store"
    assert {name for name in loaded_with_openai if "postgres" in name or "psycopg" in name} == set()


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


def test_a_mix_of_tasks_needs_fewer_tokens_than_a_hand_written_loop() -> None:
    (table,) = tokens.tables(quick=True)
    ratios = {row.name: row.ratio or 0 for row in table.rows}
    assert ratios[f"all: {tokens.TURNS}"] <= tokens.GOAL
    assert ratios[f"all: {tokens.PLAN}"] <= tokens.GOAL
    assert 1 < ratios[f"4 short results: {tokens.TURNS}"] < 1.06, "only the guidance is added"


def test_a_run_makes_a_fraction_of_the_function_calls_of_a_loop_on_the_sdk(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--only", "function_calls", "--json", str(tmp_path / "counted.json")]
    subprocess.run(command, check=True, cwd=ROOT)  # a new process has no tracer provider of other tests
    counted = load(tmp_path / "counted.json")[0]["function_calls"]
    promised = [row for table in counted for row in table.rows if row.at_most]
    assert len(promised) == 2
    assert [row for row in promised if not row.kept] == []
