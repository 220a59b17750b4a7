"""A changed plugin is loaded in a child process before the serving process loads it."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import pytest

from framework import Runtime
from framework.tools.plugin_trial import TrialAbandoned, try_plugins
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
    [problem] = try_plugins([PATH], {PATH: source.encode()})[PATH]
    assert (problem.path, problem.message) == (PATH, message)
    assert problem.line in (line, None if line is None else line - 1)  # of a loop, any of its lines


def test_a_helper_that_does_not_finish_is_named() -> None:
    files = {PATH: b"from ._slow import x\n", "plugins/_slow.py": CATASTROPHE.encode() + b"x = 1\n"}
    [problem] = try_plugins([PATH], files)[PATH]
    assert problem.path == PATH
    assert problem.message.startswith("helper failed: plugins/_slow.py:3: does not finish")


def test_code_that_finishes_is_not_reported_by_the_trial() -> None:
    sources = (
        GOOD,
        "raise ValueError",
        "import sys\nsys.exit(3)",
        "def (",
        "print('done')\n",
        "from ._none import x",
        "",
    )
    files = {f"plugins/p{number}.py": source.encode() for number, source in enumerate(sources)}
    assert try_plugins([*files], files) == dict.fromkeys(files, ())


def test_files_are_tried_in_one_process_until_one_does_not_finish(tmp_path: Path) -> None:
    noted = f"import os\nwith open({str(tmp_path / 'processes')!r}, 'a') as file:\n    print(os.getpid(), file=file)\n"
    sources = [noted, noted, noted + CATASTROPHE, noted, noted + "os._exit(3)\n", noted]
    files = {f"plugins/p{number}.py": source.encode() for number, source in enumerate(sources)}
    found = try_plugins(list(files), files)
    assert {path: [problem.message for problem in problems] for path, problems in found.items() if problems} == {
        "plugins/p2.py": ["does not finish loading and blocks all other code"],
        "plugins/p4.py": ["ends the process while loading (exit code 3)"],
    }
    first, second, third, fourth, fifth, sixth = (tmp_path / "processes").read_text("utf-8").split()
    assert first == second == third != fourth == fifth != sixth


def test_a_machine_that_executes_something_else_does_not_make_a_plugin_fail() -> None:
    """No Python code can run for more than two seconds, but the plugin uses no CPU time meanwhile."""
    source = b"import ctypes\nctypes.PyDLL(None).usleep(2_300_000)\n"
    assert try_plugins([PATH], {PATH: source}) == {PATH: ()}


def test_an_abandoned_trial_ends() -> None:
    abandoned = threading.Event()
    abandoned.set()
    with pytest.raises(TrialAbandoned):
        try_plugins([PATH], {PATH: b"while True:\n    pass\n"}, abandoned)


@pytest.mark.parametrize("program", ["", "/nonexistent", "/bin/false"])
def test_a_plugin_is_not_loaded_if_its_trial_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    root = write(tmp_path, {"agents.d/a.yaml": agent("a", model="offline"), PATH: GOOD})

    async def main() -> None:
        async with Runtime.open(root, watch=False) as runtime:
            changed = {PATH: GOOD.replace("good", "new"), "agents.d/b.yaml": agent("b", model="offline")}
            write(root, changed)
            with monkeypatch.context() as patched:
                patched.setattr(sys, "executable", program)
                [problem] = (await runtime.reload()).errors
            assert problem.path == PATH
            assert problem.message.startswith("is not loaded, because no process could be started to try it: ")
            assert "b" in runtime.catalog.current.agents, "the rest of the edit is live"
            assert (await runtime.call_tool("a", "p.f", {})).output == "good", "the last good version"
            write(root, {"agents.d/b.yaml": agent("b", model="offline", instructions="New.")})
            assert (await runtime.reload()).errors == ()
            assert (await runtime.call_tool("a", "p.f", {})).output == "new", "it is tried again with the next edit"

    asyncio.run(main())


def test_a_file_in_a_folder_on_the_search_path_does_not_replace_a_module_of_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents may write into such a folder: that of the script is on the search path."""
    ran = f"open({str(tmp_path / 'ran')!r}, 'a').write(__name__)\n"
    shadows = ("base64.py", "json.py", "pydantic.py", "framework.py", "sitecustomize.py", "faulthandler.py")
    root = write(tmp_path, {"agents.d/a.yaml": agent("a", model="offline"), PATH: GOOD, **dict.fromkeys(shadows, ran)})
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.chdir(root)

    async def main() -> None:
        async with Runtime.open(root, watch=False) as runtime:
            write(root, {PATH: GOOD.replace("good", "new")})
            assert (await runtime.reload()).errors == ()
            assert (await runtime.call_tool("a", "p.f", {})).output == "new"

    asyncio.run(main())
    assert not (tmp_path / "ran").exists()


def test_the_trial_finds_packages_that_only_the_search_path_of_the_program_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, {"only_here_in_the_trial.py": "x = 3\n"})
    [problem] = try_plugins([PATH], {PATH: b"import os\nfrom only_here_in_the_trial import x\nos._exit(x)\n"})[PATH]
    assert problem.message == "ends the process while loading (exit code 3)"


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
                await asyncio.sleep(0.01)  # the pace of the caller: without it, the calls would take a processor
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
