"""`agentsd init` and `agentsd new`: the files they write are valid, and existing ones stay."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from framework.cli.init import STARTER_SETTINGS
from tests.support.commands import agentsd
from tests.support.projects import write


@pytest.mark.parametrize("flags", [(), ("--minimal",)])
def test_a_new_project_is_small_and_valid_and_its_cases_pass(tmp_path: Path, flags: tuple[str, ...]) -> None:
    done = agentsd("init", *flags, "p", cwd=tmp_path)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 8
    assert max(map(len, done.stdout.splitlines())) <= 80
    written = sorted(path.relative_to(tmp_path / "p").as_posix() for path in (tmp_path / "p").rglob("*.*"))
    assert written == [
        ".gitignore",
        "agents.d",
        "agents.d/assistant.test.yaml",
        "agents.d/assistant.yaml",
        "agentsd.yaml",
        "plugins/text.py",
    ]
    checked = agentsd("check", "p", cwd=tmp_path)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "agents: assistant\n" in checked.stdout
    assert "1 passed, 0 failed" in agentsd("test", "p", cwd=tmp_path).stdout


@pytest.mark.parametrize("flags", [(), ("--example",)])
def test_the_first_commands_that_a_new_project_prints_work(tmp_path: Path, flags: tuple[str, ...]) -> None:
    printed = agentsd("init", *flags, "p", cwd=tmp_path).stdout
    message = re.search(r'cd p && agentsd run "(.+)"', printed)
    assert message is not None
    done = agentsd("run", message[1], cwd=tmp_path / "p")
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    assert ("Lines: 462" if flags else "3\n") in done.stdout


@pytest.mark.parametrize("flags", [(), ("--example",)])
def test_the_edit_that_a_new_project_suggests_passes_its_tests(tmp_path: Path, flags: tuple[str, ...]) -> None:
    assert agentsd("init", *flags, cwd=tmp_path).returncode == 0
    file = tmp_path / "agents.d/assistant.yaml"
    text = file.read_text("utf-8")
    edited = text.replace("tools: [", "tools: [write_file, ")
    assert edited.count("write_file") == text.count("write_file") + 1
    file.write_text(edited, "utf-8")
    done = agentsd("test", "-a", "assistant", cwd=tmp_path)
    assert (done.returncode, "0 failed" in done.stdout) == (0, True), done.stdout


@pytest.mark.parametrize("flags", [(), ("--example",)])
@pytest.mark.parametrize("present", ["agentsd.yaml", "agents.d/one.yaml"])
def test_a_folder_with_a_project_is_refused_and_unchanged(tmp_path: Path, present: str, flags: tuple[str, ...]) -> None:
    write(tmp_path, {present: "version: 1\n"})
    done = agentsd("init", *flags, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{present.partition('/')[0]} exists: the folder has a project already" in done.stderr
    assert "`agentsd new agent NAME`" in done.stderr
    assert "`agentsd init FOLDER`" in done.stderr
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()] == [present]
    elsewhere = agentsd("init", tmp_path.name, cwd=tmp_path.parent)
    assert f"`agentsd new agent -C {tmp_path.name} NAME`" in elsewhere.stderr


def test_the_two_kinds_of_projects_exclude_each_other(tmp_path: Path) -> None:
    done = agentsd("init", "--example", "--minimal", cwd=tmp_path)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])


def test_the_starter_has_settings_and_ignores_its_data(tmp_path: Path) -> None:
    assert agentsd("init", cwd=tmp_path).returncode == 0
    assert ".agentsd/\n" in (tmp_path / ".gitignore").read_text("utf-8")
    assert (tmp_path / "agentsd.yaml").read_text("utf-8") == STARTER_SETTINGS


def test_existing_files_are_kept(tmp_path: Path) -> None:
    write(tmp_path, {"plugins/text.py": "", ".gitignore": "dist\n"})
    done = agentsd("init", cwd=tmp_path)
    assert "kept unchanged: plugins/text.py, .gitignore" in done.stdout
    assert (tmp_path / ".gitignore").read_text("utf-8") == "dist\n"


def test_the_commented_settings_are_valid(tmp_path: Path) -> None:
    assert agentsd("init", cwd=tmp_path).returncode == 0
    keys = re.sub(r"^# ( *[a-z_]+: ?.*)$", r"\1", STARTER_SETTINGS, flags=re.MULTILINE)
    assert keys.count("\n# ") == STARTER_SETTINGS.count("\n# ") - 8, "each commented key is active"
    write(tmp_path, {"agentsd.yaml": keys})
    done = agentsd("check", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["support", "null", "a-1_b", "on"])
def test_a_new_agent_is_valid_and_its_case_passes(tmp_path: Path, name: str) -> None:
    done = agentsd("new", "agent", name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f'agentsd run -a {name} "calculate 2 + 3"' in done.stdout
    assert f"agents: {name}\n" in agentsd("check", cwd=tmp_path).stdout
    assert "1 passed, 0 failed" in agentsd("test", cwd=tmp_path).stdout


@pytest.mark.parametrize("name", ["Support", "a b", "", "../x", "ä", "1a", "a" * 65])
def test_a_name_that_no_agent_may_have_is_an_error(tmp_path: Path, name: str) -> None:
    done = agentsd("new", "agent", name, cwd=tmp_path)
    assert done.returncode == 2
    assert f"not a name for an agent: {name!r}; it must match [a-z][a-z0-9_-]{{0,63}}, such as support" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_new_agent_overwrites_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.test.yaml": "cases: []\n"})
    done = agentsd("new", "agent", "one", cwd=tmp_path)
    assert done.returncode == 2
    assert "agents.d/one.test.yaml already exists" in done.stderr
    assert not (tmp_path / "agents.d/one.yaml").exists()


def test_a_new_agent_needs_a_folder(tmp_path: Path) -> None:
    done = agentsd("new", "agent", "-C", "nowhere", "one", cwd=tmp_path)
    assert done.returncode == 2
    assert "no such folder: nowhere; create a project with `agentsd init`" in done.stderr


def test_extras_that_are_not_installed_are_no_warning_of_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert agentsd("init", "--example", cwd=tmp_path).returncode == 0
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    for words, shown in ((("check",), "all files are valid\n"), (("check", "--strict"), "not installed: web.read_url")):
        done = agentsd(*words, cwd=tmp_path)
        assert (done.returncode, done.stderr, shown in done.stdout) == (0, "", True), done.stderr
