"""The child process that loads one plugin file. Started by `trial`, never imported.

Reads `{"path": …, "files": {PATH: base64}}` from standard input. Reports on the file descriptor in its argument:
`ready`, then the stacks that faulthandler dumps while the main thread cannot run Python code, `tick` when it can again,
and finally `done` with the problems of code that does not finish.
"""

from __future__ import annotations

import base64
import faulthandler
import json
import os
import resource
import sys
import time

from framework.tools.child_processes import forbid_inspection
from framework.tools.plugins.loader import LOAD_SECONDS, PluginError, PluginHangsError, PluginLoader
from framework.types.problem import Problem

_CPU_SECONDS = 60
"""CPU limit that ends this process even if its parent has ended."""


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


def _main(report: int) -> None:
    """Load the plugin of the request on standard input."""
    forbid_inspection()  # its environment is that of the server, keys included
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    request = json.load(sys.stdin)
    files = {path: base64.b64decode(source) for path, source in request["files"].items()}
    watch, problems = _StackDumper(report), list[Problem]()
    loader = PluginLoader(on_tick=watch.tick)
    os.write(report, b"ready\n")
    watch.tick()
    try:
        loader.load(request["path"], files[request["path"]], files)
    except PluginHangsError as error:
        problems.extend(error.problems)
    except PluginError:
        pass  # the load in the parent process reports it
    faulthandler.cancel_dump_traceback_later()
    os.write(report, b"done" + json.dumps([problem.model_dump() for problem in problems]).encode() + b"\n")
    os._exit(0)  # do not wait for threads that the plugin started


if __name__ == "__main__":
    _main(int(sys.argv[1]))
