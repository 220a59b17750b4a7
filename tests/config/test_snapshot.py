"""Every relevant file is read consistently, and only if it may have changed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config import snapshot as scanner_module
from framework.config.snapshot import (
    COARSE_NS,
    FINE_NS,
    Scanner,
    build_snapshot,
    read_consistent,
    take_snapshot,
    was_stable,
)
from tests.support.cases import cases
from tests.support.projects import write

A = "agents.d/a.yaml"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were opened, by name."""
    names: list[str] = []

    def noted(path: str, *limits: int) -> tuple[bytes, scanner_module.Fingerprint]:
        names.append(Path(path).name)
        return read_consistent(path, *limits)

    monkeypatch.setattr(scanner_module, "read_consistent", noted)
    return names


def settled(*paths: Path) -> None:
    """Wait until the next change of the files will have a different modification time."""
    while time.time_ns() - max(path.stat().st_ctime_ns for path in paths) <= FINE_NS:
        os.sched_yield()


def test_only_changed_files_are_opened_again(tmp_path: Path, opened: list[str]) -> None:
    write(tmp_path, {A: "a", "agents.d/b.yaml": "b", "prompts/c.j2": "c", "agents.d/a.test.yaml": "cases: []"})
    settled(*(path for path in tmp_path.rglob("*") if path.is_file()))
    scanner = Scanner(tmp_path)
    first = scanner.scan()
    assert sorted(opened) == ["a.test.yaml", "a.yaml", "b.yaml", "c.j2"]
    opened.clear()
    assert scanner.scan() is first
    assert not opened
    write(tmp_path, {A: "new"})
    second = scanner.scan()
    assert (second.files[A], opened) == (b"new", ["a.yaml"])
    assert second.digest != first.digest
    assert second.digest == take_snapshot(tmp_path).digest


def test_a_recently_changed_file_is_read_again_despite_equal_times(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanner_module, "FINE_NS", 3600 * 10**9)  # recent, however long this process is not scheduled
    write(tmp_path, {A: "a"})
    scanner = Scanner(tmp_path)
    first = scanner.scan()
    assert scanner.scan() is first
    assert opened == ["a.yaml", "a.yaml"]


@pytest.mark.parametrize(("fraction", "needed"), [(5, FINE_NS), (0, COARSE_NS)])
def test_stability_depends_on_the_resolution_of_file_times(fraction: int, needed: int) -> None:
    changed = 1_700_000_000 * 10**9 + fraction
    assert was_stable((1, 1, 1, 1, changed), changed + needed + 1)
    assert not was_stable((1, 1, 1, 1, changed), changed + needed)
    assert not was_stable((1, 1, 1, 1, changed), changed - 10**9), "a clock that goes wrong"


@pytest.mark.conformance(15)
def test_an_edit_with_equal_size_and_restored_mtime_is_detected(tmp_path: Path) -> None:
    write(tmp_path, {A: "aaaa"})
    scanner = Scanner(tmp_path)
    settled(tmp_path / A)
    scanner.scan()
    before = (tmp_path / A).stat()
    (tmp_path / A).write_text("bbbb")
    os.utime(tmp_path / A, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = (tmp_path / A).stat()
    assert (after.st_mtime_ns, after.st_size, after.st_ino) == (before.st_mtime_ns, before.st_size, before.st_ino)
    assert scanner.scan().files[A] == b"bbbb"


@pytest.mark.conformance(14)
def test_touch_chmod_and_rewriting_equal_bytes_keep_the_snapshot(tmp_path: Path) -> None:
    write(tmp_path, {A: "a"})
    scanner = Scanner(tmp_path)
    first = scanner.scan()
    (tmp_path / A).touch()
    assert scanner.scan() is first
    (tmp_path / A).chmod(0o600)
    assert scanner.scan() is first
    write(tmp_path, {"fresh": "a"})
    (tmp_path / "fresh").replace(tmp_path / A)
    assert scanner.scan() is first


def test_equal_files_share_the_bytes_that_are_known(tmp_path: Path) -> None:
    write(tmp_path, {A: "a" * 100, "agents.d/b.yaml": "b" * 100})
    known = {A: take_snapshot(tmp_path).files[A], "agents.d/b.yaml": b"else"}
    found = Scanner(tmp_path, known=known).scan()
    assert found.files[A] is known[A]
    assert found.files["agents.d/b.yaml"] == b"b" * 100


@pytest.fixture
def disturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Texts written to `agents.d/a.yaml` in turn, each while it is being read."""
    texts: list[str] = []
    original = os.read

    def read_and_write(descriptor: int, length: int) -> bytes:
        part = original(descriptor, length)
        if part and texts and os.fstat(descriptor).st_ino == (tmp_path / A).stat().st_ino:
            (tmp_path / A).write_text(texts.pop())
        return part

    with monkeypatch.context() as patched:
        patched.setattr(os, "read", read_and_write)
        yield texts


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path, disturbed: list[str]) -> None:
    write(tmp_path, {A: "first"})
    disturbed += ["third, and longer", "2"]
    assert take_snapshot(tmp_path).files == {A: b"third, and longer"}
    assert not disturbed


def test_a_file_that_keeps_changing_while_it_is_read_is_reported(tmp_path: Path, disturbed: list[str]) -> None:
    write(tmp_path, {A: "first", "agents.d/b.yaml": "b"})
    disturbed += [letter * length for length in range(1, 50) for letter in "xy"]
    found = take_snapshot(tmp_path)
    assert found.files == {"agents.d/b.yaml": b"b"}
    assert [str(problem) for problem in found.problems] == [f"{A}: cannot be read: still being written"]


def test_folders_may_be_nested_deeper_than_the_call_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "agents.d"
    folder.mkdir()
    monkeypatch.chdir(folder)
    deep = sys.getrecursionlimit() + 10
    for _ in range(deep):
        os.mkdir("d")  # noqa: PTH102 - a Path of that many parts is slow
        os.chdir("d")
    Path("a.yaml").write_text("a")
    try:
        assert take_snapshot(tmp_path).files == {"agents.d/" + "d/" * deep + "a.yaml": b"a"}
    finally:  # shutil.rmtree cannot
        Path("a.yaml").unlink()
        for _ in range(deep):
            os.chdir("..")
            os.rmdir("d")  # noqa: PTH106 - as above


def link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def test_a_link_to_a_hidden_folder_is_followed(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/..2026/team/c.yaml": "c"})
    link(tmp_path / "agents.d/..data", "..2026")
    link(tmp_path / "agents.d/team", "..data/team")
    found = take_snapshot(tmp_path)
    assert (found.files, found.problems) == ({"agents.d/team/c.yaml": b"c"}, ())


def test_a_link_to_a_visible_folder_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/team/c.yaml": "c"})
    link(tmp_path / "agents.d/other", "team")
    link(tmp_path / "agents.d/team/round", "..")
    found = take_snapshot(tmp_path)
    assert (list(found.files), found.problems) == (["agents.d/team/c.yaml"], ())


def test_cyclic_links_of_hidden_folders_terminate(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/.hidden/c.yaml": "c"})
    link(tmp_path / "agents.d/.hidden/again", ".")
    link(tmp_path / "agents.d/shown", ".hidden")
    assert list(take_snapshot(tmp_path).files) == ["agents.d/shown/c.yaml"]


@pytest.mark.parametrize("target", ["../outside", "..data/out"])
def test_a_link_that_points_outside_is_reported(tmp_path: Path, target: str) -> None:
    write(tmp_path, {"outside/b.yaml": "b", A: "a"})
    link(tmp_path / "agents.d/..data/out", "../../outside")
    link(tmp_path / "agents.d/team", target)
    found = take_snapshot(tmp_path)
    assert list(found.files) == [A]
    assert [str(problem) for problem in found.problems] == [
        "agents.d/team: cannot be read: symbolic link points outside its folder"
    ]


def test_files_may_be_kept_in_their_earlier_version(tmp_path: Path) -> None:
    write(tmp_path, {A: "old", "agents.d/b.yaml": "old"})
    before = take_snapshot(tmp_path)
    write(tmp_path, {A: "new", "agents.d/b.yaml": "new", "agents.d/c.yaml": "new"})
    (tmp_path / A).unlink()
    os.mkfifo(tmp_path / A)
    after = take_snapshot(tmp_path)
    assert after.problems
    held = after.with_earlier({A, "agents.d/c.yaml"}, before)
    assert (dict(held.files), held.problems) == ({A: b"old", "agents.d/b.yaml": b"new"}, ())
    assert after.with_earlier({A, "agents.d/b.yaml", "agents.d/c.yaml"}, before).digest == before.digest
    assert after.with_earlier(set(), before).digest == after.digest


CONTENTS = st.dictionaries(st.sampled_from(["agents.d/a.yaml", "b.yaml", "prompts/c.j2"]), st.binary(max_size=3))


@cases(100)
@given(
    first=CONTENTS,
    edits=st.lists(st.dictionaries(st.sampled_from(["b.yaml", "prompts/c.j2"]), st.binary(max_size=3) | st.none())),
)
def test_an_edited_snapshot_equals_a_new_one(first: dict[str, bytes], edits: list[dict[str, bytes | None]]) -> None:
    snapshot = original = build_snapshot(first, (), {})
    for edit in edits:
        snapshot = snapshot.edited(edit, (), {})
    files = dict(snapshot.files)
    fresh = build_snapshot(files, (), {})
    assert (list(fresh.files.items()), fresh.digest) == (list(files.items()), snapshot.digest)
    different = {path for path in first.keys() | files.keys() if first.get(path) != files.get(path)}
    assert snapshot.changed_files(original) == different
    assert (snapshot.digest == original.digest) == (not different)
