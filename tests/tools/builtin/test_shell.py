"""`shell` executes commands in a sandbox: they see what the operator lists, change one folder, and end in time."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from framework import Runtime
from framework.config.settings import Settings
from framework.testing import ScriptedModel
from framework.tools.builtin.files import shell
from framework.tools.child_processes import run_sandboxed
from framework.tools.files import BaseFolder
from framework.tools.tool import ToolContext
from framework.types.errors import ToolError
from framework.types.messages import ToolCall
from framework.types.problem import Problem
from framework.types.state import Approve, RunResult
from framework.types.tool_servers import SandboxLimits
from tests.support.projects import agent, write
from tests.support.sandbox import needs_sandbox

LIMITS = SandboxLimits(
    program="bubblewrap", read=("docs",), write="out", timeout=20, processes=64, memory_mb=256, disk_mb=4
)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    files = {"docs/a.txt": "hello", "docs/.env": "KEY=1", "docs/.git/config": "s", "docs/in/salary.csv": "9"}
    return write(tmp_path, {**files, "agentsd.yaml": "model: offline", "docs/out.lnk": ""})


def executed(command: str, base: Path, *, denied: tuple[str, ...] = (), **limits: object) -> str:
    sandbox = SandboxLimits.model_validate(LIMITS.model_dump() | limits)
    context = ToolContext("run", "call", "one", base, sandbox=sandbox, denied_files=denied)
    return str(asyncio.run(shell(command, context=context)))


@needs_sandbox
def test_a_command_sees_the_listed_folders_and_writes_one(base: Path) -> None:
    assert executed("pwd; cat ../docs/a.txt; echo; ls /project; echo new > made.txt", base) == (
        "/project/out\nhello\ndocs\nout"
    )
    assert (base / "out/made.txt").read_text() == "new\n"
    assert executed("false", base) == "(exit code 1)"
    assert executed("true", base) == "(it printed nothing)"


@needs_sandbox
def test_a_command_cannot_read_what_no_tool_may_read(base: Path) -> None:
    (base / "docs/link").symlink_to(base / "agentsd.yaml")
    (base / "docs/hard").hardlink_to(base / "agentsd.yaml")
    shown = executed("cd /project/docs; cat .env in/salary.csv link hard; ls -A .git", base, denied=("docs/in/*",))
    assert shown.splitlines() == [
        *(f"cat: {name}: Permission denied" for name in (".env", "in/salary.csv")),
        "cat: link: No such file or directory",
        "cat: hard: Permission denied",
    ]
    assert executed("cat /project/docs/in/salary.csv", base) == "9"
    assert executed("echo a > a; ln a b", base) == "(it printed nothing)"
    assert executed("cat b", base) == "a"


def each_of(command: str, places: str) -> str:
    """Return a command that prints each of the places for which another one succeeds."""
    return f"for p in {places}; do {command} && echo reached $p; done 2>/dev/null; true"


@needs_sandbox
def test_a_command_sees_and_writes_no_other_folder(base: Path) -> None:
    (base / "docs").chmod(0o777)  # only the sandbox protects it from the user that commands have
    places = "/project/docs /project/docs/.git /project / /usr /etc /dev /dev/shm /proc"
    assert executed(each_of("touch $p/b", f"{places} /tmp /project/out"), base) == "reached /tmp\nreached /project/out"
    assert executed(each_of("test -e $p", f"/root /home /var /run /sys {base}"), base) == "(it printed nothing)"


@needs_sandbox
def test_a_command_is_alone_in_its_namespaces_and_session(base: Path) -> None:
    names = ["ipc", "mnt", "net", "pid", "uts"]
    inside = executed(f"cd /proc/self/ns && readlink {' '.join(names)}", base).split()
    outside = [str(Path(f"/proc/self/ns/{name}").readlink()) for name in names]
    assert len({*inside, *outside}) == 2 * len(names)
    assert executed("cut -d' ' -f6 /proc/self/stat", base) != "0", "0 is a session outside, with its terminal"


@needs_sandbox
@pytest.mark.parametrize("network", [False, True])
def test_a_command_phones_home_only_where_the_operator_allows_the_network(base: Path, network: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as home, socket.socket(socket.AF_UNIX) as local:
        local.bind(f"\0agentsd-{os.getpid()}-{network}")
        local.listen()
        addresses = [home.getsockname(), local.getsockname().decode()]
        program = (
            "import socket\n"
            f"for address in {addresses}:\n"
            "    kind = socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX\n"
            "    try:\n"
            "        socket.socket(kind).connect(address)\n"
            "        print('connected')\n"
            "    except OSError as error:\n"
            "        print('refused')\n"
        )
        expected = "connected" if network else "refused"
        assert executed(f"python3 -c {shlex.quote(program)}", base, network=network).split() == [expected] * 2


@needs_sandbox
@pytest.mark.parametrize(
    "command",
    [
        "touch /project/docs/b",
        "rm /project/docs/a.txt",
        "echo x > /project/docs/.env",
        "cat {base}/agentsd.yaml",
        "ln -s {base}/agentsd.yaml l && cat l",
        "cat /proc/1/root{base}/agentsd.yaml",
        "mount -t tmpfs none /project/docs",
        "chroot / true",
        "nsenter -t 1 -a true",
        "echo 1 > /proc/sys/kernel/panic",
        "kill -9 {pid}",
        "test -e /proc/{pid}",
    ],
)
def test_a_command_reaches_nothing_else(base: Path, command: str) -> None:
    printed = executed(command.format(base=base, pid=os.getpid()), base)
    assert "(exit code" in printed
    assert "model:" not in printed
    assert (base / "docs/a.txt").read_text() == "hello"


@needs_sandbox
def test_a_program_with_the_bit_of_another_user_gets_no_rights(base: Path) -> None:
    command = "cp /usr/bin/id i && chmod 6755 i && ./i -u && find /usr/bin -perm -4000 -name su -exec {} -c id \\;"
    assert "uid=0" not in executed(command, base)
    rights = executed("grep -E '^(Cap|NoNewPrivs)' /proc/self/status", base).split()
    assert dict(zip(rights[::2], rights[1::2], strict=True)) == {
        **{f"Cap{kind}:": "0" * 16 for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")},
        "NoNewPrivs:": "1",
    }


@needs_sandbox
def test_a_command_has_no_secrets_of_its_parent(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "s3cret")
    monkeypatch.setenv("TZ", "UTC")
    command = "env; cat /proc/*/environ; cat /proc/*/cmdline"
    assert "s3cret" not in executed(command, base)
    assert "TZ=UTC" not in executed("env", base)
    assert "TZ=UTC" in executed("env", base, env=["TZ"])


@needs_sandbox
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("sleep 100 & sleep 100", "took longer than 1 s"),
        ("trap '' TERM INT HUP; while :; do :; done", "took longer than 1 s"),
        ("setsid sleep 100 & sleep 100", "took longer than 1 s"),
        ("b() { b | b & }; b; exec sleep 100", "took longer than 1 s"),
        ("python3 -c 'bytearray(10**9)'", "MemoryError"),
        ("head -c 100000000 /dev/zero > /tmp/big; stat -c %s /tmp/big", "4194304"),
        ("head -c 100000000 /dev/zero > big; stat -c %s big", "4194304"),
        ("for i in 1 2; do head -c 3000000 /dev/zero > /tmp/f$i; done", "No space left"),
        ("bash -c 'ulimit -H -c -n -t -u' | grep -o '[0-9]*$' | xargs", "0 256 20 64"),
    ],
)
def test_a_command_ends_at_its_limits(base: Path, command: str, expected: str) -> None:
    timeout = 1.0 if "longer" in expected else 20.0
    processes = 12 if command.startswith("b()") else 64  # the user's: commands of other tests need some meanwhile
    assert expected in executed(command, base, timeout=timeout, processes=processes)


@needs_sandbox
def test_a_command_that_fills_the_disk_with_many_files_is_stopped(base: Path) -> None:
    command = "for i in $(seq 50); do head -c 1000000 /dev/zero > f$i; done; sleep 100"
    assert "wrote more than 4 MB" in executed(command, base)


@needs_sandbox
def test_folders_with_too_many_files_are_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their files are searched for those that no tool may read before each command."""
    for number in range(501):
        (base / f"docs/.{number}").touch()
    with pytest.raises(ToolError, match="more than 500 files that no tool may read"):
        executed("true", base)
    monkeypatch.setattr("framework.tools.child_processes._MAX_ENTRIES", 500)
    with pytest.raises(ToolError, match="docs has more than 500 files: list smaller folders"):
        executed("true", base)


@needs_sandbox
def test_what_a_command_prints_is_bounded(base: Path) -> None:
    assert len(executed("yes | head -c 30000000", base)) <= 1_000_100


@needs_sandbox
@pytest.mark.parametrize("end", ["cancelled", "background"])
def test_nothing_outlives_a_command(base: Path, end: str) -> None:
    """A process writes to the folder as long as it lives."""
    ticking = "while :; do date +%s%N > tick; sleep 0.05; done"

    async def main() -> None:
        folder = BaseFolder(base)
        command = ticking if end == "cancelled" else f"({ticking}) & sleep 0.3"
        task = asyncio.ensure_future(run_sandboxed(["sh", "-c", command], LIMITS, folder))
        async with asyncio.timeout(20):
            while not (base / "out/tick").exists():
                await asyncio.wait([task], timeout=0.02)
            if end == "cancelled":
                task.cancel()
            await asyncio.wait([task])

    asyncio.run(main())
    assert not [line for file in Path("/proc").glob("[0-9]*/cmdline") if str(base) in (line := command_line(file))]


def command_line(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:  # the process has ended
        return ""


@pytest.mark.parametrize("folder", [".", "./", "docs/..", "/etc", "~"])
def test_the_whole_project_and_what_is_outside_it_cannot_be_listed(folder: str) -> None:
    with pytest.raises(ValueError, match=r"path|whole"):
        Settings.model_validate({"tools": {"sandbox": {"program": "bubblewrap", "read": [folder]}}})


@pytest.mark.parametrize("folder", ["plugins", "agents.d", "prompts/x", ".git", "a/.ssh", "hooks"])
def test_commands_cannot_write_where_files_are_executed(folder: str) -> None:
    with pytest.raises(ValueError, match="would write what runs"):
        Settings.model_validate({"tools": {"sandbox": {"program": "bubblewrap", "write": folder}}})


@needs_sandbox
def test_a_link_in_place_of_a_folder_is_refused(base: Path, tmp_path: Path) -> None:
    (base / "away").symlink_to(tmp_path)
    for limits in ({"read": ["away"]}, {"write": "away"}, {"read": ["missing"]}):
        with pytest.raises(ToolError):
            executed("true", base, **limits)


def test_without_a_sandbox_nothing_is_executed_and_nobody_is_asked(tmp_path: Path) -> None:
    result, problems = run_shell(tmp_path, "model: offline", approve=lambda result: not result.pending)
    assert "there is no sandbox" in str(result.trace[0].error)
    assert not (tmp_path / "out").exists()
    assert any("executes nothing without a sandbox" in problem.message for problem in problems)


def test_a_sandbox_that_does_not_start_is_an_error_and_executes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framework.tools.child_processes._PATH", str(tmp_path))
    result, problems = run_shell(tmp_path, SANDBOXED, approve=lambda result: bool(result.pending))
    assert [one.line for one in problems if "no command is executed" in one.message and one.severity == "error"] == [1]
    assert not (tmp_path / "out/x").exists()
    assert result.trace[0].error


SANDBOXED = "tools: {sandbox: {program: bubblewrap, write: out}}"


@needs_sandbox
def test_a_command_waits_for_approval_and_runs_once(tmp_path: Path) -> None:
    result, problems = run_shell(tmp_path, SANDBOXED, approve=lambda result: bool(result.pending))
    assert (result.status, problems) == ("completed", ())
    assert (tmp_path / "out/x").read_text() == "once\n"


def run_shell(
    tmp_path: Path, settings: str, approve: Callable[[RunResult], bool]
) -> tuple[RunResult, tuple[Problem, ...]]:
    """Run an agent that calls `shell`; `approve` checks that it is asked for, or not."""
    policy = {"skill_policy": "{allow: [shell]}", "runtime_policy": "{risk_level: high}"}
    write(tmp_path, {"agents.d/one.yaml": agent("one", **policy), "agentsd.yaml": settings})
    model = ScriptedModel((ToolCall(id="c", tool="shell", arguments={"command": "echo once >> x"}),), "done")

    async def main() -> tuple[RunResult, tuple[Problem, ...]]:
        async with Runtime.open(tmp_path, models={"scripted": model}, watch=False) as runtime:
            result = await runtime.run("go")
            assert approve(result)
            if result.pending:
                result = await runtime.resume(result.run_id, {result.pending[0].id: Approve()})
            return result, tuple(runtime.catalog.problems)

    return asyncio.run(main())
