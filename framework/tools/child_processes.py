"""Child processes: how Python is started, what they inherit, and a barrier to reading this process's memory."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from contextlib import suppress
from pathlib import Path

import framework

INHERITED_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
"""Environment variables that a child process inherits. They contain no secrets."""
_PR_SET_DUMPABLE = 4  # in <linux/prctl.h>


def isolated_python(program: str, *arguments: str) -> list[str]:
    """Return the command that executes a Python program in a new interpreter, isolated from the environment.

    The search path of this process follows the standard library and the installed packages: a file in a folder on it,
    such as that of the script, may have been written by an agent and must not replace a module.

    Raises:
        FileNotFoundError: the interpreter of this process is not known.
    """
    if not sys.executable:
        raise FileNotFoundError(errno.ENOENT, "sys.executable is not set")
    own = str(Path(framework.__file__).parent.parent)
    path = list(dict.fromkeys([own, *(entry or str(Path.cwd()) for entry in sys.path)]))
    start = f"import sys; sys.path += [entry for entry in {path!r} if entry not in sys.path]; {program}"
    return [sys.executable, "-I", "-c", start, *arguments]


def child_environment(*more: str) -> dict[str, str]:
    """Return the environment for a child that needs no keys: `INHERITED_VARIABLES`, and more by name."""
    return {name: os.environ[name] for name in (*INHERITED_VARIABLES, *more) if name in os.environ}


def forbid_inspection() -> None:
    """Deny other processes of this user access to the environment and memory of this one. Linux only.

    A child whose own environment contains no keys could otherwise read those of its parent from `/proc/PID/environ`, or
    attach to it as a debugger. Programs that the process executes are not affected, and processes with CAP_SYS_PTRACE,
    such as root's, keep their access. The process writes no core dump.
    """
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
