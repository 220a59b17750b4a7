"""Pages followed literally: files are written, commands are typed into a terminal, what they print is compared.

A page is followed from top to bottom in one folder:

- A block with a title, such as ```` ```yaml title="agents.d/helper.yaml" ````, is a file.
- A `console` block contains commands after `$ ` and what they print. A line `...` stands for any lines. In a question
  with its answer, such as `[a]pprove, [r]eject: a`, what follows the colon is typed.
- A `console` block with a title, such as `title="second terminal"`, is another terminal. Its commands are servers: they
  are not waited for, and end with the page. Without a command, such a block is what the server prints meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tests.support.cases import FACTOR
from tests.support.commands import ENVIRONMENT, read_until
from tests.support.forks import command_for_shells
from tests.support.projects import write
from tests.support.screens import screen_of

COLUMNS, ROWS = 100, 60
PROMPT = "\x01ready\x01"
_PATH = f"{Path(sys.executable).parent}{os.pathsep}{ENVIRONMENT['PATH']}"
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
_ANSWERED = re.compile(r"(.*\[.*[:?]) (\^C|\w+)")
_VARYING = (
    (re.compile(r" *[█▒][█▒ ]*"), " █ "),
    (re.compile(r"\b(now|\d+s ago)\b"), "now"),
    (re.compile(r"(?<=\S) {2,}(?=\S)"), "  "),
    (re.compile(r" *\b\d+(\.\d+)? ?m?s\b"), " 0 ms"),
    (re.compile(r'(?<=_ms": )[\d.]+'), "0"),
    (re.compile(r"\b(run_|conv_|note_)?[0-9a-f]{8,32}\b"), "ID"),
    (re.compile(r"\b\d{4}-\d\d-\d\d(T| )\d\d:\d\d(:\d\d(\.\d+)?)?Z?"), "TIME"),
)
"""What differs each time: bars of a trace, durations, ages and the width of their columns, identifiers and times."""


@dataclass(frozen=True, slots=True)
class Step:
    """A file with its text, or a command with what it prints."""

    place: str
    text: str
    shown: tuple[str, ...] = ()
    is_file: bool = False


def steps(page: Path, replaced: Mapping[str, str] = MappingProxyType({})) -> Iterator[Step]:
    """Yield the files and commands of a page in their order; the place of a command is its terminal."""
    source = page.read_text("utf-8")
    for text, replacement in replaced.items():
        source = source.replace(text, replacement)
    for language, title, text in _BLOCK.findall(source):
        if language == "console":
            meanwhile, *parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
            if meanwhile:
                yield Step(title, "", tuple(meanwhile.splitlines()))
            for part in parts:
                command, *shown = part.splitlines()
                yield Step(title, command, tuple(shown))
        elif title:
            yield Step(title, text, is_file=True)


def follow(page: Path, folder: Path, replaced: Mapping[str, str], **environment: str) -> None:
    """Do what a page says in a folder. Fails if a command prints something else.

    Args:
        page: the page.
        folder: where its files are written and its commands run.
        replaced: texts of the page with their replacements, such as ports that another program may use.
        **environment: further variables of the terminals.
    """
    terminals: dict[str, Terminal] = {}
    with ExitStack() as stack:
        if FACTOR == 1:  # `make test-long` starts the installed command
            environment["PATH"] = f"{stack.enter_context(command_for_shells())}{os.pathsep}{_PATH}"
        for step in steps(page, replaced):
            if step.is_file:
                write(folder, {step.place: step.text})
                continue
            if step.place not in terminals:
                terminals[step.place] = stack.enter_context(terminal(folder, environment))
            shown = terminals[step.place].type(step, waits=not step.place)
            assert matches(shown, step.shown), (
                f"{page.name}: $ {step.text}\nprinted\n" + "\n".join(shown) + "\ninstead of\n" + "\n".join(step.shown)
            )


class Terminal:
    """A shell on a pseudo-terminal."""

    def __init__(self, master: int) -> None:
        self._master = master
        read_until(master, PROMPT)

    def type(self, step: Step, *, waits: bool) -> list[str]:
        """Type a command and the answers to its questions; return the lines of the screen below it."""
        if step.text:
            os.write(self._master, step.text.encode() + b"\n")
        output = ""
        for question, answer in (found.groups() for line in step.shown if (found := _ANSWERED.fullmatch(line))):
            output += read_until(self._master, re.split(r"(?<=\w) ", question)[-1])
            os.write(self._master, b"\x03" if answer == "^C" else answer.encode() + b"\n")
        if waits:
            output += read_until(self._master, PROMPT, seconds=90)
        else:
            output += read_until(self._master, *(line for line in step.shown if line != "..."), seconds=90)
        lines = [line.rstrip() for line in screen_of(output.replace(PROMPT, ""))]
        while lines and not lines[-1]:
            lines.pop()
        return lines


@contextmanager
def terminal(folder: Path, environment: Mapping[str, str]) -> Iterator[Terminal]:
    """Open a terminal of 100 columns in a folder, with `agentsd` on its path; end what runs in it."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    modes = termios.tcgetattr(slave)
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    env = {**ENVIRONMENT, "PATH": _PATH, "HOME": str(folder), "TERM": "xterm", "NO_COLOR": "1", "PS1": PROMPT}
    shell = subprocess.Popen(
        ["bash", "--noprofile", "--norc", "--noediting", "-i"],
        cwd=folder, env={**env, **environment}, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    try:
        yield Terminal(master)
    finally:
        for group in {os.tcgetpgrp(master), shell.pid}:  # a server has the terminal: job control gave it a group
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        shell.wait(30)
        os.close(master)


def matches(shown: list[str], expected: tuple[str, ...]) -> bool:
    """Return whether lines equal those of a page, apart from what varies; `...` stands for any lines."""
    pattern = "".join(_pattern(line) for line in expected)
    return re.fullmatch(pattern, "".join(plain(line) + "\n" for line in shown)) is not None


def _pattern(line: str) -> str:
    if line == "...":
        return "(.*\n)*?"
    if answered := _ANSWERED.fullmatch(line):
        return f"({re.escape(plain(answered[1]))})?\n"  # some questions are erased once they are answered
    return re.escape(plain(line)) + "\n"


def plain(line: str) -> str:
    """Return a line of output with placeholders for what varies."""
    for pattern, placeholder in _VARYING:
        line = pattern.sub(placeholder, line)
    return line.rstrip()
