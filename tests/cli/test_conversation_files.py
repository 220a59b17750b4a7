"""Conversations with files, from the command line: exported with their contents, and imported again."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.support.commands import agentsd
from tests.support.file_requests import files_in
from tests.support.media import pdf, png
from tests.support.projects import agent, write


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


CONVERSATION = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "what is this?"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded(png('cat'))}"}},
            {
                "type": "file",
                "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{encoded(pdf())}"},
            },
        ],
    },
    {"role": "assistant", "content": "a cat"},
]


def imported(folder: Path) -> None:
    write(folder, {"agents.d/one.yaml": agent("one", model="offline"), "c1.json": json.dumps(CONVERSATION)})
    done = agentsd("conversations", "import", "c1.json", "-f", "openai", "-a", "one", "-c", "c1", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "c1\n"), done.stderr


@pytest.mark.parametrize("form", ["openai", "anthropic", "gemini"])
def test_an_imported_conversation_is_exported_with_its_files(tmp_path: Path, form: str) -> None:
    imported(tmp_path)

    data = json.loads(agentsd("conversations", "export", "c1", "-f", form, cwd=tmp_path).stdout)

    body = {"messages": data} if form == "openai" else data
    assert files_in(form, body) == [("image/png", png("cat")), ("application/pdf", pdf())]
    if form == "openai":
        assert data == CONVERSATION


def test_the_neutral_format_takes_files_to_another_project(tmp_path: Path) -> None:
    imported(tmp_path)
    out = agentsd("conversations", "export", "c1", cwd=tmp_path).stdout
    other = tmp_path / "other"
    write(other, {"agents.d/one.yaml": agent("one", model="offline"), "c1.json": out})

    done = agentsd("conversations", "import", "c1.json", "-a", "one", "-c", "c1", cwd=other)

    assert done.returncode == 0, done.stderr
    assert agentsd("conversations", "export", "c1", cwd=other).stdout == out
    assert agentsd("runs", "export", "last", cwd=other).stdout == out


def test_a_remote_image_is_not_fetched(tmp_path: Path) -> None:
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/cat.png"}}]}
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline"), "c1.json": json.dumps([message])})

    done = agentsd("conversations", "import", "c1.json", "-f", "openai", "-a", "one", cwd=tmp_path)

    assert done.returncode == 2
    assert done.stderr == (
        "error: c1.json is not in the format 'openai': the file 'http://127.0.0.1:1/cat.png' is not in the data, and"
        " nothing is fetched: replace it by a data URL with its contents\n"
    )


def test_a_fork_has_the_history_and_leaves_the_other_as_it_is(tmp_path: Path) -> None:
    imported(tmp_path)
    before = agentsd("conversations", "export", "c1", cwd=tmp_path).stdout
    assert agentsd("conversations", "fork", "c1", "-c", "c2", cwd=tmp_path).stdout == "c2\n"
    assert agentsd("conversations", "export", "c1", cwd=tmp_path).stdout == before
    assert json.loads(agentsd("conversations", "export", "c2", cwd=tmp_path).stdout) == json.loads(before)
    for arguments, message in (
        (("c1", "-c", "c2"), "c2"),
        (("nope",), "no conversation 'nope'"),
        (("c1", "--before", "nope"), "no run"),
    ):
        done = agentsd("conversations", "fork", *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert message in done.stderr
