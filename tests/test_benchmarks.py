"""Every benchmark can be imported, and its replacements of engine code fit the engine."""

from __future__ import annotations

import asyncio
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.loop import LOOPER, STEPS, note, script
from benchmarks.tracing import stubbed
from framework import RunResult, Runtime
from framework.testing import ScriptedModel
from tests.support.paths import ROOT


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py")))
def test_a_benchmark_can_be_imported(name: str) -> None:
    import_module(f"benchmarks.{name}")


def test_a_run_without_tracing_code_completes(tmp_path: Path) -> None:
    (tmp_path / "looper.yaml").write_text(LOOPER, "utf-8")

    async def main() -> RunResult:
        models = {"scripted": ScriptedModel(script=script)}
        async with Runtime.open(tmp_path / "looper.yaml", tools=[note], models=models, watch=False) as runtime:
            with stubbed():
                return await runtime.run("go", agent="looper")

    result = asyncio.run(main())
    assert (result.output, result.steps) == ("done", STEPS + 1)
