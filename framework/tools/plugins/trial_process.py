"""The child process that loads plugin files. Started by `trial`, never imported.

Reads `{"root": PATH, "paths": […], "files": {PATH: base64}}` from standard input. Reports on the file descriptor in its
argument: `ready`, then for each file the stacks that faulthandler dumps while the main thread cannot run Python code,
`tick` when it can again, and finally `done` with the problems of code that does not finish. After such code it loads no
further file, because the code may still be running.
"""

from __future__ import annotations

import base64
import faulthandler
import json
import os
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from framework.tools.child_processes import forbid_inspection
from framework.tools.plugins.loader import LOAD_SECONDS, PluginError, PluginHangsError, PluginLoader

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
