"""Loads a plugin file in a child process first, to detect code that never returns.

Code that holds the global interpreter lock, such as a catastrophic regular expression, blocks every thread of its
process, the event loop included, and nothing inside the process can stop it.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile

from framework.tools.plugins.loader import IMPORT_SECONDS, LOAD_SECONDS
from framework.types.problem import Problem

log = logging.getLogger(__name__)

_START_SECONDS = 30.0
"""Time limit for the child process to start."""
_MAX_DUMPS = 2
"""Number of stack dumps, one per second without Python code running, after which the child is terminated, unless it is
importing an installed package."""
_TICK_SECONDS = 0.2
_HINT = "it would block the whole process; move slow code to setup(context) or into the tool"
_MODULE = "framework.tools.plugins.trial_process"
_FRAME = re.compile(r'^  File "([^"]*)", line (\d+) in ', re.MULTILINE)
_IMPORTING = "<frozen importlib"


def trial_load(path: str, files: Mapping[str, bytes]) -> tuple[Problem, ...]:
    """Load a plugin file in a child process and return the problems if it does not finish.

    Exceptions of the file are not reported: the load in this process does that. The call takes about as long as
    starting Python and loading the file, at most a minute, so call it in a thread.

    Args:
        path: path of the plugin file.
        files: contents of the file and its helpers, by path.
    """
    if not sys.executable:
        return ()
    try:
        with _child(path, files) as (child, report):
            return tuple(_outcome(path, files, child, report))
    except OSError as error:
        log.warning("%s is loaded without a trial: cannot start a process: %s", path, error.strerror)
        return ()


@contextmanager
def _child(path: str, files: Mapping[str, bytes]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a new process, not a fork of this one with its threads. Yield it and the descriptor that it reports on."""
    request = {"path": path, "files": {name: base64.b64encode(text).decode() for name, text in files.items()}}
    reading, writing = os.pipe()
    try:
        try:
            with TemporaryFile() as request_file:  # not a pipe: a child that does not read would block this process
                request_file.write(json.dumps(request).encode())
                request_file.seek(0)
                child = subprocess.Popen(
                    [sys.executable, "-P", "-m", _MODULE, str(writing)],
                    stdin=request_file,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(writing,),
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
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


def _outcome(path: str, files: Mapping[str, bytes], child: subprocess.Popen[bytes], report: int) -> Iterator[Problem]:
    output, began, limit = b"", time.monotonic(), _START_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(report, selectors.EVENT_READ)
        while time.monotonic() - began < limit:
            if not selector.select(_TICK_SECONDS):
                continue
            chunk = os.read(report, 1 << 16)
            output += chunk
            if not chunk or b"\ndone" in output:
                break
            if b"ready\n" in output and limit == _START_SECONDS:
                began, limit = time.monotonic(), IMPORT_SECONDS + 2 * LOAD_SECONDS
            dumps = output.rpartition(b"tick\n")[2].decode("utf-8", "replace").split("Timeout (")[1:]
            if len(dumps) >= _MAX_DUMPS and not _is_importing(dumps[-2], files):
                yield _problem(files, path, dumps[-2], "does not finish loading and blocks all other code")
                return
    _, done, problems = output.rpartition(b"\ndone")
    if done:
        yield from map(Problem.model_validate, json.loads(problems))
    elif b"ready\n" not in output:
        log.warning("%s is loaded without a trial: the child process did not start", path)
    elif time.monotonic() - began >= limit:
        yield _problem(files, path, "", "does not finish loading")
    else:
        yield Problem(path=path, message=f"ends the process while loading (exit code {child.wait()})")


def _is_importing(dump: str, files: Mapping[str, bytes]) -> bool:
    """Return whether the plugin's innermost frame in a dump is importing an installed package."""
    above = dump[: match.start()] if (match := _innermost(dump, files)) else ""
    return _IMPORTING in above.rpartition("\n\n")[2]


def _innermost(dump: str, files: Mapping[str, bytes]) -> re.Match[str] | None:
    """Return the innermost frame in one of these files. Dumps list the most recent call first."""
    return next((frame for frame in _FRAME.finditer(dump) if frame[1].rpartition("@")[0] in files), None)


def _problem(files: Mapping[str, bytes], path: str, dump: str, message: str) -> Problem:
    frame = _innermost(dump, files)
    if frame is None:
        return Problem(path=path, message=message, hint=_HINT)
    file, line = frame[1].rpartition("@")[0], int(frame[2])
    lines = files[file].decode("utf-8-sig", "replace").split("\n")
    excerpt = lines[line - 1].strip() if line <= len(lines) else None
    if file == path:
        return Problem(path=path, line=line, message=message, hint=_HINT, excerpt=excerpt)
    return Problem(path=path, message=f"helper failed: {file}:{line}: {message}", hint=_HINT)
