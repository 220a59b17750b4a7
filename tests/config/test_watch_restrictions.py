"""Restrictions take effect while plugins of the same or an earlier edit are still being loaded or set up."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest

from framework import Runtime
from framework.config import watch as watch_module
from framework.config.generations.generation import Generation
from tests.support.projects import agent, write

PATIENCE = 45
"""Timeout in seconds, for waits that should be short."""
SETTINGS = "reload: {quiet: 20ms, removal_grace: 20ms, widening_grace: 20ms, reconcile: 1000s}\n"
"""Every edit is noticed by an event: the next periodic scan is far away."""
DENY = '{allow: ["*"], deny: [{tool: p.f}]}'
SLOW_PACKAGE = """
    import os, time
    from pathlib import Path

    folder = Path(__file__).parent
    with open(folder / "started", "wb", buffering=0) as started:
        started.write(b".")
    while not (folder / "released").exists():
        time.sleep(0.01)
"""


def plugin(description: str, more: str = "") -> str:
    tool = f'@tool(risk="low")\ndef f() -> str:\n    "{description}"\n    return "ok"\n'
    return f"from framework import tool\n{more}\n{tool}"


@dataclass
class SlowPackage:
    """An installed package whose import waits until the test releases it. `started` counts its imports."""

    name: str
    folder: Path
    started: asyncio.Queue[bytes]

    @property
    def importing(self) -> str:
        return f"import {self.name}"

    def release(self) -> None:
        (self.folder / "released").touch()


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowPackage]:
    """The package, in a folder that is on the search path."""
    name = f"slow_{uuid4().hex}"
    folder = tmp_path / "installed"
    write(folder, {f"{name}.py": SLOW_PACKAGE})
    os.mkfifo(folder / "started")
    monkeypatch.syspath_prepend(str(folder))
    package = SlowPackage(name, folder, asyncio.Queue())
    yield package
    package.release()


@asynccontextmanager
async def opened(
    root: Path, slow: SlowPackage | None = None, *, watch: bool = True, widening_grace: str = "20ms", **deps: object
) -> AsyncIterator[Runtime]:
    settings = SETTINGS.replace("widening_grace: 20ms", f"widening_grace: {widening_grace}")
    files = {"agentsd.yaml": settings, "agents.d/a.yaml": one("a"), "agents.d/b.yaml": one("b")}
    write(root, files | {"plugins/p.py": plugin("Old.")})
    loop = asyncio.get_running_loop()
    reading = os.open(slow.folder / "started", os.O_RDWR | os.O_NONBLOCK) if slow else None
    if slow and reading is not None:
        loop.add_reader(reading, lambda: slow.started.put_nowait(os.read(reading, 1)))
    try:
        async with asyncio.timeout(PATIENCE), Runtime.open(root, watch=watch, deps=SimpleNamespace(**deps)) as runtime:
            if watch:  # the watch has started once it has noticed two edits
                for text in ("First.", "Second."):
                    write(root, {"agents.d/b.yaml": one("b", description=text)})
                    await until(runtime, partial(is_described, text))
            yield runtime
    finally:
        if reading is not None:
            loop.remove_reader(reading)
            os.close(reading)


def one(name: str, **keys: str) -> str:
    return agent(name, model="offline", **keys)


async def until(runtime: Runtime, holds: Callable[[Generation], bool]) -> Generation:
    """Wait until a condition is true for the live generation."""
    while not holds(runtime.catalog.current):
        await runtime.wait_generation(runtime.catalog.current.number + 1)
    return runtime.catalog.current


def is_described(text: str, generation: Generation) -> bool:
    return generation.agents["b"].spec.description == text


def denies(generation: Generation) -> bool:
    return bool(generation.agents["a"].spec.skill_policy.deny)


def has_settings(text: str, generation: Generation) -> bool:
    return text.encode() in generation.files["agentsd.yaml"]


def described(generation: Generation) -> str:
    return generation.tools["p.f"].definition.description


@pytest.mark.parametrize("together", [True, False])
def test_a_deny_rule_does_not_wait_for_the_trial_of_a_plugin(tmp_path: Path, slow: SlowPackage, together: bool) -> None:
    async def scene() -> None:
        async with opened(tmp_path, slow) as runtime:
            files = {"plugins/p.py": plugin("New.", slow.importing)}
            deny = {"agents.d/a.yaml": one("a", skill_policy=DENY, instructions="New.")}
            write(tmp_path, files | deny if together else files)
            await slow.started.get()
            if not together:
                write(tmp_path, deny)
            early = await until(runtime, denies)
            assert described(early) == "Old.", "the deny rule applies while the plugin is tried"
            assert early.agents["a"].spec.instructions != "New.", "the rest of the edit waits for the plugin"
            assert early.problems == ()
            assert (await runtime.call_tool("a", "p.f", {})).status == "denied"
            slow.release()
            late = await until(runtime, lambda now: described(now) == "New.")
            assert denies(late)
            assert late.agents["a"].spec.instructions == "New."
            assert late.digest == runtime.catalog.snapshot().digest

    asyncio.run(scene())


def test_a_deleted_agent_does_not_wait_for_the_trial_of_a_plugin(tmp_path: Path, slow: SlowPackage) -> None:
    async def scene() -> None:
        async with opened(tmp_path, slow) as runtime:
            write(tmp_path, {"plugins/p.py": plugin("New.", slow.importing)})
            await slow.started.get()
            (tmp_path / "agents.d/a.yaml").unlink()
            assert described(await until(runtime, lambda now: "a" not in now.agents)) == "Old."
            slow.release()
            await until(runtime, lambda now: described(now) == "New.")

    asyncio.run(scene())


def test_an_early_restriction_is_not_loosened_by_a_refresh(tmp_path: Path, slow: SlowPackage) -> None:
    async def scene() -> None:
        async with opened(tmp_path, slow) as runtime:
            write(tmp_path, {"plugins/p.py": plugin("New.", slow.importing)})
            await slow.started.get()
            write(tmp_path, {"agents.d/a.yaml": one("a", skill_policy=DENY)})
            await until(runtime, denies)
            assert denies(await runtime.catalog.refresh())

    asyncio.run(scene())


def test_an_edit_that_is_taken_back_during_the_trial_leaves_no_restriction(tmp_path: Path, slow: SlowPackage) -> None:
    async def scene() -> None:
        async with opened(tmp_path, slow) as runtime:
            before = runtime.catalog.current
            files = {"plugins/p.py": plugin("Old."), "agents.d/a.yaml": one("a")}
            write(tmp_path, {"plugins/p.py": plugin("New.", slow.importing)})
            await slow.started.get()
            write(tmp_path, {"agents.d/a.yaml": one("a", skill_policy=DENY)})
            await until(runtime, denies)
            write(tmp_path, files)
            after = await until(runtime, lambda now: not denies(now))
            assert (after.digest, described(after)) == (before.digest, "Old.")

    asyncio.run(scene())


def test_a_rollback_does_not_wait_for_the_trial_of_a_plugin(tmp_path: Path, slow: SlowPackage) -> None:
    async def scene() -> None:
        async with opened(tmp_path, slow) as runtime:
            write(tmp_path, {"plugins/p.py": plugin("New.", slow.importing)})
            await slow.started.get()
            assert (await runtime.catalog.rollback(1)).agents["b"].spec.description == "The agent b."
            assert not (slow.folder / "released").exists()

    asyncio.run(scene())


def test_an_explicit_reload_publishes_restrictions_first(tmp_path: Path, slow: SlowPackage) -> None:
    async def scene() -> None:
        async with opened(tmp_path, slow, watch=False) as runtime:
            files = {"plugins/p.py": plugin("New.", slow.importing), "agents.d/a.yaml": one("a", skill_policy=DENY)}
            write(tmp_path, files)
            reload = asyncio.create_task(runtime.reload())
            assert described(await until(runtime, denies)) == "Old."
            assert not reload.done()
            slow.release()
            assert described(await reload) == "New."

    asyncio.run(scene())


def test_a_preview_of_a_plugin_delays_no_edit(tmp_path: Path, slow: SlowPackage) -> None:
    async def scene() -> None:
        async with opened(tmp_path, slow, watch=False) as runtime:
            text = plugin("New.", slow.importing).encode()
            preview = asyncio.create_task(runtime.catalog.preview({"plugins/p.py": text}))
            await slow.started.get()
            write(tmp_path, {"agents.d/a.yaml": one("a", skill_policy=DENY)})
            assert denies(await runtime.reload())
            assert not preview.done()
            slow.release()
            assert described((await preview).candidate.generation) == "New."

    asyncio.run(scene())


def test_a_trial_is_abandoned_when_its_plugin_changes(tmp_path: Path, slow: SlowPackage) -> None:
    async def scene() -> None:
        async with opened(tmp_path, slow) as runtime:
            write(tmp_path, {"plugins/p.py": plugin("Slow.", slow.importing)})
            await slow.started.get()
            write(tmp_path, {"plugins/p.py": plugin("Fixed.")})
            await until(runtime, lambda now: described(now) == "Fixed.")
            assert not (slow.folder / "released").exists()

    asyncio.run(scene())


def test_a_plugin_that_never_stops_changing_does_not_hold_back_other_files(
    tmp_path: Path, slow: SlowPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "_MIN_PATIENCE_SECONDS", 0.1)

    async def rewrite() -> None:
        for number in range(1000):
            write(tmp_path, {"plugins/p.py": plugin(f"Version {number}.", slow.importing)})
            await slow.started.get()

    async def scene() -> None:
        async with opened(tmp_path, slow) as runtime:
            rewriting = asyncio.create_task(rewrite())
            write(tmp_path, {"agents.d/b.yaml": one("b", description="New.")})
            after = await until(runtime, partial(is_described, "New."))
            assert described(after) == "Old."
            rewriting.cancel()

    asyncio.run(scene())


def test_a_deny_rule_does_not_wait_for_the_setup_of_a_plugin(tmp_path: Path) -> None:
    setup = "async def setup(context):\n    context.deps.started.set()\n    await context.deps.released.wait()\n"

    async def scene() -> None:
        started, released = asyncio.Event(), asyncio.Event()
        async with opened(tmp_path, started=started, released=released) as runtime:
            write(tmp_path, {"plugins/p.py": plugin("New.", setup)})
            await started.wait()
            write(tmp_path, {"agents.d/a.yaml": one("a", skill_policy=DENY)})
            assert described(await until(runtime, denies)) == "Old."
            released.set()
            assert denies(await until(runtime, lambda now: described(now) == "New."))

    asyncio.run(scene())


def test_a_deny_rule_does_not_wait_for_a_permission_in_another_file(tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(tmp_path, widening_grace="1h") as runtime:
            grants = {"agents.d/b.yaml": one("b", runtime_policy="{max_steps: 99}")}
            write(tmp_path, {"agents.d/a.yaml": one("a", skill_policy=DENY)} | grants)
            assert (await until(runtime, denies)).agents["b"].spec.runtime_policy.max_steps != 99
            late = await runtime.reload()
            assert denies(late)
            assert late.agents["b"].spec.runtime_policy.max_steps == 99

    asyncio.run(scene())


def test_a_file_that_may_be_half_written_restricts_nothing_early(tmp_path: Path) -> None:
    """Early restrictions of a file that grants permissions, too, or is invalid, apply after the longest period."""
    denying = one("a", skill_policy=DENY, runtime_policy="{max_steps: 99}")

    async def scene() -> None:
        async with opened(tmp_path, watch=False) as runtime:
            catalog = runtime.catalog
            for text in (denying, denying.replace("version: 1", "version: one")):
                write(tmp_path, {"agents.d/a.yaml": text})
                snapshot = catalog.snapshot()
                assert await catalog.prepare_restrictions(snapshot, frozenset({"agents.d/a.yaml"})) is None
                candidate = await catalog.prepare_restrictions(snapshot)
                assert candidate is not None
                assert denies(candidate.generation)
                assert candidate.generation.agents["a"].spec.runtime_policy.max_steps != 99

    asyncio.run(scene())


def test_a_deny_rule_does_not_wait_for_a_new_tool_server(tmp_path: Path) -> None:
    """The server never responds: an edit waits for its tools for some seconds."""

    async def scene() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
            async with opened(tmp_path) as runtime:
                sources = f"version: 1\nmcp_servers:\n  slow: {{url: '{url}'}}\n"
                write(tmp_path, {"plugins/slow.yaml": sources, "agents.d/a.yaml": one("a", skill_policy=DENY)})
                assert not (await until(runtime, denies)).external.declared

    asyncio.run(scene())


def test_a_removed_api_key_is_noticed_without_a_scan(tmp_path: Path) -> None:
    def has_keys(count: int, generation: Generation) -> bool:
        return len(generation.settings.server.api_keys) == count

    async def scene() -> None:
        async with opened(tmp_path) as runtime:
            names = [f"{name}-0123456789" for name in ("first", "second", "third")]
            for count in (3, 2, 1):
                write(tmp_path, {"agentsd.yaml": f"{SETTINGS}server: {{api_keys: [{', '.join(names[:count])}]}}\n"})
                await until(runtime, partial(has_keys, count))

    asyncio.run(scene())


def test_settings_behind_links_are_watched(tmp_path: Path) -> None:
    """As Kubernetes mounts a file: it links to `..data`, which links to a folder that is replaced."""

    def mounted(number: int) -> None:
        write(tmp_path / f"..{number}", {"agentsd.yaml": f"{SETTINGS}telemetry: {{service_name: version-{number}}}\n"})
        (tmp_path / "..fresh").symlink_to(f"..{number}")
        (tmp_path / "..fresh").replace(tmp_path / "..data")

    async def scene() -> None:
        async with opened(tmp_path) as runtime:
            mounted(1)
            (tmp_path / "agentsd.fresh").symlink_to("..data/agentsd.yaml")
            (tmp_path / "agentsd.fresh").replace(tmp_path / "agentsd.yaml")
            for number in (1, 2, 3):
                mounted(number)
                text = f"version-{number}"
                await until(runtime, partial(has_settings, text))

    asyncio.run(scene())


def test_settings_that_link_to_a_file_elsewhere_are_watched(tmp_path: Path) -> None:
    root = tmp_path / "project"

    async def scene() -> None:
        async with opened(root) as runtime:
            for number in (1, 2, 3):
                text = f"# version {number}\n"
                write(tmp_path / "etc", {"agentsd.yaml": SETTINGS + text})
                if number == 1:
                    (root / "agentsd.fresh").symlink_to(tmp_path / "etc/agentsd.yaml")
                    (root / "agentsd.fresh").replace(root / "agentsd.yaml")
                await until(runtime, partial(has_settings, text))

    asyncio.run(scene())
