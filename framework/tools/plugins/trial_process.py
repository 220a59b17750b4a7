"""A process of its own that loads one plugin file; started by `trial`, imported by nothing.

Reads `{"path": …, "files": {PATH: base64}}`. Reports on the descriptor that is its argument: `ready`, then the stacks
that faulthandler dumps while no Python code of the main thread can run, `tick` when it can again, and at the end `done`
with the problems of code that does not end.
"""

from __future__ import annotations

import base64
import faulthandler
import json
import os
import resource
import sys
import time

from framework.tools.plugins.loader import LOAD_SECONDS, PluginError, PluginHangsError, PluginLoader
from framework.types.problem import Problem

_CPU_SECONDS = 60
"""Ends this process although nothing may be left that would."""


class _StackDumper:
    """Has the stacks dumped when the main thread cannot run for a while: faulthandler needs no interpreter lock."""

    def __init__(self, report: int) -> None:
        self._report, self._last = report, time.monotonic()

    def tick(self) -> None:
        """Show that Python code can run."""
        now = time.monotonic()
        if now - self._last >= LOAD_SECONDS:
            os.write(self._report, b"tick\n")
        self._last = now
        faulthandler.dump_traceback_later(LOAD_SECONDS, repeat=True, file=self._report)


def _main(report: int) -> None:
    """Load the plugin of the request on the standard input."""
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
        pass  # loading it in the serving process says so
    faulthandler.cancel_dump_traceback_later()
    os.write(report, b"done" + json.dumps([problem.model_dump() for problem in problems]).encode() + b"\n")
    os._exit(0)  # a thread that the plugin started keeps nothing waiting


if __name__ == "__main__":
    _main(int(sys.argv[1]))
