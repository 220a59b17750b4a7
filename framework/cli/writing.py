"""Writes the output of commands to a file or to standard output."""

from __future__ import annotations

import json
from pathlib import Path
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


def as_json_text(data: Any) -> str:
    """Format data as indented JSON."""
    return json.dumps(data, ensure_ascii=False, indent=2) + "\n"
