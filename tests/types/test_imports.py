"""Imports without garbage collections, each in a process of its own: the collector belongs to the whole process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

MODULE = """
import gc
collects = gc.isenabled()
data = {"key": []}
"""
BEGINNING = "import gc, sys; from framework.types.imports import freeze_modules, import_uncollected as load;"
OLDEST = "any(one is module.data for one in gc.get_objects(generation=2))"


def output_of(program: str, folder: Path) -> str:
    (folder / "loaded.py").write_text(MODULE, "utf-8")
    (folder / "broken.py").write_text("raise ImportError('broken')", "utf-8")
    command = [sys.executable, "-c", f"{BEGINNING} sys.path.append({str(folder)!r}); {program}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        (f"module = load('loaded'); print(module.collects, {OLDEST}, gc.isenabled())", "False True True"),
        ("gc.disable(); load('loaded'); print(gc.isenabled())", "False"),
        (
            f"gc.freeze(); module = load('loaded');print(gc.get_freeze_count() > 0, {OLDEST})",
            "True False",
        ),
    ],
    ids=["collector on", "collector off", "objects frozen"],
)
def test_the_collector_is_as_before(program: str, shown: str, tmp_path: Path) -> None:
    assert output_of(program, tmp_path) == shown


def test_a_failed_import_is_raised_and_the_collector_is_on_again(tmp_path: Path) -> None:
    program = "\ntry: load('broken')\nexcept ImportError as error: print(error, gc.isenabled())"
    assert output_of(program, tmp_path) == "broken True"


def test_a_module_that_is_imported_already_leaves_young_objects_young(tmp_path: Path) -> None:
    program = (
        "load('loaded'); gc.disable(); young = {'key': []}; gc.enable(); load('loaded'); gc.disable();"
        "print(any(one is young for one in gc.get_objects(generation=2)))"
    )
    assert output_of(program, tmp_path) == "False"


def test_modules_are_frozen_once(tmp_path: Path) -> None:
    program = (
        "freeze_modules(); frozen = gc.get_freeze_count(); later = [[] for _ in range(1000)];"
        "freeze_modules(); print(0 < gc.get_freeze_count() <= frozen)"
    )
    assert output_of(program, tmp_path) == "True"
