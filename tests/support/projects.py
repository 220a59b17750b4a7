"""Small projects on disk for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Write files below `root` by relative path; return `root`.

    Each file is replaced by a rename, as editors do: a watcher never finds an empty or half-written one, however long
    this process is not scheduled. All files are complete before the first is renamed.
    """
    renames = []
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path if path.is_symlink() else path.with_name(f".{path.name[:200]}.fresh")
        fresh.write_text(dedent(text).lstrip("\n"), "utf-8")
        renames += [(fresh, path)] if fresh != path else []
    for fresh, path in renames:
        fresh.replace(path)
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
