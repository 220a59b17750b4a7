"""Loads a plugin file in a child process first, to detect code that never returns.

Code that holds the interpreter's lock while a module is loaded, such as a catastrophic regular expression, stops every
thread of its process, the event loop included, and nothing inside that process can end it.
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
"""How long the child process may take to begin."""
_MAX_DUMPS = 2
"""Seconds without a line of Python after which the child is ended, unless an installed package is being imported."""
_TICK_SECONDS = 0.2
_HINT = "it would stop the whole process; what takes time belongs into setup(context), or into the tool"
_MODULE = "framework.tools.plugins.trial_process"
_FRAME = re.compile(r'^  File "([^"]*)", line (\d+) in ', re.MULTILINE)
_IMPORTING = "<frozen importlib"


def trial_load(path: str, files: Mapping[str, bytes]) -> tuple[Problem, ...]:
    """Load a plugin file in a fresh process; returns why it does not end, or nothing.

    Whatever it raises is left to the load in this process. Takes about as long as starting Python and loading the file,
    at most a minute: call it in a thread.

    Args:
        path: of the file.
        files: by path: the file, and the helpers it imports.
    """
    if not sys.executable:
        return ()
    try:
        with _child(path, files) as (child, report):
            return tuple(_outcome(path, files, child, report))
    except OSError as error:
        log.warning("%s is loaded without a trial: no process can be started: %s", path, error.strerror)
        return ()


@contextmanager
def _child(path: str, files: Mapping[str, bytes]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A fresh process, not a fork of this one with its threads; and the descriptor that it reports on."""
    request = {"path": path, "files": {name: base64.b64encode(text).decode() for name, text in files.items()}}
    reading, writing = os.pipe()
    try:
        try:
            with TemporaryFile() as given:  # no pipe: a child that reads nothing would block us
                given.write(json.dumps(request).encode())
                given.seek(0)
                child = subprocess.Popen(
                    [sys.executable, "-P", "-m", _MODULE, str(writing)],
                    stdin=given,
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
                os.killpg(child.pid, signal.SIGKILL)  # with whatever the plugin has started
            child.wait()
    finally:
        os.close(reading)


def _outcome(path: str, files: Mapping[str, bytes], child: subprocess.Popen[bytes], report: int) -> Iterator[Problem]:
    told, began, limit = b"", time.monotonic(), _START_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(report, selectors.EVENT_READ)
        while time.monotonic() - began < limit:
            if not selector.select(_TICK_SECONDS):
                continue
            chunk = os.read(report, 1 << 16)
            told += chunk
            if not chunk or b"\ndone" in told:
                break
            if b"ready\n" in told and limit == _START_SECONDS:
                began, limit = time.monotonic(), IMPORT_SECONDS + 2 * LOAD_SECONDS
            dumps = told.rpartition(b"tick\n")[2].decode("utf-8", "replace").split("Timeout (")[1:]
            if len(dumps) >= _MAX_DUMPS and not _is_importing(dumps[-2], files):
                yield _problem(files, path, dumps[-2], "does not end while it is loaded, and lets no other code run")
                return
    _, done, problems = told.rpartition(b"\ndone")
    if done:
        yield from map(Problem.model_validate, json.loads(problems))
    elif b"ready\n" not in told:
        log.warning("%s is loaded without a trial: the process for it did not start", path)
    elif time.monotonic() - began >= limit:
        yield _problem(files, path, "", "does not end while it is loaded")
    else:
        yield Problem(path=path, message=f"ends the process while it is loaded (exit code {child.wait()})")


def _is_importing(dump: str, files: Mapping[str, bytes]) -> bool:
    """Whether the innermost file of the plugin in a dump waits for an installed package."""
    above = dump[: match.start()] if (match := _innermost(dump, files)) else ""
    return _IMPORTING in above.rpartition("\n\n")[2]


def _innermost(dump: str, files: Mapping[str, bytes]) -> re.Match[str] | None:
    """The first frame of a dump, which names the most recent calls first, that runs one of these files."""
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
    return Problem(path=path, message=f"its helper fails: {file}:{line}: {message}", hint=_HINT)
