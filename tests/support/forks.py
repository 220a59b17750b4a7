"""`agentsd` in a process of its own, but without the imports it would begin with: a fork of one that has them already.

All else is as if it was started anew: its arguments, environment, folder, pipes, signals, how it ends. The modules of
the commands themselves are imported by each.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from select import select
from subprocess import PIPE, STDOUT
from types import TracebackType
from typing import IO, Any, Self

from framework.cli.main import main
from tests.support.paths import ROOT

IMPORTED = (
    "fastapi",
    "framework.cli.project",
    "framework.store.sql.store",
    "httpx2",
    "uvicorn",
    "watchfiles",
)


class Fork:
    """`agentsd` with some arguments; the part of `subprocess.Popen` that tests need."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdin: int = 0,
        stdout: int = 1,
        stderr: int = 2,
        text: bool = False,
        start_new_session: bool = False,
    ) -> None:
        """Begin; the streams are descriptors, `PIPE`, or `STDOUT` for the errors."""
        self.returncode: int | None = None
        self.stdin, its_stdin = _pipe(stdin, text=text, write=True)
        self.stdout, its_stdout = _pipe(stdout, text=text)
        self.stderr, its_stderr = (None, its_stdout) if stderr == STDOUT else _pipe(stderr, text=text)
        self._told, its_end = socket.socketpair()
        socket.send_fds(_parent(), [b"!"], [its_end.fileno(), its_stdin, its_stdout, its_stderr])
        its_end.close()
        for fd in {its_stdin, its_stdout, its_stderr} - {stdin, stdout, stderr}:
            os.close(fd)
        asked = {"arguments": [*arguments], "cwd": str(cwd), "env": {**env}, "session": start_new_session}
        self._told.sendall(json.dumps(asked).encode() + b"\n")
        self.pid = int(_line(self._told))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream:
                stream.close()
        self.wait()

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended; `subprocess.TimeoutExpired` when it has not by then."""
        if self.returncode is None:
            if not select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("agentsd", timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(int(_line(self._told)))
            self._told.close()
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        """A signal, if it has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # its parent may have reaped it, and report its exit code only then
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


def run(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], given: str = "", timeout: float = 30
) -> subprocess.CompletedProcess[str]:
    """`agentsd` from its beginning to its end, which is its death after some seconds; `given` is what it may read."""
    with (
        Fork(arguments, cwd=cwd, env=env, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as process,
        ThreadPoolExecutor(3) as threads,
    ):
        assert process.stdin
        assert process.stdout
        assert process.stderr
        out, err = threads.submit(process.stdout.read), threads.submit(process.stderr.read)
        threads.submit(_give, process.stdin, given)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess([*arguments], code, out.result(), err.result())


def _give(stream: IO[str], text: str) -> None:
    with suppress(BrokenPipeError), stream:
        stream.write(text)


def _pipe(wanted: int, *, text: bool, write: bool = False) -> tuple[IO[Any] | None, int]:
    """Our end, if there is to be one, and that of the process."""
    if wanted != PIPE:
        return None, wanted
    ends = os.pipe()
    ours = os.fdopen(ends[write], ("w" if write else "r") + ("" if text else "b"), encoding="utf-8" if text else None)
    return ours, ends[not write]


def _line(connection: socket.socket) -> bytes:
    """The next line, and nothing that comes after it."""
    line = b""
    while not line.endswith(b"\n"):
        line += connection.recv(1) or b"\n"
    return line


# --- the process that has the imports


@cache
def _parent() -> socket.socket:
    """Where to ask it for forks; it ends with this process."""
    ours, its = socket.socketpair()
    command = [sys.executable, "-m", __name__]
    process = subprocess.Popen(command, cwd=ROOT, stdin=its.fileno(), env={**os.environ, "PYTHONPATH": str(ROOT)})
    its.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _begin_when_asked() -> None:
    """Ends, or returns: in a fork, which is to be the command."""
    gc.disable()
    for name in IMPORTED:
        import_module(name)
    gc.freeze()  # what is shared stays shared
    gc.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest
    requests = socket.socket(fileno=0)
    while True:
        asked, fds, *_ = socket.recv_fds(requests, 1, 4)
        _forget_the_dead()
        if not asked:
            os._exit(0)
        if not os.fork():
            break
        for fd in fds:
            os.close(fd)
    requests.detach()
    told = socket.socket(fileno=fds[0])
    wanted = json.loads(_line(told))
    if pid := os.fork():
        for fd in fds[1:]:
            os.close(fd)
        told.sendall(b"%d\n" % pid)
        with suppress(OSError):  # who asked may be gone
            told.sendall(b"%d\n" % os.waitpid(pid, 0)[1])
        os._exit(0)
    _become(wanted, fds[1:])
    told.close()


def _forget_the_dead() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _become(wanted: Mapping[str, Any], streams: Sequence[int]) -> None:
    if wanted["session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["env"])
    sys.argv[1:] = wanted["arguments"]
    sys.path[0] = wanted["cwd"]
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):  # what they were is gone
        lines = 1 if number == 2 or os.isatty(number) else -1
        setattr(sys, name, open(number, mode, buffering=lines, encoding="utf-8", closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    _begin_when_asked()
    main()
