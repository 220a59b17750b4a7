"""Leases on runs: a unique name for each, from which other processes determine whether its holder is alive.

A name consists of the machine and boot, the process with its start time, and a number. Leases last as long as that of
their process; see `processes`.
"""

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
_ALIVE_LEASE_FACTOR = 10
"""A process on this machine that is alive keeps its leases this many times longer without a heartbeat: it may be
suspended, or waiting for a locked file. For processes elsewhere, only the lease shows whether they are alive."""


class RunLease:
    """The exclusive right to write one run, until it is released or the lease of the process expires."""

    def __init__(self, name: str, ended: Callable[[str], object]) -> None:
        self.name = name
        self._ended = ended

    def end(self) -> None:
        """Mark the lease as released."""
        self._ended(self.name)


class RunLeases:
    """The leases that one store holds on its runs."""

    def __init__(self, *, local: bool) -> None:
        """Create the prefix of the names of these leases.

        Args:
            local: whether other holders may be processes of this machine, whose liveness can be checked directly.
        """
        self._local, self._machine = local, _machine_id()
        self._boot = _boot_id() if local else ""
        self.name = f"{self._machine} {self._boot}/{os.getpid()}:{_start_time(os.getpid())}/{uuid4().hex}"
        """Common prefix of the names of these leases, which identifies the process."""
        self._numbers = count(1)
        self._alive: set[str] = set()

    def new(self) -> RunLease:
        """Return a lease with a new name."""
        name = f"{self.name}.{next(self._numbers)}"
        self._alive.add(name)
        return RunLease(name, self.end)

    def end(self, name: str) -> None:
        """Mark a lease as released."""
        self._alive.discard(name)

    def alive(self) -> frozenset[str]:
        """Return the names of the leases that were not released."""
        return frozenset(self._alive.copy())

    def boot_lease(self, lease_seconds: float) -> float | None:
        """Return when the lease of this process expires on the machine's monotonic clock, in seconds.

        None if other processes do not share that clock.
        """
        return time.monotonic() + lease_seconds * _ALIVE_LEASE_FACTOR if self._boot else None

    def seconds_since_renewal(self, name: str, boot_lease: float | None, lease_seconds: float) -> float | None:
        """Return how long ago a living process of this machine renewed its lease; None for any other process.

        Args:
            name: the name of the process.
            boot_lease: when its lease expires on the machine's monotonic clock, if known.
            lease_seconds: how long its lease lasts.
        """
        if boot_lease is None or not self.is_held(name, boot_lease, leased=False):
            return None
        return time.monotonic() - (boot_lease - lease_seconds * _ALIVE_LEASE_FACTOR)

    def is_abandoned(self, name: str | None) -> bool:
        """Return whether the holder of a lease is known to be gone. Always False for processes on other machines.

        Args:
            name: the name of a lease or of a process.
        """
        if name is None:
            return False
        if name.startswith(f"{self.name}."):
            return name not in self._alive
        process = self._process(name)
        return process is not None and not _is_alive(*process)

    def is_held(self, name: str | None, boot_lease: float | None, *, leased: bool) -> bool:
        """Return whether a process is alive, and holds its run.

        Args:
            name: the name of the lease in the run's row, or of the process.
            boot_lease: when the lease of the process expires on the machine's monotonic clock, if known.
            leased: whether the lease of the process is valid by the database's clock. Used only if nothing better is
                known, because a machine's time of day may be wrong by an hour.
        """
        if name is None or self.is_abandoned(name):
            return False
        if boot_lease is None or self._process(name) is None:
            return leased
        return time.monotonic() < boot_lease

    def _process(self, name: str) -> tuple[int, str] | None:
        """Return the id and start time of a holder on this machine in its current boot; None for any other holder."""
        machine, process, _ = name.rsplit("/", 2)
        if not self._local or machine != f"{self._machine} {self._boot}":
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
    return not (started and now) or now == started  # a different start time: the id was reused by another process


def _start_time(process: int) -> str:
    """Return when a process started, in ticks since boot; "dead" for a zombie, "" if unknown."""
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return "dead" if fields[0] in "ZX" else fields[19]
    return ""


def _boot_id() -> str:
    with suppress(OSError):
        return _BOOT_ID.read_text("ascii").strip()
    return ""


def _machine_id() -> str:
    """Return an id of the scope in which process ids and clocks are comparable: a machine, or one of its containers."""
    parts = [socket.gethostname()]
    for namespace in _NAMESPACES:
        with suppress(OSError):
            parts.append(str(namespace.readlink()))
    return " ".join(parts)
