"""The identity of watched folders: replaced, created and unreadable ones."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.config.watch import WatchedFolders


def _recreate(folder: Path) -> None:
    folder.rmdir()
    folder.mkdir()


def _rename_and_link(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


@pytest.mark.parametrize("change", [Path.rmdir, _recreate, _rename_and_link])
def test_a_replaced_folder_is_detected(tmp_path: Path, change: Callable[[Path], None]) -> None:
    folder = tmp_path / "agents.d"
    folder.mkdir()
    folders = WatchedFolders([folder, tmp_path / "none"])
    try:
        assert (folders.existing, folders.have_changed()) == ((folder,), False)
        change(folder)
        assert folders.have_changed()
    finally:
        folders.close()


def test_a_created_folder_is_detected(tmp_path: Path) -> None:
    folders = WatchedFolders([tmp_path / "agents.d"])
    assert not folders.have_changed()
    (tmp_path / "agents.d").mkdir()
    assert folders.have_changed()


def test_an_unreadable_folder_is_skipped_and_its_descriptor_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> os.stat_result:
        raise OSError(errno.ESTALE, "stale file handle")

    before = set(Path("/dev/fd").iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", refuse)
        folders = WatchedFolders([tmp_path])
    assert not folders.existing
    assert folders.have_changed()
    folders.close()
    assert set(Path("/dev/fd").iterdir()) == before
