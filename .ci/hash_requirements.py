"""Writes `requirements-hashed.txt`: the dependencies of agentsd with all extras, pinned by version and SHA-256.

`python .ci/hash_requirements.py` resolves them with pip and its configured index, and installs nothing. The result has
the files for this platform and Python version. Run it on other platforms or versions to add their files.
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
"""SHA-256 hashes of files by package name and version."""


def parse_hashes(text: str) -> Hashes:
    """Parse a file of hashes."""
    return {
        (name, version): set(re.findall(r"[0-9a-f]{64}", options)) for name, version, options in _LINE.findall(text)
    }


def format_hashes(hashes: Hashes) -> str:
    """Return the text of a file of hashes, sorted."""
    lines = (
        f"{name}=={version}" + "".join(f" --hash=sha256:{value}" for value in sorted(values))
        for (name, version), values in sorted(hashes.items())
    )
    return HEAD + "".join(f"{line}\n" for line in lines)


def report_hashes(report: Mapping[str, Any]) -> Hashes:
    """Return the hashes in an installation report of pip, without the project itself."""
    hashes: Hashes = {}
    for item in report["install"]:
        if "archive_info" in item["download_info"]:
            name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
            value = item["download_info"]["archive_info"]["hashes"]["sha256"]
            hashes.setdefault((name, item["metadata"]["version"]), set()).add(value)
    return hashes


def resolve() -> Hashes:
    """Resolve the project with all extras except `test`, for this platform."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = ",".join(sorted(set(project["optional-dependencies"]) - {"test"}))
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    requirements = ["-c", str(ROOT / "constraints.txt"), f"{ROOT}[{extras}]"]
    return report_hashes(
        json.loads(subprocess.run([*command, *requirements], check=True, stdout=subprocess.PIPE).stdout)
    )


def main() -> None:
    """Write the file. Existing hashes of the same versions are kept, because they belong to other platforms."""
    current = resolve()
    previous = parse_hashes(FILE.read_text("utf-8")) if FILE.exists() else {}
    merged = {key: values | previous.get(key, set()) for key, values in current.items()}
    FILE.write_text(format_hashes(merged), "utf-8")


if __name__ == "__main__":
    main()
