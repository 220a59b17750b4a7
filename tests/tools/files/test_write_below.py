"""Agents write only below the folders that the operator lists, and never to the store's files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Runtime, ToolContext, ToolResult
from framework.config.agents.diff import diff_settings
from framework.config.overlay import SettingsSource
from framework.config.settings import Settings, ToolSettings, common_folders
from framework.testing import ScriptedModel
from framework.tools.files import writable_parts
from framework.types.errors import ConfigError, ToolError
from tests.support.cases import cases
from tests.support.projects import agent, write

WRITER = agent("one", runtime_policy="{risk_level: high, confirm: {from: never}}")
SUFFIXES = ("", "-wal", "-shm", "-journal")


def project(root: Path, settings: str = "{}") -> Path:
    return write(root, {"agents.d/one.yaml": WRITER, "agentsd.yaml": settings + "\n"})


async def called(root: Path, name: str, store: str | None = None, **arguments: Any) -> ToolResult:
    models = {"scripted": ScriptedModel()}
    async with Runtime.open(root, models=models, store=store, watch=False) as runtime:
        return await runtime.call_tool("one", name, arguments)


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("out/a.txt", True),
        ("./out//deep/./a.txt", True),
        ("reports/2026/a.txt", True),
        ("out", False),
        ("a.txt", False),
        ("outer/a.txt", False),
        ("reports/a.txt", False),
        ("out/conftest.py", False),
    ],
)
def test_agents_write_below_the_folders_that_the_operator_names(tmp_path: Path, path: str, written: bool) -> None:
    root = project(tmp_path, 'tools: {write_below: ["./out/", reports/2026]}')

    result = asyncio.run(called(root, "write_file", path=path, content="x"))

    assert result.status == ("success" if written else "error")
    assert (root / path).exists() is written


def test_the_rejection_names_the_setting(tmp_path: Path) -> None:
    root = project(tmp_path, "tools: {write_below: [out]}")

    result = asyncio.run(called(root, "write_file", path="a.txt", content="x"))

    assert result.error == "'a.txt' is outside the folders that may be written (tools.write_below): out"


def test_without_the_setting_agents_write_everywhere_but_in_protected_places(tmp_path: Path) -> None:
    root = project(tmp_path)

    assert asyncio.run(called(root, "write_file", path="a.txt", content="x")).status == "success"
    assert asyncio.run(called(root, "write_file", path="Makefile", content="x")).status == "error"


@pytest.mark.parametrize("folder", ["../out", "/out", "a/../b"])
def test_a_folder_outside_the_base_path_is_rejected(folder: str) -> None:
    with pytest.raises(ConfigError):
        Settings.parse(SettingsSource(f"tools: {{write_below: ['{folder}']}}".encode()))


FOLDERS = st.none() | st.lists(st.sampled_from([".", "a", "b", "a/c", "a/c/d", "b/c"]), max_size=3).map(tuple)


@cases(200)
@given(FOLDERS, FOLDERS, st.sampled_from(["x", "a/x", "a/c/x", "a/c/d/x", "b/x", "b/c/x"]))
def test_a_run_writes_only_where_both_its_own_and_the_live_settings_permit(
    pinned: tuple[str, ...] | None, live: tuple[str, ...] | None, path: str
) -> None:
    def permits(folders: tuple[str, ...] | None) -> bool:
        context = ToolContext("run", "call", "one", Path("/base"), write_below=folders)
        try:
            return bool(writable_parts(context.files, path))
        except ToolError:
            return False

    assert permits(common_folders(pinned, live)) is (permits(pinned) and permits(live))


@pytest.mark.parametrize(
    ("was", "now", "effect"),
    [
        (None, ("out",), "tightens"),
        (("out",), None, "widens"),
        (("out",), ("out", "more"), "widens"),
        (("out", "more"), ("out",), "tightens"),
        (("out",), ("out/deep",), "tightens"),
        (("out/deep",), ("out",), "widens"),
    ],
)
def test_an_edit_is_classified_as_tightening_or_widening(
    was: tuple[str, ...] | None, now: tuple[str, ...] | None, effect: str
) -> None:
    before, after = (Settings(tools=ToolSettings(write_below=folders)) for folders in (was, now))

    assert [change.effect for change in diff_settings(before, after)] == [effect]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "url", ["sqlite:///state.db", "sqlite:///data/../state.db", "sqlite:////ROOT/state.db?timeout=5"]
)
def test_the_files_of_the_store_are_never_touched(tmp_path: Path, url: str, suffix: str) -> None:
    url = url.replace("ROOT", str(tmp_path).lstrip("/"))
    root = project(tmp_path, f'{{store: {{url: "{url}"}}, tools: {{unprotected: ["**"]}}}}')
    (root / "data").mkdir()
    (root / f"state.db{suffix}").write_bytes(b"kept")
    name = f"./state.db{suffix}"

    results = [
        asyncio.run(called(root, "write_file", path=name, content="x", mode="overwrite")),
        asyncio.run(called(root, "edit_file", path=name, old="kept", new="x")),
        asyncio.run(called(root, "read_file", path=name)),
        asyncio.run(called(root, "search_files", query="kept")),
    ]

    assert [result.status for result in results] == ["error", "error", "error", "success"]
    assert "belongs to the store" in str(results[0].error)
    assert "state.db" not in str(results[3].output)
    assert (root / f"state.db{suffix}").read_bytes() == b"kept"


def test_the_files_of_a_store_that_a_program_opens_are_not_touched_either(tmp_path: Path) -> None:
    root = project(tmp_path)

    result = asyncio.run(called(root, "write_file", "sqlite:///runs.db", path="runs.db", content="x", mode="overwrite"))

    assert "belongs to the store" in str(result.error)
