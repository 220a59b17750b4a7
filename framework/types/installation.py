"""The installation on this machine: the package's version, the command that installs more, and the folder for data."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import unquote, urlsplit

_ROOT = Path(__file__).resolve().parents[2]
_EXTRA = re.compile(r"agentsd\[([a-z0-9_,-]+)\]")


def install_command(*packages: str) -> str:
    """Return a command of pip or uv that installs packages here, such as `agentsd[serve]` or `pyyaml`.

    agentsd's own extras come from where agentsd was installed from: a checkout, an archive, a repository or an index.
    """
    own = [extras[1] for package in packages if (extras := _EXTRA.fullmatch(package))]
    others = [package for package in packages if not _EXTRA.fullmatch(package)]
    words = [*_own_requirement(",".join(dict.fromkeys(own)))] if own else []
    return " ".join([_pip_install(), *words, *(f"'{package}'" for package in dict.fromkeys(others))])


def needs_only_extras(packages: Mapping[str, str]) -> bool:
    """Return whether all packages, by the module that each contains, are extras of agentsd."""
    return all(map(_EXTRA.fullmatch, packages.values()))


def _own_requirement(extras: str) -> tuple[str, ...]:
    origin = _origin()
    url = str(origin.get("url", ""))
    if "dir_info" in origin:
        folder = Path(unquote(urlsplit(url).path))
        if (folder / "pyproject.toml").is_file():
            flags = ("-e",) if origin["dir_info"].get("editable") else ()
            return (*flags, quote(f"{_shortest(folder)}[{extras}]"))
    elif "vcs_info" in origin:
        source = origin["vcs_info"]
        revision = source.get("requested_revision") or source.get("commit_id", "")
        return (quote(f"agentsd[{extras}] @ {source.get('vcs', 'git')}+{url}@{revision}"),)
    elif url:
        return (quote(f"agentsd[{extras}] @ {url}"),)
    return (quote(f"agentsd[{extras}]"),)


def _origin() -> Mapping[str, Any]:
    """Return where agentsd was installed from, as PEP 610 describes it; empty if that was an index."""
    try:
        text = distribution("agentsd").read_text("direct_url.json")
    except PackageNotFoundError:  # a checkout on PYTHONPATH
        return {"url": _ROOT.as_uri(), "dir_info": {"editable": True}}
    return json.loads(text) if text else {}


def _pip_install() -> str:
    """Return `pip install` if the shell finds the pip of this environment, else what works with this Python.

    Environments that uv creates have no pip.
    """
    python = Path(sys.executable)
    found = shutil.which("pip")
    if found and Path(found).parent == python.parent:
        return "pip install"
    if find_spec("pip") is None:
        return f"uv pip install --python {quote(_shortest(python))}"
    return f"{quote(_shortest(python))} -m pip install"


def _shortest(path: Path) -> str:
    """Return a path relative to the working directory if it is inside, else as it is."""
    try:
        return os.fspath(path.relative_to(Path.cwd()))
    except (OSError, ValueError):
        return os.fspath(path)


@cache
def installed_version() -> str:
    """Return the version of the installed package, or `0` if it runs from its sources."""
    with suppress(PackageNotFoundError):
        return version("agentsd")
    return "0"


DATA_FOLDER = ".agentsd"
"""Name of the folder that contains the store, the accepted tool definitions, and schemas for editors."""
_OTHERS_MODE = 0o077


def make_private_folder(folder: Path) -> None:
    """Create a folder with mode 700, and restrict an existing `.agentsd` folder to that mode; raise OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.name == DATA_FOLDER and folder.stat().st_mode & _OTHERS_MODE:
        with suppress(PermissionError):  # the folder belongs to another user
            folder.chmod(0o700)


def write_private_file(path: Path, text: str) -> None:
    """Replace a file, at once, by one with this text that only its user can read, in a private folder.

    Raises:
        OSError: the file or its folder cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        make_private_folder(path.parent)
        fresh.touch(mode=0o600)
        fresh.write_text(text, "utf-8")
        fresh.replace(path)
    finally:
        with suppress(OSError):
            fresh.unlink()
