"""The real watcher publishes every kind of edit and survives every failure."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any, NoReturn

import pytest
import watchfiles

from framework import Runtime
from framework.config import watch
from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Candidate
from framework.config.settings import Settings
from framework.config.snapshot import Snapshot
from framework.config.watch import Debouncer, WatchedFolders
from framework.types.events import ConfigRejected
from tests.support.paths import ROOT
from tests.support.projects import agent, write

PATIENCE = 45
"""Timeout in seconds, for waits that should be short."""


def one(name: str, description: str = "Old.") -> str:
    return agent(name, model="offline", description=description)


@asynccontextmanager
async def opened(root: Path, **reload: str) -> AsyncIterator[Runtime]:
    """Open a watching runtime and wait until two probe edits are live; the second one is noticed by an event.

    Periodic scans are disabled, so that every later edit is noticed by the watcher. No edit is pending afterwards: the
    next generation has the next edit.
    """
    short = {"quiet": "20ms", "removal_grace": "20ms", "widening_grace": "20ms", "reconcile": "1000s"}
    settings = Settings.model_validate({"reload": short | reload})
    async with asyncio.timeout(PATIENCE), Runtime.open(root, settings=settings) as runtime:
        for text in ("first", "second"):
            _probe(root, text)
            while (number := runtime.catalog.current.number) and not _is_live(runtime):
                await runtime.wait_generation(number + 1)
        yield runtime


def _is_live(runtime: Runtime) -> bool:
    """Return whether the live generation has the files as they are now."""
    return runtime.catalog.snapshot().digest == runtime.catalog.current.digest


def _probe(root: Path, text: str) -> None:
    if root.is_file():
        root.write_text(f"{root.read_text().partition('#')[0]}# {text}\n")
    elif (root / "agents.d").is_dir():
        write(root, {"agents.d/probe.yaml": one("probe", text)})


async def live(runtime: Runtime, name: str, description: str | None) -> None:
    """Wait until an agent has this description; None waits until it is removed."""
    async with asyncio.timeout(PATIENCE):
        number = runtime.catalog.current.number
        while _description(runtime, name) != description:
            number = (await runtime.wait_generation(number + 1)).number


def _description(runtime: Runtime, name: str) -> str | None:
    found = runtime.catalog.current.agents.get(name)
    return found.spec.description if found else None


@pytest.mark.parametrize("folder", ["skills", ".agents/skills"])
def test_files_of_skills_are_watched(folder: str, tmp_path: Path) -> None:
    name = f"{folder}/pdf"
    text = "---\nname: pdf\ndescription: about pdf\n---\n"
    files = {"agents.d/a.yaml": one("a") + 'skills: ["*"]\n', f"{name}/SKILL.md": text, f"{name}/refs/a.md": "one"}

    async def main() -> None:
        async with opened(write(tmp_path, files)) as runtime:
            write(tmp_path, {f"{name}/refs/a.md": "two"})
            await _until_skill(runtime, b"two")
            write(tmp_path, {f"{name}/SKILL.md": text + "edited"})
            await _until_skill(runtime, b"two", "edited")

    asyncio.run(main())


async def _until_skill(runtime: Runtime, content: bytes, body: str = "") -> None:
    """Wait until the agent's skill has this text and this file."""
    async with asyncio.timeout(PATIENCE):
        number = runtime.catalog.current.number
        while (found := runtime.catalog.current.agents["a"].skills.skills["pdf"]).body.strip() != body or (
            found.files["refs/a.md"] != content
        ):
            number = (await runtime.wait_generation(number + 1)).number


def _overwrite(path: Path, text: str) -> None:
    path.write_text(text)


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(".fresh")
    fresh.write_text(text)
    fresh.replace(path)


def _rename_away_and_write(path: Path, text: str) -> None:
    path.rename(path.with_name(path.name + "~"))
    path.write_text(text)


def _delete_and_write(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


def _move_in(path: Path, text: str) -> None:
    outside = path.parent.parent / "outside"
    outside.write_text(text)
    outside.rename(path)


@pytest.mark.parametrize("edit", [_overwrite, _replace, _rename_away_and_write, _delete_and_write, _move_in])
def test_an_edit_takes_effect(tmp_path: Path, edit: Callable[[Path, str], None]) -> None:
    async def scene() -> None:
        async with opened(write(tmp_path, {"agents.d/a.yaml": one("a")})) as runtime:
            edit(tmp_path / "agents.d/a.yaml", one("a", "New."))
            await live(runtime, "a", "New.")

    asyncio.run(scene())


def test_consecutive_edits_take_effect(tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(write(tmp_path, {"agents.d/a.yaml": one("a")})) as runtime:
            for number in range(5):
                _replace(tmp_path / "agents.d/a.yaml", one("a", f"Version {number}."))
                await live(runtime, "a", f"Version {number}.")

    asyncio.run(scene())


def test_new_and_deleted_files_and_folders_are_noticed(tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(write(tmp_path, {"agents.d/a.yaml": one("a")})) as runtime:
            write(tmp_path, {"agents.d/b.yaml": one("b")})
            await live(runtime, "b", "Old.")
            write(tmp_path, {"agents.d/deep/er/c.yaml": one("c")})
            await live(runtime, "c", "Old.")
            write(tmp_path, {"agents.d/deep/er/c.yaml": one("c", "New.")})
            await live(runtime, "c", "New.")
            (tmp_path / "agents.d/b.yaml").unlink()
            await live(runtime, "b", None)
            shutil.rmtree(tmp_path / "agents.d/deep")
            await live(runtime, "c", None)
            assert list(runtime.catalog.current.agents) == ["a", "probe"]

    asyncio.run(scene())


def test_a_full_folder_that_is_moved_in_is_read(tmp_path: Path) -> None:
    async def scene() -> None:
        write(tmp_path, {"agents.d/a.yaml": one("a"), **{f"outside/{name}.yaml": one(name) for name in "bcd"}})
        async with opened(tmp_path) as runtime:
            (tmp_path / "outside").rename(tmp_path / "agents.d/inside")
            await live(runtime, "d", "Old.")
            assert list(runtime.catalog.current.agents) == ["a", "b", "c", "d", "probe"]

    asyncio.run(scene())


def test_templates_and_plugins_are_watched_too(tmp_path: Path) -> None:
    plugin = 'from framework import tool\n\n\n@tool\ndef f() -> int:\n    "{}"\n    return 1\n'
    files = {"agents.d/a.yaml": agent("a", model="offline", instructions="{template: a.j2}"), "prompts/a.j2": "old"}

    async def scene() -> None:
        async with opened(write(tmp_path, {**files, "plugins/p.py": plugin.format("Old.")})) as runtime:
            number = runtime.catalog.current.number
            _replace(tmp_path / "prompts/a.j2", "new")
            generation = await runtime.wait_generation(number + 1)
            assert generation.agents["a"].instructions("en", {}, None) == "new"
            _replace(tmp_path / "plugins/p.py", plugin.format("New."))
            generation = await runtime.wait_generation(number + 2)
            assert generation.tools["p.f"].definition.description == "New."

    asyncio.run(scene())


def test_folders_that_appear_after_the_start_are_watched(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Runtime.open(tmp_path) as runtime:
            write(tmp_path, {"agents.d/a.yaml": one("a")})
            await live(runtime, "a", "Old.")

    asyncio.run(scene())


def test_without_events_the_periodic_scan_finds_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*paths: object, **options: object) -> NoReturn:
        raise OSError("no space left on device")

    monkeypatch.setattr(watchfiles, "watch", refuse)

    async def scene() -> None:
        async with opened(write(tmp_path, {"agents.d/a.yaml": one("a")}), reconcile="50ms") as runtime:
            write(tmp_path, {"agents.d/a.yaml": one("a", "New.")})
            await live(runtime, "a", "New.")
            assert runtime.watcher is not None
            assert runtime.watcher.restarts >= 1

    with caplog.at_level(logging.WARNING):
        asyncio.run(scene())
    assert "the file watcher failed; restarting it: no space left on device" in caplog.messages


class Panic(BaseException):
    """An error like those raised by Rust code."""


@pytest.mark.parametrize("error", [OSError("no space left on device"), Panic("unwrapped nothing")])
def test_a_failed_watch_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    failures = [error]
    start = watchfiles.watch

    def fail_once(*paths: Path, **options: Any) -> Generator[set[tuple[watchfiles.Change, str]], None, None]:
        if failures:
            raise failures.pop()
        return start(*paths, **options)

    monkeypatch.setattr(watchfiles, "watch", fail_once)

    async def scene() -> None:
        async with opened(write(tmp_path, {"agents.d/a.yaml": one("a")})) as runtime:
            write(tmp_path, {"agents.d/a.yaml": one("a", "New.")})
            await live(runtime, "a", "New.")
            assert runtime.watcher is not None
            assert runtime.watcher.restarts == 1

    asyncio.run(scene())


@pytest.mark.parametrize("error", [RuntimeError("lost"), asyncio.CancelledError()])
def test_a_failed_scan_is_retried_without_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    failures: list[Snapshot] = []
    prepare = Catalog.prepare

    async def fail_twice(catalog: Catalog, snapshot: Snapshot) -> Candidate | None:
        if len(failures) < 2:
            failures.append(snapshot)
            raise error
        return await prepare(catalog, snapshot)

    async def scene() -> None:
        async with opened(write(tmp_path, {"agents.d/a.yaml": one("a")})) as runtime:
            monkeypatch.setattr(Catalog, "prepare", fail_twice)
            write(tmp_path, {"agents.d/a.yaml": one("a", "New.")})
            await live(runtime, "a", "New.")
            assert len(failures) == 2

    asyncio.run(scene())


def test_a_restored_project_folder_is_watched_immediately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the pause between retries has become long."""
    root, failed, until_changed = tmp_path / "project", asyncio.Event(), WatchedFolders.until_changed

    async def recorded(roots: WatchedFolders, seconds: float) -> None:
        failed.set()
        await until_changed(roots, seconds)

    monkeypatch.setattr(WatchedFolders, "until_changed", recorded)
    monkeypatch.setattr(watch, "MAX_RETRY_SECONDS", 1000.0)
    monkeypatch.setattr(watch, "RETRY_SECONDS", 1000.0)

    async def scene() -> None:
        async with opened(write(root, {"agents.d/a.yaml": one("a")})) as runtime:
            root.rename(tmp_path / "away")
            await live(runtime, "a", None)
            await failed.wait()
            (tmp_path / "away").rename(root)
            await live(runtime, "a", "Old.")
            _replace(root / "agents.d/a.yaml", one("a", "New."))
            await live(runtime, "a", "New.")

    asyncio.run(scene())


@asynccontextmanager
async def hurried(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Runtime, asyncio.Queue[Snapshot]]]:
    """Open a runtime whose quiet period never ends; yield it with a queue of its watcher's snapshots."""
    looks = asyncio.Queue[Snapshot]()
    look = Debouncer.observe

    def recorded(settling: Debouncer, seen: Snapshot, live: str, ended: float) -> None:
        look(settling, seen, live, ended)
        looks.put_nowait(seen)

    monkeypatch.setattr(Debouncer, "observe", recorded)
    settings = Settings.model_validate({"reload": {"quiet": "1h"}})
    async with asyncio.timeout(PATIENCE), Runtime.open(root, settings=settings) as runtime:
        await looks.get()
        yield runtime, looks


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Queue[Path]:
    """The paths of events; the operating system reports none."""
    paths = Queue[Path]()

    def watch(
        *_: Path, stop_event: threading.Event, recursive: bool, **__: object
    ) -> Generator[set[tuple[watchfiles.Change, str]]]:
        while not recursive and not stop_event.wait(0.01):
            yield set()
        while not stop_event.is_set():
            try:
                yield {(watchfiles.Change.modified, str(paths.get(timeout=0.01)))}
            except Empty:
                yield set()

    monkeypatch.setattr(watchfiles, "watch", watch)
    return paths


def test_a_change_without_an_event_is_published_with_one_that_has_an_event(tmp_path: Path, events: Queue[Path]) -> None:
    async def scene() -> None:
        root = write(tmp_path, {"agents.d/a.yaml": one("a"), "agents.d/b.yaml": one("b")})
        settings = Settings.model_validate({"reload": {"quiet": "20ms", "reconcile": "1000s"}})
        async with asyncio.timeout(PATIENCE), Runtime.open(root, settings=settings) as runtime:
            for number in range(3):  # the first one may be found by the scan at the start
                text = f"Version {number}."
                write(root, {"agents.d/b.yaml": one("b", text), "agents.d/a.yaml": one("a", text)})
                events.put(root / "agents.d/a.yaml")
                await live(runtime, "a", text)
                assert _description(runtime, "b") == text

    asyncio.run(scene())


def test_a_plugin_is_not_loaded_before_its_quiet_period_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = f"from pathlib import Path\n\nPath({str(tmp_path / 'ran')!r}).write_text('')\n"

    async def scene() -> None:
        async with hurried(write(tmp_path, {"agents.d/a.yaml": one("a")}), monkeypatch) as (_, looks):
            write(tmp_path, {"plugins/p.py": plugin})
            while "plugins/p.py" not in (await looks.get()).files:
                pass
            for number in range(3):  # by then, work started by earlier scans is complete
                write(tmp_path, {"agents.d/a.yaml": one("a", f"Version {number}.")})
                while (await looks.get()).files["agents.d/a.yaml"] != one("a", f"Version {number}.").encode():
                    pass
            assert not (tmp_path / "ran").exists()

    asyncio.run(scene())


def test_a_restriction_does_not_wait_for_a_later_grant(tmp_path: Path) -> None:
    def limited(steps: int) -> str:
        return agent("a", model="offline", runtime_policy=f"{{max_steps: {steps}}}")

    async def scene() -> None:
        write(tmp_path, {"agents.d/a.yaml": limited(5), "agents.d/probe.yaml": one("probe")})
        async with opened(tmp_path, widening_grace="1h") as runtime:
            first = runtime.catalog.current
            write(tmp_path, {"agents.d/a.yaml": limited(9)})
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await runtime.wait_generation(first.number + 1)
            write(tmp_path, {"agents.d/a.yaml": limited(4)})
            generation = await runtime.wait_generation(first.number + 1)
            assert generation.agents["a"].spec.runtime_policy.max_steps == 4
            write(tmp_path, {"agents.d/a.yaml": limited(9)})
            await runtime.reload()
            assert runtime.catalog.current.agents["a"].spec.runtime_policy.max_steps == 9, (
                "an explicit reload does not wait"
            )

    asyncio.run(scene())


@pytest.mark.conformance(43)
def test_a_rollback_remains_until_the_files_change(tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(write(tmp_path, {"agents.d/a.yaml": one("a")}), reconcile="30ms") as runtime:
            good = runtime.catalog.current.number
            write(tmp_path, {"agents.d/a.yaml": one("a", "Bad.")})
            await live(runtime, "a", "Bad.")
            held = await runtime.catalog.rollback(good)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):  # ten scans
                    await runtime.wait_generation(held.number + 1)
            assert _description(runtime, "a") == "Old."
            write(tmp_path, {"agents.d/a.yaml": one("a", "Better.")})
            await live(runtime, "a", "Better.")

    asyncio.run(scene())


def test_with_a_gate_the_cases_are_watched_too(tmp_path: Path) -> None:
    def case(expected: str) -> str:
        return f"cases:\n  - name: says it\n    message: hi\n    model: [{{say: yes}}]\n    expect: {expected}\n"

    async def scene() -> None:
        files = {"agents.d/a.yaml": one("a"), "agents.d/a.test.yaml": case("{status: completed}")}
        async with opened(write(tmp_path, files), gate="tests", reconcile="30ms") as runtime:
            before = runtime.catalog.current.number
            write(tmp_path, {"agents.d/a.test.yaml": case("{status: paused}")})
            rejected = asyncio.Event()
            runtime.catalog.subscribe(lambda event: rejected.set() if isinstance(event, ConfigRejected) else None)
            async with asyncio.timeout(PATIENCE):
                await rejected.wait()
            assert runtime.catalog.current.number == before
            write(tmp_path, {"agents.d/a.test.yaml": case("{status: completed}"), "agents.d/a.yaml": one("a", "New.")})
            await live(runtime, "a", "New.")
            assert runtime.catalog.current.number == before + 1

    asyncio.run(scene())


@pytest.mark.parametrize("at_once", [True, False])
def test_a_recreated_folder_is_watched(tmp_path: Path, *, at_once: bool) -> None:
    async def scene() -> None:
        async with opened(write(tmp_path, {"agents.d/a.yaml": one("a")})) as runtime:
            shutil.rmtree(tmp_path / "agents.d")
            if not at_once:
                await live(runtime, "a", None)
            write(tmp_path, {"agents.d/a.yaml": one("a", "Second.")})
            await live(runtime, "a", "Second.")
            write(tmp_path, {"agents.d/a.yaml": one("a", "Third.")})
            await live(runtime, "a", "Third.")

    asyncio.run(scene())


def test_only_the_new_folder_is_watched_after_a_replacement(tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(write(tmp_path, {"agents.d/a.yaml": one("a"), "next/a.yaml": one("a", "Next.")})) as runtime:
            (tmp_path / "agents.d").rename(tmp_path / "old")
            (tmp_path / "next").rename(tmp_path / "agents.d")
            await live(runtime, "a", "Next.")
            write(tmp_path, {"old/a.yaml": one("a", "Wrong."), "agents.d/a.yaml": one("a", "Right.")})
            await live(runtime, "a", "Right.")

    asyncio.run(scene())


def test_a_name_that_is_not_utf_8_does_not_end_the_watch(tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(write(tmp_path, {"agents.d/a.yaml": one("a")})) as runtime:
            _make_file(tmp_path / "agents.d", b"caf\xe9.yaml")
            async with asyncio.timeout(PATIENCE):
                while not runtime.catalog.current.errors:
                    await runtime.wait_generation(runtime.catalog.current.number + 1)
            for text in ("New.", "Newer."):
                write(tmp_path, {"agents.d/a.yaml": one("a", text)})
                await live(runtime, "a", text)

    asyncio.run(scene())


def _make_file(folder: Path, name: bytes) -> None:
    os.close(os.open(os.fsencode(folder) + b"/" + name, os.O_CREAT | os.O_WRONLY))


def test_a_broken_edit_does_not_end_the_watch(tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(write(tmp_path, {"agents.d/a.yaml": one("a")})) as runtime:
            number = runtime.catalog.current.number
            write(tmp_path, {"agents.d/a.yaml": "name: ["})
            assert (await runtime.wait_generation(number + 1)).agents["a"].stale
            write(tmp_path, {"agents.d/a.yaml": one("a", "Fixed.")})
            await live(runtime, "a", "Fixed.")

    asyncio.run(scene())


def test_a_project_of_one_file_is_watched(tmp_path: Path) -> None:
    async def scene() -> None:
        write(tmp_path, {"one.yaml": one("a"), "other/two.yaml": one("b")})
        async with opened(tmp_path / "one.yaml") as runtime:
            for edit, text in ((_overwrite, "New."), (_replace, "Newer."), (_overwrite, "Newest.")):
                edit(tmp_path / "one.yaml", one("a", text))
                await live(runtime, "a", text)

    asyncio.run(scene())


def test_changes_outside_the_project_create_no_generation(tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(write(tmp_path, {"agents.d/a.yaml": one("a")})) as runtime:
            number = runtime.catalog.current.number
            write(tmp_path, {"agents.d/notes.txt": "x", "agents.d/.a.yaml.swp": "x", "data/x.yaml": one("x")})
            (tmp_path / "agents.d/a.yaml").touch()
            write(tmp_path, {"agents.d/a.yaml": one("a", "New.")})
            await live(runtime, "a", "New.")
            assert runtime.catalog.current.number == number + 1

    asyncio.run(scene())


def test_closing_the_runtime_leaves_no_task_behind(tmp_path: Path) -> None:
    async def scene() -> int:
        write(tmp_path, {"agents.d/a.yaml": one("a")})
        before = asyncio.all_tasks()
        for number in range(3):
            async with opened(tmp_path) as runtime:
                write(tmp_path, {"agents.d/a.yaml": one("a", f"Version {number}.")})
                await live(runtime, "a", f"Version {number}.")
        return len(asyncio.all_tasks() - before)

    assert asyncio.run(scene()) == 0


FORGETFUL = """
import asyncio, sys
from framework import Runtime

loop = asyncio.new_event_loop()
opened = Runtime.open(sys.argv[1])
runtime = loop.run_until_complete(opened.__aenter__())
loop.run_until_complete(asyncio.sleep(float(sys.argv[2])))
"""


@pytest.mark.parametrize("seconds", ["0", "0.3"])
def test_a_process_exits_with_an_unclosed_runtime(tmp_path: Path, seconds: str) -> None:
    write(tmp_path, {"agents.d/a.yaml": one("a")})
    command = [sys.executable, "-c", FORGETFUL, str(tmp_path), seconds]
    assert subprocess.run(command, cwd=ROOT, timeout=PATIENCE, check=False).returncode == 0


def test_without_watching_a_runtime_reloads_on_request(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Runtime.open(write(tmp_path, {"agents.d/a.yaml": one("a")}), watch=False) as runtime:
            write(tmp_path, {"agents.d/a.yaml": one("a", "New.")})
            assert _description(runtime, "a") == "Old."
            await runtime.reload()
            assert _description(runtime, "a") == "New."

    asyncio.run(scene())
