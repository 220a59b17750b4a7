"""AGENTS.md: its paths exist, and its walk of a request names the modules that a request passes through."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.walk import walk_of_one_run, walks

MAP = (ROOT / "AGENTS.md").read_text("utf-8")
PACKAGE = ROOT / "framework"
MODULE = re.compile(r"`([a-z_]+(?:/[a-z_]+)+)`")
WALKS = re.findall(r"^### (.+?)\n(.*?)(?=^##)", MAP, re.MULTILINE | re.DOTALL)


def modules(text: str) -> list[str]:
    return MODULE.findall(text)


def test_there_are_four_walks() -> None:
    assert [title for title, _ in WALKS] == ["A request", "An edit", "A pause and its resume", "A plan"]


@pytest.mark.parametrize(("title", "text"), WALKS)
def test_every_module_of_a_walk_exists(title: str, text: str) -> None:
    assert modules(text)
    assert [name for name in modules(text) if not (PACKAGE / f"{name}.py").is_file()] == []


def test_every_path_below_the_root_exists() -> None:
    paths = re.findall(r"`((?:tests|docs)/[\w/.]+)`", MAP)
    assert [path for path in paths if not (ROOT / path).exists() and path != "docs/design/"] == []


async def _engine_modules(root: Path) -> set[str]:
    return {name.removesuffix(".py") for name in (await walk_of_one_run(root)).below("engine/")}


def test_the_walk_of_a_request_names_every_engine_module_that_a_run_enters(tmp_path: Path) -> None:
    entered = asyncio.run(_engine_modules(tmp_path))
    assert entered - set(modules(dict(WALKS)["A request"])) == set()


def test_a_run_of_two_turns_and_one_call_enters_at_most_fourteen_engine_modules(tmp_path: Path) -> None:
    assert len(asyncio.run(_engine_modules(tmp_path))) <= 14


MOST_FILES = {"call": 37, "denied": 37, "chat": 47, "pause": 42, "resume": 37, "plan": 46}
"""How many files of the package each behaviour may enter. Somebody who follows it reads in all of them."""


def test_a_behaviour_enters_few_files(tmp_path: Path) -> None:
    found = {name: len(walk.files) for name, walk in asyncio.run(walks(tmp_path)).items()}
    assert {name: count for name, count in found.items() if count > MOST_FILES[name]} == {}


def test_engine_modules_call_each_other_in_one_direction(tmp_path: Path) -> None:
    assert asyncio.run(walk_of_one_run(tmp_path)).mutual("engine/") == []


@pytest.mark.parametrize(("title", "text"), WALKS)
def test_a_walk_fits_on_one_screen(title: str, text: str) -> None:
    assert len(text.strip().splitlines()) <= 24
