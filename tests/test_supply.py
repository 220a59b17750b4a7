"""Hashes of dependencies equal the constraints, and the project's data is readable only by its user."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest

from framework.tools.tool_source import Contracts, external_tool
from tests.support.commands import ENVIRONMENT, agentsd
from tests.support.paths import ROOT
from tests.support.projects import agent, write


@pytest.fixture(scope="module")
def hashing() -> ModuleType:
    """The script that writes the hashes."""
    spec = importlib.util.spec_from_file_location("hash_requirements", ROOT / ".ci/hash_requirements.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("first", "second", "passes"),
    [
        ("assert False", "pass", True),
        ("assert False", "assert False", False),
        ("assert False", "os._exit(0)", False),
        ("os._exit(0)", "pass", False),
        ("os._exit(1)", "pass", False),
        ("raise KeyboardInterrupt", "pass", False),
        ("assert False", "pytest.skip()", True),
    ],
)
def test_ci_repeats_failed_tests_once_and_names_them(tmp_path: Path, first: str, second: str, passes: bool) -> None:
    (tmp_path / "conftest.py").write_text("from tests.support.exit_status import pytest_sessionfinish\n")
    (tmp_path / "test_it.py").write_text(
        "import os, pathlib, pytest\n"
        "def test_steady(): pass\n"
        "def test_twice():\n"
        "    tried = pathlib.Path('tried')\n"
        "    if not tried.exists():\n"
        f"        tried.touch()\n        {first}\n"
        f"    else:\n        {second}\n"
    )
    (tmp_path / "Makefile").write_text("test:\n\t@.venv/bin/python -m pytest -q\n")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / ".venv/bin/python").chmod(0o755)
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    environment = {**ENVIRONMENT, **plugins, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [ROOT / ".ci/test"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == passes, done.stdout + done.stderr
    repeated = passes and first == "assert False"
    assert done.stdout.endswith("flaky:\ntest_it.py::test_twice\n") == repeated


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_hashed_versions_equal_the_constraints(hashing: ModuleType) -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {normal(name): version for name, _, version in (line.partition("==") for line in lines) if version}
    hashed = dict(hashing.parse_hashes(hashing.FILE.read_text("utf-8")).keys())
    assert hashed == {name: pinned.get(name) for name in hashed}, "run .ci/hash_requirements.py"


def test_every_dependency_is_hashed_and_the_file_is_up_to_date(hashing: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {extra: lines for extra, lines in project["optional-dependencies"].items() if extra != "test"}
    needed = {re.split(r"[\[<>=~!; ]", line)[0] for line in chain(project["dependencies"], *extras.values())}
    text = hashing.FILE.read_text("utf-8")
    hashes = hashing.parse_hashes(text)
    assert {normal(name) for name in needed} <= {name for name, _ in hashes}
    assert hashing.format_hashes(hashes) == text


def test_a_pip_report_updates_hashes_and_keeps_those_of_other_platforms(hashing: ModuleType) -> None:
    item = {
        "metadata": {"name": "Typing_Extensions", "version": "4.1"},
        "download_info": {"archive_info": {"hashes": {"sha256": "a" * 64}}},
    }
    project = {"metadata": {"name": "agentsd", "version": "1"}, "download_info": {"dir_info": {}}}
    assert hashing.report_hashes({"install": [project, item]}) == {("typing-extensions", "4.1"): {"a" * 64}}
    both = {("x", "1"): {"a" * 64, "b" * 64}}
    assert hashing.parse_hashes(hashing.format_hashes(both)) == both


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("before", [None, 0o755])
@pytest.mark.parametrize("words", [("run", "-a", "one", "hi"), ("check",)])
def test_the_project_data_folder_is_readable_only_by_its_user(
    tmp_path: Path, words: tuple[str, ...], before: int | None
) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")})
    if before is not None:
        (tmp_path / ".agentsd").mkdir(before)
    assert agentsd(*words, cwd=tmp_path).returncode == 0
    assert mode(tmp_path / ".agentsd") == 0o700


def test_accepted_contracts_are_readable_only_by_their_user(tmp_path: Path) -> None:
    async def call(arguments: object, context: object) -> None:
        """Do nothing."""

    schema = {"type": "object", "properties": {}}
    Contracts(tmp_path / ".agentsd/contracts.json").compare([external_tool("mcp.a.b", "d", schema, call, source="mcp")])
    assert (mode(tmp_path / ".agentsd"), mode(tmp_path / ".agentsd/contracts.json")) == (0o700, 0o600)


def test_nothing_but_the_project_is_at_the_top_level() -> None:
    """Files that a run wrote into the working directory are not committed."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    folders = {
        "agents.d",
        "agentsd",
        "benchmarks",
        "data",
        "docs",
        "examples",
        "framework",
        "plugins",
        "prompts",
        "tests",
    }
    files = {"AGENTS.md", "CHANGELOG.md", "LICENSE", "README.md", "Makefile", "pyproject.toml", "zensical.toml"}
    files |= {"constraints.txt", "hatch_build.py", ".gitignore", ".pre-commit-config.yaml", ".pre-commit-hooks.yaml"}
    there = {line.partition("/")[0] for line in listed.stdout.splitlines()}
    assert there - folders - files <= {".ci", ".github"}
