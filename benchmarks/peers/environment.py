"""The environments of the peers below `.venv/peers`: `python -m benchmarks.peers` builds them with pip."""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib import import_module
from pathlib import Path
from typing import cast

from benchmarks.harness import NotMeasured
from benchmarks.peers.job import Peer

ROOT = Path(__file__).parents[2]
BASELINE = "by_hand"
OURS = "agentsd"
FRAMEWORKS = ("agent_framework", "agno", "openai_agents", "langchain", "pydantic_ai", "smolagents", "google_adk")
FOLDER = ROOT / ".venv/peers"
STAMP = "installed.txt"
"""Lists what an environment was built from; it is built again if that has changed."""


def peer(name: str) -> Peer:
    """Return the module of a peer."""
    return cast("Peer", import_module(f"benchmarks.peers.{name}"))


def python(name: str) -> Path:
    """Return the interpreter of a peer; raises NotMeasured if its packages are not installed."""
    if not peer(name).PACKAGES:
        return Path(sys.executable)
    if not is_installed(name):
        raise NotMeasured(f"the packages of {name} are not installed: run `make bench-peers`")
    return FOLDER / name / "bin/python"


def is_installed(name: str) -> bool:
    """Return whether the packages of a peer are installed."""
    packages = peer(name).PACKAGES
    return not packages or _is_built(name, packages)


def _is_built(name: str, packages: tuple[str, ...]) -> bool:
    stamp = FOLDER / name / STAMP
    return stamp.is_file() and stamp.read_text("utf-8").splitlines() == list(packages)


def build(name: str) -> None:
    """Create the environment of a peer, unless it exists. Print a line if pip cannot install its packages."""
    packages = peer(name).PACKAGES
    if not packages or _is_built(name, packages):
        return
    print(f"installing {' '.join(packages)}", flush=True)
    folder = FOLDER / name
    venv.create(folder, clear=True, with_pip=True)
    command = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    installed = subprocess.run([*command, *packages], capture_output=True, text=True, check=False)
    if installed.returncode:
        reason = (installed.stderr.strip().splitlines() or ["pip failed"])[-1]
        print(f"pip cannot install {name}, which is not measured: {reason}", flush=True)
        return
    (folder / STAMP).write_text("\n".join(packages), "utf-8")
