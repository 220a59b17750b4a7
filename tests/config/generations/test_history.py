"""Earlier generations: little is kept of them, and they can be restored exactly."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from framework import Runtime
from framework.config.agents.compile import Agent
from framework.config.generations.generation import Generation
from framework.config.generations.history import ArchivedGeneration
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
        gc.collect()
        left = {id(o) for o in gc.get_objects() if isinstance(o, Agent) and b"# history" in o.document.source}
        assert left == {id(one) for one in runtime.catalog.current.agents.values()}

    live(write(tmp_path, FILES), body)
