"""Starts a program that the kernel kills when its parent process ends. Linux only.

Run by path in a new interpreter, as `child_launcher.py PARENT PROGRAM ARGV…`, because running code between fork and
exec is not safe in a process with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def _main() -> None:
    """Request SIGKILL when the parent ends, then replace this process with the program."""
    parent, program, *arguments = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # the parent ended before the request
        sys.exit(1)
    try:
        os.execv(program, arguments)
    except OSError as error:
        sys.exit(f"cannot execute {program!r}: {error.strerror}")


if __name__ == "__main__":
    _main()
