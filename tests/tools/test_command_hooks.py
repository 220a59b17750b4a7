"""Hooks that are programs: only exit code 0 with a verdict allows, whatever else happens."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from framework import Runtime
from framework.testing import ScriptedModel, calls
from framework.types.state import RunResult
from tests.support.projects import agent, write

CALL = calls(("echo", {"text": "hello"}))


def project(root: Path, script: str, place: str = "before_tool", *, command: str = "[hooks/guard, --strict]") -> Path:
    hooks = f"{{{place}: {{command: {command}}}}}"
    write(root, {"agents.d/one.yaml": agent("one", hooks=hooks), "hooks/guard": script})
    (root / "hooks/guard").chmod(0o755)
    return root


async def run(root: Path, *, watch: bool = False) -> RunResult:
    models = {"scripted": ScriptedModel(CALL, "the answer")}
    async with Runtime.open(root, models=models, watch=watch) as runtime:
        return await runtime.run("hi", agent="one", metadata={})


def shell(*lines: str) -> str:
    return "\n".join(("#!/bin/sh", *lines)) + "\n"


def told(result: RunResult) -> str:
    """Return what the model reads of the last call."""
    return [message.content for message in result.messages if message.role == "tool"][-1]


SAYS_ALLOW = """printf '{"verdict": "allow"}'"""


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (shell("""echo '{"verdict": "deny", "reason": "not today"}'"""), "not today (agents.d/one.yaml:7)"),
        (shell(SAYS_ALLOW, "exit 1"), "ended with exit code 1"),
        (shell(SAYS_ALLOW, "kill -9 $$"), "ended with exit code -9"),
        (shell("exit 0"), "printed no verdict"),
        (shell("echo allow"), "printed no verdict"),
        (shell("echo '[]'"), "printed no verdict"),
        (shell("""echo '{"verdict": "allowed"}'"""), "printed no verdict"),
        (shell("""echo '{"verdict": "Allow"}'"""), "printed no verdict"),
        (shell("""echo '{"verdict": "deny", "verdict": "allow"}'"""), "printed no verdict"),
        (shell("""echo '{"verdict": "allow", "unless": "it is late"}'"""), "printed no verdict"),
        (shell("""echo '{"verdict": "transform", "output": "x"}'"""), "printed no verdict"),
        (shell("""echo '{"verdict": "allow"} trailing'"""), "printed no verdict"),
        (shell("""printf '\\377'"""), "printed no verdict"),
        (shell("yes x"), "printed more than"),
        ("#!/no/such/interpreter\n", "does not start"),
        ("no program at all", "does not start"),
    ],
)
def test_everything_but_a_clear_yes_refuses(tmp_path: Path, script: str, reason: str) -> None:
    result = asyncio.run(run(project(tmp_path, script)))
    assert [call.status for call in result.tool_calls] == ["denied"]
    assert reason in told(result)
    assert "agents.d/one.yaml:7" in told(result)


def test_a_program_that_hangs_is_stopped_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.engine.tool_call.results._HOOK_SECONDS", 0.3)
    script = shell("sleep 1000 & echo $! > child", "wait")
    result = asyncio.run(run(project(tmp_path, script)))
    assert result.tool_calls[0].status == "denied"
    child = int((tmp_path / "child").read_text())
    status = Path(f"/proc/{child}/stat")
    assert not status.exists() or status.read_text().split()[2] == "Z"


def test_it_reads_the_call_without_keys_and_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of the server")
    script = shell("cat > asked", "env > environment", "pwd > folder", "echo $1 > argument", SAYS_ALLOW)
    result = asyncio.run(run(project(tmp_path, script)))
    assert result.tool_calls[0].status == "success"
    asked = json.loads((tmp_path / "asked").read_text())
    assert asked["hook"] == "before_tool"
    assert asked["agent"] == "one"
    assert asked["call"]["tool"] == "echo"
    assert asked["call"]["arguments"] == {"text": "hello"}
    assert asked["run_id"] == result.run_id
    assert "of the server" not in (tmp_path / "environment").read_text()
    assert Path((tmp_path / "folder").read_text().strip()).samefile(tmp_path)
    assert (tmp_path / "argument").read_text() == "--strict\n"


def test_results_and_answers_can_be_replaced(tmp_path: Path) -> None:
    script = shell("""echo '{"verdict": "transform", "output": "changed"}'""")
    result = asyncio.run(run(project(tmp_path / "tool", script, "after_tool")))
    assert result.messages[2].content == "changed"
    assert asyncio.run(run(project(tmp_path / "run", script, "after_run"))).output == "changed"
    denies = shell("""echo '{"verdict": "deny", "reason": "no"}'""")
    assert asyncio.run(run(project(tmp_path / "before", denies, "before_run"))).finish_reason == "refused"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("[/bin/true]", "must be a file below hooks/"),
        ("[python, -c, pass]", "must be a file below hooks/"),
        ("[hooks/../guard]", "must be a file below hooks/"),
        ("[hooks]", "must be a file below hooks/"),
        ("[hooks/missing]", "No such file"),
        ("[hooks/text]", "chmod +x hooks/text"),
        ("[hooks/folder]", "not an executable file"),
        ("[]", "must be a file below hooks/"),
        ("hooks/guard", "must be a list"),
    ],
)
def test_another_program_is_an_error_at_its_line(tmp_path: Path, command: str, message: str) -> None:
    project(tmp_path, shell(SAYS_ALLOW), command=command)
    write(tmp_path, {"hooks/text": "x", "hooks/folder/x": "x"})

    async def main() -> None:
        async with Runtime.open(tmp_path, models={"scripted": ScriptedModel()}, watch=False) as runtime:
            (problem,) = runtime.catalog.current.errors
            assert (problem.path, problem.line) == ("agents.d/one.yaml", 7)
            assert message in problem.message

    asyncio.run(main())


def test_a_program_that_disappears_refuses(tmp_path: Path) -> None:
    project(tmp_path, shell("rm hooks/guard", SAYS_ALLOW))

    async def main() -> None:
        models = {"scripted": ScriptedModel(CALL, CALL, "the answer")}
        async with Runtime.open(tmp_path, models=models, watch=False) as runtime:
            result = await runtime.run("hi", agent="one")
            assert [call.status for call in result.tool_calls] == ["success", "denied"]
            assert "does not start" in told(result)

    asyncio.run(main())
