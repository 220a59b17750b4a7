"""Installs agentsd beside the newest openai SDK, with the commands of docs/install.md.

`python -m tests.support.openai_install pip FOLDER` creates a virtual environment there and runs the commands for pip;
`uv` runs those for uv. The package is this checkout, with its test dependencies in the versions of constraints.txt,
except those that the commands upgrade.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Literal, get_args

from tests.support.paths import ROOT

Installer = Literal["pip", "uv"]
MARKS: dict[Installer, str] = {"pip": "pip install --upgrade --no-deps", "uv": "uv pip install"}
"""Text that only the block of commands of this installer contains."""
UPGRADED = ("openai", "jiter")
PROBE = "pip install uv"
"""The first command: it fails if no package index is reachable."""


def documented_commands(installer: Installer) -> list[str]:
    """Return the lines of the block of commands on the documentation page."""
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    (block,) = (block for block in blocks if MARKS[installer] in block)
    return str(block).strip().splitlines()


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in the virtual environment of a folder; `-e .` stands for this checkout."""
    pins = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    upgraded = () if command.startswith("pip") else UPGRADED
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(pin for pin in pins if pin.partition("==")[0] not in upgraded), "utf-8")
    names = () if "--no-deps" in command else ("PIP_CONSTRAINT", "UV_CONSTRAINT")
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "VIRTUAL_ENV": str(folder), "PIP_QUIET": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment = {**os.environ, **own, **dict.fromkeys(names, str(constraints))}
    line = command.replace("-e .", f"--editable '{ROOT}[test]'")
    return subprocess.run(line, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def main(installer: str, folder: str) -> int:
    """Install, and report a failure in one line; an unreachable package index is no error."""
    assert installer in get_args(Installer), installer
    target = Path(folder).resolve()
    venv.create(target, clear=True, with_pip=True)
    for command in (PROBE, *documented_commands("pip" if installer == "pip" else "uv")):
        done = run(command, target)
        if done.returncode:
            (target / "install.log").write_text(done.stdout + done.stderr, "utf-8")
            why = "skipped, no package index is reachable" if command == PROBE else f"{command!r} failed"
            sys.stdout.write(f"agentsd beside the newest openai with {installer}: {why}; see {folder}/install.log\n")
            return 0 if command == PROBE else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
