"""Writes the output of commands to a file or to standard output."""

from __future__ import annotations

import json
import os
from pathlib import Path
from shutil import copymode
from typing import Any

import click

from framework.types.errors import RequestError


def write_out(text: str, path: str | None) -> None:
    """Print text, or write it into a new file; raises RequestError if the file exists."""
    if path is None or path == "-":
        click.echo(text, nl=False)
        return
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise RequestError(f"{path} already exists") from None
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}") from None
    click.echo(f"written to {path}", err=True)


def replace_file(file: Path, content: bytes) -> None:
    """Replace a file atomically: readers see the old content or the new. Raises OSError."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        fresh.write_bytes(content)
        if file.exists():
            copymode(file, fresh)
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)


def as_json_text(data: Any) -> str:
    """Format data as indented JSON."""
    return json.dumps(data, ensure_ascii=False, indent=2) + "\n"
