"""Complete runs with files over real HTTP, in every format: of a user, of built-in tools, of plugins and of MCP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from framework import File, RunResult, Runtime
from tests.support.commands import agentsd_process
from tests.support.editor import MODULES, node
from tests.support.file_requests import files_in
from tests.support.formats import FORMATS, Calls, Format, each_format, each_way, says
from tests.support.mcp_worlds import MODERN
from tests.support.media import jpeg, pdf, png
from tests.support.projects import agent, write
from tests.support.wire import Answer, WireServer, wire_server

EVERYTHING = MODULES / "@modelcontextprotocol/server-everything/dist/index.js"
one_format = pytest.mark.parametrize("form", FORMATS[:1], ids=lambda form: form.id)
"""For tools that start a process: a file of a tool is sent alike in each format, whatever the tool is."""
PLUGIN = '''
from framework import File, tool


@tool(risk="low")
def chart(kind: str) -> list[str | File]:
    """Draw a chart."""
    return [f"a {kind} chart", File.from_path("chart.png")]
'''


def project(root: Path, form: Format, server: WireServer, command: Sequence[str] = ()) -> Path:
    (root / "chart.png").write_bytes(png("chart"))
    (root / "page.pdf").write_bytes(pdf())
    plugin = PLUGIN.replace('"chart.png"', repr(str(root / "chart.png")))
    files = {
        "agents.d/one.yaml": agent("one", model="local"),
        "agentsd.yaml": f"models: {{local: {form.alias(server.url)}}}\n",
        "plugins/art.py": plugin,
    }
    if command:
        art = f"{{command: {json.dumps(command)}, risk: low}}"
        files["plugins/servers.yaml"] = f"version: 1\nmcp_servers: {{art: {art}}}\n"
    return write(root, files)


def answers(form: Format, *calls: Calls) -> list[Answer]:
    """Return tool calls, one turn each, and an answer."""
    return [*(says(form, calls=turn) for turn in calls), says(form, "I see it.")]


def run(
    root: Path,
    form: Format,
    turns: tuple[Calls, ...] = (),
    *,
    message: Any = "look",
    command: Sequence[str] = (),
    stream: bool = False,
) -> tuple[RunResult, list[dict[str, Any]]]:
    """Run an agent; return its result and the requests."""

    async def main() -> tuple[RunResult, list[dict[str, Any]]]:
        async with (
            wire_server(answers(form, *turns)) as server,
            Runtime.open(project(root, form, server, command), watch=False) as runtime,
        ):
            if not stream:
                return await runtime.run(message), server.requests
            async with runtime.stream(message) as streamed:
                async for _ in streamed:
                    pass
            return await streamed.result(), server.requests

    return asyncio.run(main())


@each_format
@each_way
def test_a_question_about_an_image_and_a_document(tmp_path: Path, form: Format, stream: bool) -> None:
    message = ["compare", File.from_bytes(png("a")), "with", File.from_bytes(pdf())]

    result, (request,) = run(tmp_path, form, message=message, stream=stream)

    assert (result.status, result.output) == ("completed", "I see it.")
    assert files_in(form.id, request) == [("image/png", png("a")), ("application/pdf", pdf())]


@each_format
def test_a_question_from_the_command_line(tmp_path: Path, form: Format) -> None:
    async def main() -> list[dict[str, Any]]:
        async with wire_server(answers(form)) as server:
            project(tmp_path, form, server)
            done = await asyncio.to_thread(
                agentsd_process, "run", "-f", "chart.png", "-f", "page.pdf", "look", cwd=tmp_path
            )
            assert (done.returncode, done.stdout) == (0, "I see it.\n"), done.stderr
            return server.requests

    (request,) = asyncio.run(main())
    assert files_in(form.id, request) == [("image/png", png("chart")), ("application/pdf", pdf())]


@each_format
def test_the_model_sees_an_image_that_it_reads(tmp_path: Path, form: Format) -> None:
    turn = (("read_file", {"path": "chart.png"}), ("echo", {"text": "between"}), ("read_file", {"path": "page.pdf"}))

    result, (_, second) = run(tmp_path, form, (turn,))

    assert result.output == "I see it."
    assert files_in(form.id, second) == [("image/png", png("chart")), ("application/pdf", pdf())]
    assert f"[image/png {len(png('chart'))} bytes chart.png]" in json.dumps(second)


@each_format
def test_the_model_sees_an_image_of_a_plugin(tmp_path: Path, form: Format) -> None:
    result, (_, second, third) = run(tmp_path, form, ((("art__chart", {"kind": "bar"}),), (("echo", {"text": "x"}),)))

    assert result.output == "I see it."
    for request in (second, third):
        assert files_in(form.id, request) == [("image/png", png("chart"))]
        assert "a bar chart" in json.dumps(request)


@one_format
def test_the_model_sees_an_image_of_an_mcp_server(tmp_path: Path, form: Format) -> None:
    result, (_, second) = run(tmp_path, form, ((("mcp__art__chart", {}),),), command=MODERN)

    assert result.output == "I see it."
    assert files_in(form.id, second) == [("image/png", png("drawn"))]
    assert "the chart" in json.dumps(second)


@pytest.mark.skipif(not (EVERYTHING.exists() and node()), reason="no MCP servers of npm")
@one_format
def test_the_model_sees_the_image_of_a_third_party_server(tmp_path: Path, form: Format) -> None:
    command = (node() or "", str(EVERYTHING))

    result, (_, second) = run(tmp_path, form, ((("mcp__art__get-tiny-image", {}),),), command=command)

    assert result.output == "I see it."
    ((media_type, data),) = files_in(form.id, second)
    assert (media_type, data[:8]) == ("image/png", b"\x89PNG\r\n\x1a\n")
    assert len(data) > 3000


@each_format
def test_a_file_stays_in_a_conversation(tmp_path: Path, form: Format) -> None:
    async def main() -> list[dict[str, Any]]:
        async with wire_server([says(form, "grey"), says(form, "2 by 2")]) as server:
            root = project(tmp_path, form, server)
            async with Runtime.open(root, watch=False, store="sqlite:///runs.db") as runtime:
                await runtime.run(["which color?", File.from_bytes(jpeg())], conversation="c1")
            async with Runtime.open(root, watch=False, store="sqlite:///runs.db") as runtime:
                await runtime.run("and its size?", conversation="c1")
            return server.requests

    for request in asyncio.run(main()):
        assert files_in(form.id, request) == [("image/jpeg", jpeg())]
