"""`write_file` and `edit_file` change a file completely or not at all, and report the change."""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Approve, Runtime
from framework.testing import ScriptedModel
from framework.tools import files
from framework.tools.builtin import BUILTIN_TOOLS
from framework.tools.builtin.files import edit_file, read_file, write_file
from framework.tools.tool import ToolContext
from framework.types.errors import ToolError
from framework.types.messages import ToolCall
from tests.support.cases import cases
from tests.support.projects import agent, write


def context(base: Path) -> ToolContext:
    return ToolContext(run_id="r", call_id="c", agent="a", base_path=base)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["write_file", "edit_file"])
def test_tools_that_write_declare_a_high_risk(name: str) -> None:
    tool = {tool.name: tool for tool in BUILTIN_TOOLS}[name]
    assert (tool.risk, tool.idempotent) == ("high", False)
    assert all(spec["description"] for spec in tool.definition.parameters["properties"].values())


@pytest.mark.parametrize(("risk_level", "status"), [("medium", "completed"), ("high", "paused")])
def test_nothing_is_written_without_permission_and_approval(tmp_path: Path, risk_level: str, status: str) -> None:
    policy = {"skill_policy": "{allow: [write_file]}", "runtime_policy": f"{{risk_level: {risk_level}}}"}
    root = write(tmp_path, {"agents.d/one.yaml": agent("one", **policy)})
    call = ToolCall(id="c", tool="write_file", arguments={"path": "a.txt", "content": "text"})

    async def main() -> None:
        model = ScriptedModel((call,), "done")
        async with Runtime.open(root, models={"scripted": model}, watch=False) as runtime:
            result = await runtime.run("go")
            assert result.status == status
            assert not (root / "a.txt").exists()
            if result.pending:
                await runtime.resume(result.run_id, {result.pending[0].id: Approve()})

    asyncio.run(main())
    assert (root / "a.txt").exists() == (status == "paused")


def test_a_new_file_is_written_with_its_folders(tmp_path: Path) -> None:
    output = write_file("a/b/new.txt", "one\ntwo", context=context(tmp_path))

    assert output == "wrote 'a/b/new.txt': a new file of 2 lines, 7 bytes"
    assert (tmp_path / "a/b/new.txt").read_bytes() == b"one\ntwo"
    assert names(tmp_path / "a/b") == ["new.txt"]


def test_create_never_replaces_a_file_and_names_the_alternatives(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("mine\n")
    with pytest.raises(
        ToolError, match=r"'a.txt' exists already, with 1 line, 5 bytes: edit_file .* append .* overwrite"
    ):
        write_file("a.txt", "yours", context=context(tmp_path))
    assert (tmp_path / "a.txt").read_text() == "mine\n"


def test_overwrite_and_append_report_the_sizes_before_and_after(tmp_path: Path) -> None:
    def write(content: str, mode: str) -> str:
        return str(write_file("a.txt", content, mode, context=context(tmp_path)))

    assert write("1\n", "append") == "wrote 'a.txt': a new file of 1 line, 2 bytes"
    assert write("2\n3\n", "append") == "added 2 lines, 4 bytes to 'a.txt', which has 3 lines, 6 bytes now"
    assert (tmp_path / "a.txt").read_text() == "1\n2\n3\n"
    assert write("x", "overwrite") == "overwrote 'a.txt': 1 line, 1 byte now, 3 lines, 6 bytes before"
    assert write("x", "overwrite") == "'a.txt' has this content already: nothing was changed"
    assert write("", "overwrite") == "overwrote 'a.txt': 0 lines, 0 bytes now, 1 line, 1 byte before"
    assert (tmp_path / "a.txt").read_text() == ""


def test_permissions_are_kept_and_new_files_have_the_usual_ones(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("echo one\n")
    script.chmod(0o750)
    os.umask(mask := os.umask(0))

    edit_file("run.sh", "one", "two", context=context(tmp_path))
    write_file("new.txt", "", context=context(tmp_path))

    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "new.txt").stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("docs", "is a folder"),
        ("docs/", "ends in /"),
        (".", "base folder itself"),
        ("", "base folder itself"),
        ("../x", r"must not contain '\.\.'"),
        ("/etc/passwd", "outside the base folder"),
        ("~/x", "must not begin with"),
        ("C:\\x", "backslash"),
        ("link.txt", "symbolic link"),
        ("dangling.txt", "symbolic link"),
        ("linked/new.txt", "'linked' is a symbolic link"),
        ("hard.txt", "hard link"),
        ("pipe", "pipe or a device"),
        ("file.txt/new.txt", "'file.txt' is not a folder"),
        ("locked.txt", "read-only"),
        ("x" * 256, "File name too long"),
        ("x" * 256 + "/a", "cannot be created: File name too long"),
        ("big.txt", "larger than"),
    ],
)
def test_rejections_change_nothing_and_name_no_host_path(tmp_path: Path, path: str, message: str) -> None:
    outside, base = tmp_path / "outside", tmp_path / "base"
    (base / "docs").mkdir(parents=True)
    outside.mkdir()
    for place in (outside / "s.txt", base / "file.txt", base / "locked.txt"):
        place.write_text("as it was")
    (base / "locked.txt").chmod(0o444)
    (base / "big.txt").write_bytes(b"x" * (files.MAX_FILE_BYTES + 1))
    (base / "link.txt").symlink_to(outside / "s.txt")
    (base / "dangling.txt").symlink_to(outside / "new.txt")
    (base / "linked").symlink_to(outside)
    (base / "hard.txt").hardlink_to(outside / "s.txt")
    os.mkfifo(base / "pipe")
    before = sorted(tmp_path.rglob("*"))

    for mode in ("overwrite", "append"):
        with pytest.raises(ToolError, match=message) as refusal:
            write_file(path, "new", mode, context=context(base))
        assert str(tmp_path) not in str(refusal.value)

    assert sorted(tmp_path.rglob("*")) == before
    assert {place.read_text() for place in (outside / "s.txt", base / "file.txt", base / "locked.txt")} == {"as it was"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\0b", "zero byte"),
        ("a\ud800", "broken Unicode at character 2"),
        ("é" * (files.MAX_FILE_BYTES // 2 + 1), r"the limit is 1\.0 MB"),
    ],
)
def test_only_text_within_the_size_limit_is_written(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        write_file("new/a.txt", content, context=context(tmp_path))
    assert not names(tmp_path)


def test_a_file_does_not_grow_past_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * files.MAX_FILE_BYTES)
    with pytest.raises(ToolError, match="would have"):
        write_file("a.txt", "x", "append", context=context(tmp_path))


def test_a_write_that_fails_leaves_the_file_unchanged_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "a.txt").write_text("as it was")
    monkeypatch.setattr(os, "fsync", full)
    for path, mode in (("a.txt", "overwrite"), ("new.txt", "create")):
        with pytest.raises(ToolError, match="cannot be written: No space left"):
            write_file(path, "new", mode, context=context(tmp_path))

    assert names(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "as it was"


def test_a_change_by_another_process_during_the_call_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_and_name(_bytes: int) -> str:  # called after the file was read and before it is replaced
        (tmp_path / "a.txt").write_text("saved by a human")
        return "0" * 16

    monkeypatch.setattr(secrets, "token_hex", save_and_name)
    with pytest.raises(ToolError, match="created by another process"):
        write_file("a.txt", "new", context=context(tmp_path))
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(ToolError, match="changed by another process"):
        edit_file("a.txt", "old", "new", context=context(tmp_path))

    assert (tmp_path / "a.txt").read_text() == "saved by a human"
    assert names(tmp_path) == ["a.txt"]


def test_concurrent_edits_of_one_file_are_all_kept(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"<{n}>\n" for n in range(40)))
    with ThreadPoolExecutor(8) as threads:
        for done in [
            threads.submit(edit_file, "a.txt", f"<{n}>", f"[{n}]", context=context(tmp_path)) for n in range(40)
        ]:
            done.result()
    assert (tmp_path / "a.txt").read_text() == "".join(f"[{n}]\n" for n in range(40))


def test_one_of_many_concurrent_creations_of_a_file_succeeds(tmp_path: Path) -> None:
    def create(n: int) -> str | None:
        try:
            return str(n) if write_file("a.txt", str(n), context=context(tmp_path)) else None
        except ToolError:
            return None

    with ThreadPoolExecutor(8) as threads:
        winners = [winner for winner in threads.map(create, range(30)) if winner]
    assert winners == [(tmp_path / "a.txt").read_text()]


def test_an_edit_reports_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\ntwo\nthree\ntwo\n")

    once = edit_file("a.py", "three\n", "3\n3\n", context=context(tmp_path))
    everywhere = edit_file("a.py", "two", "", replace_all=True, context=context(tmp_path))

    assert once == "replaced it at line 3; 'a.py' has 5 lines, 16 bytes now"
    assert everywhere == "replaced it 2 times, first at line 2; 'a.py' has 5 lines, 10 bytes now"
    assert (tmp_path / "a.py").read_text() == "one\n\n3\n3\n\n"


@pytest.mark.parametrize(
    ("old", "message"),
    [
        ("two", r"more than once in 'a.py' \(lines 2, 4\): add lines around it, or replace_all"),
        ("aa", r"more than once in 'a.py' \(lines 5, 5\)"),
        ("x", r"\(lines 6, 6, 6, 6, 6 and others\)"),
        ("def  f(x):\n  pass", r"is not in 'a.py'; the most similar line is 1: 'def f\(y\):'"),
        ("\n\n  something_else_entirely", "no line is similar to its first line; read the file"),
        ("", "must not be empty"),
        ("new", "same text"),
    ],
)
def test_an_edit_that_does_not_match_is_explained_and_changes_nothing(tmp_path: Path, old: str, message: str) -> None:
    text = "def f(y):\n  two\nthree\n  two\naaa\nxxxxxxxx\n"
    (tmp_path / "a.py").write_text(text)
    with pytest.raises(ToolError, match=message):
        edit_file("a.py", old, "new", context=context(tmp_path))
    assert (tmp_path / "a.py").read_text() == text


def test_only_existing_text_files_are_edited(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"old\0")
    (tmp_path / "latin.txt").write_bytes(b"old \xe9")
    for path, message in (("a.bin", "binary"), ("latin.txt", "not UTF-8 text \\(at byte 5\\)"), ("no.txt", "no file")):
        with pytest.raises(ToolError, match=message):
            edit_file(path, "old", "new", context=context(tmp_path))
    with pytest.raises(ToolError, match="no folder 'nowhere'"):
        edit_file("nowhere/a.txt", "old", "new", context=context(tmp_path))
    assert names(tmp_path) == ["a.bin", "latin.txt"]


def test_line_endings_and_the_byte_order_mark_are_kept(tmp_path: Path) -> None:
    (tmp_path / "win.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n")
    (tmp_path / "mixed.txt").write_bytes(b"one\r\ntwo\nthree\n")

    edit_file("win.txt", "one\ntwo", "1\n2", context=context(tmp_path))
    edit_file("mixed.txt", "two\n", "2\n", context=context(tmp_path))

    assert (tmp_path / "win.txt").read_bytes() == b"\xef\xbb\xbf1\r\n2\r\nthree\r\n"
    assert (tmp_path / "mixed.txt").read_bytes() == b"one\r\n2\nthree\n"


@cases(60)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=60), st.data())
def test_an_edit_does_what_str_replace_does(
    tmp_path_factory: pytest.TempPathFactory, text: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("edit")
    start = data.draw(st.integers(0, len(text)))
    old = text[start : data.draw(st.integers(start, len(text)))] or "missing"
    (folder / "a.txt").write_text(text, newline="")
    if old == "new" or old not in text:
        with pytest.raises(ToolError):
            edit_file("a.txt", old, "new", replace_all=True, context=context(folder))
        return

    edit_file("a.txt", old, "new", replace_all=True, context=context(folder))

    assert (folder / "a.txt").read_bytes() == text.replace(old, "new").encode()


def test_a_written_file_can_be_read(tmp_path: Path) -> None:
    write_file("日本/é.txt", "naïve\n日本\n", context=context(tmp_path))
    assert read_file("日本/é.txt", context=context(tmp_path)) == "naïve\n日本"
