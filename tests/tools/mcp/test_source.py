"""MCP servers as tool sources: real, well-behaved servers, each in its own process."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from framework.tools.arguments import ArgumentsError
from framework.tools.mcp import source
from framework.types.errors import ToolError
from framework.types.tool_servers import McpServer
from tests.support.editor import MODULES, node
from tests.support.loopback import fixed_port
from tests.support.mcp_worlds import MODERN, World, children, configure, opened, over_http, raw

TIME = McpServer(command=(str(Path(sys.executable).with_name("mcp-server-time")),))
EVERYTHING = MODULES / "@modelcontextprotocol/server-everything/dist/index.js"
FILES = MODULES / "@modelcontextprotocol/server-filesystem/dist/index.js"
needs_npm = pytest.mark.skipif(
    not (EVERYTHING.exists() and FILES.exists() and node()),
    reason="no MCP servers of npm: `make test` fetches them where it finds npm",
)


@asynccontextmanager
async def older(port: int) -> AsyncIterator[Process]:
    """The everything server over HTTP."""
    environment = os.environ | {"PORT": str(port)}
    command = (node() or "", str(EVERYTHING), "streamableHttp")
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=PIPE)
    try:
        assert process.stderr
        while "listening" not in (await process.stderr.readline()).decode():
            assert not process.stderr.at_eof()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def npm_server(script: Path, *arguments: str) -> McpServer:
    return McpServer(command=(node() or "", str(script), *arguments))


def test_a_server_that_is_removed_while_it_starts_is_not_started(tmp_path: Path) -> None:
    async def main() -> None:
        before, world = children(), World("docs", raw(tmp_path))
        starting = asyncio.create_task(world.source.start())
        await asyncio.sleep(0)
        await world.source.close()
        await starting
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert children() <= before

    asyncio.run(main())


# --- third-party servers


def test_the_tools_of_the_time_server_work_in_the_newest_protocol() -> None:
    async def main() -> None:
        async with opened(TIME, "time") as world:
            assert world.source.faults == ()
            assert [tool.name for tool in world.source.tools] == ["mcp.time.get_current_time", "mcp.time.convert_time"]
            convert = world.tools["convert_time"]
            assert (convert.risk, convert.idempotent, convert.source, convert.timeout) == ("low", True, "mcp", 30)
            zones = {"source_timezone": "Europe/Paris", "target_timezone": "Asia/Tokyo"}
            result = await world.call("convert_time", None, time="12:00", **zones)
            assert result["target"]["datetime"][11:16] in {"19:00", "20:00"}, "structured data, not its text"
            with pytest.raises(ToolError, match="Nowhere"):
                await world.call("get_current_time", timezone="Europe/Nowhere")
            with pytest.raises(ArgumentsError, match="timezone"):
                await world.call("get_current_time", zone="Europe/Paris")

    asyncio.run(main())


@pytest.mark.usefixtures("patient_calls")
def test_a_killed_time_server_is_restarted() -> None:
    async def main() -> None:
        before = children()
        async with opened(TIME, "time") as world:
            tools = world.source.tools
            (process,) = children() - before
            os.kill(process, signal.SIGKILL)
            await world.until(lambda source: bool(source.faults))
            assert "mcp.time is not connected: it was killed by signal 9 (SIGKILL)" in world.source.faults[0]
            assert world.source.tools == tools, "a disconnected source keeps its tools"
            assert await world.call("get_current_time", timezone="UTC"), "it waits for the new connection"
            await world.connected()
            assert all(new is old for new, old in zip(world.source.tools, tools, strict=True))
            assert children() - before != {process}

    asyncio.run(main())


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_the_tools_of_the_git_server_work(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "new.txt").touch()
    program = str(Path(sys.executable).with_name("mcp-server-git"))

    async def main() -> None:
        async with opened(McpServer(command=(program, "--repository", str(tmp_path))), "git") as world:
            assert len(world.tools) == 12
            assert "new.txt" in str(await world.call("git_status", repo_path=str(tmp_path)))
            with pytest.raises(ToolError, match="outside"):
                await world.call("git_status", repo_path="/")
            assert world.tools["git_reset"].risk == "high"

    asyncio.run(main())


@needs_npm
def test_the_everything_server_works_in_the_older_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_PROGRESS_INTERVAL", 0.0)  # every report arrives, even if two are read at once
    reports: list[tuple[float, str]] = []

    async def progress(fraction: float, message: str) -> None:
        reports.append((fraction, message))

    async def main() -> None:
        async with opened(npm_server(EVERYTHING)) as world:
            assert await world.call("echo", message="hello") == "Echo: hello"
            before, image, _ = await world.call("get-tiny-image")
            assert "image" in before
            assert (image.media_type, len(image.data) > 3000) == ("image/png", True)
            assert set(await world.call("get-structured-content", location="Chicago")) == {
                "temperature",
                "conditions",
                "humidity",
            }
            await world.call("trigger-long-running-operation", progress, duration=0.5, steps=2)
            assert [fraction for fraction, _ in reports] == [0.5, 1.0]
            async with asyncio.TaskGroup() as group:
                calls = [group.create_task(world.call("echo", message=str(n))) for n in range(100)]
            assert [call.result() for call in calls] == [f"Echo: {n}" for n in range(100)]
            assert await world.source.resource("demo://resource/static/document/features.md")
            assert "[resource demo://" in await world.call("get-resource-links", count=2)
            assert await world.source.prompt("args-prompt", {"city": "Paris"}) == "What's weather in Paris?"

    asyncio.run(main())


@needs_npm
def test_the_tools_of_the_file_server_work(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first", "utf-8")

    async def main() -> None:
        async with opened(npm_server(FILES, str(tmp_path)), "files") as world:
            assert (await world.call("read_text_file", path=str(tmp_path / "a.txt")))["content"] == "first"
            with pytest.raises(ToolError, match="Access denied"):
                await world.call("read_text_file", path="/etc/passwd")
            assert {name: world.tools[name].risk for name in ("read_text_file", "write_file", "create_directory")} == {
                "read_text_file": "low",
                "write_file": "high",
                "create_directory": "medium",
            }

    asyncio.run(main())


# --- behaviour of a source


@pytest.mark.parametrize(
    ("hints", "risk", "idempotent"),
    [
        (None, "medium", False),
        ({}, "medium", False),
        ({"readOnlyHint": True}, "low", True),
        ({"readOnlyHint": False, "idempotentHint": True}, "medium", True),
        ({"destructiveHint": False}, "medium", False),
        ({"destructiveHint": True, "idempotentHint": True}, "high", True),
        ({"destructiveHint": True, "readOnlyHint": True}, "high", True),
    ],
)
def test_hints_determine_the_risk_unless_the_file_sets_it(
    tmp_path: Path, hints: dict[str, bool] | None, risk: str, idempotent: bool
) -> None:
    tool = {"name": "act", "inputSchema": {"type": "object"}} | ({} if hints is None else {"annotations": hints})

    async def main(server: McpServer) -> tuple[str, bool]:
        async with opened(server) as world:
            return world.tools["act"].risk, world.tools["act"].idempotent

    assert asyncio.run(main(raw(tmp_path, {"tools": [tool]}))) == (risk, idempotent)
    assert asyncio.run(main(raw(tmp_path, {"tools": [tool]}, risk="critical"))) == ("critical", idempotent)


def test_a_change_notification_of_the_newest_protocol_adds_a_tool() -> None:
    async def main() -> None:
        async with opened(McpServer(command=MODERN)) as world:
            add = world.tools["add"]
            await world.call("learn", name="fly")
            await world.until(lambda _: "fly" in world.tools)
            assert world.tools["add"] is add
            assert await world.call("fly") == "fly"

    asyncio.run(main())


def test_a_change_notification_of_the_older_protocol_adds_a_tool(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(raw(tmp_path)) as world:
            schema = {"type": "object", "additionalProperties": True}
            names = ("echo", "storm", "fly")
            configure(tmp_path, {"tools": [{"name": n, "description": n, "inputSchema": schema} for n in names]})
            echo, changes = world.tools["echo"], world.changes
            await world.call("storm", notices=1)
            await world.until(lambda _: "fly" in world.tools)
            assert set(world.tools) == set(names)
            assert world.tools["echo"] is echo
            assert world.changes == changes + 1

    asyncio.run(main())


def test_two_servers_may_have_tools_of_the_same_name(tmp_path: Path) -> None:
    async def main() -> tuple[str, str]:
        one, two = raw(tmp_path, env={"WHO": "one"}), raw(tmp_path, env={"WHO": "two"})
        async with opened(one, "one") as first:
            second = World("two", two)
            await second.source.start()
            try:
                assert {tool.name for tool in first.source.tools}.isdisjoint(t.name for t in second.source.tools)
                return await first.call("env"), await second.call("env")
            finally:
                await second.source.close()

    one, two = asyncio.run(main())
    assert '"WHO": "one"' in one
    assert '"WHO": "two"' in two


def test_resources_and_prompts_are_text_not_templates(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(raw(tmp_path, {"resources": [None, "file:///listed"]})) as world:
            read, prompt = world.source.resource, world.source.prompt
            assert await read("docs://faq") == "read docs://faq\n[image/png, 0.0 kB, not shown]"
            assert (await read("file:///listed")).startswith("read file:///listed")
            for uri in (
                "file:///etc/passwd",
                "FILE:///etc/passwd",
                " file:///etc/passwd",
                "http://169.254.169.254/",
                "data:text/plain,x",
            ):
                with pytest.raises(ToolError, match="does not list the resource"):
                    await read(uri)
            text = await prompt("any", {"name": "{{ x }}"})
            assert text == 'user: {{ 7 * 7 }} {"name": "{{ x }}"}\n\nassistant: [image image/png, 2.9 kB, not shown]'

    asyncio.run(main())


def test_a_call_sends_the_trace_context_but_no_baggage(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    async def main() -> str:
        with trace.get_tracer("test").start_as_current_span("execute_tool"):
            token = context.attach(baggage.set_baggage("customer", "c1"))
            try:
                async with opened(raw(tmp_path)) as world:
                    return str(await world.call("meta"))
            finally:
                context.detach(token)

    meta = asyncio.run(main())
    finished = {span.name: span for span in spans.get_finished_spans()}
    call, above = finished["MCP send tools/call meta"], finished["execute_tool"]
    assert call.parent
    assert call.parent.span_id == above.context.span_id
    assert f"{above.context.trace_id:032x}-{call.context.span_id:016x}" in meta
    assert "customer" not in meta
    assert set(finished) == {call.name, above.name}, "connecting belongs to no run, and leaves no trace when it works"
    assert set(call.attributes or {}) == {"mcp.method.name", "jsonrpc.request.id"}


# --- HTTP


def test_an_http_server_can_restart() -> None:
    async def main() -> None:
        async with (
            over_http(fixed_port()) as (process, port),
            opened(McpServer(url=f"http://127.0.0.1:{port}/mcp")) as world,
        ):
            assert await world.call("add", a=1, b=2) == {"result": 3}
            async with asyncio.TaskGroup() as group:
                calls = [group.create_task(world.call("add", a=1, b=n)) for n in range(50)]
            assert [call.result()["result"] for call in calls] == list(range(1, 51))
            assert await world.source.resource("docs://faq") == "Ask nothing."
            assert await world.source.prompt("greet", {"name": "Ann"}) == "Hello Ann, {{ 7 * 7 }}"
            tools = world.source.tools
            process.kill()
            await world.until(lambda source: bool(source.faults))
            assert "mcp.docs is not connected: " in world.source.faults[0]
            async with over_http(port):
                await world.connected()
                assert await world.call("add", a=2, b=2) == {"result": 4}
                assert world.source.tools == tools

    asyncio.run(main())


@pytest.mark.usefixtures("patient_calls")
@needs_npm
def test_an_older_http_server_can_restart() -> None:
    async def main() -> None:
        port = fixed_port()
        async with older(port) as first, opened(McpServer(url=f"http://127.0.0.1:{port}/mcp")) as world:
            assert await world.call("echo", message="a") == "Echo: a"
            first.kill()
            await first.wait()
            async with older(port):
                assert await world.call("echo", message="b") == "Echo: b", "in a new session"
            # The client notices the end of the server in the call or, if its event stream ends sooner, before it.
            with pytest.raises(ToolError, match=r"was lost during the call|is not connected"):
                await world.call("toggle-simulated-logging")
            async with older(port):
                await world.connected()
                assert await world.call("echo", message="c") == "Echo: c"

    asyncio.run(main())
