"""Reads the project that a command works on, or another version of it, and finds its tools."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from framework.cli.location import Location, lenient_settings
from framework.cli.terminal import prints_on_stderr
from framework.engine.runtime.project import Project
from framework.tools.tool import Tool
from framework.types.errors import RequestError
from framework.types.text import did_you_mean


async def read_project(location: Location, *, connect: bool = False) -> Project:
    """Read a project, also one with problems. Nothing of it can be run.

    Args:
        location: the folder or file.
        connect: connect to its tool servers to list their tools.
    """
    with prints_on_stderr():
        project = await Project.read(location.root, lenient_settings(location), connect=connect)
        await project.catalog.close()
    return project


def find_tool(tools: Mapping[str, Tool], name: str) -> Tool:
    """Return a tool by name; raises RequestError."""
    if name not in tools:
        raise RequestError(f"there is no tool {name!r}{did_you_mean(name, sorted(tools))}")
    return tools[name]


@contextmanager
def version_folder(name: str, project: str) -> Iterator[str]:
    """Yield a folder with a version of a project: a folder, or the project in a revision of git, such as `HEAD~1`.

    The files of a revision are in a temporary folder, which is deleted at the end. Raises RequestError.
    """
    if name and Path(name).exists():  # an empty name would be this folder
        yield name
        return
    git = ["git", "-C", project]
    try:
        found = subprocess.run(
            [*git, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        archive = subprocess.run([*git, "archive", found.stdout.strip()], capture_output=True, check=True).stdout
    except (OSError, ValueError, subprocess.CalledProcessError):  # ValueError: the name contains a null byte
        raise RequestError(f"no such file or folder, nor a revision of git: {name}") from None
    with TemporaryDirectory(prefix="agentsd-") as folder:
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        yield folder
