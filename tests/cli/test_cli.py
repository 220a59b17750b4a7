"""The command line in real processes: output, exit codes, and questions on a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import COMMAND, ENVIRONMENT, PATIENCE, agentsd, read_to_end, read_until, terminal
from tests.support.forks import Fork
from tests.support.paths import ROOT
from tests.support.projects import agent, write
from tests.support.screens import without_styles


def agentsd_in_new_interpreter(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `agentsd` in a new interpreter, which imports every module itself."""
    env = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    command = [*COMMAND, *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_help_lists_the_commands_without_loading_them(tmp_path: Path) -> None:
    done = agentsd_in_new_interpreter("--help", cwd=tmp_path)
    assert done.returncode == 0
    for name in ("init", "check", "run", "chat"):
        assert name in done.stdout


def test_init_creates_a_valid_project_that_runs(tmp_path: Path) -> None:
    assert agentsd("init", "--example", cwd=tmp_path).returncode == 0
    checked = agentsd("check", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert "agents: assistant, basic, code-diagnosis, coder, log-analyst, planner, repo-analysis, web" in checked.stdout
    assert "all files are valid" in checked.stdout
    assert "warning" not in checked.stderr


def test_init_prints_the_next_commands_quoted_for_a_shell(tmp_path: Path) -> None:
    done = agentsd("init", "mein projekt", cwd=tmp_path)
    assert "  cd 'mein projekt' && agentsd run" in done.stdout


def test_run_puts_the_answer_on_stdout_and_the_progress_on_stderr(starter: Path) -> None:
    done = agentsd_in_new_interpreter("run", "echo hello", cwd=starter)
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert done.stderr.splitlines()[0].startswith("● assistant (no rule matches")
    assert "✓ echo" in done.stderr


def test_run_continues_a_conversation(starter: Path) -> None:
    for message in ("echo hello", "echo again"):
        assert agentsd("run", "--conversation", "c1", message, cwd=starter).returncode == 0
    shown = agentsd("conversations", "show", "c1", cwd=starter).stdout
    assert "hello" in shown
    assert "again" in shown


def test_run_json_is_the_whole_result(starter: Path) -> None:
    done = agentsd("run", "--agent", "log-analyst", "--json", "analyse data/logs/app.log", cwd=starter)
    result = json.loads(done.stdout)
    assert done.returncode == 0
    assert done.stderr == ""
    assert result["status"] == "completed"
    assert result["agent"] == "log-analyst"
    assert {call["tool"] for call in result["tool_calls"]} == {"log_transform"}
    assert result["trace"][0]["action"]["type"] == "tool"
    assert {"step", "agent", "action", "elapsed_ms", "timestamp"} <= result["trace"][0].keys()


def test_run_accepts_one_agent_file_without_a_project(tmp_path: Path) -> None:
    write(tmp_path, {"one.yaml": agent("one", model="offline")})
    done = agentsd("run", "./one.yaml", "calculate 6 * 7", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "42\n")


def test_run_accepts_one_agent_file_of_a_project_with_its_plugins(starter: Path) -> None:
    done = agentsd("run", "agents.d/planner.yaml", "days between '2026-01-01' and '2026-01-31'", cwd=starter)
    assert done.stderr.startswith("● planner")


def test_trace_draws_the_waterfall(starter: Path) -> None:
    done = agentsd("run", "--trace", "echo hello", cwd=starter)
    assert "invoke_workflow assistant" in done.stderr
    assert "execute_tool echo" in done.stderr
    assert "█" in done.stderr


def test_an_unknown_agent_is_one_line_and_exit_2(starter: Path) -> None:
    done = agentsd("run", "-a", "planer", "hi", cwd=starter)
    assert (done.returncode, done.stderr) == (2, "error: no agent named 'planer'; did you mean planner?\n")


def test_a_missing_key_is_one_line_that_names_the_variable(starter: Path) -> None:
    done = agentsd("run", "-m", "openai/gpt-5.4-mini", "hi", cwd=starter)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "failed: openai/gpt-5.4-mini needs an API key: set OPENAI_API_KEY, or use model: offline"
    )


def test_errors_are_json_with_the_json_option(starter: Path) -> None:
    done = agentsd("run", "--json", "-a", "nobody", "hi", cwd=starter)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "agent_not_found"


def test_check_prints_every_problem_with_its_place_and_exits_78(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "agents.d/good.yaml": agent("good", model="offline"),
            "agents.d/bad.yaml": agent("bad", model="offline", executr="plan", runtime_policy="{max_step: 3}"),
        },
    )
    done = agentsd("check", cwd=tmp_path)
    assert done.returncode == 78
    assert "agents.d/bad.yaml:7:1: unknown key 'executr'" in done.stderr
    assert "did you mean 'executor'?" in done.stderr
    assert "agents.d/bad.yaml:8:18: unknown key 'max_step'" in done.stderr
    assert "agents: good" in done.stdout
    assert "2 errors, 0 warnings" in done.stdout
    assert agentsd("run", "-a", "good", "echo x", cwd=tmp_path).stdout == "x\n"
    report = json.loads(agentsd("check", "--json", cwd=tmp_path).stdout)
    assert report["ok"] is False
    assert [problem["line"] for problem in report["problems"]] == [7, 8]


TEN_MISTAKES = """
    version: 1
    name: bad
    description: An agent with ten typical mistakes.
    instructions: {template: bad.j2}
    model: offlin
    executor: plam
    tols: [read_file]
    sub_agents: [goood]
    skill_policy:
      allow: [read_fiel, calculator]
      deny: [{tool: write_file, when: "path"}]
    runtime_policy: {max_steps: ten, risk_level: hihg}
    inputs: {city: {type: strng}}
    model: offline
    """


def test_check_reports_ten_typical_mistakes_in_one_round(tmp_path: Path) -> None:
    good = agent("good", model="offline")
    write(tmp_path, {"agents.d/good.yaml": good, "agents.d/bad.yaml": TEN_MISTAKES, "prompts/bad.j2": "{{ ctiy }}"})
    done = agentsd("check", cwd=tmp_path)
    places = [
        "bad.yaml:6:11: there is no executor 'plam'; did you mean plan?",
        "bad.yaml:7:1: unknown key 'tols'",
        "bad.yaml:8:14: there is no usable agent 'goood'; did you mean good?",
        "bad.yaml:10:11: there is no tool 'read_fiel'; did you mean read_file",
        "bad.yaml:11:35: must be a mapping of keys",
        "bad.yaml:12:29: must be a whole number",
        "bad.yaml:12:46: must be 'low', 'medium', 'high' or 'critical'",
        "bad.yaml:13:23: must be 'string', 'integer', 'number', 'boolean', 'array' or 'object'",
        "bad.yaml:14:1: duplicate key 'model': first defined on line 5",
    ]
    for place in places:
        assert done.stderr.count(f"agents.d/{place}") == 1, done.stderr
    assert done.stderr.count("'ctiy' is undefined") == 1, "the template's mistake is not one of its agent, too"
    assert "10 errors, 0 warnings" in done.stdout


def test_check_strict_exits_1_if_there_are_warnings(tmp_path: Path) -> None:
    policy = "{allow: [echo, echo]}"
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline", skill_policy=policy)})

    for words, code in ((("check",), 0), (("check", "--strict"), 1)):
        done = agentsd(*words, cwd=tmp_path)
        assert (done.returncode, "all files are valid (1 warning)" in done.stdout) == (code, True)
    strict = agentsd("check", "--strict", "--json", cwd=tmp_path)
    assert (strict.returncode, json.loads(strict.stdout)["ok"]) == (1, False)
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline", skill_policy="{allow: [echo]}")})
    assert agentsd("check", "--strict", cwd=tmp_path).returncode == 0


TYPO = """
    version: 1
    name: one
    description: Pays.
    model: offline
    instructions: Pay.
    skill_policy:
      deny: [{tool: write_fiel}]
      ask: [edit_fiel, {tool: mcp.shop.refund, optional: true}]
      allow: [write_file]
    """


def test_a_typo_in_the_tool_of_a_deny_or_ask_rule_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": TYPO})
    done = agentsd("check", cwd=tmp_path)

    assert done.returncode == 78
    assert "one.yaml:7:17: the deny rule 'write_fiel' matches no tool; did you mean write_file" in done.stderr
    assert "one.yaml:8:9: the ask rule 'edit_fiel' matches no tool; did you mean edit_file" in done.stderr
    assert "= if a server may offer the tool later, write {tool: edit_fiel, optional: true}" in done.stderr
    assert "2 errors" in done.stdout


def test_check_of_one_file_of_a_project_shows_only_its_problems(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "agents.d/good.yaml": agent("good", model="offline"),
            "agents.d/bad.yaml": agent("bad", model="offline", executr="plan"),
        },
    )
    assert agentsd("check", "agents.d/good.yaml", cwd=tmp_path).returncode == 0
    assert agentsd("check", "agents.d/bad.yaml", cwd=tmp_path).returncode == 78


def test_a_broken_settings_file_exits_78(tmp_path: Path) -> None:
    write(tmp_path, {"agentsd.yaml": "modle: offline\n", "agents.d/one.yaml": agent("one", model="offline")})
    done = agentsd("run", "hi", cwd=tmp_path)
    assert done.returncode == 78
    assert "agentsd.yaml:1:1: unknown key 'modle'" in done.stderr
    assert "did you mean 'model'?" in done.stderr


def test_without_a_terminal_a_run_pauses_with_exit_code_3(tmp_path: Path) -> None:
    policy = '{ask: [{tool: echo, reason: be careful}], allow: ["*"]}'
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline", skill_policy=policy)})
    done = agentsd("run", "echo hello", cwd=tmp_path)
    assert done.returncode == 3
    assert "waits for approval: echo (call_1)" in done.stderr


def test_an_edit_during_a_chat_changes_the_next_answer(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline", skill_policy="{allow: [calculator]}")})
    pipe = subprocess.PIPE
    with Fork(["chat"], cwd=tmp_path, env=ENVIRONMENT, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as chat:
        assert chat.stdin
        assert chat.stdout
        assert chat.stderr
        chat.stdin.write("echo hello\n")
        chat.stdin.flush()
        first = chat.stdout.readline()
        assert "offline" in first, "without a tool for it, the offline model describes itself"
        write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline", skill_policy="{allow: [echo]}")})
        chat.stdin.write("echo hello\n")
        chat.stdin.flush()
        second = chat.stdout.readline()
        chat.stdin.close()
        assert chat.wait(PATIENCE) == 0
        log = chat.stderr.read()
    assert second == "hello\n"
    assert "(generation 2 is live; changed: one)" in log


# --- on a terminal


def test_a_user_at_the_terminal_approves_and_the_run_resumes(tmp_path: Path) -> None:
    policy = '{ask: [{tool: echo, reason: be careful}], allow: ["*"]}'
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline", skill_policy=policy)})
    with terminal("run", "echo hello", cwd=tmp_path) as (process, master):
        shown = read_until(master, "say what to change")
        assert "one asks: may it call echo?" in shown
        assert "be careful; ask echo (agents.d/one.yaml:6)" in shown
        os.write(master, b"a\n")
        assert '✓ echo text="hello"' in without_styles(read_to_end(master))
        assert process.wait(PATIENCE) == 0


def test_what_was_typed_before_a_question_is_no_answer_to_it(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline", skill_policy='{ask: [echo], allow: ["*"]}')})
    with terminal("run", "echo hello", cwd=tmp_path) as (process, master):
        os.write(master, b"a\n")
        read_until(master, "say what to change")
        os.write(master, b"r\n")
        read_until(master, "why")
        os.write(master, b"not now\n")
        assert "rejected this call: not now" in without_styles(read_to_end(master))
        assert process.wait(PATIENCE) == 0


def test_a_sentence_at_an_approval_is_what_to_change(tmp_path: Path) -> None:
    policy = '{ask: [echo], allow: ["*"]}'
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline", skill_policy=policy)})
    with terminal("run", "echo hello", cwd=tmp_path) as (process, master):
        read_until(master, "say what to change")
        os.write(master, b"x\n")
        read_until(master, "type a, e, r, s, m, or a sentence that says what to change", "say what to change:")
        os.write(master, b"please say goodbye\n")
        shown = without_styles(read_to_end(master))
        assert process.wait(PATIENCE) == 0
    assert "The call was not executed. The user asks for a change: please say goodbye" in " ".join(shown.split())


def test_ctrl_c_ends_the_run_as_cancelled(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "agents.d/one.yaml": agent("one", model="offline"),
            "plugins/slow.py": '''
                import asyncio
                from framework import tool

                @tool(risk="low")
                async def wait_long() -> str:
                    """Wait very long."""
                    await asyncio.Event().wait()
                    return ""
            ''',
        },
    )
    with terminal("run", "wait very long", cwd=tmp_path) as (process, master):
        read_until(master, "slow.wait_long")
        process.send_signal(signal.SIGINT)
        assert "cancelled" in read_until(master, "cancelled")
        assert process.wait(PATIENCE) == 130


def test_the_terminal_shows_a_tree(starter: Path) -> None:
    with terminal("run", "-a", "planner", "echo one then calculate 2 + 3", cwd=starter) as (process, master):
        shown = read_to_end(master)
        assert process.wait(PATIENCE) == 0
    for text in ("● planner", "plan 1", "✓ s1", "✓ s2", "├──", "└──"):
        assert text in shown


def test_an_invalid_file_is_reported_once_with_exit_code_78(tmp_path: Path) -> None:
    write(tmp_path, {"one.yaml": "version: 1\nname: one\n"})
    done = agentsd("run", "./one.yaml", "hi", cwd=tmp_path)
    assert done.returncode == 78
    assert done.stderr.startswith("error: no valid agent\none.yaml:1:1: the key 'description' is missing")
    assert done.stderr.count("'description'") == 1


def test_an_empty_folder_prints_what_to_do(tmp_path: Path) -> None:
    assert "agentsd init" in agentsd("run", "hi", cwd=tmp_path).stderr
    assert "agentsd init" in agentsd("check", cwd=tmp_path).stdout


# --- what people type first


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("ls",), "assistant"),
        (("validate",), "all files are valid"),
        (("lint",), "all files are valid"),
        (("version",), "agentsd 0."),
        (("agents", "assistant"), "name: assistant"),
        (("agents", "assistant"), "instructions: |\n  "),
        (("schema", "settings"), "urn:agentsd:settings"),
        (("tools", "list", "--connect"), "calculator"),
        (("run", "basic", "hi"), "This is the offline stand-in"),
    ],
)
def test_frequent_words_are_understood(starter: Path, words: tuple[str, ...], shown: str) -> None:
    done = agentsd(*words, cwd=starter)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


def test_run_takes_an_agent_as_its_first_word(starter: Path) -> None:
    assert "● basic (named by the caller" in agentsd("run", "basic", "hi", cwd=starter).stderr
    assert "● basic (named by the caller" in agentsd("run", "basic", "-", cwd=starter, stdin="hi").stderr
    assert "● assistant (no rule" in agentsd("run", "basic", cwd=starter).stderr, "one word is the message"
    assert "● assistant (no rule" in agentsd("run", "basics", "hi", cwd=starter).stderr
    assert "● planner (named" in agentsd("run", "-a", "planner", "basic", "hi", cwd=starter).stderr


def test_chat_takes_an_agent(starter: Path) -> None:
    done = agentsd("chat", "basic", cwd=starter, stdin="hi\n")
    assert "● basic (named by the caller" in done.stderr
    unknown = agentsd("chat", "basik", cwd=starter, stdin="hi\n")
    assert (unknown.returncode, "did you mean basic" in unknown.stderr) == (2, True), unknown.stderr


@pytest.mark.parametrize("word", ["exit", "quit", "Exit", "/exit", "/quit"])
def test_words_that_people_type_leave_a_chat(starter: Path, word: str) -> None:
    done = agentsd("chat", cwd=starter, stdin=f"{word}\necho hello\n")
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("word", "instead"),
    [("approve", "agentsd runs decide RUN --approve CALL"), ("logs", "agentsd runs show"), ("start", "agentsd serve")],
)
def test_words_without_one_meaning_are_corrected(tmp_path: Path, word: str, instead: str) -> None:
    done = agentsd(word, cwd=tmp_path)
    assert done.returncode == 2
    assert f"error: there is no command '{word}'; use " in done.stderr
    assert instead in done.stderr


@pytest.mark.parametrize("package", ["agentsd", "framework"])
def test_the_packages_run_as_modules(package: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", package, "--version"]
    env = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()[:1]) == (0, ["agentsd"])


def test_a_command_imports_without_garbage_collections_and_runs_with_them() -> None:
    shows = "import atexit, gc, sys; atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() > 0))"
    program = f"{shows}; from framework.cli.entry import main; sys.argv = ['agentsd', 'models', '--no']; main()"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.stdout.strip() == "True True"
