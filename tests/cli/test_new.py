"""`agentsd init` and `agentsd new`: the files they write are valid, and existing ones stay."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from framework.cli.project_files import STARTER_SETTINGS
from tests.support.commands import agentsd_in_process
from tests.support.projects import write


def test_a_minimal_project_is_valid_and_its_cases_pass(tmp_path: Path) -> None:
    done = agentsd_in_process("init", "--minimal", "p", cwd=tmp_path)
    assert done.returncode == 0
    written = sorted(path.relative_to(tmp_path / "p").as_posix() for path in (tmp_path / "p").rglob("*.*"))
    assert written == [
        ".gitignore",
        "agents.d",
        "agents.d/assistant.test.yaml",
        "agents.d/assistant.yaml",
        "agentsd.yaml",
    ]
    assert "all files are valid" in agentsd_in_process("check", "p", cwd=tmp_path).stdout
    assert "1 passed, 0 failed" in agentsd_in_process("test", "p", cwd=tmp_path).stdout


def test_the_starter_has_settings_and_ignores_its_data(tmp_path: Path) -> None:
    assert agentsd_in_process("init", cwd=tmp_path).returncode == 0
    assert ".agentsd/\n" in (tmp_path / ".gitignore").read_text("utf-8")
    assert (tmp_path / "agentsd.yaml").read_text("utf-8") == STARTER_SETTINGS


def test_existing_settings_are_kept(tmp_path: Path) -> None:
    write(tmp_path, {"agentsd.yaml": "locale: zh\n", ".gitignore": "dist\n"})
    done = agentsd_in_process("init", "--minimal", cwd=tmp_path)
    assert "kept unchanged: agentsd.yaml, .gitignore" in done.stdout
    assert (tmp_path / "agentsd.yaml").read_text("utf-8") == "locale: zh\n"


def test_the_commented_settings_are_valid(tmp_path: Path) -> None:
    assert agentsd_in_process("init", "--minimal", cwd=tmp_path).returncode == 0
    keys = re.sub(r"^# ( *[a-z_]+: ?.*)$", r"\1", STARTER_SETTINGS, flags=re.MULTILINE)
    assert keys.count("\n# ") == STARTER_SETTINGS.count("\n# ") - 8, "each commented key is active"
    write(tmp_path, {"agentsd.yaml": keys})
    done = agentsd_in_process("check", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["support", "null", "a-1_b", "on"])
def test_a_new_agent_is_valid_and_its_case_passes(tmp_path: Path, name: str) -> None:
    done = agentsd_in_process("new", "agent", name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f'agentsd run -a {name} "calculate 2 + 3"' in done.stdout
    assert f"agents: {name}\n" in agentsd_in_process("check", cwd=tmp_path).stdout
    assert "1 passed, 0 failed" in agentsd_in_process("test", cwd=tmp_path).stdout


@pytest.mark.parametrize("name", ["Support", "a b", "", "../x", "ä", "1a", "a" * 65])
def test_a_name_that_no_agent_may_have_is_an_error(tmp_path: Path, name: str) -> None:
    done = agentsd_in_process("new", "agent", name, cwd=tmp_path)
    assert done.returncode == 2
    assert f"not a name for an agent: {name!r}; it must match [a-z][a-z0-9_-]{{0,63}}, such as support" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_new_agent_overwrites_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.test.yaml": "cases: []\n"})
    done = agentsd_in_process("new", "agent", "one", cwd=tmp_path)
    assert done.returncode == 2
    assert "agents.d/one.test.yaml already exists" in done.stderr
    assert not (tmp_path / "agents.d/one.yaml").exists()


def test_a_new_agent_needs_a_folder(tmp_path: Path) -> None:
    done = agentsd_in_process("new", "agent", "-C", "nowhere", "one", cwd=tmp_path)
    assert done.returncode == 2
    assert "no such folder: nowhere; create a project with `agentsd init`" in done.stderr
