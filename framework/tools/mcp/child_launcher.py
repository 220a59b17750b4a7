"""Starts a program that the kernel kills when our process ends, however that ends. Linux only.

Run by path in a fresh interpreter, as `child_launcher.py PARENT PROGRAM ARGV…`: code between fork and exec would not be
safe in a process with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def _main() -> None:
    """Ask for SIGKILL at the parent's end, then become the program."""
    parent, program, *arguments = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it ended before it could be asked for
        sys.exit(1)
    try:
        os.execv(program, arguments)
    except OSError as error:
        sys.exit(f"{program!r} cannot be executed: {error.strerror}")


if __name__ == "__main__":
    _main()
