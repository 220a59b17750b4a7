"""`agentsd mcp` as a client starts it: a process that speaks the protocol, and nothing else, on standard output."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from mcp import StdioServerParameters
from watchfiles import watch

from framework import Runtime
from framework.store.types import RunQuery
from framework.types.state import Approve
from tests.support.commands import ENVIRONMENT
from tests.support.forks import Fork, command_for_shells
from tests.support.mcp_client import ERAS, Era, accept, stdio_user, text_of
from tests.support.projects import write

PATIENCE = 30
"""Timeout in seconds, for waits that should be short."""
PLUGIN = """
    import asyncio
    import os
    import subprocess

    from framework import ToolCall, ToolContext
    from framework.tools.declaration import hook

    print("printed by the plugin")
    os.write(1, b"written by the plugin\\n")


    @hook
    def loud(context: ToolContext, call: ToolCall) -> None:
        print("printed by the hook")
        subprocess.run(["echo", "printed by a child"], check=True)
        subprocess.run(["cat"], check=True, timeout=30)


    @hook
    async def wait(context: ToolContext, call: ToolCall) -> None:
        open("ROOT/began", "w").close()
        while not os.path.exists("ROOT/go"):
            await asyncio.sleep(0.01)
"""
AGENT = """
    version: 1
    name: {name}
    description: The agent {name}.
    instructions: Use the tool.
    skill_policy: {{allow: [echo], ask: [{ask}]}}
    hooks: {{before_tool: [{hook}]}}
"""


def project(root: Path) -> Path:
    files = {
        f"agents.d/{name}.yaml": AGENT.format(name=name, ask=ask, hook=hook)
        for name, ask, hook in [("main", "", "noise.loud"), ("asking", "echo", ""), ("waiting", "", "noise.wait")]
    }
    return write(root, {**files, "plugins/noise.py": PLUGIN.replace("ROOT", str(root))})


@pytest.fixture(scope="module")
def program() -> Iterator[str]:
    """Path of the `agentsd` that clients start."""
    with command_for_shells() as folder:
        yield str(folder / "agentsd")


def parameters(program: str, root: Path, *arguments: str) -> StdioServerParameters:
    return StdioServerParameters(command=program, args=["mcp", *arguments], cwd=root, env={**ENVIRONMENT})


@pytest.mark.parametrize("era", ERAS)
def test_an_agent_answers_and_asks(program: str, tmp_path: Path, era: Era) -> None:
    async def main() -> None:
        with (tmp_path / "errors").open("w") as errors:
            async with stdio_user(
                parameters(program, project(tmp_path)), era, accept(decision="approve"), errors
            ) as user:
                names = [tool.name for tool in (await user.client.list_tools()).tools]
                assert names == ["asking", "main", "waiting"]
                answer = await user.call("main", "echo hello")
                assert (text_of(answer), answer.is_error) == ("hello", False)
                assert text_of(await user.call("asking", "echo hello")) == "hello"
                (form,) = user.forms
                assert "may it call echo?" in form.message

    asyncio.run(main())
    printed = (tmp_path / "errors").read_text()
    for text in ("printed by the plugin", "written by the plugin", "printed by the hook", "printed by a child"):
        assert text in printed
    assert "agentsd offers 3 agents over MCP" in printed


def test_a_decision_can_be_made_elsewhere(program: str, tmp_path: Path) -> None:
    async def main() -> None:
        with (tmp_path / "errors").open("w") as errors:
            async with stdio_user(parameters(program, project(tmp_path), "-a", "asking"), "auto", None, errors) as user:
                assert [tool.name for tool in (await user.client.list_tools()).tools] == ["asking"]
                paused = await user.call("asking", "echo hello")
        assert paused.is_error
        assert paused.meta
        run_id = paused.meta["agentsd/run_id"]
        assert f"agentsd runs decide {run_id}" in text_of(paused)
        async with Runtime.open(tmp_path, store="sqlite:///.agentsd/state.db", watch=False) as runtime:
            (asked,) = await runtime.pending(run_id)
            assert (await runtime.resume(run_id, {asked.id: Approve()})).output == "hello"

    asyncio.run(main())


@contextmanager
def started(root: Path, *arguments: str) -> Iterator[Fork]:
    process = Fork(["mcp", *arguments], cwd=root, env=ENVIRONMENT, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    with process:
        try:
            yield process
        finally:
            process.kill()


def send(process: Fork, method: str, number: int | None = None, **params: Any) -> None:
    body = {"jsonrpc": "2.0", "method": method, "params": params, **({} if number is None else {"id": number})}
    write_line(process, json.dumps(body).encode())


def write_line(process: Fork, line: bytes) -> None:
    assert process.stdin
    process.stdin.write(line + b"\n")
    process.stdin.flush()


def read_line(process: Fork) -> Any:
    assert process.stdout
    return json.loads(process.stdout.readline())


def begin(process: Fork) -> None:
    """Begin a session by hand."""
    client = {"name": "test", "version": "1"}
    send(process, "initialize", 1, protocolVersion="2025-11-25", capabilities={}, clientInfo=client)
    assert read_line(process)["result"]["serverInfo"]["name"] == "agentsd"
    send(process, "notifications/initialized")


def wait_for(file: Path) -> None:
    """Wait for a file that another process writes."""
    for _ in watch(file.parent, yield_on_timeout=True, rust_timeout=100):
        if file.exists():
            return


def test_a_client_that_dies_leaves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    with started(project(tmp_path)) as process:
        begin(process)
        send(process, "tools/call", 2, name="waiting", arguments={"message": "echo hello"})
        wait_for(tmp_path / "began")
        assert process.stdin
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
    (tmp_path / "go").touch()

    async def main() -> None:
        async with Runtime.open(tmp_path, store="sqlite:///.agentsd/state.db", watch=False) as runtime:
            (run,) = await runtime.store.runs(RunQuery())
            assert run.status == "running"
            assert run.orphaned
            assert (await runtime.resume(run.run_id, {})).output == "hello"

    asyncio.run(main())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_while_the_client_is_connected(tmp_path: Path, number: int) -> None:
    with started(project(tmp_path)) as process:
        begin(process)
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0


def test_garbage_and_a_client_that_reads_nothing_do_no_harm(tmp_path: Path) -> None:
    with started(project(tmp_path)) as process:
        begin(process)
        write_line(process, b"\n\nnot json\n\xff\xfe\n[]\n{}")
        send(process, "tools/list", 2)
        while "tools" not in read_line(process).get("result", {}):
            pass
        assert process.stdin
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


MANY = 200
"""Number of lists of tools that are more than pipes hold."""


def test_a_client_that_leaves_without_reading_its_answers_ends_it(tmp_path: Path) -> None:
    with started(project(tmp_path)) as process:
        begin(process)
        for number in range(MANY):
            send(process, "tools/list", number + 2)
        assert read_line(process)["id"] == 2
        assert process.stdout
        assert process.stdin
        process.stdout.close()
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def test_streams_that_a_client_has_made_non_blocking_lose_nothing(tmp_path: Path) -> None:
    (given, sent), (received, taken) = os.pipe(), os.pipe()
    fcntl.fcntl(taken, fcntl.F_SETPIPE_SZ, 4096)  # smaller than the answer
    for end in (given, taken):
        os.set_blocking(end, False)
    names = [f"a{number}" for number in range(30)]
    root = write(project(tmp_path), {f"agents.d/{one}.yaml": AGENT.format(name=one, ask="", hook="") for one in names})
    process = Fork(["mcp"], cwd=root, env=ENVIRONMENT, stdin=given, stdout=taken, stderr=PIPE)
    os.close(given)
    os.close(taken)
    process.stdin, process.stdout = os.fdopen(sent, "wb"), os.fdopen(received, "rb")
    with process:
        try:
            begin(process)
            send(process, "tools/list", 2)
            assert len(read_line(process)["result"]["tools"]) == len(names) + 3
            process.stdin.close()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("files", "arguments", "code", "message"),
    [
        ({"agents.d/a.yaml": "name: a", "agentsd.yaml": "reload: {mode: strict}"}, (), 78, "'description' is missing"),
        ({"agentsd.yaml": "serve: {}"}, (), 78, "serve"),
        ({"agents.d/a.yaml": AGENT.format(name="a", ask="", hook="")}, ("-a", "b"), 2, "no agent named 'b'"),
        ({}, ("nowhere",), 2, "nowhere"),
    ],
)
def test_problems_of_the_project_are_reported_on_standard_error(
    tmp_path: Path, files: dict[str, str], arguments: tuple[str, ...], code: int, message: str
) -> None:
    write(tmp_path, {"agents.d/.keep": "", **files})
    with started(tmp_path, *arguments) as process:  # its input stays open, as that of a client does
        assert process.stdout
        assert process.stderr
        assert process.stdout.read() == b""
        assert message in process.stderr.read().decode()
        assert process.wait(PATIENCE) == code
