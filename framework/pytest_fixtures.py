"""Fixtures for tests of agents with pytest, which loads them through the package's entry point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from framework.llm.client import ScriptedModel
from framework.testing import JsonStore


@pytest.fixture
def scripted_model() -> Iterator[Callable[..., ScriptedModel]]:
    """Return a function that creates a `ScriptedModel` from its turns.

    After the test, a mistake in a script fails it: a script that is too short, or a turn of the wrong type.
    """
    models: list[ScriptedModel] = []

    def create(*arguments: object, **options: object) -> ScriptedModel:
        models.append(ScriptedModel(*arguments, **options))  # type: ignore[arg-type]  # the model checks its turns
        return models[-1]

    yield create
    if mistakes := [mistake for model in models for mistake in model.mistakes]:
        pytest.fail("; ".join(mistakes), pytrace=False)


@pytest.fixture
def agent_project(tmp_path: Path) -> Callable[[Mapping[str, str]], Path]:
    """Return a function that writes the files of a project, texts by path, and returns its folder."""

    def write(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text).lstrip("\n"), "utf-8")
        return tmp_path

    return write


@pytest.fixture
def json_store() -> JsonStore:
    """Return a store that keeps only JSON, as a database does, and can simulate a crash."""
    return JsonStore()
