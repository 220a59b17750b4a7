"""Safe reloading with the real watcher: every change is applied completely, once and soon."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import pytest

from framework import Runtime
from framework.config.generations.generation import Generation
from framework.config.yaml.parse import ParseError, parse_agent
from tests.support.config_maps import kubelet_writes
from tests.support.paths import ROOT
from tests.support.projects import write
from tests.support.watched import PATIENCE, Watched, one, watched

NEVER = "1000s"
"""A scan interval longer than any test, so that changes are found by events only."""
A = "agents.d/a.yaml"


def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scene())


def command(*words: str | Path, cwd: Path | None = None) -> None:
    subprocess.run(words, cwd=cwd, check=True)


# --- 1: ways to save a file


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text.removeprefix(path.read_text()))


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name("fresh.tmp")
    fresh.write_text(text)
    fresh.replace(path)


def _vim_renames(path: Path, text: str) -> None:
    (path.parent / "4913").touch()
    (path.parent / "4913").unlink()
    path.rename(path.with_name(path.name + "~"))
    path.write_text(text)
    path.with_name(path.name + "~").unlink()


def _vim(path: Path, text: str) -> None:
    path.with_name("text").write_text(text)
    command("vim", "-u", "NONE", "-es", "-c", f"%d|0r {path.with_name('text')}|$d|wq", path)


def _sed(path: Path, text: str) -> None:
    line = next(line for line in text.splitlines() if line.startswith("description"))
    command("sed", "-i", f"s/^description.*/{line}/", path)


def _move_in(path: Path, text: str) -> None:
    outside = path.parent.parent / "outside.yaml"
    outside.write_text(text)
    command("mv", outside, path)


@pytest.mark.hostile(17)
@pytest.mark.conformance(1)
@pytest.mark.parametrize("save", [_write, _append, _replace, _vim_renames, _vim, _sed, _move_in])
def test_a_saved_file_is_one_generation_immediately(tmp_path: Path, save: Callable[[Path, str], None]) -> None:
    if save is _vim and not shutil.which("vim"):
        pytest.skip("there is no vim")

    async def scene() -> None:
        text = one("a", "Old.").rstrip()  # its last line is what the edits change
        async with watched(write(tmp_path, {A: text}), reconcile=NEVER) as seen:
            took = []
            for number in range(2):
                text = f"{text}  # again" if save is _append else one("a", f"New {number}.").rstrip()
                before = seen.current.number
                await asyncio.to_thread(save, tmp_path / A, text)
                saved = perf_counter()
                await seen.runtime.wait_generation(before + 1)
                took.append(perf_counter() - saved)
                assert seen.description("a") == ("Old." if save is _append else f"New {number}.")
            await seen.probe()
            assert len(seen.generations) == 3, "one for each save, and one for the probe"
            assert min(took) <= 3, "no scan would have found it"

    run(scene)


# --- 2: Kubernetes


@pytest.mark.conformance(2)
def test_a_config_map_swap_is_one_generation_with_each_agent_once(tmp_path: Path) -> None:
    folder = tmp_path / "agents.d"
    a, b, c = "a.yaml", "b.yaml", "team/c.yaml"

    async def scene() -> None:
        probe = {"probe.yaml": one("probe")}
        folder.mkdir()
        kubelet_writes(folder, {a: one("a"), b: one("b"), **probe}, "1")
        async with Runtime.open(tmp_path) as runtime:
            seen = Watched(tmp_path, runtime)
            runtime.catalog.subscribe(lambda _: seen.generations.append(seen.current))
            kubelet_writes(folder, {a: one("a", "New."), b: one("b"), **probe}, "2")
            await seen.live("a", "New.")
            kubelet_writes(folder, {a: one("a", "Newer."), b: one("b"), c: one("c"), **probe}, "3")
            await seen.live("c", "Old.")
            assert seen.description("a") == "Newer."
            kubelet_writes(folder, {a: one("a", "Newest."), c: one("c", "New."), **probe}, "4")
            await seen.live("b", None)
            assert (seen.description("a"), seen.description("c")) == ("Newest.", "New.")
            kubelet_writes(folder, {a: one("a", "Last."), c: one("c", "New."), **probe}, "5")
            await seen.live("a", "Last.")
            assert len(seen.generations) == 4
            assert all(not generation.problems for generation in seen.generations)
            paths = {name: agent.path for name, agent in seen.current.agents.items()}
            assert paths == {"a": f"agents.d/{a}", "c": f"agents.d/{c}", "probe": "agents.d/probe.yaml"}

    run(scene)


# --- 3, 4: the folders themselves


@pytest.mark.conformance(3)
def test_agents_stay_for_the_removal_grace_when_their_folder_is_deleted(tmp_path: Path) -> None:
    async def scene() -> None:
        async with watched(write(tmp_path, {A: one("a")}), reconcile=NEVER) as seen:
            deleted = perf_counter()
            shutil.rmtree(tmp_path / "agents.d")
            await seen.live("a", None)
            assert perf_counter() - deleted >= 0.5
            assert not seen.current.agents
            write(tmp_path, {A: one("a", "Second.")})
            await seen.live("a", "Second.")
            write(tmp_path, {A: one("a", "Third.")})
            await seen.live("a", "Third.")
            assert len(seen.generations) == 3

    run(scene)


@pytest.mark.conformance(3)
def test_a_folder_recreated_within_the_grace_counts_as_never_removed(tmp_path: Path) -> None:
    async def scene() -> None:
        async with watched(write(tmp_path, {A: one("a")}), reconcile=NEVER) as seen:
            inode = (tmp_path / "agents.d").stat().st_ino
            shutil.rmtree(tmp_path / "agents.d")
            write(tmp_path, {A: one("a", "Second.")})
            assert (tmp_path / "agents.d").stat().st_ino != inode, "the watcher holds the old one"
            await seen.live("a", "Second.")
            await seen.until(lambda generation: "probe" not in generation.agents)
            write(tmp_path, {A: one("a", "Third.")})
            await seen.live("a", "Third.")
            assert all("a" in generation.agents for generation in seen.generations)

    run(scene)


@pytest.mark.conformance(4)
def test_a_renamed_folder_is_no_longer_watched(tmp_path: Path) -> None:
    async def scene() -> None:
        write(tmp_path, {A: one("a"), "next/a.yaml": one("a", "Next."), "next/probe.yaml": one("probe")})
        async with watched(tmp_path, reconcile=NEVER) as seen:
            (tmp_path / "agents.d").rename(tmp_path / "old")
            (tmp_path / "next").rename(tmp_path / "agents.d")
            await seen.live("a", "Next.")
            write(tmp_path, {"old/a.yaml": one("a", "Wrong.")})
            write(tmp_path, {A: one("a", "Right.")})
            await seen.live("a", "Right.")
            await seen.probe()
            assert len(seen.generations) == 3

    run(scene)


@pytest.mark.conformance(4)
@pytest.mark.parametrize("link", ["agents.d", "current"])
def test_a_link_to_a_folder_may_be_retargeted(tmp_path: Path, link: str) -> None:
    """The link is the folder of the agents, or that of the project."""
    below = "" if link == "agents.d" else "agents.d/"

    def release(number: int, text: str) -> None:
        files = {f"{below}a.yaml": one("a", text), f"{below}probe.yaml": one("probe")}
        write(tmp_path / f"releases/{number}", files)

    def point(number: int) -> None:
        (tmp_path / "fresh").symlink_to(f"releases/{number}")
        (tmp_path / "fresh").rename(tmp_path / link)

    async def scene() -> None:
        release(1, "First.")
        release(2, "Second.")
        point(1)
        root = tmp_path if link == "agents.d" else tmp_path / link
        async with watched(root, reconcile=NEVER) as seen:
            point(2)
            await seen.live("a", "Second.")
            release(1, "Wrong.")
            release(2, "Right.")
            await seen.live("a", "Right.")
            await seen.probe()
            assert len(seen.generations) == 3

    run(scene)


# --- 5: names


@pytest.mark.conformance(5)
@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems do not allow such names")
@pytest.mark.parametrize("name", [b"caf\xe9.yaml", b"caf\xe9/b.yaml"])
def test_a_name_that_is_not_utf_8_is_reported_and_the_watcher_restarts(tmp_path: Path, name: bytes) -> None:
    def put(path: bytes) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - a Path cannot contain such bytes
        with open(path, "w") as file:  # noqa: PTH123 - as above
            file.write(one("b"))

    async def scene() -> None:
        async with watched(write(tmp_path, {A: one("a")}), reconcile=NEVER) as seen:
            path = os.fsencode(tmp_path) + b"/agents.d/" + name
            await asyncio.to_thread(put, path)
            await seen.until(lambda generation: bool(generation.errors))
            assert seen.current.errors[0].message == "cannot be read: the file name is not UTF-8"
            assert seen.runtime.watcher is not None
            assert seen.runtime.watcher.restarts >= 1
            write(tmp_path, {A: one("a", "New.")})
            await seen.live("a", "New.")

    run(scene)


# --- 6, 7, 8: many files


@pytest.mark.conformance(6)
def test_quickly_created_and_moved_folders_are_read_completely(tmp_path: Path) -> None:
    def hurry() -> float:
        """Return the duration, in seconds."""
        began = perf_counter()
        for number in range(300):
            write(tmp_path, {f"agents.d/p{number}/q/x.yaml": one(f"n{number}")})
        return perf_counter() - began

    async def scene() -> None:
        write(tmp_path, {f"outside/deep/{number}.yaml": one(f"m{number}") for number in range(50)})
        async with watched(tmp_path, reconcile=NEVER) as seen:
            took = await asyncio.to_thread(hurry)
            await seen.until(lambda generation: len(generation.agents) == 301)
            (tmp_path / "outside").rename(tmp_path / "agents.d/inside")
            await seen.until(lambda generation: len(generation.agents) == 351)
            (tmp_path / "agents.d/inside").rename(tmp_path / "outside")
            await seen.until(lambda generation: len(generation.agents) == 301)
            if took < 0.8:  # new agents wait for 1 s, and no edit waits longer than 2 s
                assert len(seen.generations) == 3

    run(scene)


class Lags:
    """Measures the longest CPU time that the event loop's thread works before it takes up what is due every 5 ms."""

    PACE = 0.005

    def __init__(self) -> None:
        self.loop, self.longest, self.last = asyncio.get_running_loop(), 0.0, thread_time()
        self.tick()

    def tick(self) -> None:
        now = thread_time()
        self.longest, self.last = max(self.longest, now - self.last), now
        self.loop.call_later(self.PACE, self.tick)


@pytest.mark.conformance(7)
def test_three_hundred_rewritten_files_are_one_or_two_complete_generations(tmp_path: Path) -> None:
    def project(version: str) -> dict[str, str]:
        return {f"agents.d/{number}.yaml": one(f"n{number}", version) for number in range(300)}

    def rewrite() -> float:
        """Return the longest pause between two writes, in seconds."""
        longest, last = 0.0, perf_counter()
        for path, text in project("New.").items():
            write(tmp_path, {path: text})
            longest, last = max(longest, perf_counter() - last), perf_counter()
        return longest

    async def scene() -> None:
        async with watched(write(tmp_path, project("Old.")), reconcile=NEVER) as seen:
            gc.collect()
            gc.freeze()  # garbage collection must not depend on objects of earlier tests
            lags = Lags()
            longest = await asyncio.to_thread(rewrite)
            await seen.live("n299", "New.")
            await seen.probe()
            for generation in (
                seen.generations if longest < 0.1 else ()
            ):  # after a longer pause it counts as several edits
                descriptions = {agent.spec.description for name, agent in generation.agents.items() if name != "probe"}
                assert len(descriptions) == 1, "all old or all new"
            assert 1 <= len(seen.generations) - 1 <= 2
            assert lags.longest < 0.06, "building a generation in the loop takes more than 0.1 s"

    run(scene)


CHILD = """
import asyncio, sys
from framework import Runtime

async def main():
    async with Runtime.open(sys.argv[1]) as runtime:
        while True:
            generation = runtime.catalog.current
            print(*sorted({agent.spec.description for agent in generation.agents.values()}), flush=True)
            await runtime.wait_generation(generation.number + 1)

asyncio.run(main())
"""


@pytest.mark.conformance(8)
@pytest.mark.skipif(sys.platform != "linux", reason="inotify's queue")
def test_changes_without_file_events_are_still_detected(tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 200_000:
        pytest.skip("the queue is too long to be filled")

    def project(version: str) -> dict[str, str]:
        return {f"agents.d/{number}.yaml": one(f"n{number}", version) for number in range(300)}

    async def line(output: asyncio.StreamReader, expected: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while (await output.readline()).decode().strip() != expected:
                pass

    def flood() -> None:
        for number in range(limit + 1000):  # in turn, because equal consecutive events count as one
            os.utime(noise[number % 2])

    write(tmp_path, {**project("Old."), "agents.d/x.txt": "", "agents.d/y.txt": ""})
    noise = [tmp_path / "agents.d/x.txt", tmp_path / "agents.d/y.txt"]

    async def scene() -> None:
        here = ROOT
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD, tmp_path, stdout=asyncio.subprocess.PIPE, cwd=here
        )
        assert child.stdout is not None
        try:
            await line(child.stdout, "Old.")
            for text in ("First.", "Second."):  # the second is seen by the watch, which is in place then
                write(tmp_path, project(text))
                await line(child.stdout, text)
            child.send_signal(signal.SIGSTOP)
            await asyncio.to_thread(flood)
            await asyncio.to_thread(write, tmp_path, project("New."))
            child.send_signal(signal.SIGCONT)
            async with asyncio.timeout(PATIENCE):
                await line(child.stdout, "New.")
        finally:
            child.kill()
            await child.communicate()

    run(scene)


# --- 9: polling


@pytest.mark.conformance(9)
def test_two_writes_within_a_second_are_both_detected_without_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHFILES_FORCE_POLLING", "1")  # compares times by whole seconds

    async def scene() -> None:
        async with watched(write(tmp_path, {A: one("a")}), reconcile="500ms") as seen:
            write(tmp_path, {A: one("a", "First.")})
            await seen.live("a", "First.")
            time = (tmp_path / A).stat().st_mtime_ns
            write(tmp_path, {A: one("a", "Final.")})
            os.utime(tmp_path / A, ns=(time, time))
            await seen.live("a", "Final.")

    run(scene)


# --- 10, 11, 13: slow writers

POLICY = {
    "version": "1",
    "name": "a",
    "description": "{}",
    "model": "offline",
    "instructions": "Do it.",
    "runtime_policy": "{{max_steps: 3, timeout: 10s, risk_level: low}}",
    "skill_policy": '\n  allow: ["*"]\n  ask: [read_file]\n  deny: [list_dir, echo]',
    "routing": "{{keywords: [list], priority: 1}}",
}


def by_pieces(description: str) -> list[str]:
    """An agent file whose lines have 40 bytes each; policy comes last, so that its halves allow more than the whole."""
    text = "".join(f"{key}: {value}\n" for key, value in POLICY.items()).format(description)
    return [f"{line:<39}\n" if len(line) < 39 else line + "\n" for line in text.splitlines()]


def is_weaker(generation: Generation) -> bool:
    """Return whether a policy is weaker than both versions of the file."""
    spec = generation.agents["a"].spec
    return not (len(spec.skill_policy.deny) == 2 and spec.skill_policy.ask and spec.runtime_policy.max_steps == 3)


@pytest.mark.hostile(17)
@pytest.mark.conformance(10)
@pytest.mark.parametrize(("gap", "quiet"), [(0.02, 0.1), (0.06, 0.1), (0.15, 0.2), (0.15, 0.1)])
def test_a_partially_written_file_never_weakens_a_policy(tmp_path: Path, gap: float, quiet: float) -> None:
    async def scene() -> None:
        write(tmp_path, {A: "".join(by_pieces("Old."))})
        async with watched(tmp_path, reconcile=NEVER, quiet=f"{quiet}s") as seen:
            longest, last = 0.0, perf_counter()
            with (tmp_path / A).open("w") as file:
                for piece in by_pieces("New."):
                    file.write(piece)
                    file.flush()
                    longest, last = max(longest, perf_counter() - last), perf_counter()
                    await asyncio.sleep(gap)  # the writer's own pace
            await seen.live("a", "New.")
            assert not [generation.number for generation in seen.generations if is_weaker(generation)]
            if longest < quiet:  # otherwise the machine made a longer gap than intended
                assert len(seen.generations) == 1

    run(scene)


@pytest.mark.conformance(10)
def test_parts_of_that_file_would_weaken_the_policy() -> None:
    pieces, weaker = by_pieces("New."), 0
    for count in range(len(pieces)):
        try:
            spec, _ = parse_agent(A, "".join(pieces[:count]).encode())
        except ParseError:
            continue
        weaker += not spec.skill_policy.deny or spec.runtime_policy.max_steps != 3
    assert weaker >= 2


@pytest.mark.conformance(11)
def test_a_constantly_changing_file_takes_effect_periodically(tmp_path: Path) -> None:
    async def scene() -> None:
        async with watched(write(tmp_path, {A: one("a"), "agents.d/b.yaml": one("b")}), reconcile=NEVER) as seen:
            stopped = asyncio.Event()

            async def writer() -> None:
                number = 0
                while not stopped.is_set():
                    number += 1
                    await asyncio.to_thread(_replace, tmp_path / A, one("a", f"Version {number}."))
                    await asyncio.sleep(0.03)  # the writer's own pace

            writing = asyncio.create_task(writer())
            write(tmp_path, {"agents.d/b.yaml": one("b", "New.")})
            for _ in range(2):
                async with asyncio.timeout(PATIENCE):
                    await seen.runtime.wait_generation(seen.current.number + 1)
                assert (seen.description("a") or "").startswith("Version")
                assert seen.description("b") == "New."
            stopped.set()
            await writing

    run(scene)


@pytest.mark.conformance(13)
@pytest.mark.skipif(not shutil.which("git"), reason="there is no git")
def test_a_branch_checkout_never_mixes_versions_of_agent_and_template(tmp_path: Path) -> None:
    def project(version: str) -> dict[str, str]:
        agents = {f"agents.d/{n}.yaml": one(f"n{n}", version, instructions=f"{{template: {n}.j2}}") for n in range(150)}
        return agents | {f"prompts/{n}.j2": version for n in range(150)}

    def git(*words: str) -> None:
        identity = ("-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "core.hooksPath=/dev/null")
        command("git", *identity, *words, cwd=tmp_path)

    def repository() -> None:
        git("init", "-q", "-b", "main")
        write(tmp_path, {".git/info/exclude": "probe.yaml\n", **project("Old.")})
        git("add", ".")
        git("commit", "-q", "-m", "Old.")
        git("checkout", "-q", "-b", "next")
        write(tmp_path, project("New."))
        git("commit", "-q", "-a", "-m", "New.")
        git("checkout", "-q", "main")

    async def scene() -> None:
        async with watched(tmp_path, reconcile=NEVER) as seen:
            for branch, version in (("next", "New."), ("main", "Old."), ("next", "New.")):
                await asyncio.to_thread(git, "checkout", "-q", branch)
                await seen.live("n149", version)
            for generation in seen.generations:
                mixed = [
                    name
                    for name, agent in generation.agents.items()
                    if name != "probe" and agent.instructions("en", {}, None) != agent.spec.description
                ]
                assert not mixed
            assert len(seen.generations) == 3

    repository()
    run(scene)


# --- 44: the end


def descriptors() -> set[str]:
    return {path.name for path in Path("/dev/fd").iterdir()}


@pytest.mark.conformance(44)
def test_closing_idle_or_during_a_reload_is_quick_and_leaves_no_tasks(tmp_path: Path) -> None:
    write(tmp_path, {f"agents.d/{number}.yaml": one(f"n{number}") for number in range(20)})

    async def open_and_close(number: int) -> tuple[float, float]:
        """Return how long both took, in seconds: on a slow machine both take longer."""
        began = perf_counter()
        async with AsyncExitStack() as stack:
            runtime = await stack.enter_async_context(Runtime.open(tmp_path))
            opening = perf_counter() - began
            live = runtime.catalog.current.number
            if number % 2:
                write(tmp_path, {"agents.d/0.yaml": one("n0", f"Version {perf_counter()}.")})
            if number % 8 == 1:
                await runtime.wait_generation(live + 1)
            for _ in range(number):  # somewhere in the first scan
                await asyncio.sleep(0)
            began = perf_counter()
            await stack.aclose()
            return opening, perf_counter() - began

    async def scene(times: int) -> None:
        tasks = asyncio.all_tasks()
        took = [await open_and_close(number) for number in range(times)]
        opening, closing = (median(durations) for durations in zip(*took, strict=True))
        assert closing <= max(0.2, 2 * opening)
        assert max(seconds for _, seconds in took) <= PATIENCE, "even if the machine pauses"
        assert asyncio.all_tasks() == tasks
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("agentsd-watch")]

    asyncio.run(scene(2))  # loads modules that are loaded once
    threads, before = set(threading.enumerate()), descriptors()
    asyncio.run(scene(50))
    assert set(threading.enumerate()) == threads
    ends = perf_counter() + PATIENCE
    while not descriptors() <= before and perf_counter() < ends:
        os.sched_yield()  # watchfiles closes its descriptors in a separate thread
    assert descriptors() <= before
