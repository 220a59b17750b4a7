"""`agentsd test`: output, exit codes, and success rates with a real model server."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import agentsd, agentsd_process
from tests.support.paths import ROOT
from tests.support.projects import agent, write
from tests.support.wire import Answer, calls, says, wire_server

CASES = """
cases:
  - name: it says hello
    message: echo hello
    expect: {called: [echo], output: hello}
  - name: it adds
    message: How much is 2 + 3?
    model: [{call: calculator, arguments: {expression: 2 + 3}}, {say: It is 5.}]
    expect: {called: [calculator], arguments: {calculator: {expression: 2 + 3}}, output: "5"}
"""
FAILS = """
cases:
  - name: it reads
    message: read a.txt
    model: [{say: no}]
    expect: {called: [read_file], output: hello}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline"), "agents.d/one.test.yaml": CASES})


def test_every_case_is_a_line_and_the_last_line_counts_them(project: Path) -> None:
    done = agentsd("test", cwd=project)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("✓ one: it says hello  ")
    assert lines[1].startswith("✓ one: it adds  ")
    assert lines[2:] == ["2 passed, 0 failed"]


def test_a_failing_case_prints_the_reason_with_exit_code_1(project: Path) -> None:
    write(project, {"agents.d/two.yaml": agent("two", model="offline"), "agents.d/two.test.yaml": FAILS})
    done = agentsd("test", cwd=project)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[2].startswith("✗ two: it reads")
    assert lines[3] == "    expected called [read_file], got []  (agents.d/two.test.yaml:2)"
    assert lines[4] == '    expected output with "hello", got "no"  (agents.d/two.test.yaml:2)'
    assert [line.strip() for line in lines[5:7]] == ["user: read a.txt", "completed (final): no"]
    assert lines[7] == "2 passed, 1 failed"
    assert agentsd("test", "--agent", "one", cwd=project).returncode == 0
    assert agentsd("test", "agents.d/one.yaml", cwd=project).stdout.endswith("2 passed, 0 failed\n")
    assert agentsd("test", "agents.d/two.test.yaml", cwd=project).stdout.endswith("0 passed, 1 failed\n")


def test_json_has_every_case_with_its_failures(project: Path) -> None:
    write(project, {"agents.d/two.yaml": agent("two", model="offline"), "agents.d/two.test.yaml": FAILS})
    done = agentsd("test", "--json", "--repeat", "2", cwd=project)
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert done.stderr == ""
    assert (report["passed"], report["failed"]) == (2, 1)
    reads = report["cases"][2]
    assert (reads["name"], reads["agent"], reads["place"]) == ("it reads", "two", "agents.d/two.test.yaml:2")
    assert (reads["passed"], reads["attempts"], reads["attempts_passed"]) == (False, 2, 0)
    assert reads["failures"][0] == "expected called [read_file], got []"


def test_without_cases_an_example_is_printed(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")})
    done = agentsd("test", cwd=tmp_path)
    assert done.returncode == 1, "a project whose cases are not found must not look tested"
    assert "agents.d/AGENT.test.yaml" in done.stdout
    shown = done.stdout.partition("\n\n")[2]
    write(tmp_path, {"agents.d/one.test.yaml": shown})
    assert agentsd("test", cwd=tmp_path).stdout.splitlines()[-1] == "1 passed, 0 failed", "the example passes"


def test_cases_are_selected_by_a_text_in_their_names(project: Path) -> None:
    done = agentsd("test", "-k", "ADDS", cwd=project)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 passed, 0 failed")
    done = agentsd("test", "-k", "it ads", cwd=project)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no case has 'it ads' in its name; did you mean it adds?" in done.stderr
    assert agentsd("test", "-k", "adds", "-a", "one", "agents.d/one.test.yaml", cwd=project).returncode == 0


def test_an_unknown_agent_is_a_usage_error(project: Path) -> None:
    done = agentsd("test", "--agent", "on", cwd=project)
    assert done.returncode == 2
    assert "did you mean one?" in done.stderr


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("agents.d/one.yaml", "the file is that of agent 'one', not of 'two'"),
        ("agents.d/one.test.yaml", "agents.d/one.test.yaml has no cases of agent 'two'"),
    ],
)
def test_a_file_and_an_agent_that_exclude_each_other_are_an_error(project: Path, path: str, problem: str) -> None:
    write(project, {"agents.d/two.yaml": agent("two", model="offline")})
    done = agentsd("test", path, "-a", "two", cwd=project)
    assert (done.returncode, done.stdout, problem in done.stderr) == (2, "", True)
    assert agentsd("test", path, "-a", "one", cwd=project).returncode == 0


def test_the_cases_of_this_repository_pass_in_its_own_folder() -> None:
    done = agentsd("test", cwd=ROOT)
    assert (done.returncode, "✗" in done.stdout) == (0, False), done.stdout


def test_a_broken_case_file_is_reported_by_test_and_check(project: Path) -> None:
    write(project, {"agents.d/two.test.yaml": "cases: [{name: x, mesage: y}]"})
    tested = agentsd("test", cwd=project)
    assert tested.returncode == 1
    assert tested.stdout.endswith("2 passed, 0 failed\n")
    for done in (tested, agentsd("check", cwd=project)):
        assert "agents.d/two.test.yaml:1:19: unknown key 'mesage'" in done.stderr
        assert "did you mean 'message'?" in done.stderr
    checked = agentsd("check", "--json", cwd=project)
    assert checked.returncode == 78
    assert json.loads(checked.stdout)["problems"][0]["path"] == "agents.d/two.test.yaml"


def test_check_warns_about_a_case_with_an_unknown_tool(project: Path) -> None:
    write(project, {"agents.d/one.test.yaml": CASES.replace("called: [echo]", "not_called: [ecko]")})
    done = agentsd("check", cwd=project)
    assert done.returncode == 0
    assert "agents.d/one.test.yaml:4:27: warning: there is no tool 'ecko'; did you mean echo?" in done.stderr


def test_a_closed_gate_affects_servers_and_no_commands(project: Path) -> None:
    write(project, {"agentsd.yaml": "reload: {gate: tests, mode: strict}", "agents.d/one.test.yaml": FAILS})
    assert agentsd("check", cwd=project).returncode == 0
    assert agentsd("test", cwd=project).stdout.endswith("0 passed, 1 failed\n")
    assert agentsd("run", "echo hello", cwd=project).returncode == 0
    served = agentsd("serve", "--port", "0", cwd=project)
    assert served.returncode == 78
    assert "case 'it reads' failed: expected called [read_file], got []" in served.stderr


def test_a_single_agent_file_has_its_cases_next_to_it(tmp_path: Path) -> None:
    write(tmp_path, {"one.yaml": agent("one", model="offline"), "one.test.yaml": CASES})
    for path in ("one.yaml", "one.test.yaml"):
        assert agentsd("test", path, cwd=tmp_path).stdout.endswith("2 passed, 0 failed\n")


def test_a_live_model_replaces_the_script_and_gets_success_rates(project: Path) -> None:
    fails = "  - {name: never live, message: x, model: [{fail: busy}], expect: {status: failed}}\n"
    write(project, {"agents.d/one.test.yaml": CASES + fails})

    def answer(body: dict[str, Any]) -> Answer:
        text = [message["content"] for message in body["messages"] if message["role"] == "user"][-1]
        if body["messages"][-1]["role"] == "tool":
            return says("hello, or 5")
        if text == "echo hello":
            return calls(("echo", {"text": "hello"}))
        return calls(("calculator", {"expression": "3 + 2"}))

    async def main() -> None:
        async with wire_server(answer) as server:
            alias = f"{{model: openai/test, base_url: '{server.url}', api_key: sk-test-1234567890}}"
            write(project, {"agentsd.yaml": f"models: {{local: {alias}}}\n"})
            done = await asyncio.to_thread(agentsd_process, "test", "--model", "local", "--repeat", "2", cwd=project)
            as_json = await asyncio.to_thread(agentsd_process, "test", "-m", "local", "--json", cwd=project)
        lines = done.stdout.splitlines()
        assert done.returncode == 1, done.stderr
        assert lines[0].startswith("✓ one: it says hello  2/2")
        assert lines[1].startswith("✗ one: it adds  0/2")
        assert lines[2].startswith(
            '    expected arguments of calculator {"expression": "2 + 3"}, got {"expression": "3 + 2"}'
        )
        end = lines.index("1 passed, 1 failed")
        assert lines[3] == "      user: How much is 2 + 3?"
        assert [line.split() for line in lines[end + 2 :]] == [
            ["local:"],
            ["right", "tool", "4/4", "100%"],
            ["right", "arguments", "0/2", "0%"],
            ["multi-turn", "-"],
            ["recovery", "-"],
            ["answer", "4/4", "100%"],
        ]
        assert json.loads(as_json.stdout)["rates"]["right tool"] == {"passed": 2, "tried": 2}

    asyncio.run(main())


def test_a_model_without_a_key_is_reported_once(project: Path) -> None:
    done = agentsd("test", "--model", "openai/gpt-5.4-mini", cwd=project)
    assert done.returncode == 78
    assert done.stdout == ""
    assert "OPENAI_API_KEY" in done.stderr


# --- files of data


def test_the_cases_of_a_file_of_data_run_and_can_be_chosen(project: Path) -> None:
    line = {"name": "from data", "message": "echo hello", "repeat": 2, "expect": {"output": "hello", "max_calls": 1}}
    cases = {"agents.d/one.test.yaml": CASES + "data: more.jsonl\n", "agents.d/more.jsonl": json.dumps(line) + "\n"}
    write(project, cases)
    done = agentsd("test", "agents.d/more.jsonl", cwd=project)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("✓ one: from data  2/2  ")
    assert agentsd("test", cwd=project).stdout.splitlines()[-1] == "3 passed, 0 failed"
    write(project, {"agents.d/more.jsonl": '{"name": "x"}\n'})
    done = agentsd("check", cwd=project)
    assert done.returncode == 78
    assert "agents.d/more.jsonl:1:1: " in done.stdout + done.stderr


def test_a_single_agent_file_has_its_data_next_to_it(tmp_path: Path) -> None:
    line = json.dumps({"name": "from data", "message": "echo hello", "expect": {"output": "hello"}})
    write(tmp_path, {"one.yaml": agent("one", model="offline"), "one.test.yaml": "data: d.jsonl\n", "d.jsonl": line})
    done = agentsd("test", str(tmp_path / "one.yaml"), cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "1 passed, 0 failed", done.stderr


# --- comparisons


def versions(project: Path) -> Path:
    """Create a second version of a project, beside it, that may not calculate."""
    worse = agent("one", model="offline", skill_policy="{allow: [echo]}")
    return write(project.parent / "worse", {"agents.d/one.yaml": worse, "agents.d/one.test.yaml": CASES})


def test_a_worse_version_is_found_with_its_figures_and_an_equal_one_is_not_worse(project: Path) -> None:
    write(project, {"agents.d/one.yaml": agent("one", model="offline", skill_policy="{allow: [echo, calculator]}")})
    worse = versions(project)
    done = agentsd("test", "--against", str(project), cwd=worse)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "= one: it says hello  1/1 → 1/1"
    assert lines[1] == "↓ one: it adds  1/1 → 0/1"
    assert lines[2].startswith("    expected called [calculator], got []")
    assert lines[-2] == (
        "100% of the attempts passed before and 50% after, -50 points (exact: the models are scripted); "
        "a loss of 5 is tolerated"
    )
    assert lines[-1] == "worse"
    done = agentsd("test", "--against", str(project), cwd=project)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "not worse")
    tolerated = agentsd("test", "--against", str(project), "--worse-by", "0.5", cwd=worse)
    assert (tolerated.returncode, tolerated.stdout.splitlines()[-1]) == (0, "not worse")
    better = json.loads(agentsd("test", "--against", str(worse), "--json", cwd=project).stdout)
    assert (better["verdict"], better["method"], better["difference"], better["better"]) == (
        "not worse",
        "exact",
        0.5,
        1,
    )
    assert better["cases"][1]["before"] == {"attempts": 1, "attempts_passed": 0}


def test_a_version_is_a_revision_of_git(project: Path) -> None:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(project)]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    write(project, {"agents.d/one.yaml": agent("one", model="offline", skill_policy="{allow: [echo]}")})
    done = agentsd("test", "--against", "HEAD", cwd=project)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "worse"), done.stderr
    for name in ("HEAD~7", "no such", "--upload-pack=x", "HEAD^{tree}", "a..b", ""):
        done = agentsd("test", "--against", name, cwd=project)
        assert done.returncode == 2, name
        assert f"no such file or folder, nor a revision of git: {name}" in done.stderr


def test_a_version_whose_files_cannot_be_used_is_an_error(project: Path) -> None:
    broken = write(project.parent / "broken", {"agents.d/one.yaml": "name: [\n"})
    done = agentsd("test", "--against", str(broken), cwd=project)
    assert done.returncode == 78
    assert "no agent of these cases is usable in" in done.stderr


def test_two_cases_on_a_live_model_cannot_tell_and_say_how_many_more_are_needed(project: Path) -> None:
    async def main() -> None:
        async with wire_server(lambda _: says("hello 5")) as server:
            alias = f"{{model: openai/test, base_url: '{server.url}', api_key: sk-test-1234567890}}"
            write(project, {"agentsd.yaml": f"models: {{local: {alias}}}\n"})
            arguments = ("test", "--against", ".", "--model", "local", "-n", "2")
            done = await asyncio.to_thread(agentsd_process, *arguments, cwd=project)
        assert done.returncode == 1, done.stderr
        assert "95% interval" in done.stdout
        assert done.stdout.splitlines()[-1].startswith("cannot tell: needs about ")

    asyncio.run(main())
