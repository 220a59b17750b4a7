"""`import agentsd` gives the package `framework`, to programs and to type checkers."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import agentsd
import framework

ROOT = Path(__file__).parent.parent


def _run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "app.py").write_text(code)
    return subprocess.run([sys.executable, "app.py"], cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.fixture
def beside_another_framework(tmp_path: Path) -> Path:
    """A folder for `app.py` beside a package of the user's that is called `framework`, too."""
    (tmp_path / "framework").mkdir()
    (tmp_path / "framework/__init__.py").write_text("mine = True\n")
    return tmp_path


def test_both_names_give_the_same_module_objects() -> None:
    assert agentsd is framework
    for name in ("testing", "types.events", "types.errors", "llm.client", "store.memory"):
        assert import_module(f"agentsd.{name}") is import_module(f"framework.{name}")
    assert import_module("framework.types").events is agentsd.events


def test_another_folder_called_framework_does_no_harm(beside_another_framework: Path) -> None:
    code = (
        "import agentsd\nfrom agentsd.types.errors import ModelError\nimport framework\n"
        "assert framework.ModelError is ModelError is agentsd.ModelError\nprint(agentsd.Runtime.__name__)\n"
    )
    done = _run(beside_another_framework, code)
    assert (done.stdout, done.stderr) == ("Runtime\n", "")


def test_a_package_of_the_same_name_that_was_imported_before_is_named(beside_another_framework: Path) -> None:
    done = _run(beside_another_framework, "import framework\nimport agentsd\n")
    assert "another package called 'framework' is imported already" in done.stderr
    assert str(beside_another_framework / "framework/__init__.py") in done.stderr


def test_type_checkers_know_every_public_module_by_both_names() -> None:
    public = re.findall(r"^\| `agentsd\.([a-z_.]+)`", (ROOT / "docs/embedding.md").read_text(), re.M)
    stubs = {path.relative_to(ROOT / "agentsd").with_suffix("") for path in (ROOT / "agentsd").rglob("*.pyi")}
    names = {".".join(path.parts) for path in stubs if path.name != "__init__"}
    assert names == set(public), "one-line stubs in agentsd/ and the table in docs/embedding.md"
    for name in names:
        assert (ROOT / "agentsd" / f"{name.replace('.', '/')}.pyi").read_text() == f"from framework.{name} import *\n"
