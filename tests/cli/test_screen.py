"""Text from models, tools and files reaches a terminal without control sequences, and a pipe unchanged."""

from __future__ import annotations

import json
import os
import pty
import re
from contextlib import suppress
from io import BytesIO, TextIOWrapper
from pathlib import Path
from subprocess import PIPE
from threading import Thread

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.cli.terminal import Screen
from tests.support.cases import cases
from tests.support.commands import ENVIRONMENT, PATIENCE, agentsd, agentsd_process, terminal
from tests.support.forks import Fork
from tests.support.projects import agent, write

EVIL = "\x1b[2Jgone\x1b]52;c;ZXZpbA==\x07\x1b[8mhidden\x9b2J\u202edrow\rover\x08"
ACTED_ON = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e]|\x1b(?!\\[(0|1|2|3[1-6])m)|\r(?!\r*\n)"
)
"""Control characters and sequences, except styles and line ends."""
DRAWN = re.compile("\x1b\\[(\\?25[hl]|1A|2K|[0-9;]*m)|\r")
"""Control sequences of the lines that are drawn again."""
PLUGIN = f"""
    from framework import tool

    print("loaded")

    @tool(risk="low")
    def speak(fail: bool = False) -> str:
        '''Speak.'''
        print("called")
        if fail:
            raise ValueError({EVIL!r})
        return {EVIL!r}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a hostile tool result and a hostile file name."""
    files = {
        "agents.d/one.yaml": agent("one", model="offline"),
        "agents.d/one.test.yaml": f"cases: [{{name: {json.dumps(EVIL)}, message: hi, expect: {{output: no}}}}]\n",
        "agents.d/a\x1b[2Jb.yaml": "name: [\n",
        "agents.d/named.yaml": f"name: {json.dumps(EVIL)}\n",
        "plugins/speak.py": PLUGIN,
    }
    return write(tmp_path, files)


def on_a_terminal(*words: str, cwd: Path) -> str:
    """Return everything that a command writes to a terminal."""
    with terminal(*words, cwd=cwd) as (_, master):
        shown = b""
        try:
            while part := os.read(master, 65536):
                shown += part
        except OSError:  # the command has ended
            return shown.decode()
    raise AssertionError("a terminal ends with an error")


def drained(master: int) -> None:
    """Read a terminal until its program ends."""
    with suppress(OSError):
        while os.read(master, 65536):
            pass
    os.close(master)


@pytest.mark.parametrize(
    ("words", "escaped"),
    [
        (("tools", "call", "speak.speak", "-a", "one"), r"\x1b[2Jgone\x1b]52;c;"),
        (("tools", "call", "speak.speak", '{"fail": true}', "-a", "one"), r"\x1b[2Jgone\x1b]52;c;"),
        (("check",), r"a\x1b[2Jb.yaml"),
        (("test",), r"\x1b[2Jgone"),
        (("run", "-a", EVIL.replace("\x07", ""), "hi"), r"\x1b[2Jgone"),
    ],
)
def test_a_terminal_gets_no_control_sequences(project: Path, words: tuple[str, ...], escaped: str) -> None:
    shown = (
        DRAWN.sub("", on_a_terminal(*words, cwd=project)) if words[0] == "run" else on_a_terminal(*words, cwd=project)
    )
    assert escaped in shown
    assert not ACTED_ON.search(shown), shown


def test_an_answer_on_a_terminal_has_no_control_sequences(project: Path) -> None:
    shown = on_a_terminal("run", "-a", "one", f"echo {EVIL.replace(chr(8), '')}", cwd=project)
    answer = DRAWN.sub("", shown)
    assert r"gone\x1b]52;c;" in answer
    assert not ACTED_ON.search(answer), answer


def test_a_pipe_gets_the_bytes_of_the_tool(project: Path) -> None:
    done = agentsd_process("tools", "call", "speak.speak", "-a", "one", cwd=project)
    assert done.stdout == EVIL.replace("\r", "\n") + "\n"  # as text, read with universal newlines


@pytest.mark.parametrize(
    "words",
    [
        ("run", "-a", "one", "--json", "speak"),
        ("run", "-a", "one", "--events", "speak"),
        ("tools", "call", "speak.speak", "-a", "one", "--json"),
        ("tools", "list", "--json"),
        ("check", "--json"),
        ("explain", "one", "--json"),
        ("test", "--json"),
        ("agents", "list", "--json"),
    ],
)
def test_prints_of_a_plugin_are_not_in_json(project: Path, words: tuple[str, ...]) -> None:
    done = agentsd(*words, cwd=project)
    texts = done.stdout.splitlines() if "--events" in words else [done.stdout]
    assert texts
    assert all(json.loads(text) for text in texts)
    assert "loaded" in done.stderr


def test_prints_of_a_plugin_are_not_in_an_answer(project: Path) -> None:
    done = agentsd("run", "-a", "one", "hello", cwd=project)
    assert ("loaded" in done.stdout, "loaded" in done.stderr) == (False, True)


def test_answers_of_a_chat_go_to_standard_output_although_the_tree_is_on_a_terminal(project: Path) -> None:
    master, slave = pty.openpty()
    with Fork(("chat", "-a", "one"), cwd=project, env=ENVIRONMENT, stdin=PIPE, stdout=PIPE, stderr=slave) as process:
        os.close(slave)
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"echo hello\n\n")
        process.stdin.close()
        drawn = Thread(target=drained, args=(master,))
        drawn.start()
        assert process.stdout.read().splitlines() == [b"hello"]
        assert process.wait(PATIENCE) == 0
    drawn.join()


@cases(300)
@given(st.lists(st.one_of(st.text(), st.sampled_from([EVIL, "\x1b", "[2J", "]8;;x\x1b\\", "\r\n", "\x1b[31"]))))
def test_no_text_printed_to_a_screen_moves_the_cursor(parts: list[str]) -> None:
    buffer = BytesIO()
    screen = Screen(TextIOWrapper(buffer, "utf-8", "backslashreplace"))
    for part in parts:
        screen.write(part)
    screen.flush()
    written = buffer.getvalue().decode()
    assert not ACTED_ON.search(written)
    assert all(char in written for part in parts for char in part if char.isalnum())


def test_own_styles_are_kept() -> None:
    buffer = BytesIO()
    screen = Screen(TextIOWrapper(buffer, "utf-8"))
    text = "".join(click.style("x", fg=colour) for colour in ("red", "green", "yellow", "cyan", "magenta")) + "\n"
    screen.write(text + click.style("x", bold=True) + click.style("x", dim=True))
    screen.flush()
    assert buffer.getvalue().decode() == text + click.style("x", bold=True) + click.style("x", dim=True)
