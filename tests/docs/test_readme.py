"""The README's terminal sessions print what the README shows, and its program runs, in the project it defines."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from examples.terminal_picture import AGENT, MISTAKE, PICTURE, PLUGIN
from tests.support.commands import PATIENCE, read_until, terminal
from tests.support.paths import ROOT
from tests.support.projects import write

README = (ROOT / "README.md").read_text("utf-8")
ANSWERED = re.compile(r"(\[.*[:?]) (\^C|\w+)")
"""A question and the answer that is typed."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands(block: str) -> Iterator[tuple[list[str], list[str]]]:
    for part in block.split("$ ")[1:]:
        command, *shown = part.splitlines()
        yield shlex.split(command)[1:], shown


def played(project: Path, arguments: list[str], expected: list[str]) -> str:
    """Run a command, answer its questions as the README does, and return its output."""
    with terminal(*arguments, cwd=project) as (process, master):
        shown = ""
        for question, typed in (found.groups() for line in expected if (found := ANSWERED.fullmatch(line))):
            shown += read_until(master, question)
            if typed == "^C":
                process.send_signal(signal.SIGINT)
            else:
                os.write(master, typed.encode() + b"\n")
        with suppress(OSError):  # the end
            while more := os.read(master, 65536):
                shown += more.decode("utf-8", "replace")
        process.wait(PATIENCE)
    return shown


def plain(text: str) -> str:
    """Remove colours, and replace durations, which differ each time."""
    return re.sub(r"\d+ ms", "0 ms", re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", text)).replace("\r", "\n")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {AGENT: blocks("yaml")[0], PLUGIN: blocks("python")[0]}
    return write(tmp_path_factory.mktemp("readme"), files)


@pytest.mark.parametrize("block", blocks("console"), ids=lambda block: block.splitlines()[0])
def test_the_sessions_in_the_readme_equal_those_in_a_terminal(project: Path, block: str) -> None:
    if MISTAKE[1] in block:
        file = project / AGENT
        file.write_text(file.read_text("utf-8").replace(*MISTAKE), "utf-8")
    for arguments, expected in commands(block):
        shown = plain(played(project, arguments, expected)).splitlines()
        for line in expected:
            answered = ANSWERED.fullmatch(line)
            assert any(answered[1] in one if answered else plain(line) == one.rstrip() for one in shown), line


def test_the_picture_in_the_readme_loads_nothing_and_is_small() -> None:
    svg = PICTURE.read_text("utf-8").replace("&#160;", " ")
    assert f"]({PICTURE.relative_to(ROOT)})" in README
    assert set(re.findall(r"(?:url\(|href=\"|src=\")(https?://[^)\"]+)", svg)) == set()
    assert len(svg) < 100_000
    assert "above the limit" in svg
    assert "max_rsik" in svg


def test_the_comparison_in_the_readme_is_the_one_with_the_sources() -> None:
    comparison = (ROOT / "docs/explanation/comparison.md").read_text("utf-8")
    rows = [line for line in README.splitlines() if line.startswith("| ")]
    assert 1 < len(rows) <= 15  # the head and the rows
    assert [row for row in rows if row not in comparison.splitlines()] == []


def test_the_readme_can_be_read_in_minutes() -> None:
    assert len(README.splitlines()) <= 150
