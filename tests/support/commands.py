"""Runs of the `agentsd` command: in a child process, in the test process, or on a pseudo-terminal."""

from __future__ import annotations

import codecs
import contextlib
import io
import logging
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

from framework.cli.main import _invoke
from framework.types.installation import install_command
from tests.support.forks import Fork, run

COMMAND = [sys.executable, "-m", "framework.cli.main"]
"""Runs `agentsd` in a new Python interpreter."""
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith(("AGENTSD_", "OPENAI_"))}
"""This process's environment without settings and API keys."""
_OWN = dict(os.environ.items() - ENVIRONMENT.items())
"""The settings and keys of the person who runs the tests, which are not those of a test."""
PATIENCE = 30.0
"""Timeout in seconds, for waits that should be short."""


def agentsd(*arguments: str, cwd: Path, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `agentsd` in the test process, in a tenth of the time of a process; return its exit code and output.

    Args:
        arguments: the words of the command.
        cwd: the working directory.
        stdin: what it reads.
        **environment: variables that are set while it runs.
    """
    out, err, given, before, log = io.StringIO(), io.StringIO(), sys.stdin, dict(os.environ), logging.getLogger()
    handlers, level = [*log.handlers], log.level
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        sys.stdin = io.StringIO(stdin)
        for name in [name for name, value in _OWN.items() if os.environ.get(name) == value]:
            del os.environ[name]
        os.environ.update(environment)
        log.handlers.clear()  # those of pytest: what is logged goes to standard error, as in a process of its own
        try:
            code = _invoke([*arguments])
        finally:
            sys.stdin = given
            log.handlers[:] = handlers
            if log.level != level:
                log.setLevel(level)
            for name in os.environ.keys() - before.keys():  # also of an `.env` file
                del os.environ[name]
            os.environ.update(before)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def agentsd_process(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `agentsd` in a child process: from threads, and where signals, logs or streams of a process matter."""
    return run(arguments, cwd=cwd, env={**ENVIRONMENT, **environment})


def install_command_in(folder: Path, *packages: str) -> str:
    """Return the command to install packages that `agentsd` prints in a folder."""
    with contextlib.chdir(folder):
        return install_command(*packages)


@contextmanager
def terminal(*arguments: str, cwd: Path, **environment: str) -> Iterator[tuple[Fork, int]]:
    """Run `agentsd` on a pseudo-terminal; yield the process and the descriptor of the terminal's other end."""
    master, slave = pty.openpty()
    env = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "120"} | environment
    process = Fork(arguments, cwd=cwd, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    try:
        yield process, master
    finally:
        process.kill()
        process.wait()
        os.close(master)


def read_until(master: int, *texts: str | re.Pattern[str], seconds: float = PATIENCE) -> str:
    """Return the terminal's output up to all `texts`, in any order. Fails if one is missing after `seconds`.

    Assert only on these texts and on what the process writes before them: the output may end anywhere after the last.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end within a character
    shown, end = "", monotonic() + seconds
    patterns = {text: re.compile(re.escape(text)) if isinstance(text, str) else text for text in texts}
    while text := next((text for text, pattern in patterns.items() if not pattern.search(shown)), None):
        ready, _, _ = select.select([master], [], [], max(0.0, end - monotonic()))
        assert ready, f"{text!r} did not come; so far:\n{shown}"
        try:
            shown += decoder.decode(os.read(master, 65536))
        except OSError:
            pytest.fail(f"{text!r} did not come before the end:\n{shown}")
    return shown


def read_to_end(master: int, seconds: float = PATIENCE) -> str:
    """Return the terminal's output up to the end of its processes. Fails if they run longer than `seconds`."""
    shown, end = b"", monotonic() + seconds
    while True:
        ready, _, _ = select.select([master], [], [], max(0.0, end - monotonic()))
        assert ready, f"the end did not come; so far:\n{shown.decode('utf-8', 'replace')}"
        try:
            more = os.read(master, 65536)
        except OSError:  # the last process has closed the terminal
            return shown.decode("utf-8", "replace")
        assert more, "a terminal ends with an error"
        shown += more
