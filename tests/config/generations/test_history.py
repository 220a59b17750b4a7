"""Earlier generations: little is kept of them, and they can be restored exactly."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from framework import ConfigError, Runtime
from framework.config.agents.compile import Agent
from framework.config.generations.generation import Generation
from framework.config.generations.history import ArchivedGeneration
from framework.server.schemas import LiveConfig
from tests.support.projects import agent, write

TEMPLATED = {"instructions": "{template: house.j2}", "model": "offline"}
FILES = {
    "agents.d/plain.yaml": agent("plain", model="offline"),
    "agents.d/templated.yaml": agent("templated", **TEMPLATED),
    "agents.d/parent.yaml": agent("parent", model="offline", sub_agents="[plain]"),
    "agents.d/odd.yaml": agent("odd", model="offline", skill_policy="{deny: [echo, echo], allow: [calculator]}"),
    "prompts/house.j2": "The first house.",
}


def live(root: Path, body: Callable[[Runtime], Awaitable[None]]) -> None:
    async def scene() -> None:
        async with Runtime.open(root, watch=False) as runtime:
            await body(runtime)

    asyncio.run(scene())


def visible_state(generation: Generation) -> dict[str, object]:
    """Return everything that is visible of the agents."""
    return {
        name: (
            one.spec,
            one.path,
            one.digest,
            one.instructions("en", {}, None),
            list(one.toolset.offered),
            [one.place(*path) for path in (("name",), ("skill_policy", "deny", 0), ("nowhere",))],
            one.warnings,
            one.stale,
        )
        for name, one in generation.agents.items()
    }


def test_an_archived_generation_is_restored_exactly(tmp_path: Path) -> None:
    async def body(runtime: Runtime) -> None:
        broken = {"prompts/house.j2": "The {{ second }} house.", "agents.d/plain.yaml": agent("plain", modle="x")}
        write(tmp_path, broken)
        second = await runtime.reload()
        assert {name for name, one in second.agents.items() if one.stale} == {"plain", "templated"}
        assert second.agents["odd"].warnings
        write(tmp_path, {path: text.replace("offline", "offline  # else") for path, text in FILES.items()})
        third = await runtime.reload()
        assert visible_state(ArchivedGeneration.of(second).restore(third)) == visible_state(second)
        rolled = await runtime.catalog.rollback(2)
        assert visible_state(rolled) == visible_state(second)
        assert (await runtime.run("hi", agent="templated")).status == "completed"

    live(write(tmp_path, FILES), body)


def test_unchanged_agents_are_shared_with_the_restored_generation(tmp_path: Path) -> None:
    async def body(runtime: Runtime) -> None:
        write(tmp_path, {"agents.d/odd.yaml": agent("odd", model="offline", description="Otherwise.")})
        second = await runtime.reload()
        rolled = await runtime.catalog.rollback(1)
        same = {name for name, one in rolled.agents.items() if one is second.agents[name]}
        assert same == {"plain", "templated", "parent"}

    live(write(tmp_path, FILES), body)


def test_an_archived_generation_contains_no_agents(tmp_path: Path) -> None:
    async def body(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        # a worker thread refers to the generation it has built until it drops its work item, which is after the
        # reload returns: leaving the executor joins its threads
        with ThreadPoolExecutor() as workers:
            loop.set_default_executor(workers)
            for version in range(5):
                changed = {
                    path: f"{text}# history {version}\n" for path, text in FILES.items() if path.startswith("agents.d")
                }
                write(tmp_path, changed)
                await runtime.reload()
        loop.set_default_executor(ThreadPoolExecutor())
        assert [len(entry.changes) for entry in runtime.catalog.history] == [4, 0, 0, 0, 0, 0]
        current = {id(one) for one in runtime.catalog.current.agents.values()}

        comparing = [task for task in asyncio.all_tasks() if task.get_name() == "grants in the background"]
        if comparing:  # the grants under the last two generations
            await asyncio.wait(comparing)
        del comparing
        gc.collect()
        found = (one for one in gc.get_objects() if isinstance(one, Agent))
        assert {id(one) for one in found if b"# history" in one.document.source} == current

    live(write(tmp_path, FILES), body)


# --- holds

PLUGIN = """
from framework import tool

@tool(risk="low")
def say() -> str:
    \"\"\"Say a word.\"\"\"
    return "{}"
"""


def described(description: str) -> str:
    return agent("a", model="offline", description=description, skill_policy='{allow: ["*"]}')


def description(runtime: Runtime) -> str:
    return runtime.catalog.current.agents["a"].spec.description


async def roll_back(root: Path) -> Path:
    """Roll an edit back in a process that ends; return the file that keeps the hold."""
    write(root, {"agents.d/a.yaml": described("Old."), "plugins/p.py": PLUGIN.format("old")})
    async with Runtime.open(root) as runtime:
        write(root, {"agents.d/a.yaml": described("Bad."), "plugins/p.py": PLUGIN.format("bad")})
        await runtime.reload()
        assert description(runtime) == "Bad."
        await runtime.catalog.rollback(1)
        assert description(runtime) == "Old."
    return root / ".agentsd" / "hold.json"


def test_a_rollback_survives_restarts_until_the_files_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        hold = await roll_back(tmp_path)
        for _ in range(2):
            caplog.clear()
            async with Runtime.open(tmp_path) as runtime:
                assert description(runtime) == "Old."
                assert (await runtime.call_tool("a", "p.say", {})).output == "old"
                assert (runtime.catalog.held, [one.trigger for one in runtime.catalog.history]) == (True, ["rollback"])
                assert "held since a rollback to generation 1" in caplog.text
                shown = LiveConfig.of(runtime.catalog)
                assert shown.hold is not None
                assert (shown.held, shown.hold.generation) == (True, 1)
                assert (await runtime.reload()).number == 1
        assert (hold.stat().st_mode & 0o777, hold.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        async with Runtime.open(tmp_path, watch=False) as runtime:
            assert description(runtime) == "Bad.", "a program that does not follow the files reads them"
        async with Runtime.open(tmp_path) as runtime:
            write(tmp_path, {"agents.d/a.yaml": described("Better.")})
            await runtime.reload()
            assert (description(runtime), runtime.catalog.held, hold.exists()) == ("Better.", False, False)
            assert LiveConfig.of(runtime.catalog).hold is None
        async with Runtime.open(tmp_path) as runtime:
            assert description(runtime) == "Better."

    asyncio.run(main())


def test_files_that_changed_while_no_process_ran_end_a_hold(tmp_path: Path) -> None:
    async def main() -> None:
        hold = await roll_back(tmp_path)
        write(tmp_path, {"agents.d/a.yaml": described("Better.")})
        async with Runtime.open(tmp_path) as runtime:
            assert (description(runtime), runtime.catalog.held, hold.exists()) == ("Better.", False, False)

    asyncio.run(main())


def test_a_rollback_to_the_files_on_disk_keeps_no_hold(tmp_path: Path) -> None:
    async def main() -> None:
        hold = await roll_back(tmp_path)
        async with Runtime.open(tmp_path) as runtime:
            write(tmp_path, {"agents.d/a.yaml": described("Better.")})
            live = await runtime.reload()
            await runtime.catalog.rollback(live.number)
            assert not hold.exists()

    asyncio.run(main())


def test_a_hold_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    """An operator rejected the files: they must not go live because the record of that is damaged."""
    write(tmp_path, {"agents.d/a.yaml": described("Bad."), ".agentsd/hold.json": "{"})

    async def main() -> None:
        with pytest.raises(ConfigError, match=r"hold\.json cannot be read.*delete"):
            async with Runtime.open(tmp_path):
                pass

    asyncio.run(main())
