"""PgBouncer in transaction mode before a PostgreSQL server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.waiting import wait_until

PROGRAM = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"


@contextmanager
def pooled(url: str) -> Iterator[str]:
    """Run a pooler, and yield the URL of the database through it; raises LookupError if PgBouncer is not installed."""
    if not Path(PROGRAM).exists():
        raise LookupError("no PgBouncer here")
    server, root = urlsplit(url), Path(tempfile.mkdtemp(prefix="pgb"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    config = root / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n* = host={server.hostname} port={server.port} user={server.username}\n"
        f"[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={port}\nauth_type=any\nunix_socket_dir=\n"
        "pool_mode=transaction\n"
    )
    root.chmod(0o755)
    user = "nobody" if os.geteuid() == 0 else None  # it refuses to run as root
    process = subprocess.Popen([PROGRAM, "-q", str(config)], stderr=subprocess.DEVNULL, user=user)
    try:
        _wait_until_open(port)
        yield url.replace(f":{server.port}/", f":{port}/")
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(root, ignore_errors=True)


def _wait_until_open(port: int) -> None:
    def is_open() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    wait_until(is_open, "PgBouncer accepts connections")
