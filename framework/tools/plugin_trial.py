"""Loads changed plugins in a child process first, so that one that never finishes cannot block this one."""

from __future__ import annotations

import base64
import faulthandler
import json
import os
import re
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event

from framework.tools.child_processes import forbid_inspection, isolated_python
from framework.tools.plugins import IMPORT_SECONDS, LOAD_SECONDS, PluginError, PluginHangsError, PluginLoader
from framework.types.problem import Problem

# Code that holds the global interpreter lock, such as a catastrophic regular expression, blocks every thread of its
# process, the event loop included, and nothing inside the process can stop it.


_START_SECONDS = 30.0
"""Time limit for the child process to start."""
_FILE_SECONDS = 2 * IMPORT_SECONDS
"""Time limit for one file. The child process has a stricter one, which a slow machine does not shorten."""
_MAX_DUMPS, _MAX_IDLE_DUMPS = 2, 10
"""Number of stack dumps, one per second without Python code running, after which the child is terminated, unless it is
importing an installed package. The second applies if it used no CPU time meanwhile: the machine may be slow."""
_TICK_SECONDS = 0.2
_HINT = "it would block the whole process; move slow code to setup(context) or into the tool"
_PROGRAM = "from framework.tools.plugin_trial import main; main(int(sys.argv[1]))"
_ANSWER = re.compile(rb"\ndone(.*)\n")
_FRAME = re.compile(r'^  File "([^"]*)", line (\d+) in ', re.MULTILINE)
_IMPORTING = "<frozen importlib"


class TrialAbandoned(Exception):
    """A trial was stopped because its result is no longer needed."""


def try_plugins(
    paths: Sequence[str], files: Mapping[str, bytes], abandoned: Event | None = None, root: Path = Path()
) -> dict[str, tuple[Problem, ...]]:
    """Load plugin files in a child process and return, for each, the problems if it does not finish.

    Exceptions of the files are not reported: the load in this process does that. The call takes about as long as
    starting Python and loading the files. A file that does not finish takes at most a minute more, and a new process
    for the files after it. So call it in a thread. `files` are the contents of the files and their helpers by path.
    Setting `abandoned` ends the trial.

    Raises:
        TrialAbandoned: `abandoned` was set.
        TrialNotStarted: no child process could be started.
    """
    problems: dict[str, tuple[Problem, ...]] = {}
    while remaining := [path for path in paths if path not in problems]:
        problems |= _try_in_one_process(remaining, files, abandoned or Event(), root)
    return problems


class TrialNotStarted(Exception):
    """No child process could be started. The text is the reason."""


def _try_in_one_process(
    paths: Sequence[str], files: Mapping[str, bytes], abandoned: Event, root: Path
) -> dict[str, tuple[Problem, ...]]:
    """Return the problems of the files that the process could load, and of the one that it did not finish."""
    problems: dict[str, tuple[Problem, ...]] = {}
    try:
        with _child(paths, files, root) as (child, report):
            trial = _Trial(child, report, files, abandoned)
            trial.wait_for_start()
            for path in paths:
                problems[path], is_last = trial.outcome(path)
                if is_last:
                    break
    except OSError as error:
        raise TrialNotStarted(error.strerror or str(error)) from None
    return problems


@contextmanager
def _child(
    paths: Sequence[str], files: Mapping[str, bytes], root: Path
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a new process, not a fork of this one with its threads. Yield it and the descriptor that it reports on."""
    contents = {name: base64.b64encode(text).decode() for name, text in files.items()}
    request = {"root": str(root.absolute()), "paths": paths, "files": contents}
    reading, writing = os.pipe()
    try:
        try:
            with TemporaryFile() as request_file:  # not a pipe: a child that does not read would block this process
                request_file.write(json.dumps(request).encode())
                request_file.seek(0)
                child = subprocess.Popen(
                    isolated_python(_PROGRAM, str(writing)),
                    stdin=request_file,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(writing,),
                    start_new_session=True,
                )
        finally:
            os.close(writing)
        try:
            yield child, reading
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # including processes that the plugin has started
            child.wait()
    finally:
        os.close(reading)


class _Trial:
    def __init__(
        self, child: subprocess.Popen[bytes], report: int, files: Mapping[str, bytes], abandoned: Event
    ) -> None:
        self._child, self._report, self._files, self._abandoned = child, report, files, abandoned
        self._output = b""

    def wait_for_start(self) -> None:
        """Wait until the process is ready to load files. Raises TrialNotStarted."""
        ends = time.monotonic() + _START_SECONDS
        while b"ready\n" not in self._output:
            if not self._read(ends):
                exited = self._child.poll()
                raise TrialNotStarted(
                    f"it was not ready after {_START_SECONDS:g} s" if exited is None else f"exit code {exited}"
                )
        self._output = self._output.partition(b"ready\n")[2]

    def outcome(self, path: str) -> tuple[tuple[Problem, ...], bool]:
        """Return the problems of the next file, and whether the process loads no further file."""
        ends, blocked = time.monotonic() + _FILE_SECONDS, _Blocked(self._child.pid)
        while not (answer := _ANSWER.search(self._output)):
            is_open = self._read(ends)
            dumps = self._output.rpartition(b"tick\n")[2].decode("utf-8", "replace").split("Timeout (")[1:]
            if blocked.is_proved(len(dumps)) and not _is_importing(dumps[-2], self._files):
                return (self._problem(path, dumps[-2], "does not finish loading and blocks all other code"),), True
            if not is_open:
                break
        if answer:
            self._output = self._output[answer.end() :]
            found = json.loads(answer[1])
            return tuple(map(Problem.model_validate, found["problems"])), found["is_last"]
        if time.monotonic() >= ends:
            return (self._problem(path, "", "does not finish loading"),), True
        message = f"ends the process while loading (exit code {self._child.wait()})"
        return (Problem(path=path, message=message),), True

    def _read(self, ends: float) -> bool:
        """Add to the output for a moment. Return False at the end of the output, and at the time `ends`."""
        if self._abandoned.is_set():
            raise TrialAbandoned
        with selectors.DefaultSelector() as selector:
            selector.register(self._report, selectors.EVENT_READ)
            if not selector.select(_TICK_SECONDS):
                return time.monotonic() < ends
        chunk = os.read(self._report, 1 << 16)
        self._output += chunk
        return bool(chunk)

    def _problem(self, path: str, dump: str, message: str) -> Problem:
        frame = _innermost(dump, self._files)
        if frame is None:
            return Problem(path=path, message=message, hint=_HINT)
        file, line = frame[1].rpartition("@")[0], int(frame[2])
        lines = self._files[file].decode("utf-8-sig", "replace").split("\n")
        excerpt = lines[line - 1].strip() if line <= len(lines) else None
        if file == path:
            return Problem(path=path, line=line, message=message, hint=_HINT, excerpt=excerpt)
        return Problem(path=path, message=f"helper failed: {file}:{line}: {message}", hint=_HINT)


class _Blocked:
    """Decides whether a process runs no Python code because it is blocked, or only because the machine is slow."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._used_at_first_dump: float | None = None

    def is_proved(self, dumps: int) -> bool:
        """Return whether so many dumps in a row prove it, given the CPU time that was used since the first of them."""
        if not dumps:
            self._used_at_first_dump = None
            return False
        used = _cpu_seconds(self._pid)
        if self._used_at_first_dump is None:
            self._used_at_first_dump = used
        is_busy = used is None or used - (self._used_at_first_dump or 0) >= LOAD_SECONDS / 2
        return dumps >= (_MAX_DUMPS if is_busy else _MAX_IDLE_DUMPS)


def _cpu_seconds(pid: int) -> float | None:
    """Return the CPU time that a process has used, in seconds; None where the system does not report it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _is_importing(dump: str, files: Mapping[str, bytes]) -> bool:
    """Return whether the plugin's innermost frame in a dump is importing an installed package."""
    above = dump[: match.start()] if (match := _innermost(dump, files)) else ""
    return _IMPORTING in above.rpartition("\n\n")[2]


def _innermost(dump: str, files: Mapping[str, bytes]) -> re.Match[str] | None:
    """Return the innermost frame in one of these files. Dumps list the most recent call first."""
    return next((frame for frame in _FRAME.finditer(dump) if frame[1].rpartition("@")[0] in files), None)


# Reads `{"root": PATH, "paths": […], "files": {PATH: base64}}` from standard input. Reports on the file descriptor in
# its argument: `ready`, then for each file the stacks that faulthandler dumps while the main thread cannot run Python
# code, `tick` when it can again, and finally `done` with the problems of code that does not finish. After such code it
# loads no further file, because the code may still be running.


_CPU_SECONDS = 60
"""CPU limit for one file, which ends this process even if its parent has ended."""


class _StackDumper:
    """Dumps the stacks while the main thread is blocked. faulthandler does not need the global interpreter lock."""

    def __init__(self, report: int) -> None:
        self._report, self._last = report, time.monotonic()

    def tick(self) -> None:
        """Record that Python code can run, and restart the timer for the next dump."""
        now = time.monotonic()
        if now - self._last >= LOAD_SECONDS:
            os.write(self._report, b"tick\n")
        self._last = now
        faulthandler.dump_traceback_later(LOAD_SECONDS, repeat=True, file=self._report)


def main(report: int) -> None:
    """Load the plugins of the request on standard input, and end the process."""
    forbid_inspection()  # its environment is that of the server, keys included
    request = json.load(sys.stdin)
    files = {path: base64.b64decode(source) for path, source in request["files"].items()}
    watch = _StackDumper(report)
    loader = PluginLoader(on_tick=watch.tick, root=Path(request["root"]))
    os.write(report, b"ready\n")
    for path in request["paths"]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime) + _CPU_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        watch.tick()
        problems = _load(loader, path, files)
        faulthandler.cancel_dump_traceback_later()
        answer = {"problems": problems, "is_last": bool(problems) or path == request["paths"][-1]}
        os.write(report, b"\ndone" + json.dumps(answer).encode() + b"\n")
        if problems:
            break
    os._exit(0)  # do not wait for threads that the plugins started


def _load(loader: PluginLoader, path: str, files: Mapping[str, bytes]) -> list[object]:
    """Load a plugin and return the problems of code that does not finish."""
    try:
        loader.load(path, files[path], files)
    except PluginHangsError as error:
        return [problem.model_dump() for problem in error.problems]
    except PluginError:
        pass  # the load in the parent process reports it
    return []
