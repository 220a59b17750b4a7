"""What the how-to pages on operations rely on, beyond the commands that `test_how_to.py` types.

Their configuration files are valid, and their parts do what the pages say where the other side, such as GitHub, is
missing here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from framework.cli.command_index import find_entry, read_index
from tests.support.commands import ENVIRONMENT
from tests.support.page_steps import steps
from tests.support.paths import ROOT
from tests.support.projects import agent, write

PAGES = ROOT / "docs/how-to"
REVIEW = PAGES / "review-agents-in-pull-requests.md"


def files_of(page: Path, name: str) -> list[str]:
    """Return the texts of a file of a page, one for each block."""
    return [step.text for step in steps(page) if step.is_file and step.place == name]


# --- review agents in pull requests

CLERK = {"agents.d/clerk.yaml": agent("clerk", model="offline", skill_policy="{allow: [calculator]}")}
CASE = {
    "agents.d/clerk.test.yaml": """\
        cases:
          - {name: it calculates, message: calculate 2 + 3, expect: {output: "5"}}
        """
}


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=ada", "-c", "user.email=ada@example.com", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, env=ENVIRONMENT)


def pull_request(root: Path, changed: dict[str, str]) -> Path:
    """Return a clone, as GitHub's action makes it, of a branch that changes these files."""
    write(root / "origin", CLERK | CASE)
    git(root / "origin", "init", ".")
    git(root / "origin", "add", ".")
    git(root / "origin", "commit", "-m", "Add the clerk")
    git(root, "clone", "origin", "work/here")
    write(root / "work/here", changed)
    git(root / "work/here", "commit", "-am", "Change the clerk")
    return root / "work/here"


def run_job(folder: Path, job: dict[str, Any], summary: Path) -> int:
    """Run the commands of a job as GitHub does, up to the first that fails; return its exit code."""
    path = f"{Path(sys.executable).parent}:{ENVIRONMENT['PATH']}"
    variables = {"GITHUB_BASE_REF": "main", "GITHUB_STEP_SUMMARY": str(summary)}
    for step in job["steps"]:
        if "run" in step and not step["run"].startswith("pip install "):
            shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
            done = subprocess.run(
                shell, cwd=folder, env={**ENVIRONMENT, **variables, "PATH": path}, check=False, capture_output=True
            )
            if done.returncode:
                return done.returncode
    return 0


@pytest.mark.parametrize(
    ("policy", "code", "shown"),
    [
        ("{allow: [calculator, echo]}", 0, "    clerk: skill_policy.allow: none -> echo (widens)\n"),
        ("{allow: [calculater]}", 78, ""),
    ],
)
def test_the_workflow_passes_a_valid_edit_and_shows_what_it_permits(
    tmp_path: Path, policy: str, code: int, shown: str
) -> None:
    (job,) = yaml.safe_load((ROOT / "examples/ci/agents.yml").read_text("utf-8"))["jobs"].values()
    edit = {"agents.d/clerk.yaml": agent("clerk", model="offline", skill_policy=policy)}
    (summary := tmp_path / "summary").touch()
    assert run_job(pull_request(tmp_path, edit), job, summary) == code
    assert summary.read_text("utf-8") == shown


def test_the_page_shows_the_workflow_of_the_examples() -> None:
    (shown,) = files_of(REVIEW, ".github/workflows/agents.yml")
    assert shown == (ROOT / "examples/ci/agents.yml").read_text("utf-8")
    workflow = yaml.safe_load(shown)
    assert (workflow[True], workflow["permissions"]) == (["pull_request"], {"contents": "read"})  # YAML 1.1: on = true


def test_the_hooks_of_the_page_and_of_this_project_call_commands_that_exist() -> None:
    offered = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))}
    used, own = (yaml.safe_load(text)["repos"][0]["hooks"] for text in files_of(REVIEW, ".pre-commit-config.yaml"))
    assert {hook["id"] for hook in used} == offered.keys()
    assert [(hook["id"], hook["entry"]) for hook in own] == [(hook["id"], hook["entry"]) for hook in offered.values()]
    for hook in [*offered.values(), *own]:
        program, *words = hook["entry"].split()
        assert program == "agentsd"
        assert find_entry(read_index(), words)[0]


@pytest.mark.parametrize(
    ("path", "is_checked"),
    [
        ("agentsd.yaml", True),
        ("agents.d/clerk.test.yaml", True),
        ("services/support/prompts/a.j2", True),
        ("plugins/deep/a.py", True),
        ("docs/agents.d.md", False),
        ("my-plugins/a.py", False),
    ],
)
def test_the_hooks_run_for_files_of_a_project(path: str, is_checked: bool) -> None:
    for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8")):
        assert bool(re.search(hook["files"], path)) is is_checked


def test_contributors_run_the_tools_of_make_check() -> None:
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    entries = [hook["entry"].split() for hook in repo["hooks"]]
    commands = [" ".join(words[:2] if len(words) > 1 else words).removeprefix(".venv/") for words in entries]
    assert commands == ["bin/ruff format", "bin/ruff check", "bin/mypy"]
    assert all(
        f"$(BIN)/{command.removeprefix('bin/')}" in (ROOT / "Makefile").read_text("utf-8") for command in commands
    )


def test_pre_commit_accepts_the_files(tmp_path: Path) -> None:
    if not shutil.which("pre-commit"):
        pytest.skip("no pre-commit")
    configs = [str(ROOT / ".pre-commit-config.yaml")]
    for number, text in enumerate(files_of(REVIEW, ".pre-commit-config.yaml")):
        write(tmp_path, {f"{number}.yaml": text})
        configs.append(str(tmp_path / f"{number}.yaml"))
    subprocess.run(["pre-commit", "validate-config", *configs], check=True)
    subprocess.run(["pre-commit", "validate-manifest", str(ROOT / ".pre-commit-hooks.yaml")], check=True)
