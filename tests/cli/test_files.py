"""Files on the command line: `agentsd run -f`, paths in `agentsd chat`, and a process that is killed."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from pathlib import Path
from subprocess import PIPE
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import File, RequestError
from framework.cli.chat_commands import attached
from tests.support.cases import cases
from tests.support.commands import ENVIRONMENT, agentsd, agentsd_process
from tests.support.forks import Fork
from tests.support.media import jpeg, pdf, png
from tests.support.projects import agent, write
from tests.support.wire import WireServer, says, stalled, wire_server


def project(root: Path, model: str = "offline", settings: str = "locale: en\n") -> Path:
    (root / "a.png").write_bytes(png("a"))
    (root / "my page.pdf").write_bytes(pdf(2))
    (root / "lie.png").write_bytes(jpeg())
    (root / "empty.png").touch()
    return write(root, {"agents.d/one.yaml": agent("one", model=model), "agentsd.yaml": settings})


def served(root: Path, server: WireServer, **capabilities: bool) -> Path:
    known = ", ".join(f"{name}: {str(value).lower()}" for name, value in capabilities.items())
    alias = f"{{model: openai/gpt-x, base_url: '{server.url}', api_key: k, capabilities: {{{known}}}}}"
    return project(root, "seer", f"models: {{seer: {alias}}}\n")


def images_in(request: dict[str, Any]) -> list[bytes]:
    parts = [
        part for message in request["messages"] if isinstance(message["content"], list) for part in message["content"]
    ]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [base64.b64decode(url.removeprefix("data:image/png;base64,"), validate=True) for url in urls]


def test_a_picture_reaches_the_model_of_a_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with wire_server([says("a cat")]) as server:
            served(tmp_path, server)
            done = await asyncio.to_thread(agentsd_process, "run", "-f", "a.png", "What", "is it?", cwd=tmp_path)
            assert (done.returncode, done.stdout) == (0, "a cat\n"), done.stderr
            assert images_in(server.requests[0]) == [png("a")]

    asyncio.run(main())
    shown = agentsd("runs", "show", "last", cwd=tmp_path).stdout
    assert f"you: [image/png {len(png('a'))} bytes a.png] What is it?" in shown
    as_json = agentsd("runs", "show", "last", "--json", cwd=tmp_path).stdout
    assert base64.b64encode(png("a")).decode()[4:-4] not in as_json


def test_a_killed_run_still_sends_its_picture_when_it_is_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        async with wire_server([stalled(), says("a cat")]) as server:
            arguments, root = ["run", "-f", "a.png", "What is it?"], served(tmp_path, server)
            with Fork(arguments, cwd=root, env=ENVIRONMENT, stdout=PIPE, stderr=PIPE) as process:
                await asyncio.wait_for(server.request_received.wait(), 20)
                os.kill(process.pid, signal.SIGKILL)
                await asyncio.to_thread(process.wait)
            (tmp_path / "a.png").unlink()
            done = await asyncio.to_thread(agentsd_process, "runs", "resume", "last", cwd=root)
            assert (done.returncode, done.stdout) == (0, "a cat\n"), done.stderr
            assert [images_in(request) for request in server.requests] == [[png("a")], [png("a")]]

    asyncio.run(main())


def test_a_pdf_for_a_model_without_pdfs_is_an_error_before_the_call(tmp_path: Path) -> None:
    async def main() -> None:
        async with wire_server([]) as server:
            served(tmp_path, server, images=True, pdf=False)
            done = await asyncio.to_thread(agentsd_process, "run", "-f", "my page.pdf", "Read", cwd=tmp_path)
            assert (done.returncode, server.requests) == (2, [])
            assert "error: seer does not accept PDFs: [application/pdf" in done.stderr
            assert "my page.pdf]; choose another model, or, if it does, set `pdf: true`" in done.stderr

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing.png", "cannot read missing.png: No such file or directory"),
        (".", ". is a folder, not a file"),
        ("empty.png", "empty.png is empty"),
        ("lie.png", "lie.png has the extension of image/png, but its content is image/jpeg: correct one of them"),
    ],
)
def test_a_file_that_cannot_be_attached_is_a_usage_error(tmp_path: Path, name: str, problem: str) -> None:
    done = agentsd("run", "-f", "a.png", "-f", name, "hi", cwd=project(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {problem}\n")
    assert agentsd("runs", "list", cwd=tmp_path).stdout == "no runs are stored\n"


def test_paths_in_a_chat_attach_their_files(tmp_path: Path) -> None:
    lines = ["What is in a.png?", "lie.png", "my\\ page.pdf"]
    done = agentsd("chat", "-c", "c", cwd=project(tmp_path), stdin="\n".join(lines))
    picture, page = f"[image/png {len(png('a'))} bytes a.png]", f"[application/pdf {len(pdf(2))} bytes my page.pdf]"
    assert f"(attached: {picture})\n" in done.stderr
    assert f"(attached: {page})\n" in done.stderr
    assert "lie.png has the extension of image/png, but its content is image/jpeg" in done.stderr
    assert done.stdout.count("files received, which the offline model cannot read") == 2
    shown = agentsd("conversations", "show", "c", cwd=tmp_path).stdout
    assert f"you: {picture} What is in a.png?\n" in shown
    assert f"you: {page}\n" in shown


# --- lines


@pytest.mark.parametrize(
    ("line", "names", "text"),
    [
        ("a.png", ["a.png"], None),
        ("my page.pdf", ["my page.pdf"], None),
        ("my\\ page.pdf  a.png", ["my page.pdf", "a.png"], None),
        ("'my page.pdf'", ["my page.pdf"], None),
        ('Is "{folder}/my page.pdf" in a.png, too?', ["my page.pdf", "a.png"], "Is my page.pdf in a.png, too?"),
        ("What's in {folder}/a.png?", ["a.png"], "What's in a.png?"),
        ("file://{url}/my%20page.pdf", ["my page.pdf"], None),
        ("a.png a.png what?", ["a.png"], "a.png a.png what?"),
        ("~/a.png", ["a.png"], None),
        ("is missing.png there?", [], "is missing.png there?"),
        ("read agentsd.yaml", [], "read agentsd.yaml"),
        ("https://example.com/a.png", [], "https://example.com/a.png"),
    ],
)  # fmt: skip
def test_a_line_with_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, names: list[str], text: str | None
) -> None:
    monkeypatch.chdir(project(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    message = attached(line.format(folder=tmp_path, url=quote(str(tmp_path))))
    assert [item.name for item in message if isinstance(item, File)] == names
    assert [item for item in message if isinstance(item, str)] == ([text] if text else [])


@given(
    st.text()
    | st.lists(st.sampled_from(["a.png", "'", '"', "\\", " ", "~x/", "file://", "?", "\0", "x" * 300])).map("".join)
)
@cases(200)
def test_any_line_becomes_a_message(line: str) -> None:
    try:
        message = attached(line)
    except RequestError:
        return
    assert line == "" or message


# --- .env


def test_the_env_file_of_a_project_is_read_and_the_environment_wins(tmp_path: Path) -> None:
    key = "sk-" + "a1b2" * 8
    files = {
        "agentsd.yaml": "models: {own: {model: openai/x, api_key: '${OWN_KEY}', base_url: '${OWN_URL}'}}\n",
        "agents.d/one.yaml": agent("one", model="offline"),
        ".env": f"# keys\nOWN_KEY='{key}'\nexport OWN_URL=http://127.0.0.1:9/v1\nAGENTSD_MODEL=offline\nBARE\n",
        "elsewhere.env": "OWN_KEY=k\nOWN_URL=not a url\n",
    }
    root = write(tmp_path, files)
    assert agentsd("check", cwd=root).returncode == 0
    assert agentsd("check", str(root), cwd=tmp_path.parent).returncode == 0
    wins = agentsd("check", cwd=root, OWN_URL="ftp://host")
    assert (wins.returncode, "agentsd.yaml:1:" in wins.stderr, key in wins.stdout + wins.stderr) == (78, True, False)
    other = agentsd("check", cwd=root, AGENTSD_ENV_FILE="elsewhere.env")
    assert (other.returncode, "agentsd.yaml:1:" in other.stderr) == (78, True)
    none = agentsd("check", cwd=root, AGENTSD_ENV_FILE="")
    assert (none.returncode, "the variable OWN_KEY is not set" in none.stderr) == (78, True)
    missing = agentsd("check", cwd=root, AGENTSD_ENV_FILE="gone.env")
    assert (missing.returncode, "there is no file gone.env: AGENTSD_ENV_FILE names it" in missing.stderr) == (78, True)


@pytest.mark.parametrize("command", [("run", "hello"), ("chat",)])
def test_the_model_in_the_env_file_replaces_those_of_the_agents(tmp_path: Path, command: tuple[str, ...]) -> None:
    files = {"agents.d/one.yaml": agent("one", model="offline"), ".env": "AGENTSD_MODEL=openai/x\n"}
    root = write(tmp_path, files)
    assert "openai/x needs an API key" in agentsd(*command, cwd=root, stdin="hello\n", OPENAI_API_KEY="").stderr
    own = agentsd(*command, "-m", "offline", cwd=root, stdin="hello\n")
    assert (own.returncode, "needs an API key" in own.stderr) == (0, False)


@pytest.mark.parametrize("content", [b"SECRET=\xff\xfesecret-text\n", b"SECRET=\0secret-text\n"])
def test_an_env_file_that_is_not_text_is_an_error_without_its_content(tmp_path: Path, content: bytes) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")})
    (root / ".env").write_bytes(content)
    done = agentsd("check", cwd=root)
    assert (done.returncode, "secret-text" in done.stderr) == (78, False)
    assert ".env cannot be read: it is not UTF-8" in done.stderr


def test_an_env_file_beside_no_project_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, {"one.yaml": agent("one", model="offline"), ".env": "AGENTSD_NO_SETTING=1\n"})
    assert agentsd("check", "one.yaml", cwd=tmp_path).returncode == 0
