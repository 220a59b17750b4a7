"""Files that decide what runs are not written, hidden files are not read; the operator opens single places."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Runtime
from framework.config.settings import Settings, ToolSettings
from framework.testing import ScriptedModel
from framework.tools.builtin.data import json_transform
from framework.tools.builtin.files import edit_file, list_dir, read_file, search_files, write_file
from framework.tools.files import is_protected, writable_parts
from framework.tools.tool import ToolContext
from framework.types.errors import ToolError
from framework.types.messages import ToolCall
from plugins.log_transform import log_transform
from tests.support.cases import cases
from tests.support.projects import agent, write

MARK = "written by the tool"


def context(base: Path, *unprotected: str) -> ToolContext:
    return ToolContext(run_id="r", call_id="c", agent="a", base_path=base, unprotected=unprotected)


def build(outer: Path) -> Path:
    """Create a project with links that point outside, next to a folder that must not be accessed."""
    base = write(
        outer / "base",
        {
            "agents.d/one.yaml": "agent\n",
            "prompts/one.j2": "prompt\n",
            "plugins/one.py": "plugin\n",
            ".git/hooks/pre-commit": "hook\n",
            ".env": "KEY=secret\n",
            "prod.env": "KEY=secret\n",
            "conftest.py": "conftest\n",
            "docs/notes.txt": "notes\n",
        },
    )
    write(outer / "outside", {"secret.txt": "secret outside\n"})
    (base / "link.txt").symlink_to(outer / "outside" / "secret.txt")
    (base / "linked").symlink_to(outer / "outside")
    (base / "hard.txt").hardlink_to(outer / "outside" / "secret.txt")
    (base / "to_agents").symlink_to(base / "agents.d")
    os.mkfifo(base / "pipe")
    return base


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return build(tmp_path)


PROTECTED_PATHS = [
    "agents.d/new.yaml", "agents.d/sub/new.yaml", "prompts/new.j2", "plugins/new.py", "plugins/_helper.py",
    "agentsd.yaml", "agentsd.yml", ".agentsd/state.db", ".git/hooks/pre-commit", ".git/config", ".gitignore",
    "openapi/a.yaml",
    ".github/workflows/ci.yaml", "hooks/pre-commit", "mirror.git/hooks/update", "conftest.py", "tests/conftest.py",
    ".env", ".env.local", "prod.env", "docs/.env", ".vscode/tasks.json", ".bashrc", "sitecustomize.py", "evil.pth",
    "Agents.D/new.yaml", "AGENTS.D/new.yaml", "PLUGINS/new.py", "ConfTest.py", "AgentsD.yaml", "PROD.ENV",
    ".GIT/config", "./agents.d/new.yaml", "docs//../agents.d/new.yaml", "proj/agents.d/new.yaml", "agents.d",
    "sitecustomize/__init__.py", "usercustomize/__init__.py", "conftest/__init__.py", "src/sitecustomize.so",
    "sitecustomize.cpython-311-x86_64-linux-gnu.so", "usercustomize.pyc", "tests/conftest.pyc", "SiteCustomize/x.txt",
    "fast.so", "module.pyd", "__pycache__/main.cpython-311.pyc", "Makefile", "GNUmakefile", "docs/Makefile", "rules.mk",
    "pyproject.toml", "setup.py", "setup.cfg", "package.json", "web/package.json", "Dockerfile", "compose.yaml",
    "plugin\u017f/new.py", "ｐlugins/new.py", "\uff0eenv", "\u2024env", "agents\u2024d/new.yaml",
]  # fmt: skip


@pytest.mark.hostile(16)
@pytest.mark.parametrize("path", PROTECTED_PATHS)
def test_files_that_decide_what_runs_are_not_written_in_any_spelling(base: Path, path: str) -> None:
    before = everything(base)
    for attempt in attempts(path, context(base)):
        with pytest.raises(ToolError, match=r"is protected|must not contain '\.\.'"):
            attempt()

    assert everything(base) == before


@pytest.mark.hostile(12)
@pytest.mark.parametrize("path", ["plug\u200bins/new.py", "plugins\u200b/new.py", "a\u202etxt.exe", "\ufeff.env"])
def test_names_with_invisible_characters_are_not_written(base: Path, path: str) -> None:
    for attempt in attempts(path, context(base)):
        with pytest.raises(ToolError, match="invisible characters"):
            attempt()


@pytest.mark.hostile(14)
@pytest.mark.parametrize("path", [".env", "prod.env", "PROD.ENV", ".git/hooks/pre-commit", ".git", "docs/.hidden/x"])
def test_hidden_files_are_not_read_by_any_tool_though_they_are_named(base: Path, path: str) -> None:
    looks: list[Callable[[], Any]] = [
        lambda: read_file(path, context=context(base)),
        lambda: list_dir(path, context=context(base)),
        lambda: search_files("secret", path, context=context(base)),
        lambda: log_transform(path, context=context(base)),
        lambda: json_transform("@", path=path, context=context(base)),
    ]
    looks.append(lambda: context(base).open(path))
    for look in looks:
        with pytest.raises(ToolError, match=r"may contain secrets.*tools\.unprotected in agentsd\.yaml"):
            look()


def test_files_protected_from_writing_only_may_be_read(base: Path) -> None:
    assert read_file("agents.d/one.yaml", context=context(base)) == "agent"
    with context(base).open("agents.d/one.yaml") as file:
        assert file.read() == b"agent\n"
    assert read_file("conftest.py", context=context(base)) == "conftest"
    assert "prod.env" not in list_dir(context=context(base))


@pytest.mark.parametrize(
    ("pattern", "opened", "closed"),
    [
        ("prompts/**", ["prompts/new.j2", "prompts/a/b.j2"], ["plugins/new.py", "prompts/.env", "Prompts/new.j2"]),
        ("prompts/*.j2", ["prompts/new.j2"], ["prompts/a/b.j2", "prompts/new.py"]),
        ("**/hooks/**", ["hooks/x.ts", "src/hooks/a/x.ts"], [".git/hooks/x", "plugins/x.ts"]),
        (".github/**", [".github/workflows/ci.yaml"], [".git/config", ".github/.secret", "docs/.github/x"]),
        (".env", [".env"], [".env.local", "docs/.env", "prod.env"]),
        ("*.env", ["prod.env"], ["docs/prod.env"]),
        ("*", ["conftest.py"], [".envrc", "agents.d/new.yaml"]),
        ("**", ["conftest.py", "agents.d/new.yaml"], [".env", ".git/config", "docs/.hidden"]),
        ("", [], ["agents.d/new.yaml", ".env"]),
    ],
)
def test_a_glob_of_the_operator_opens_only_matching_paths(
    base: Path, pattern: str, opened: list[str], closed: list[str]
) -> None:
    run = context(base, "other/*", pattern)
    for path in opened:
        assert write_file(path, MARK, "overwrite", context=run)
        assert read_file(path, context=run) == MARK
    for path in closed:
        with pytest.raises(ToolError, match="is protected"):
            write_file(path, MARK, "overwrite", context=run)


NAMES = st.sampled_from(
    [
        *(
            "..",
            ".",
            "",
            "~",
            "docs",
            "new",
            "linked",
            "link.txt",
            "hard.txt",
            "secret.txt",
            "pipe",
            "to_agents",
            "%2e%2e",
        ),
        *("agents.d", "AGENTS.D", "prompts", "plugins", ".git", "hooks", ".env", "prod.env", "conftest.py", "one.yaml"),
        *("notes.txt", "\\", "\0", "\n", "\ud800", "é", "\u200b", "x" * 256),
    ]
)


@pytest.mark.hostile(16)
@cases(80)
@given(st.lists(NAMES, max_size=5).map("/".join) | st.text(max_size=30))
def test_no_path_touches_a_place_outside_or_protected(path: str) -> None:
    with TemporaryDirectory() as folder:
        base = build(Path(folder))
        before = everything(Path(folder))
        for attempt in attempts(path, context(base)):
            with suppress(ToolError):
                attempt()

        after = everything(Path(folder))
        assert before.keys() <= after.keys()
        for place in after.keys() - before.keys():
            parts = Path(place).parts
            assert parts[0] == "base"
            assert not any(is_protected(part) for part in parts[1:]), place
        changed = {place for place in before if before[place] != after[place]}
        assert changed <= {"base/docs/notes.txt"}


@pytest.mark.hostile(13)
def test_a_folder_swapped_for_a_link_by_another_thread_is_never_written_through(base: Path) -> None:
    outside, inside = base.parent / "outside", base / "swap"
    stop = Event()

    def swap() -> None:
        while not stop.is_set():
            with suppress(OSError):  # the tool is working in it
                shutil.rmtree(inside)
            with suppress(OSError):
                inside.symlink_to(outside)
            with suppress(OSError):
                inside.unlink()
            with suppress(OSError):
                inside.mkdir()

    thread = Thread(target=swap)
    thread.start()
    outcomes = Counter[str]()
    try:
        while outcomes["written"] < 30 or outcomes["a link"] < 30:
            try:
                write_file("swap/secret.txt", MARK, "overwrite", context=context(base))
                outcomes["written"] += 1
            except ToolError as error:
                outcomes["a link" if "symbolic link" in error.message else "refused"] += 1
            with suppress(ToolError):
                edit_file("swap/secret.txt", "secret", MARK, context=context(base))
            assert everything(outside) == {"secret.txt": "secret outside\n"}
    finally:
        stop.set()
        thread.join()


@pytest.mark.hostile(13)
def test_a_file_swapped_for_a_link_just_before_the_rename_is_not_followed(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def swap_then_rename(source: str, target: str, **folders: int) -> None:
        (base / "docs/notes.txt").unlink()
        (base / "docs/notes.txt").symlink_to(base.parent / "outside/secret.txt")
        rename(source, target, **folders)

    monkeypatch.setattr(os, "rename", swap_then_rename)
    write_file("docs/notes.txt", MARK, "overwrite", context=context(base))

    assert (base.parent / "outside/secret.txt").read_text() == "secret outside\n"
    assert not (base / "docs/notes.txt").is_symlink()


def test_the_settings_reach_the_tools_of_a_run(tmp_path: Path) -> None:
    policy = {"skill_policy": "{allow: [write_file]}", "runtime_policy": "{risk_level: high, confirm: {from: never}}"}
    root = write(tmp_path, {"agents.d/one.yaml": agent("one", **policy)})
    calls = [
        ToolCall(id=name, tool="write_file", arguments={"path": f"{name}/new.txt", "content": MARK})
        for name in ("prompts", "plugins")
    ]

    async def main() -> list[str]:
        settings = Settings(tools=ToolSettings(unprotected=("prompts/**",)))
        model = ScriptedModel(tuple(calls), "done")
        async with Runtime.open(root, settings=settings, models={"scripted": model}, watch=False) as runtime:
            return [call.status for call in (await runtime.run("go")).tool_calls]

    assert asyncio.run(main()) == ["success", "error"]
    assert (root / "prompts/new.txt").read_text() == MARK
    assert not (root / "plugins").exists()


def test_the_globs_are_read_from_the_settings_file(tmp_path: Path) -> None:
    write(tmp_path, {"agentsd.yaml": 'tools: {unprotected: ["prompts/**", .github/*]}\n'})
    assert Settings.load(tmp_path).tools.unprotected == ("prompts/**", ".github/*")
    assert Settings().tools.unprotected == ()


def attempts(path: str, run: ToolContext) -> list[Callable[[], Any]]:
    return [
        lambda: write_file(path, MARK, context=run),
        lambda: write_file(path, MARK, "overwrite", context=run),
        lambda: write_file(path, MARK, "append", context=run),
        lambda: edit_file(path, "e", MARK, replace_all=True, context=run),
    ]


def everything(folder: Path) -> dict[str, str]:
    """Return every path below a folder with its content: for a link, its target."""
    found = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            said = path.read_text() if path.is_file() and not path.is_symlink() else "no file"
            said = f"-> {path.readlink()}" if path.is_symlink() else said
            found[path.relative_to(folder).as_posix()] = said
    return found


def test_the_picture_of_a_folder_shows_every_change(base: Path) -> None:
    before = everything(base)
    (base / "docs/notes.txt").write_text("other")
    shutil.rmtree(base / "agents.d")

    after = everything(base)

    assert before["docs/notes.txt"] != after["docs/notes.txt"]
    assert before.keys() - after.keys() == {"agents.d", "agents.d/one.yaml"}


@pytest.mark.parametrize(
    "path", ["knowledge/pdf/SKILL.md", "knowledge/pdf/references/a.md", "skills/new/a.md", "knowledge/new/skill.md"]
)
def test_no_file_of_a_skill_is_written_whatever_its_folder_is_called(path: str, tmp_path: Path) -> None:
    write(tmp_path, {"knowledge/pdf/SKILL.md": "text", "knowledge/notes.md": "text"})
    with pytest.raises(ToolError, match="is protected: its content decides what runs"):
        writable_parts(context(tmp_path).files, path)
    assert writable_parts(context(tmp_path, "knowledge/**", "skills/**").files, path)
    assert writable_parts(context(tmp_path).files, "knowledge/notes.md")
