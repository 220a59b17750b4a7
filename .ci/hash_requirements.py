"""Writes `requirements-hashed.txt`: the dependencies of agentsd with all its extras, pinned by version and SHA-256.

`python .ci/hash_requirements.py` asks pip, which asks the index it is set up for; nothing is installed. It lists
the files that pip chooses for this machine. Run it on other platforms, or for other versions of Python, to add theirs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / ".ci/requirements-hashed.txt"
HEAD = """\
# The versions of constraints.txt with the hashes of their files, for `pip install --require-hashes -r`.
# Written by .ci/hash_requirements.py; each run adds the files of the platform it runs on.
"""
_LINE = re.compile(r"^([a-z0-9.-]+)==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)

Hashes = dict[tuple[str, str], set[str]]
"""SHA-256 of files, by name and version of their package."""


def read(text: str) -> Hashes:
    """The hashes that a file has."""
    return {(name, version): set(re.findall(r"[0-9a-f]{64}", found)) for name, version, found in _LINE.findall(text)}


def write(hashes: Hashes) -> str:
    """A file of hashes, sorted."""
    lines = (
        f"{name}=={version}" + "".join(f" --hash=sha256:{value}" for value in sorted(values))
        for (name, version), values in sorted(hashes.items())
    )
    return HEAD + "".join(f"{line}\n" for line in lines)


def chosen(report: Mapping[str, Any]) -> Hashes:
    """What a report of pip says it would install, without the project itself."""
    found: Hashes = {}
    for item in report["install"]:
        if "archive_info" in item["download_info"]:
            name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
            value = item["download_info"]["archive_info"]["hashes"]["sha256"]
            found.setdefault((name, item["metadata"]["version"]), set()).add(value)
    return found


def ask_pip() -> Hashes:
    """What pip would install here for the project with all its extras but those of its tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = ",".join(sorted(set(project["optional-dependencies"]) - {"test"}))
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    wanted = ["-c", str(ROOT / "constraints.txt"), f"{ROOT}[{extras}]"]
    return chosen(json.loads(subprocess.run([*command, *wanted], check=True, stdout=subprocess.PIPE).stdout))


def main() -> None:
    """Write the file. Hashes it has of the same versions stay: they are of other platforms."""
    now = ask_pip()
    before = read(FILE.read_text("utf-8")) if FILE.exists() else {}
    FILE.write_text(write({key: values | before.get(key, set()) for key, values in now.items()}), "utf-8")


if __name__ == "__main__":
    main()
