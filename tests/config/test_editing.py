"""Files are written atomically, and only if they are the version that an edit started from."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config import editing
from framework.config.editing import FileChanged, edit_refusal, write_if_unchanged
from framework.config.snapshot import take_snapshot
from framework.types.text import source_digest
from tests.support.cases import cases, each
from tests.support.paths import ROOT

PATH = "agents.d/one.yaml"
RACER = """
import sys
from pathlib import Path
from framework.config.editing import FileChanged, write_if_unchanged
root, expected, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
print("ready", flush=True)
sys.stdin.readline()
try:
    write_if_unchanged(root, "agents.d/one.yaml", name.encode(), expected)
    print("won")
except FileChanged:
    print("lost")
"""


def project(root: Path, text: bytes = b"old") -> Path:
    (root / "agents.d").mkdir(parents=True)
    (root / PATH).write_bytes(text)
    return root


def leftovers(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "agents.d").iterdir() if path.name.startswith("."))


def test_an_edit_replaces_the_version_that_it_began_from_and_keeps_the_mode(tmp_path: Path) -> None:
    root = project(tmp_path)
    (root / PATH).chmod(0o640)
    before = (root / PATH).stat().st_ino
    write_if_unchanged(root, PATH, b"new", source_digest(b"old"))
    assert (root / PATH).read_bytes() == b"new"
    assert ((root / PATH).stat().st_mode & 0o777, leftovers(root)) == (0o640, [])
    assert (root / PATH).stat().st_ino != before, "readers of the old file keep it whole"


def test_another_version_is_kept_and_named(tmp_path: Path) -> None:
    root = project(tmp_path, b"theirs")
    with pytest.raises(FileChanged) as changed:
        write_if_unchanged(root, PATH, b"new", source_digest(b"old"))
    assert changed.value.digest == source_digest(b"theirs")
    (root / PATH).unlink()
    with pytest.raises(FileChanged) as changed:
        write_if_unchanged(root, PATH, b"new", source_digest(b"old"))
    assert changed.value.digest is None
    assert (leftovers(root), (root / PATH).exists()) == ([], False)


def test_a_new_file_does_not_replace_one(tmp_path: Path) -> None:
    root = project(tmp_path)
    write_if_unchanged(root, "prompts/team/new.j2", b"hello", None)
    assert (root / "prompts/team/new.j2").read_bytes() == b"hello"
    with pytest.raises(FileChanged):
        write_if_unchanged(root, PATH, b"new", None)
    assert (root / PATH).read_bytes() == b"old"


@pytest.mark.parametrize("replaces", [True, False], ids=["by a rename", "in place"])
@pytest.mark.parametrize("supported", [True, False], ids=["exchange", "without exchange"])
def test_an_edit_between_the_check_and_the_rename_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaces: bool, supported: bool
) -> None:
    root = project(tmp_path)
    exchange = editing._exchange

    def edit_before(folder: int, one: str, other: str) -> None:
        monkeypatch.setattr(editing, "_exchange", exchange)
        if replaces:
            (root / "swap").write_bytes(b"theirs")
            (root / "swap").replace(root / PATH)
        else:
            (root / PATH).write_bytes(b"theirs")
        if not supported:
            raise OSError(22, "not supported")
        exchange(folder, one, other)

    monkeypatch.setattr(editing, "_exchange", edit_before)
    with pytest.raises(FileChanged) as changed:
        write_if_unchanged(root, PATH, b"ours", source_digest(b"old"))
    assert changed.value.digest == source_digest(b"theirs")
    assert ((root / PATH).read_bytes(), leftovers(root)) == (b"theirs", [])


def test_an_edit_while_the_files_are_exchanged_back_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, exchange, calls = project(tmp_path), editing._exchange, list[str]()

    def edit_twice(folder: int, one: str, other: str) -> None:
        if len(calls) < 2:
            (root / "swap").write_bytes(b"first" if not calls else b"second")
            (root / "swap").replace(root / PATH)
        calls.append(one)
        exchange(folder, one, other)

    monkeypatch.setattr(editing, "_exchange", edit_twice)
    with pytest.raises(FileChanged):
        write_if_unchanged(root, PATH, b"ours", source_digest(b"old"))
    assert ((root / PATH).read_bytes(), leftovers(root)) == (b"second", [])


def test_of_concurrent_edits_of_one_version_exactly_one_is_written(tmp_path: Path) -> None:
    @cases(5)
    @given(rounds=st.integers(2, 8))
    def race(rounds: int) -> None:
        root = project(Path(os.path.realpath(tmp_path)) / os.urandom(4).hex())
        barrier, stop = threading.Barrier(rounds), threading.Event()

        def write(number: int) -> bool:
            barrier.wait()
            try:
                write_if_unchanged(root, PATH, f"edit {number}".encode(), source_digest(b"old"))
            except FileChanged:
                return False
            return True

        busy = threading.Thread(target=lambda: [take_snapshot(root) for _ in iter(stop.is_set, True)])
        busy.start()
        with ThreadPoolExecutor(rounds) as threads:
            won = list(threads.map(write, range(rounds)))
        stop.set()
        busy.join()
        assert won.count(True) == 1
        assert (root / PATH).read_text() == f"edit {won.index(True)}"
        assert leftovers(root) == []

    race()


def test_processes_that_edit_one_version_agree_on_the_winner(tmp_path: Path) -> None:
    root = project(tmp_path)
    command = [sys.executable, "-c", RACER, str(root), source_digest(b"old")]
    racers = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for name in "abc"
    ]
    for racer in racers:
        assert racer.stdout
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin
        racer.stdin.write("\n")
        racer.stdin.flush()
    results = [racer.communicate()[0].strip() for racer in racers]
    assert sorted(results) == ["lost", "lost", "won"]
    assert (root / PATH).read_text() == "abc"[results.index("won")]


@pytest.mark.parametrize("expected", [None, source_digest(b"secret")])
def test_symbolic_links_are_not_followed(tmp_path: Path, expected: str | None) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "one.yaml").write_bytes(b"secret")
    root = tmp_path / "project"
    (root / "agents.d").mkdir(parents=True)
    (root / "agents.d/link.yaml").symlink_to(outside / "one.yaml")
    (root / "agents.d/folder").symlink_to(outside)
    (root / "prompts").symlink_to(outside)
    for path in ("agents.d/link.yaml", "agents.d/folder/one.yaml", "prompts/one.j2", "agents.d/folder/new.yaml"):
        with pytest.raises((OSError, FileChanged)):
            write_if_unchanged(root, path, b"new", expected)
    assert [*outside.iterdir()] == [outside / "one.yaml"]
    assert (outside / "one.yaml").read_bytes() == b"secret"


def test_a_folder_that_is_read_only_raises(tmp_path: Path) -> None:
    root = project(tmp_path)
    (root / "agents.d/one.yaml").unlink()
    (root / "agents.d/one.yaml").mkdir()
    with pytest.raises(OSError, match="no regular file"):
        write_if_unchanged(root, PATH, b"new", source_digest(b"old"))


@pytest.mark.parametrize(
    "path",
    ["agents.d/one.yaml", "agents.d/team/two.yml", "agents.d/one.test.yaml", "prompts/a/b.zh.j2", "prompts/_part.j2"],
)
def test_agent_files_and_templates_may_be_edited(path: str) -> None:
    assert edit_refusal(path) is None


@each(
    ("path", "why"),
    [
        ("agentsd.yaml", "settings"),
        ("plugins/a.py", "plugins are code"),
        ("plugins/docs.yaml", "plugins are code"),
        ("", "expected agents.d/NAME.yaml"),
        ("agents.d", "expected"),
        ("agents.d/", "expected"),
        ("agents.d/../agentsd.yaml", "expected"),
        ("agents.d/../../etc/passwd.yaml", "expected"),
        ("/etc/passwd", "expected"),
        ("/agents.d/one.yaml", "expected"),
        ("./agents.d/one.yaml", "expected"),
        ("agents.d//one.yaml", "expected"),
        ("agents.d/./one.yaml", "expected"),
        ("agents.d\\one.yaml", "expected"),
        ("agents.d/a\\one.yaml", "expected"),
        ("agents.d/one.yaml\0.yaml", "expected"),
        ("agents.d/one\n.yaml", "expected"),
        ("agents.d/one\u202e.yaml", "expected"),
        ("agents.d/one\u200b.yaml", "expected"),
        ("agents.d/one.txt", "expected"),
        ("agents.d/one.yaml~", "expected"),
        ("agents.d/.one.yaml", "expected"),
        ("agents.d/_one.yaml", "expected"),
        ("agents.d/.git/one.yaml", "expected"),
        ("agents.d/__pycache__/one.yaml", "expected"),
        ("prompts/one.yaml", "expected"),
        ("agents.d/one.j2", "expected"),
        ("agents.d/" + "x" * 300 + ".yaml", "expected"),
        ("agents.d/" + "x/" * 300 + "one.yaml", "expected"),
        (".agentsd/state.db", "expected"),
        ("data/one.yaml", "expected"),
        ("agents.d/\udcff.yaml", "expected"),
    ],
)
def test_other_paths_are_refused_with_the_reason(path: str, why: str) -> None:
    assert why in (edit_refusal(path) or "")


NAMES = ["agents.d", "prompts", "..", ".", "", "__x", ".x", "a.yaml", "b.test.yml", "_x.j2", "plugins"]


@cases(100)
@given(parts=st.lists(st.text(max_size=8) | st.sampled_from(NAMES), min_size=1, max_size=4), top=st.sampled_from(NAMES))
def test_an_accepted_path_is_one_that_a_scan_reads(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], top: str
) -> None:
    path = "/".join([top, *parts])
    if edit_refusal(path) is None:
        root = tmp_path_factory.mktemp("project")
        write_if_unchanged(root, path, b"text", None)
        found = take_snapshot(root)
        assert {**found.files, **found.cases} == {path: b"text"}


def test_a_project_of_one_file_has_only_that_file() -> None:
    assert edit_refusal("one.yaml", "one.yaml") is None
    for path in ("two.yaml", "agents.d/one.yaml", "../one.yaml"):
        assert "expected one.yaml" in (edit_refusal(path, "one.yaml") or "")
