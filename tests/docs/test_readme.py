"""What the README shows on a terminal is what a terminal shows, command by command, in one project."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from framework.cli.init import copy_starter
from tests.cli.test_cli import read_until, terminal
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text("utf-8")
ANSWERED = re.compile(r"(\[.*[:?]) (\^C|\w+)")
"""A question, and what is typed."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands(block: str) -> Iterator[tuple[list[str], list[str]]]:
    for part in block.split("$ ")[1:]:
        command, *shown = part.splitlines()
        yield shlex.split(command)[1:], shown


def played(project: Path, arguments: list[str], expected: list[str]) -> str:
    """What a command shows whose questions are answered as in the README."""
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
        process.wait(10)
    return shown


def plain(text: str) -> str:
    """Without colours, and without what differs from time to time."""
    return re.sub(r"\d+ ms", "0 ms", re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", text)).replace("\r", "\n")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("readme")
    copy_starter(root)
    (root / "agents.d/support.yaml").write_text(blocks("yaml")[0], "utf-8")
    return root


@pytest.mark.parametrize("block", blocks("console"), ids=lambda block: block.splitlines()[0])
def test_what_the_readme_shows_is_what_a_terminal_shows(project: Path, block: str) -> None:
    support = project / "agents.d/support.yaml"
    if "max_stesp" in block:
        support.write_text(support.read_text("utf-8").replace("max_steps", "max_stesp"), "utf-8")
    for arguments, expected in commands(block):
        shown = plain(played(project, arguments, expected)).splitlines()
        for line in expected:
            answered = ANSWERED.fullmatch(line)
            assert any(answered[1] in one if answered else plain(line) == one.rstrip() for one in shown), line
