"""Counts the files that a behaviour passes through, and shows how they call each other.

`python -m tests.support.walk` counts the files of each walk. With the name of a walk, it prints the files that execute,
in the order in which they are entered, and the pairs that call each other in both directions. Only the thread of the
event loop is recorded, in a runtime that has already done the same once.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import framework
from framework import Approve, Runtime, tool
from framework.testing import ScriptedModel, Turn, calls
from tests.support.plans import draft, tool_step
from tests.support.projects import agent, write
from tests.support.runs_http import client_of

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
    if text == "nothing":
        raise ValueError("nothing to repeat")
    return text


CALL: list[Turn] = [calls(("repeat", {"text": "one"})), "Done."]
FAILING = draft(tool_step("a", "repeat", text="nothing"), tool_step("b", "repeat", "a", text="two"))


@asynccontextmanager
async def _opened(root: Path, turns: list[Turn], store: str | None = None, **keys: str) -> AsyncIterator[Runtime]:
    """Open a runtime with one agent and a model that answers twice with these turns."""
    write(root, {"agents.d/a.yaml": agent("a", **keys)})
    models = {"scripted": ScriptedModel(*turns, *turns)}
    async with Runtime.open(root, tools=[repeat], watch=False, models=models, store=store) as runtime:
        yield runtime


async def walk_of_one_run(root: Path, turns: list[Turn] = CALL, **keys: str) -> Walk:
    """Record a run of one agent, by default with two turns and one call of an async tool."""
    async with _opened(root, turns, **keys) as runtime:
        await runtime.run("first")
        with recorded() as walk:
            result = await runtime.run("second")
    assert result.output == "Done."
    return walk


def walk_of_a_denied_call(root: Path) -> Awaitable[Walk]:
    """Record the same run if the policy denies the call for its arguments."""
    return walk_of_one_run(root, skill_policy='{allow: ["*"], deny: [{tool: repeat, when: {text: one}}]}')


def walk_of_a_failed_step(root: Path) -> Awaitable[Walk]:
    """Record a run with a plan whose first step fails, and whose second one is skipped."""
    return walk_of_one_run(root, [FAILING, "Done."], executor="plan", plan="{on_failure: skip}")


async def walk_of_a_chat(root: Path) -> Walk:
    """Record an answer that is streamed over HTTP."""
    write(root, {"agents.d/a.yaml": agent("a")})
    async with client_of(root, ScriptedModel(*["Done."] * 3)) as client:
        body = {"message": "hello", "stream": True}
        await client.http.post("/agent/chat", json=body)
        walks = list[Walk]()
        for _ in range(2):
            with recorded() as walk:
                response = await client.http.post("/agent/chat", json=body)
            assert "Done." in response.text
            walks.append(walk)
    by_chance = {*walks[0].files} ^ {*walks[1].files}  # of a timer of the server, on a slow machine
    walks[0].files = [name for name in walks[0].files if name not in by_chance]
    return walks[0]


async def walks_of_an_approved_call(root: Path) -> tuple[Walk, Walk]:
    """Record a run that pauses for an approval in a SQLite file, and its resume by a runtime that is opened later."""
    url, policy = f"sqlite:///{root}/runs.db", '{allow: ["*"], ask: [repeat]}'
    async with _opened(root, CALL[:1], url, skill_policy=policy) as runtime:
        runs = [await runtime.run("first")]
        with recorded() as pause:
            runs.append(await runtime.run("second"))
    async with _opened(root, CALL[1:], url, skill_policy=policy) as runtime:
        for run in runs:
            with recorded() as resume:
                result = await runtime.resume(run.run_id, {run.pending[0].id: Approve()})
    assert result.output == "Done."
    return pause, resume


async def walks(root: Path) -> dict[str, Walk]:
    """Record all walks, each in a project of its own."""
    pause, resume = await walks_of_an_approved_call(root / "approved")
    return {
        "call": await walk_of_one_run(root / "call"),
        "denied": await walk_of_a_denied_call(root / "denied"),
        "chat": await walk_of_a_chat(root / "chat"),
        "pause": pause,
        "resume": resume,
        "plan": await walk_of_a_failed_step(root / "plan"),
    }


def report(walk: Walk) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"{len(walk.files)} files, {len(walk.below('engine/'))} of them in engine/:"
    yield from (f"  {name}" for name in walk.files)
    yield "pairs of files that call each other in both directions:"
    for a, b in walk.mutual(""):
        there, back = walk.calls[a, b], walk.calls[b, a]
        yield f"  {a} {there[0]} -> {there[1]} {b}, and back {back[0]} -> {back[1]}"


def main(names: list[str]) -> None:
    """Print the reports of the named walks, or the number of files of each walk."""
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(walks(Path(folder)))
    lines = [line for name in names for line in (f"{name}:", *report(found[name]))]
    lines = lines or [f"{name:8}{len(walk.files)} files" for name, walk in found.items()]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
