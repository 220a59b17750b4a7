"""Small projects on disk for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Write files below `root` by relative path; return `root`.

    Each file appears at once, as editors save it: a process that watches the folder never reads a part of it.
    """
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        new.write_text(dedent(text).lstrip("\n"), "utf-8")
        new.replace(path.resolve())
    return root


def agent(name: str, **keys: str) -> str:
    """Return an agent file with the required keys, and `keys` as YAML text."""
    lines = {
        "version": "1",
        "name": name,
        "description": f"The agent {name}.",
        "model": "scripted",
        "instructions": f"You are {name}.",
        "skill_policy": '{allow: ["*"]}',
    } | keys
    return "".join(f"{key}: {value}\n" for key, value in lines.items())
