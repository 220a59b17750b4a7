"""Who holds a run, as a database's rows name it: one name a hold, so that of two of one process each knows its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from uuid import uuid4

PID_NAMESPACE = Path("/proc/self/ns/pid")


class Hold:
    """The right to work on one run, until it ends or its lease runs out."""

    def __init__(self, name: str, ended: Callable[[str], object]) -> None:
        self.name = name
        self._ended = ended

    def end(self) -> None:
        """Nobody works with it any more."""
        self._ended(self.name)


class Holds:
    """The holds of one store on its runs."""

    def __init__(self, *, local: bool) -> None:
        """Take a name of its own.

        Args:
            local: whoever else holds runs may be a process of this machine, of which it can be seen whether it lives.
        """
        self._local, self._host = local, _host()
        self.name = f"{self._host}/{os.getpid()}/{uuid4().hex}"
        """What the names of all its holds begin with."""
        self._numbers = count(1)
        self._alive: set[str] = set()

    def new(self) -> Hold:
        """A hold that is not over before its end."""
        name = f"{self.name}.{next(self._numbers)}"
        self._alive.add(name)
        return Hold(name, self._alive.discard)

    def is_over(self, name: str | None) -> bool:
        """Is it known that nobody works with a hold any more? Of a process elsewhere only its lease tells."""
        if name is None:
            return False
        if name.startswith(f"{self.name}."):
            return name not in self._alive
        host, pid, _ = name.rsplit("/", 2)
        if not self._local or host != self._host:
            return False
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


def _host() -> str:
    """Where process numbers mean the same: the machine and, of containers that share its name, the one of them."""
    name = socket.gethostname()
    with suppress(OSError):
        return f"{name} {PID_NAMESPACE.readlink()}"
    return name
