"""Counts the files that one run passes through, and shows how they call each other.

`python -m tests.support.walk` runs an agent for two turns with one tool call and prints, in the order in which they are
entered, the files of the package that execute, and the pairs of files that call each other in both directions.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import framework
from framework import Runtime, tool
from framework.testing import ScriptedModel, Turn, calls
from tests.support.projects import agent, write

PACKAGE = str(Path(framework.__file__).parent) + "/"


@dataclass
class Walk:
    """The files that were entered, in order, and the calls between them."""

    files: list[str] = field(default_factory=list)
    calls: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """Caller and callee files, with the names of the functions of the first such call."""

    def below(self, folder: str) -> list[str]:
        """Return the files in a folder of the package."""
        return [name for name in self.files if name.startswith(folder)]

    def mutual(self, folder: str) -> list[tuple[str, str]]:
        """Return the pairs of files in a folder that call each other in both directions."""
        pairs = {tuple(sorted(pair)) for pair in self.calls if (pair[1], pair[0]) in self.calls}
        return sorted((a, b) for a, b in pairs if a.startswith(folder) and b.startswith(folder))


@contextmanager
def recorded() -> Iterator[Walk]:
    """Record every call of a function of the package in this thread."""
    walk, entered = Walk(), dict[str, None]()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        if frame.f_code.co_name in ("<module>", "<lambda>") or frame.f_code.co_name.startswith("__"):
            return
        name = frame.f_code.co_filename.removeprefix(PACKAGE)
        entered.setdefault(name)
        caller = frame.f_back
        if caller is not None and caller.f_code.co_filename.startswith(PACKAGE):
            other = caller.f_code.co_filename.removeprefix(PACKAGE)
            if other != name:
                walk.calls.setdefault((other, name), (caller.f_code.co_name, frame.f_code.co_name))

    sys.setprofile(profile)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        walk.files = list(entered)


@tool(risk="low")
async def repeat(text: str) -> str:
    """Return the text."""
    return text


async def walk_of_one_run(root: Path) -> Walk:
    """Record a run of two turns with one call of an async tool, in a runtime that has already done one."""
    write(root, {"agents.d/a.yaml": agent("a")})
    script: list[Turn] = [calls(("repeat", {"text": "one"})), "Done."] * 2
    async with Runtime.open(root, tools=[repeat], watch=False, models={"scripted": ScriptedModel(*script)}) as runtime:
        await runtime.run("first")
        with recorded() as walk:
            result = await runtime.run("second")
    assert result.output == "Done."
    return walk


def report(walk: Walk) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"{len(walk.files)} files, {len(walk.below('engine/'))} of them in engine/:"
    yield from (f"  {name}" for name in walk.files)
    yield "pairs of files that call each other in both directions:"
    for a, b in walk.mutual(""):
        there, back = walk.calls[a, b], walk.calls[b, a]
        yield f"  {a} {there[0]} -> {there[1]} {b}, and back {back[0]} -> {back[1]}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write("\n".join(report(asyncio.run(walk_of_one_run(Path(folder))))) + "\n")
