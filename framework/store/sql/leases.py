"""Which process holds a run, as named in a database's rows: one name per hold, so that they can be distinguished."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from uuid import uuid4

_NAMESPACES = (Path("/proc/self/ns/pid"), Path("/proc/self/ns/time"))
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ALIVE_LEASE_FACTOR = 6
"""A process that is seen to be alive keeps its runs this many times longer without a heartbeat: it may be stopped, or
waiting for a locked file. For other processes only the lease shows whether they are alive."""


class RunLease:
    """The right to work on one run, until it ends or its lease expires."""

    def __init__(self, name: str, ended: Callable[[str], object], boot_lease: Callable[[float], float | None]) -> None:
        self.name = name
        self.boot_lease = boot_lease
        """See `Holds.boot_lease`."""
        self._ended = ended

    def end(self) -> None:
        """Nobody works with it any more."""
        self._ended(self.name)


class RunLeases:
    """The holds of one store on its runs."""

    def __init__(self, *, local: bool) -> None:
        """Choose a name.

        Args:
            local: other processes with holds may be on this machine, so that they can be asked whether they are alive.
        """
        self._local, self._where = local, _machine_id()
        self._boot = _boot_id() if local else ""
        self.name = f"{self._where} {self._boot}/{os.getpid()}:{_start_time(os.getpid())}/{uuid4().hex}"
        """The beginning of the names of all its holds."""
        self._numbers = count(1)
        self._alive: set[str] = set()

    def new(self) -> RunLease:
        """A hold that lasts until it is ended."""
        name = f"{self.name}.{next(self._numbers)}"
        self._alive.add(name)
        return RunLease(name, self._alive.discard, self.boot_lease)

    def boot_lease(self, lease_seconds: float) -> float | None:
        """When a lease ends on the machine's monotonic clock, in seconds; None where that clock is not shared."""
        return time.monotonic() + lease_seconds * _ALIVE_LEASE_FACTOR if self._boot else None

    def is_abandoned(self, name: str | None) -> bool:
        """Whether a hold is known to have ended."""
        if name is None:
            return False
        if name.startswith(f"{self.name}."):
            return name not in self._alive
        process = self._process(name)
        return process is not None and not _is_alive(*process)

    def is_held(self, name: str | None, boot_lease: float | None, *, leased: bool) -> bool:
        """Whether a run is held.

        Args:
            name: the hold's, as the row has it.
            boot_lease: the row's lease on the machine's monotonic clock, if it has one.
            leased: the lease has not expired, by the database's clock. It decides only where nothing better is known:
                the time of day of the process that asks may be wrong by an hour.
        """
        if name is None or self.is_abandoned(name):
            return False
        if boot_lease is None or self._process(name) is None:
            return leased
        return time.monotonic() < boot_lease

    def _process(self, name: str) -> tuple[int, str] | None:
        """Number and start time of a process of this machine, since its last start; None for one elsewhere."""
        where, process, _ = name.rsplit("/", 2)
        if not self._local or where != f"{self._where} {self._boot}":
            return None
        number, _, started = process.partition(":")
        return int(number), started


def _is_alive(process: int, started: str) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    now = _start_time(process)
    return not (started and now) or now == started  # another start time: the number was given to another process


def _start_time(process: int) -> str:
    """When a process started, in ticks since the boot; "dead" for one that only waits to be reaped; "" if unknown."""
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return "dead" if fields[0] in "ZX" else fields[19]
    return ""


def _boot_id() -> str:
    with suppress(OSError):
        return _BOOT_ID.read_text("ascii").strip()
    return ""


def _machine_id() -> str:
    """Where process numbers and clocks mean the same: a machine, or one of the containers that share its name."""
    found = [socket.gethostname()]
    for namespace in _NAMESPACES:
        with suppress(OSError):
            found.append(str(namespace.readlink()))
    return " ".join(found)
