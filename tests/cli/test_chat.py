"""A chat on a terminal: editing, pastes, history, type-ahead, notices; and its commands, in a pipe."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import stat
import struct
import termios
from pathlib import Path
from typing import Literal

import pytest

from framework.cli.chat import ReloadNotices
from framework.cli.chat_commands import COMMANDS_HELP
from framework.types.events import ConfigRejected, ConfigReloaded
from framework.types.problem import Problem
from tests.support.commands import PATIENCE, agentsd, read_until, terminal
from tests.support.forks import Fork
from tests.support.paths import ROOT
from tests.support.projects import agent, write
from tests.support.screens import screen_of, without_styles

PASTE = "\x1b[200~{}\x1b[201~"
UP, CTRL_A, CTRL_C, CTRL_D = "\x1b[A", "\x01", "\x03", "\x04"
ALT_ENTER = "\x1b\r"
UP_MORE_THAN_FIVE_ROWS = re.compile(r"\x1b\[([6-9]|\d\d+)A")
WAIT = '''
    import asyncio
    from framework import tool

    @tool(risk="low")
    async def wait_long() -> str:
        """Wait very long."""
        await asyncio.Event().wait()
        return ""
'''
GREETER = agent("greeter", model="offline", inputs="{city: {required: true, description: Where you are}}")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose agent echoes, and can wait without end."""
    return write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline"), "plugins/slow.py": WAIT})


def messages(project: Path) -> list[str]:
    """Return the messages of all runs, oldest first."""
    listed = json.loads(agentsd("runs", "list", "--json", cwd=project).stdout)
    return [run["message"] for run in reversed(listed)]


def typed(master: int, *keys: str) -> None:
    os.write(master, "".join(keys).encode())


def piped(project: Path, *lines: str, words: tuple[str, ...] = ("-a", "one", "-c", "c1")) -> str:
    """Return what a chat prints for lines in a pipe."""
    done = agentsd("chat", *words, cwd=project, stdin="".join(f"{line}\n" for line in lines))
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_screen_says_that_a_chat_starts_while_files_are_loaded(project: Path) -> None:
    gate = project / "gate"
    os.mkfifo(gate)
    logs = "import logging\nlogging.getLogger('held').warning('slow')\n"
    write(project, {"plugins/held.py": f"open({str(gate)!r}).read()\n{logs}"})
    with terminal("chat", cwd=project) as (process, master):
        with gate.open("w"):  # opens when the plugin reads
            shown = read_until(master, re.compile("starting….*starting…", re.DOTALL))
            assert screen_of(shown)[-1].strip() == "starting…"
            gate.unlink()
            gate.touch()
        shown += read_until(master, "you>")
        assert not [line for line in screen_of(shown) if "starting…" in line]
        assert "WARNING held: slow" in [line.strip() for line in screen_of(shown)]
        typed(master, "/quit\r")
        assert process.wait(PATIENCE) == 0


# --- editing


def test_a_paste_of_several_lines_is_one_message_and_an_empty_line_in_it_ends_nothing(project: Path) -> None:
    with terminal("chat", cwd=project) as (process, master):
        read_until(master, "you>")
        typed(master, PASTE.format("echo these:\r\rorder 77"), " and 78", "\r")
        read_until(master, "● one")
        typed(master, "/quit\r")
        assert process.wait(PATIENCE) == 0
    assert messages(project) == ["echo these:\n\norder 77 and 78"]


def test_lines_can_be_edited_and_broken(project: Path) -> None:
    with terminal("chat", cwd=project) as (process, master):
        read_until(master, "you>")
        typed(master, "wrong", CTRL_C, "cho one", CTRL_A, "e", "\x05", ALT_ENTER, "two\\\r", "three", "\r")
        read_until(master, "● one")
        typed(master, "/quit\r")
        assert process.wait(PATIENCE) == 0
    assert messages(project) == ["echo one\ntwo\nthree"]


def test_the_history_is_that_of_all_sessions_and_private(project: Path) -> None:
    for recalled in ((), ("/quit", "echo first")):
        with terminal("chat", cwd=project) as (process, master):
            read_until(master, "you>")
            for text in recalled:
                typed(master, UP)
                read_until(master, text)
            typed(master, *([] if recalled else ["echo first"]), "\r")
            read_until(master, "● one")
            typed(master, "/quit\r")
            assert process.wait(PATIENCE) == 0
    assert messages(project) == ["echo first", "echo first"]
    history = project / ".agentsd/chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_a_huge_paste_is_shown_short_and_sent_whole(project: Path) -> None:
    with terminal("chat", cwd=project) as (process, master):
        read_until(master, "you>")
        typed(master, PASTE.format("echo " + "x" * 4000 + "\rend"), "\r")
        read_until(master, "[paste 1: 4,009 characters, 2 lines]", "● one")
        typed(master, "/quit\r")
        assert process.wait(PATIENCE) == 0
    assert messages(project)[0].startswith("echo xxxx")


def test_input_that_is_not_utf_8_is_replaced(project: Path) -> None:
    with terminal("chat", cwd=project) as (process, master):
        read_until(master, "you>")
        os.write(master, b"echo a\xffb\r")
        read_until(master, "● one")
        typed(master, "/quit\r")
        assert process.wait(PATIENCE) == 0
    assert messages(project) == ["echo a\ufffdb"]


def test_names_are_completed(project: Path) -> None:
    with terminal("chat", cwd=project) as (process, master):
        read_until(master, "you>")
        typed(master, "/ag")
        read_until(master, "select one")
        typed(master, "\t", " o")
        read_until(master, "one")
        typed(master, "\t\r")
        read_until(master, "one answers from now on")
        typed(master, "/quit\r")
        assert process.wait(PATIENCE) == 0


# --- while a run is in progress


def test_messages_typed_during_a_run_wait_and_ctrl_c_cancels_the_run(project: Path) -> None:
    with terminal("chat", cwd=project) as (process, master):
        read_until(master, "you>")
        typed(master, "wait very long\r")
        read_until(master, "slow.wait_long")
        typed(master, "echo next\r")
        read_until(master, "(1 waiting)")
        typed(master, CTRL_D, "half typed")  # Ctrl-D does not leave during a run
        read_until(master, "half typed")
        typed(master, CTRL_C)
        read_until(master, "cancelled", 'text="next"')
        typed(master, "\r/quit\r")
        read_until(master, "agentsd chat --conversation")
        assert process.wait(PATIENCE) == 0
    assert messages(project) == ["wait very long", "echo next", "half typed"]


def resize(process: Fork, master: int, columns: int) -> None:
    """Change the width of a terminal, as its window does."""
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process.send_signal(signal.SIGWINCH)


def test_lines_that_a_narrower_terminal_wraps_are_erased(project: Path) -> None:
    with terminal("chat", cwd=project, COLUMNS="") as (process, master):
        read_until(master, "you>")
        typed(master, "wait very long\r")
        read_until(master, "slow.wait_long", "Ctrl-C cancels")
        resize(process, master, 30)
        read_until(master, UP_MORE_THAN_FIVE_ROWS)  # the area has five lines; the terminal wrapped some
        typed(master, "after\r", CTRL_C)
        read_until(master, "cancelled", "you> \x1b[0mafter")
        typed(master, "/quit\r")
        assert process.wait(PATIENCE) == 0


def test_a_reload_does_not_disturb_what_is_typed(project: Path) -> None:
    with terminal("chat", cwd=project) as (process, master):
        read_until(master, "you>")
        typed(master, "echo hel")
        read_until(master, "hel")
        write(project, {"agents.d/one.yaml": agent("one", model="offline", description="Another.")})
        shown = read_until(master, "generation 2 is live", "echo hel")
        assert without_styles(shown).rstrip().endswith("you> echo hel")
        typed(master, "lo\r")
        read_until(master, "● one")
        typed(master, "/quit\r")
        assert process.wait(PATIENCE) == 0
    assert messages(project) == ["echo hello"]


def test_a_reload_and_the_typed_text_wait_for_the_answer_to_a_question(project: Path) -> None:
    asking = agent("one", model="offline", skill_policy='{ask: [echo], allow: ["*"]}')
    write(project, {"agents.d/one.yaml": asking})
    with terminal("chat", cwd=project) as (process, master):
        read_until(master, "you>")
        typed(master, "echo hello\r", "kept text")
        read_until(master, "say what to change:")
        write(project, {"agents.d/one.yaml": asking.replace("agent one", "good agent")})
        typed(master, "a\r")
        shown = read_until(master, "generation 2 is live", "✓", "kept text")
        assert shown.index("you>") < shown.index("generation 2"), "the question is answered"
        typed(master, "\r", "/cost\r")  # the command follows the runs: no run is in progress after it
        read_until(master, "2 runs")
        typed(master, "half typed", CTRL_C, CTRL_D)
        assert process.wait(PATIENCE) == 0
    assert messages(project) == ["echo hello", "kept text"]


def test_required_inputs_are_asked_for(tmp_path: Path) -> None:
    project = write(tmp_path, {"agents.d/greeter.yaml": GREETER})
    with terminal("chat", cwd=project) as (process, master):
        read_until(master, "you>")
        typed(master, "echo hi\r")
        read_until(master, "Where you are", "city>")
        typed(master, "Bern\r")
        read_until(master, "● greeter")
        typed(master, "/inputs\r")
        read_until(master, 'city = "Bern"')
        typed(master, "/quit\r")
        assert process.wait(PATIENCE) == 0


# --- simple terminals and pipes


@pytest.mark.parametrize("variable", [("TERM", "dumb"), ("NO_COLOR", "1")])
def test_a_simple_terminal_gets_no_colours_or_movements(
    project: Path, monkeypatch: pytest.MonkeyPatch, variable: tuple[str, str]
) -> None:
    with terminal("chat", cwd=project, **dict([variable])) as (process, master):
        read_until(master, "you>")
        typed(master, "echo hello\n")
        shown = read_until(master, "✓ echo", "hello")
        typed(master, "/quit\n")
        shown += read_until(master, "continue it")
        assert process.wait(PATIENCE) == 0
    coloured = "\x1b[31" in shown or "\x1b[36" in shown or "\x1b[32" in shown
    assert not coloured
    assert ("\x1b[2K" in shown or "\x1b[J" in shown) == (variable[0] == "NO_COLOR")


def test_a_pipe_gets_answers_only(project: Path) -> None:
    done = agentsd("chat", "-a", "one", cwd=project, stdin="echo one\necho two\n\necho three\n")
    assert (done.returncode, done.stdout) == (0, "one\ntwo\n")
    assert "\x1b" not in done.stdout + done.stderr


def test_json_is_one_line_for_each_answer(project: Path) -> None:
    done = agentsd("chat", "-a", "one", "--json", cwd=project, stdin="echo one\necho two\n")
    assert [json.loads(line)["output"] for line in done.stdout.splitlines()] == ["one", "two"]


def test_a_trace_follows_each_answer(project: Path) -> None:
    assert piped(project, "echo one", words=("-a", "one", "--trace")).count("invoke_agent one") == 1


def test_options_are_those_of_run(tmp_path: Path) -> None:
    project = write(tmp_path, {"agents.d/greeter.yaml": GREETER})
    words = ("-C", str(project), "-i", "city=Bern", "-l", "max_steps=1")
    done = agentsd("chat", *words, cwd=Path("/"), stdin="echo hi\n")
    assert "stopped by max_steps" in done.stderr
    missing = agentsd("chat", "-C", str(project), cwd=Path("/"), stdin="echo hi\n")
    assert "input 'city' of agent 'greeter' is missing" in missing.stderr


# --- slash commands


def test_every_command_of_the_help_works(project: Path) -> None:
    shown = piped(project, "/help", "echo hi", "/agent", "/model", "/inputs", "/plan", "/tools", "/trace", "/cost")
    for command in ("/help", "/agent", "/model", "/inputs", "/plan", "/tools", "/trace", "/cost", "/undo", "/new"):
        assert command in shown
    expected = ["● one", "model: offline", "one has no inputs", "had no plan", "echo", "invoke_agent one", "1 run"]
    assert [text for text in expected if text not in shown] == []


def test_the_documentation_lists_every_command_with_its_help() -> None:
    rows = (ROOT / "docs/commands.md").read_text("utf-8").replace("`", "").splitlines()
    assert [f"| {usage} | {text} |" for usage, text in COMMANDS_HELP.items()] == [
        row for row in rows if row.startswith("| /")
    ]


def test_undo_takes_back_the_last_turn_and_keeps_the_conversation(project: Path) -> None:
    shown = piped(project, "echo one", "echo two", "/undo", "/save kept.json")
    assert "taken back: echo two" in shown
    saved = json.loads((project / "kept.json").read_text("utf-8"))
    assert [message["content"] for message in saved if message["role"] == "user"] == ["echo one"]
    original = agentsd("conversations", "show", "c1", cwd=project).stdout
    assert "echo two" in original
    assert "there is no message to take back" in piped(project, "/undo", words=("-a", "one"))


def test_undo_takes_back_the_last_answered_message_of_an_imported_file(project: Path) -> None:
    roles = [("user", "a"), ("assistant", "A"), ("user", "b"), ("user", "c"), ("assistant", "C")]
    data = [{"role": role, "content": text} for role, text in roles]
    write(project, {"other.json": json.dumps(data)})
    agentsd("conversations", "import", "other.json", "-f", "openai", "-a", "one", "-c", "c1", cwd=project)
    assert "taken back: c" in piped(project, "/undo", "/save kept.json")
    saved = json.loads((project / "kept.json").read_text("utf-8"))
    assert [message["content"] for message in saved] == ["a", "A"]


def test_new_and_save(project: Path) -> None:
    shown = piped(project, "echo one", "/save notes.md", "/save notes.md", "/new", "/save")
    assert (project / "notes.md").read_text("utf-8") == "## You\n\necho one\n\n## Answer\n\none\n"
    assert "notes.md already exists" in shown
    assert "nothing to save" in shown


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/helo", "there is no command /helo; did you mean /help?"),
        ("/agent onn", "no agent named 'onn'; did you mean one?"),
        ("/inputs city=Bern", "unknown input 'city' of agent 'one'"),
        ("/inputs city", "write city=VALUE"),
        ("/inputs city='Bern", "No closing quotation"),
        ("/save no/such/folder.md", "no/such/folder.md cannot be written: No such file or directory"),
    ],
)
def test_a_bad_command_says_what_to_do_and_the_chat_continues(project: Path, line: str, message: str) -> None:
    shown = piped(project, "echo one", line, "echo two")
    assert message in shown
    assert "two" in shown


def test_a_path_is_not_a_command(project: Path) -> None:
    assert "there is no command" not in piped(project, "/etc/hosts what is this?")


def test_a_notice_shows_each_new_problem_once_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def problem(message: str, severity: Literal["error", "warning"] = "error", line: int = 7) -> Problem:
        text = {"message": message, "hint": f"mend {message}", "excerpt": "deny: [x"}
        return Problem(path="agents.d/a.yaml", line=line, column=1, severity=severity, **text)

    old, other = problem("old", "warning", 1), problem("other", "warning", 2)
    error, repeated = problem("not closed"), problem("deny is NOT in effect", "warning")
    notices = ReloadNotices()
    notices.know([old], 1)
    found = []
    for event in (
        ConfigRejected(generation=2, problems=(old, error, repeated)),
        ConfigRejected(generation=2, problems=(old, error, repeated)),
        ConfigReloaded(generation=3, digest="", problems=(old, other)),
        ConfigRejected(generation=3, problems=(error,)),
        ConfigReloaded(generation=4, digest="", problems=(old, other)),
    ):
        notices.report(event)
        found.append(without_styles(capsys.readouterr().err).splitlines())

    broken = "agents.d/a.yaml:7:1: not closed (mend not closed)"
    stays = "(the last good version of agents.d/a.yaml stays live"
    assert found == [
        [broken, f"{stays}, in generation 2)"],
        [f"{stays})"],
        ["agents.d/a.yaml:2:1: warning: other (mend other)", "(generation 3 is live; nothing changed for agents)"],
        [broken, f"{stays})"],
        ["(generation 4 is live; nothing changed for agents)"],
    ]


def test_the_router_chooses_again_on_request(tmp_path: Path) -> None:
    files = {
        "agents.d/assistant.yaml": agent("assistant", model="offline"),
        "agents.d/planner.yaml": agent("planner", model="offline", routing="{keywords: [plan]}"),
        "agents.d/other.yaml": agent("other", model="offline"),
    }
    lines = ("/agent other", "hi", "/agent auto", "hi", "make a plan: echo hi", "hi again", "/agent other", "plan it")
    done = agentsd("chat", cwd=write(tmp_path, files), stdin="".join(f"{line}\n" for line in lines))
    assert re.findall(r"● (\w+) \((.*?);", done.stderr) == [
        ("other", "named by the caller"),
        ("assistant", "no rule matches"),
        ("planner", "keyword 'plan'"),
        ("planner", "answered last in this conversation"),
        ("other", "named by the caller"),
    ]
