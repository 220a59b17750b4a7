"""What commands write: to a file, or to standard output."""

from __future__ import annotations

import json
import os
from pathlib import Path
from shutil import copymode
from typing import Any

import click

from framework.types.errors import RequestError


def write_out(text: str, path: str | None) -> None:
    """Print a text, or write it into a file that is not there yet; raises RequestError."""
    if path is None or path == "-":
        click.echo(text, nl=False)
        return
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise RequestError(f"{path} is there already") from None
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}") from None
    click.echo(f"written to {path}", err=True)


def replace_file(file: Path, content: bytes) -> None:
    """Write a file at once: whoever reads it sees the old bytes or the new ones. Raises OSError."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        fresh.write_bytes(content)
        if file.exists():
            copymode(file, fresh)
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)


def as_json_text(data: Any) -> str:
    """Data as JSON for people."""
    return json.dumps(data, ensure_ascii=False, indent=2) + "\n"
