"""The fixtures for pytest work in a project of their own, and report mistakes in scripts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.projects import write

CONFTESTS = {"installed": "", "named": 'pytest_plugins = ["framework.pytest_fixtures"]\n'}
"""The entry point of the package brings the fixtures; a conftest.py may also name the module."""
TESTS = '''
import asyncio

from framework import Runtime
from framework.testing import calls

AGENT = """
    version: 1
    name: a
    description: d
    instructions: x
    model: scripted
    skill_policy: {allow: [echo]}
    """


def ask(root, model, store):
    async def main():
        models = {"scripted": model}
        async with Runtime.open(root, models=models, store=store, watch=False) as runtime:
            return await runtime.run("hi", agent="a")

    return asyncio.run(main())


def test_good(agent_project, scripted_model, json_store):
    root = agent_project({"agents.d/a.yaml": AGENT})
    assert ask(root, scripted_model(calls(("echo", {"text": "x"})), "done"), json_store).output == "done"


def test_short(agent_project, scripted_model, json_store):
    ask(agent_project({"agents.d/a.yaml": AGENT}), scripted_model(), json_store)
'''


@pytest.mark.parametrize("conftest", CONFTESTS)
def test_the_fixtures_work_and_a_mistake_in_a_script_fails_the_test(tmp_path: Path, conftest: str) -> None:
    write(tmp_path, {"conftest.py": CONFTESTS[conftest], "test_agents.py": TESTS})
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "2 passed, 1 error" in done.stdout, done.stdout
    assert "ERROR test_agents.py::test_short - Failed: the script has 0 turns" in done.stdout
