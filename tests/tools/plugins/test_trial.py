"""A changed plugin is loaded in a child process before the serving process loads it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import pytest

from framework import Runtime
from framework.tools.plugins.trial import trial_load
from tests.support.projects import agent, write

GOOD = 'from framework import tool\n\n@tool(risk="low")\ndef f() -> str:\n    """F."""\n    return "good"\n'
CATASTROPHE = "import re\n\nre.match('(a+)+$', 'a' * 40 + 'b')\n"
"""Holds the interpreter's lock for days."""
PATH = "plugins/p.py"


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        (CATASTROPHE, 3, "does not finish loading and blocks all other code"),
        ("x = 1\nwhile True:\n    pass\n", 3, "not finished after 1 s while loading"),
        ("import threading\nthreading.Event().wait()\n", 2, "not finished after 1 s while loading"),
        ("import os\nos._exit(0)\n", None, "ends the process while loading (exit code 0)"),
        ("import os\nos.kill(os.getpid(), 9)\n", None, "ends the process while loading (exit code -9)"),
    ],
)
def test_code_that_does_not_finish_is_a_problem_with_its_line(source: str, line: int | None, message: str) -> None:
    [problem] = trial_load(PATH, {PATH: source.encode()})
    assert (problem.path, problem.message) == (PATH, message)
    assert problem.line in (line, None if line is None else line - 1)  # of a loop, any of its lines


def test_a_helper_that_does_not_finish_is_named() -> None:
    files = {PATH: b"from ._slow import x\n", "plugins/_slow.py": CATASTROPHE.encode() + b"x = 1\n"}
    [problem] = trial_load(PATH, files)
    assert problem.path == PATH
    assert problem.message.startswith("helper failed: plugins/_slow.py:3: does not finish")


@pytest.mark.parametrize(
    "source",
    [GOOD, "raise ValueError", "import sys\nsys.exit(3)", "def (", "print('done')\n", "from ._none import x", ""],
)
def test_code_that_finishes_is_not_reported_by_the_trial(source: str) -> None:
    assert trial_load(PATH, {PATH: source.encode()}) == ()


def test_a_plugin_that_blocks_all_threads_blocks_neither_the_server_nor_other_edits(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/a.yaml": agent("a", model="offline"), PATH: GOOD})

    async def main() -> None:
        async with Runtime.open(root, watch=False) as runtime:
            write(root, {PATH: CATASTROPHE, "agents.d/a.yaml": agent("a", model="offline", instructions="New.")})
            reload = asyncio.create_task(runtime.reload())
            answered = 0
            while not reload.done():
                assert (await runtime.call_tool("a", "p.f", {})).output == "good"
                answered += 1
                await asyncio.sleep(0)
            generation = await reload
            assert answered > 1, "calls are answered while the plugin is tried"
            assert [(problem.path, problem.line) for problem in generation.errors] == [(PATH, 3)]
            assert generation.agents["a"].spec.instructions == "New."
            assert generation.agents["a"].toolset.offered["p.f"].function() == "good", "the last good version"
            tried = getrusage(RUSAGE_CHILDREN)
            assert await runtime.reload() is generation
            assert getrusage(RUSAGE_CHILDREN) == tried, "it is not tried again until it is saved again"

    asyncio.run(main())


def test_plugins_are_loaded_without_a_trial_at_the_first_start(tmp_path: Path) -> None:
    """A trial starts a process for each file, and before the first start it would protect nothing."""
    noted = f"with open({str(tmp_path / 'loads')!r}, 'a') as file:\n    print(os.getpid(), file=file)\n"
    source = f"import os\n\n{noted}"
    root = write(tmp_path, {PATH: source})

    async def main() -> None:
        async with Runtime.open(root, watch=False) as runtime:
            write(root, {PATH: source + "changed = 1\n"})
            await runtime.reload()

    asyncio.run(main())
    first, tried, second = (root / "loads").read_text("utf-8").split()
    assert first == second != tried
