"""Completions of a shell: commands, options, and the names of the project."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from framework.cli.completion import command_of, read_index
from tests.support.commands import ENVIRONMENT, agentsd
from tests.support.projects import agent, write

ENTRY = [sys.executable, "-c", "import sys; from framework.cli.entry import main; sys.exit(main())"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {
        "agents.d/lead.yaml": agent("lead", model="offline", description="Leads", skill_policy="{allow: [echo]}"),
        "agents.d/log.yaml": agent("log", model="offline"),
        "agents.d/odd.yaml": "version: 1\nname: $(touch gone)\n",
        "agentsd.yaml": "models: {llama: {model: openai/llama}}\n",
    }
    root = write(tmp_path_factory.mktemp("completion"), files)
    assert agentsd("run", "-a", "lead", "-c", "talk", "echo hi", cwd=root).returncode == 0
    return root


def words(line: str, cwd: Path) -> list[str]:
    """Return the completions of the last word of a line."""
    *before, current = line.split(" ")
    here = Path.cwd()
    os.chdir(cwd)
    try:
        asked = ShellComplete(command_of("agentsd", read_index()), {}, "agentsd", "_AGENTSD_COMPLETE")
        return [item.value if item.type == "plain" else item.type for item in asked.get_completions(before, current)]
    finally:
        os.chdir(here)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("che", ["check"]),
        ("runs sh", ["show"]),
        ("-v runs sh", ["show"]),
        ("run -a l", ["lead", "log"]),
        ("run --agent=le", ["lead"]),
        ("run hi -a le", ["lead"]),
        ("worker --agents log,l", ["log,lead", "log,log"]),
        ("run --conv", ["--conversation"]),
        ("run -c t", ["talk"]),
        ("chat -c t", ["talk"]),
        ("run -m ll", ["llama"]),
        ("run -m offl", ["offline"]),
        ("explain le", ["lead"]),
        ("explain lead ec", ["echo"]),
        ("tools call -a lead ec", ["echo"]),
        ("runs show la", ["last"]),
        ("runs list -s p", ["paused"]),
        ("completion z", ["zsh"]),
        ("check ./", ["file"]),
        ("check -C ./", ["dir"]),
        ("run -f x", ["file"]),
        ("run -C /nowhere -a l", []),
        ("run --locale z", []),
        ("nothing at all", []),
    ],
)
def test_a_word_is_completed(project: Path, line: str, expected: list[str]) -> None:
    assert words(line, project) == expected


def test_the_runs_of_the_store_are_completed(project: Path) -> None:
    found = words("runs show run_", project)
    assert [len(word) for word in found] == [len("run_") + 32]


@pytest.mark.parametrize(
    "settings",
    ["store: {url: postgresql://x@localhost/y}", "store:\n  retention: 1d\n  url: 'sqlite:///other.db'\n", "store: ["],
)
def test_a_store_that_is_elsewhere_completes_nothing(project: Path, tmp_path: Path, settings: str) -> None:
    root = shutil.copytree(project, tmp_path / "p")
    (root / "agentsd.yaml").write_text(settings, "utf-8")
    expected = ["last", "run_"] if settings == "store: [" else ["last"]
    assert [word[:4] for word in words("runs show ", root)] == expected


def test_files_that_cannot_be_read_complete_nothing(tmp_path: Path) -> None:
    write(tmp_path, {".agentsd/agent.schema.json": "[1]", ".agentsd/state.db": "not a database", "agentsd.yaml": "\0"})
    (tmp_path / "agents.d").mkdir()
    (tmp_path / "agents.d/a.yaml").write_bytes(b"\xff\xfename: x")
    assert words("runs show ", tmp_path) == ["last"]
    assert words("tools call ", tmp_path) == []
    assert words("run -a ", tmp_path) == []


def asked(shell: str, line: str, place: str, cwd: Path) -> str:
    env = {**ENVIRONMENT, "_AGENTSD_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": place}
    return subprocess.run(ENTRY, cwd=cwd, env=env, capture_output=True, text=True, check=True).stdout


def test_each_shell_gets_its_protocol(project: Path) -> None:
    assert asked("bash", "agentsd run -a l", "3", project) == "plain,lead\nplain,log\n"
    assert asked("zsh", "agentsd run -a l", "3", project) == "plain\nlead\nLeads\nplain\nlog\nThe agent log.\n"
    assert asked("fish", "agentsd run -a l", "l", project) == "plain,lead\tLeads\nplain,log\tThe agent log.\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_with_the_printed_script(project: Path, tmp_path: Path) -> None:
    command = tmp_path / "bin" / "agentsd"
    command.parent.mkdir()
    command.write_text(
        f"#!{sys.executable}\nimport sys\nfrom framework.cli.entry import main\nsys.exit(main())\n", "utf-8"
    )
    command.chmod(0o755)
    script = agentsd("completion", "bash", cwd=project).stdout
    asks = 'COMP_WORDS=(agentsd run -a l); COMP_CWORD=3; _agentsd_completion agentsd; echo "${COMPREPLY[@]}"'
    env = {**ENVIRONMENT, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    bash = ["bash", "--norc", "-c", f"{script}\n{asks}"]
    done = subprocess.run(bash, cwd=project, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "lead log\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_names_the_command(tmp_path: Path, shell: str) -> None:
    done = agentsd("completion", shell, cwd=tmp_path)
    assert done.returncode == 0
    assert "_AGENTSD_COMPLETE" in done.stdout


def test_an_unknown_shell_is_a_usage_error(tmp_path: Path) -> None:
    done = agentsd("completion", "tcsh", cwd=tmp_path)
    assert done.returncode == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in done.stderr


def test_a_completion_imports_click_and_no_command(project: Path) -> None:
    shows = "import sys; from framework.cli.entry import main; main(); print(*sys.modules, file=sys.stderr)"
    env = {**ENVIRONMENT, "_AGENTSD_COMPLETE": "bash_complete", "COMP_WORDS": "agentsd run -a l", "COMP_CWORD": "3"}
    done = subprocess.run(
        [sys.executable, "-c", shows], cwd=project, env=env, capture_output=True, text=True, check=True
    )
    assert "framework.cli.completion" in done.stderr
    assert not {"framework.cli.run", "framework.cli.main", "pydantic", "yaml", "asyncio"} & set(done.stderr.split())
