"""Runs `agentsd` in a separate process without its imports: a fork of a process that has already done them.

Otherwise it behaves like a new process: arguments, environment, folder, pipes, signals, exit code. Each process imports
the modules of its command itself.
"""

from __future__ import annotations

import atexit
import gc
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from select import select
from subprocess import PIPE, STDOUT
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import IO, Any, Self

from pydantic import BaseModel

from framework.cli.main import main
from framework.config.schema import SCHEMAS, ProjectNames
from tests.support.paths import ROOT

IMPORTED = (
    "fastapi",
    "framework.cli.chat",
    "framework.cli.location",
    "framework.cli.run",
    "framework.cli.serve",
    "framework.engine.procrastinate",
    "framework.llm.offline",
    "framework.llm.openai.client",
    "framework.llm.openai.connection",
    "framework.server.mcp",
    "framework.server.process",
    "framework.server.startup",
    "framework.store.store",
    "framework.tools.mcp.client",
    "httpcore2",
    "httpx2",
    "openai.resources.chat",
    "openai.resources.responses",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.prometheus",
    "prompt_toolkit.shortcuts",
    "psycopg_pool",
    "pydantic.v1",
    "sqlalchemy.dialects.postgresql.psycopg",
    "uvicorn.protocols.http.h11_impl",
    "watchfiles",
)

FORKS = multiprocessing.get_context("forkserver")
"""Starts functions of tests in processes that have imported what the functions need.

A worker has one parent of all these processes, and the last call decides what it imports: only this one.
"""
FORKS.set_forkserver_preload(
    [
        "framework.engine.runtime.runtime",
        "framework.tools.mcp.client",
        "tests.engine.tool_call.test_elicitation",
        "tests.engine.tool_call.test_logins",
        "tests.support.budgets",
        "tests.support.crashing_lives",
        "tests.support.distant_runs",
        "tests.support.lives",
        "tests.support.queue_workers",
        "tests.support.queues",
        "tests.tools.a2a.test_agents",
    ]
)


class Fork:
    """A process of `agentsd`, with the part of the interface of `subprocess.Popen` that tests need."""

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
        """Start the process. Streams are descriptors, `PIPE`, or `STDOUT` for stderr."""
        self.returncode: int | None = None
        self.stdin, its_stdin = _pipe(stdin, text=text, write=True)
        self.stdout, its_stdout = _pipe(stdout, text=text)
        self.stderr, its_stderr = (None, its_stdout) if stderr == STDOUT else _pipe(stderr, text=text)
        self._control, its_end = socket.socketpair()
        socket.send_fds(_parent(), [b"!"], [its_end.fileno(), its_stdin, its_stdout, its_stderr])
        its_end.close()
        for fd in {its_stdin, its_stdout, its_stderr} - {stdin, stdout, stderr}:
            os.close(fd)
        request = {"arguments": [*arguments], "cwd": str(cwd), "env": {**env}, "session": start_new_session}
        self._control.sendall(json.dumps(request).encode() + b"\n")
        self.pid = int(_line(self._control))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream:
                stream.close()
        self.wait()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code; raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not select([self._control], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("agentsd", timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(int(_line(self._control)))
            self._control.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code, or None if the process is running."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process is running."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # its parent may have reaped it, and report its exit code only then
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], given: str = "", timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run `agentsd` to its end and return its output. It is killed after `timeout` seconds; `given` is its stdin."""
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


@contextmanager
def command_for_shells() -> Iterator[Path]:
    """Yield a folder for `PATH` whose `agentsd` asks for a fork with its own streams, folder and environment.

    It passes SIGINT and SIGTERM on. If it is killed, so is the fork.
    """
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        address = f"{folder}/requests"
        listener.bind(address)
        listener.listen()
        program = Path(folder, "agentsd")
        program.write_text(f"#!{sys.executable} -IS\n{_PROGRAM.format(address=address)}", "utf-8")
        program.chmod(0o755)
        thread = threading.Thread(target=_forward, args=(listener,))
        thread.start()
        try:
            yield Path(folder)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


_PROGRAM = """
import json, os, signal, socket, sys
control = socket.socket(socket.AF_UNIX)
control.connect({address!r})
socket.send_fds(control, [b"!"], [0, 1, 2])
request = {{"arguments": sys.argv[1:], "cwd": os.getcwd(), "env": {{**os.environ}}, "session": False, "tied": True}}
control.sendall(json.dumps(request).encode() + b"\\n")
lines = control.makefile()
pid = int(lines.readline())
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code = os.waitstatus_to_exitcode(int(lines.readline()))
sys.exit(code if code >= 0 else 128 - code)
"""


def _forward(listener: socket.socket) -> None:
    """Pass connections of shells' commands to the parent of forks, until the listener is shut down."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            _, streams, *_ = socket.recv_fds(connection, 1, 3)
            socket.send_fds(_parent(), [b"!"], [connection.fileno(), *streams])
        for fd in streams:
            os.close(fd)


def _give(stream: IO[str], text: str) -> None:
    with suppress(BrokenPipeError), stream:
        stream.write(text)


def _pipe(stream: int, *, text: bool, write: bool = False) -> tuple[IO[Any] | None, int]:
    """Return the test's end of a pipe, if any, and the process's end."""
    if stream != PIPE:
        return None, stream
    ends = os.pipe()
    ours = os.fdopen(ends[write], ("w" if write else "r") + ("" if text else "b"), encoding="utf-8" if text else None)
    return ours, ends[not write]


def _line(connection: socket.socket) -> bytes:
    """Read one line, without reading ahead."""
    line = b""
    while not line.endswith(b"\n"):
        line += connection.recv(1) or b"\n"
    return line


# --- the parent process with the imports


@cache
def _parent() -> socket.socket:
    """Start the parent process and return the socket for fork requests. It ends with this process."""
    ours, its = socket.socketpair()
    command = [sys.executable, "-m", __name__]
    process = subprocess.Popen(command, cwd=ROOT, stdin=its.fileno(), env={**os.environ, "PYTHONPATH": str(ROOT)})
    its.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _prepare() -> None:
    """Do once what each fork would do itself: imports, schemas, and the building of models at their first use."""
    for name in IMPORTED:
        import_module(name)
    for schema in SCHEMAS.values():
        schema(ProjectNames())
    for model in _subclasses(BaseModel):
        if model.__module__.startswith("framework."):
            model.model_rebuild()


def _subclasses(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for one in model.__subclasses__():
        yield one
        yield from _subclasses(one)


def _serve_forks() -> None:
    """Serve fork requests. Returns only in a fork, which then executes the command."""
    gc.disable()
    _prepare()
    gc.freeze()  # keeps memory pages shared
    gc.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest
    requests = socket.socket(fileno=0)
    while True:
        request, fds, *_ = socket.recv_fds(requests, 1, 4)
        _reap_children()
        if not request:
            os._exit(0)
        if not os.fork():
            break
        for fd in fds:
            os.close(fd)
    requests.detach()
    control = socket.socket(fileno=fds[0])
    command = json.loads(_line(control))
    if pid := os.fork():
        for fd in fds[1:]:
            os.close(fd)
        control.sendall(b"%d\n" % pid)
        if command.get("tied"):
            threading.Thread(target=_kill_without, args=(control, pid), daemon=True).start()
        with suppress(OSError):  # the requester may have ended
            control.sendall(b"%d\n" % os.waitpid(pid, 0)[1])
        os._exit(0)
    _become(command, fds[1:])
    control.close()


def _kill_without(control: socket.socket, pid: int) -> None:
    """Kill a process once its requester has ended."""
    if not control.recv(1):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _reap_children() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _run_and_exit() -> None:
    """Run the command and exit as Python does, but without freeing the objects shared with the parent, for 60 ms."""
    try:
        main()
    except SystemExit as exit:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads; there is no public name
        atexit._run_exitfuncs()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            raise exit from None  # Python reports it
        os._exit(int(exit.code or 0))


def _become(command: Mapping[str, Any], streams: Sequence[int]) -> None:
    if command["session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(command["cwd"])
    os.environ.clear()
    os.environ.update(command["env"])
    sys.argv[1:] = command["arguments"]
    sys.path[0] = command["cwd"]
    encoding = command["env"].get("PYTHONIOENCODING", "utf-8")
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        lines = 1 if number == 2 or os.isatty(number) else -1
        setattr(sys, name, open(number, mode, buffering=lines, encoding=encoding, closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    _serve_forks()
    _run_and_exit()
