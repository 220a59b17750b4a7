"""The printed `pip install` command fits the way in which agentsd was installed."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from shutil import which

import pytest

from framework.types.installation import install_command, needs_only_extras
from tests.support.paths import ROOT

RECORDED = "agentsd-0.1.0.dist-info"


def printed(site: Path, origin: dict[str, object] | None, *packages: str, cwd: Path, path: str = "") -> str:
    """Return the command that a process prints which finds agentsd's metadata in a folder."""
    folder = site / RECORDED
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: agentsd\nVersion: 0.1.0\n", "utf-8")
    (folder / "direct_url.json").unlink(missing_ok=True)
    if origin is not None:
        (folder / "direct_url.json").write_text(json.dumps(origin), "utf-8")
    program = (
        f"import sys; sys.path[:0] = [{str(site)!r}, {str(ROOT)!r}]\n"
        f"from framework.types.installation import install_command; print(install_command(*{packages!r}))"
    )
    env = {"PATH": path or str(Path(sys.executable).parent)}
    done = subprocess.run([sys.executable, "-c", program], cwd=cwd, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(which("pip", path=str(Path(sys.executable).parent)) is None, reason="this environment has no pip")
def test_extras_come_from_where_agentsd_was_installed_from(tmp_path: Path) -> None:
    checkout = tmp_path / "my checkout"
    checkout.mkdir()
    (checkout / "pyproject.toml").touch()
    url, site = checkout.as_uri(), tmp_path / "site"
    inside: dict[str, object] = {"url": url, "dir_info": {}}
    editable: dict[str, object] = {"url": url, "dir_info": {"editable": True}}
    git: dict[str, object] = {
        "url": "https://git.example/agentsd.git", "vcs_info": {"vcs": "git", "commit_id": "0ab1"},
    }  # fmt: skip
    wheel: dict[str, object] = {"url": "file:///tmp/agentsd-0.2.0-py3-none-any.whl", "archive_info": {}}
    gone: dict[str, object] = {"url": (tmp_path / "gone").as_uri(), "dir_info": {}}
    for origin, cwd, command in (
        (editable, checkout, "pip install -e '.[serve]'"),
        (editable, tmp_path, "pip install -e 'my checkout[serve]'"),
        (editable, site, f"pip install -e '{checkout}[serve]'"),
        (inside, checkout, "pip install '.[serve]'"),
        (gone, checkout, "pip install 'agentsd[serve]'"),
        (None, checkout, "pip install 'agentsd[serve]'"),
        (wheel, checkout, "pip install 'agentsd[serve] @ file:///tmp/agentsd-0.2.0-py3-none-any.whl'"),
        (git, checkout, "pip install 'agentsd[serve] @ git+https://git.example/agentsd.git@0ab1'"),
    ):
        site.mkdir(exist_ok=True)
        assert printed(site, origin, "agentsd[serve]", cwd=cwd) == command


def test_the_pip_of_this_environment_is_called_even_if_the_shell_does_not_find_it(tmp_path: Path) -> None:
    command = printed(tmp_path, None, "agentsd[serve]", cwd=tmp_path, path="/nowhere")
    assert command == f"{sys.executable} -m pip install 'agentsd[serve]'"


def test_uv_installs_into_an_environment_without_pip(tmp_path: Path) -> None:
    python = tmp_path / "bin/python"
    venv.create(tmp_path, with_pip=False)
    program = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}]\n"
        "from framework.types.installation import install_command; print(install_command('pyyaml'))"
    )
    done = subprocess.run(
        [python, "-c", program], cwd=tmp_path, env={"PATH": "/nowhere"}, capture_output=True, text=True
    )
    assert done.stdout == "uv pip install --python bin/python 'pyyaml'\n", done.stderr


def test_extras_are_joined_and_other_packages_follow() -> None:
    command = install_command("pyyaml", "agentsd[web]", "agentsd[code]", "agentsd[web]", "pyyaml")
    assert command.endswith("[web,code]' 'pyyaml'")
    assert install_command("some-package").endswith("install 'some-package'")


def test_extras_of_agentsd_are_told_from_other_packages() -> None:
    assert needs_only_extras({"trafilatura": "agentsd[web]"})
    assert not needs_only_extras({"trafilatura": "agentsd[web]", "yaml": "pyyaml"})
    assert not needs_only_extras({"x": "not-agentsd[web]"})
