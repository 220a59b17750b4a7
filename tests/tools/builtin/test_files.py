"""File tools show files below the base path only."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.tools.builtin import BUILTIN_TOOLS
from framework.tools.builtin import files as file_tools
from framework.tools.builtin.files import list_dir, read_file, search_files
from framework.tools.builtin.notes import echo
from framework.tools.tool import ToolContext
from framework.types.errors import ToolError
from tests.support.cases import cases

SECRET = "the secret outside"


def context(base: Path) -> ToolContext:
    return ToolContext(run_id="r", call_id="c", agent="a", base_path=base)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return build(tmp_path)


def build(outer: Path) -> Path:
    (outer / "outside").mkdir()
    (outer / "outside" / "secret.txt").write_text(SECRET)
    base = outer / "base"
    (base / "docs" / "deep").mkdir(parents=True)
    (base / "readme.md").write_text("# Readme\nHello World\n")
    (base / "docs" / "notes.txt").write_text("one\ntwo\nthree\n")
    (base / "docs" / "deep" / "日本 plan.txt").write_text("hello from deep\n")
    (base / "link.txt").symlink_to(outer / "outside" / "secret.txt")
    (base / "linked").symlink_to(outer / "outside")
    (base / "hard.txt").hardlink_to(outer / "outside" / "secret.txt")
    os.mkfifo(base / "pipe")
    (base / "data.bin").write_bytes(b"hello\0world")
    (base / ".env").write_text("KEY=hello")
    return base


def search_for_secret(path: str, *, context: ToolContext) -> str:
    return str(search_files("secret", path, context=context))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../outside/secret.txt", r"must not contain '\.\.'"),
        ("docs/../readme.md", r"must not contain '\.\.'"),
        ("/etc/passwd", "outside the base folder"),
        ("//etc/passwd", "outside the base folder"),
        ("~/secret.txt", "must not begin with"),
        ("~root", "must not begin with"),
        ("..\\outside\\secret.txt", "backslash"),
        ("readme.md\0.png", "control characters"),
        ("read\nme.md", "control characters"),
        ("read\ud800me.md", "broken Unicode"),
        ("%2e%2e/outside/secret.txt", "no folder '%2e%2e'"),
        ("link.txt", "'link.txt' is a symbolic link"),
        ("linked/secret.txt", "'linked' is a symbolic link"),
        ("hard.txt", "hard link"),
        ("pipe", "pipe or a device"),
        ("docs", "is a folder, not a file"),
        ("", "is the base folder itself"),
        ("readme.md/x", "'readme.md' is not a folder"),
        ("x" * 300, "cannot be opened: File name too long"),
        ("readme.txt", r"there is no file 'readme.txt'; did you mean readme.md"),
        ("dcos/notes.txt", r"there is no folder 'dcos'; did you mean docs\?"),
        ("docs/note.txt", r"there is no file 'docs/note.txt'; did you mean notes.txt\?"),
        ("data.bin", "binary"),
    ],
)
def test_rejections_name_a_fix_but_no_host_path(base: Path, path: str, message: str) -> None:
    with pytest.raises(ToolError, match=message) as refusal:
        read_file(path, context=context(base))

    assert str(base.parent) not in str(refusal.value)


@pytest.mark.parametrize("path", ["..", "/", "~", "linked", "readme.md", "nowhere", "pipe", "docs\\deep", "a\0"])
@pytest.mark.parametrize("look", [list_dir, search_for_secret])
def test_only_folders_below_the_base_path_are_listed_or_searched(
    base: Path, path: str, look: Callable[..., str]
) -> None:
    with pytest.raises(ToolError) as refusal:
        look(path, context=context(base))

    assert str(base.parent) not in str(refusal.value)


@pytest.mark.parametrize("path", ["docs/notes.txt", "./docs/notes.txt", "docs//./notes.txt"])
def test_relative_paths_may_have_any_spelling(base: Path, path: str) -> None:
    assert read_file(path, context=context(base)) == "one\ntwo\nthree"


def test_absolute_paths_below_the_base_path_are_relative_to_it(base: Path) -> None:
    assert read_file(str(base / "docs/notes.txt"), context=context(base)) == "one\ntwo\nthree"
    assert list_dir(str(base / "docs"), context=context(base)) == list_dir("docs", context=context(base))
    with pytest.raises(ToolError, match=r"\.\."):
        read_file(str(base / "../outside/secret.txt"), context=context(base))


def test_the_base_path_itself_may_be_a_link(base: Path) -> None:
    alias = base.parent / "alias"
    alias.symlink_to(base)

    for path in ("readme.md", str(alias / "readme.md"), str(base / "readme.md")):
        assert read_file(path, context=context(alias)) == "# Readme\nHello World"
    assert "readme.md:2: Hello World" in search_files("hello", context=context(alias))


def test_a_missing_base_path_is_reported_without_its_name(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="base folder cannot be opened") as refusal:
        list_dir(context=context(tmp_path / "gone"))

    assert str(tmp_path) not in str(refusal.value)


STEPS = st.sampled_from(
    [
        *(
            "..",
            ".",
            "",
            "~",
            "docs",
            "deep",
            "outside",
            "linked",
            "link.txt",
            "hard.txt",
            "secret.txt",
            "base",
            "pipe",
        ),
        *("readme.md", "\\", "\0", "\n", "\ud800", "é", "x" * 256),
    ]
)


@pytest.mark.hostile(11)
@cases(100)
@given(st.lists(STEPS, max_size=6).map("/".join) | st.text(max_size=40))
def test_no_path_leads_outside_the_base_path(path: str) -> None:
    with TemporaryDirectory() as folder:
        base = build(Path(folder))
        for look in (read_file, list_dir, search_for_secret):
            with suppress(ToolError):
                assert SECRET not in look(path, context=context(base))


@pytest.mark.hostile(13)
def test_a_folder_replaced_by_a_link_just_before_it_is_opened_is_not_followed(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_at = os.open

    def exchange_then_open(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        if path == "docs":
            shutil.rmtree(base / "docs")
            (base / "docs").symlink_to(base.parent / "outside")
        return open_at(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", exchange_then_open)

    with pytest.raises(ToolError, match="'docs' is a symbolic link"):
        read_file("docs/secret.txt", context=context(base))


def test_list_dir_shows_kinds_and_sizes_without_hidden_entries(base: Path) -> None:
    assert list_dir(context=context(base)).splitlines() == [
        "data.bin  file, 11 bytes",
        "docs/  folder",
        "hard.txt  file, 18 bytes",
        "link.txt  link, not followed",
        "linked  link, not followed",
        "pipe  pipe or device",
        "readme.md  file, 21 bytes",
    ]


@pytest.mark.hostile(12)
def test_list_dir_keeps_strange_names_on_one_line_of_plain_text(tmp_path: Path) -> None:
    for name in ("a b.txt", "new\nline", "日本", "\udcff.bin"):
        (tmp_path / name).touch()

    listing = list_dir(context=context(tmp_path))

    assert listing.splitlines() == [
        "a b.txt  file, 0 bytes",
        "new\\nline  file, 0 bytes",
        "日本  file, 0 bytes",
        "\\udcff.bin  file, 0 bytes",
    ]
    assert listing.encode()


def test_list_dir_reports_the_number_of_omitted_entries(tmp_path: Path) -> None:
    for number in range(203):
        (tmp_path / f"{number:03}").touch()

    lines = list_dir(context=context(tmp_path)).splitlines()

    assert (lines[0], lines[199]) == ("000  file, 0 bytes", "199  file, 0 bytes")
    assert lines[200:] == ["(3 more entries: list a subfolder, or find a name with search_files)"]


def test_an_empty_folder_and_an_empty_file_are_reported_as_empty(tmp_path: Path) -> None:
    assert list_dir(context=context(tmp_path)) == "(nothing in this folder)"
    (tmp_path / "empty").touch()
    assert read_file("empty", context=context(tmp_path)) == "(the file is empty)"


def test_read_file_pages_through_a_file(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("".join(f"line {number}\n" for number in range(1, 11)))

    first = read_file("long.txt", max_lines=4, context=context(tmp_path))
    last = read_file("long.txt", start_line=9, max_lines=4, context=context(tmp_path))

    assert first == "line 1\nline 2\nline 3\nline 4\n(6 more lines: continue with start_line=5)"
    assert last == "line 9\nline 10"
    with pytest.raises(ToolError, match="only 10 lines to read: start_line must be at most 10"):
        read_file("long.txt", start_line=11, context=context(tmp_path))
    for wrong in ({"start_line": 0}, {"max_lines": 0}):
        with pytest.raises(ToolError, match="1 or more"):
            read_file("long.txt", **wrong, context=context(tmp_path))


def test_read_file_reads_at_most_a_megabyte_in_whole_lines(tmp_path: Path) -> None:
    line = "é" * 49 + "\n"
    (tmp_path / "big.txt").write_text(line * (3 * 1024 * 1024 // 99))

    text = read_file("big.txt", max_lines=10**6, context=context(tmp_path))

    assert len(text.encode()) < 1024 * 1024 + 200
    *lines, note = text.split("\n")
    assert set(lines) == {line.strip()}
    assert note == "(only the first MB of 3.0 MB can be read)"


def test_read_file_decodes_any_bytes_except_binary_content(tmp_path: Path) -> None:
    (tmp_path / "mixed.txt").write_bytes(b"\xef\xbb\xbfcaf\xe9\r\nend")

    assert read_file("mixed.txt", context=context(tmp_path)) == "caf\ufffd\nend"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("hello", ["docs/deep/日本 plan.txt:1: hello from deep", "readme.md:2: Hello World"]),
        ("TWO", ["docs/notes.txt:2: two"]),
        ("notes", ["docs/notes.txt"]),
        ("deep/日", ["docs/deep/日本 plan.txt"]),
        ("*.TXT", ["docs/deep/日本 plan.txt", "docs/notes.txt", "hard.txt"]),
        ("docs/*.txt", ["docs/deep/日本 plan.txt", "docs/notes.txt"]),
        ("note?.txt", ["docs/notes.txt"]),
        ("data", ["data.bin"]),
        ("h.llo", ["No files match 'h.llo'."]),
        ("secret", ["No files match 'secret'."]),
        ("-e", ["No files match '-e'."]),
        ("--files", ["No files match '--files'."]),
        ("KEY", ["No files match 'KEY'."]),
        ("(", ["No files match '('."]),
        ("[", ["No files match '['."]),
    ],
)
def test_search_finds_literal_text_and_names(base: Path, query: str, found: list[str]) -> None:
    assert search_files(query, context=context(base)).splitlines() == found


def test_search_omits_hidden_files_and_build_output(tmp_path: Path) -> None:
    for name in (".git", "node_modules", "dist", "a.egg-info", "src/__pycache__", ".hidden", "src/lib"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "needle.txt").write_text("a needle")
    (tmp_path / ".gitignore").write_text("ignored.txt")
    (tmp_path / "ignored.txt").write_text("needle")
    (tmp_path / "big.txt").write_text("needle" + "x" * 2 * 1024 * 1024)
    (tmp_path / "utf16.txt").write_bytes("needle".encode("utf-16"))
    (tmp_path / "folder needle").mkdir()

    everywhere = search_files("needle", context=context(tmp_path)).splitlines()
    inside = search_files("needle", "node_modules", context=context(tmp_path))

    assert everywhere == ["ignored.txt:1: needle", "src/lib/needle.txt:1: a needle"]
    assert inside == "node_modules/needle.txt:1: a needle"


def test_search_shows_one_short_line_per_file_and_the_total(tmp_path: Path) -> None:
    (tmp_path / "with:colon and\nbreak.txt").write_text("NEEDLE\nneedle\n")
    (tmp_path / "wide.txt").write_text("first\r\n" + "x" * 500 + "\tneedle\x1b" + "y" * 500 + "\r\n")
    (tmp_path / "x.txt").write_text("- needle [a-z]+ $HOME\n")

    shown = search_files("needle", limit=2, context=context(tmp_path)).splitlines()

    assert shown == [
        "wide.txt:2: …" + "x" * 59 + " needle\\x1b" + "y" * 133 + "…",
        "with:colon and\\nbreak.txt:1: NEEDLE",
        "(3 files match; 2 are shown)",
    ]
    assert search_files("[a-z]+ $", context=context(tmp_path)) == "x.txt:1: - needle [a-z]+ $HOME"


@pytest.mark.parametrize(
    ("query", "limit", "message"),
    [(" ", 20, "1 to 500 characters"), ("a\nb", 20, "single line"), ("a\0", 20, "single line"), ("a", 0, "limit must")],
)
def test_search_rejects_invalid_queries(base: Path, query: str, limit: int, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        search_files(query, limit=limit, context=context(base))


def test_search_reports_when_it_did_not_search_all_files(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_tools, "MAX_SEARCHED_FILES", 2)

    assert search_files("hello", context=context(base)).endswith("too many files to search them all: give a root_dir.)")


def test_the_tools_run_in_a_thread_with_their_context_filled_in(base: Path) -> None:
    tools = {tool.name: tool for tool in BUILTIN_TOOLS}
    assert {"calculator", "echo", "list_dir", "read_file", "search_files"} <= tools.keys()
    with ThreadPoolExecutor(1) as threads:
        for name, arguments in (("list_dir", {}), ("search_files", {"query": "hello"}), ("echo", {"text": "hello"})):
            tool = tools[name]
            assert (tool.risk, tool.idempotent, tool.source) == ("low", True, "builtin")
            assert "context" not in tool.definition.parameters["properties"]
            assert all(spec["description"] for spec in tool.definition.parameters["properties"].values())
            assert asyncio.run(tool.invoke(tool.bind(arguments), lambda: context(base), threads))
    assert echo("as it is") == "as it is"
