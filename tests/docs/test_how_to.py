"""The how-to pages, followed literally: their files, their commands, and what they print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.loopback import fixed_port
from tests.support.page_steps import follow
from tests.support.paths import ROOT

FOLDER = ROOT / "docs/how-to"
NOT_RUN = {"index", "run-in-kubernetes", "use-in-jupyter", "use-with-celery", "use-client-tools"}
"""Pages without commands that can run here; each says why."""
RUN = sorted(page for page in FOLDER.glob("*.md") if page.stem not in NOT_RUN)


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_a_page_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    ports = {port: str(fixed_port()) for port in ("8321", "8000", "8080", "9000", "9001")}
    replaced = {f"127.0.0.1:{port}": f"127.0.0.1:{free}" for port, free in ports.items()}
    replaced |= {f"--port {port}": f"--port {free}" for port, free in ports.items()}
    replaced |= {'("127.0.0.1", 9001)': f'("127.0.0.1", {ports["9001"]})'}
    follow(page, tmp_path, replaced, AGENTSD_SERVER__PORT=ports["8321"])


def test_every_page_that_is_not_run_says_why() -> None:
    for name in NOT_RUN - {"index"}:
        assert "no test" in (FOLDER / f"{name}.md").read_text("utf-8"), name


def test_every_page_is_in_the_index() -> None:
    index = (FOLDER / "index.md").read_text("utf-8")
    assert [page.name for page in FOLDER.glob("*.md") if page.stem != "index" and f"]({page.name})" not in index] == []
