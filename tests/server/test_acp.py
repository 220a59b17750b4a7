"""`agentsd acp`, as editors use it: the client of the protocol's SDK, and a process whose lines are read by hand."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any, cast

import acp
import pytest
from acp import schema

from framework import Runtime
from framework.server.acp import AcpServer
from framework.store.types import RunQuery
from framework.testing import ScriptedModel, Turn, calls
from framework.types.spec import Risk
from framework.types.state import Approve
from tests.support.cases import FACTOR
from tests.support.commands import ENVIRONMENT
from tests.support.forks import Fork
from tests.support.media import png
from tests.support.projects import agent, write

STORE = "sqlite:///.agentsd/state.db"
PATIENCE = 30
"""Timeout in seconds, for waits that should be short."""
PLUGIN = """
    import asyncio
    import os

    from agentsd import ToolContext, tool

    print("printed by the plugin")
    os.write(1, b"written by the plugin\\n")


    @tool(risk="high")
    def pay(amount: int) -> str:
        "Pay."
        print("paying")
        with open(os.path.join(os.path.dirname(__file__), "..", "paid"), "a") as paid:
            paid.write(f"{amount}\\n")
        return f"paid {amount}"


    @tool(risk="critical")
    def wipe() -> str:
        "Delete everything."
        return "wiped"


    @tool
    async def wait() -> str:
        "Wait for ever."
        await asyncio.Event().wait()
        return ""
"""
ASKS = '{allow: ["*"], ask: [books.pay, books.wipe]}'
FILES = {
    "agents.d/billing.yaml": agent("billing", tools=ASKS).replace('skill_policy: {allow: ["*"]}\n', ""),
    "agents.d/helper.yaml": agent("helper"),
    "agentsd.yaml": "routing: {default_agent: billing}\n",
    "plugins/books.py": PLUGIN,
}
PAYS = (calls(("books.pay", {"amount": 80})), "done")
FREE = "{risk_level: critical, confirm: {from: never}}"
DESK = FILES | {
    "agents.d/front.yaml": agent(
        "front", runtime_policy=FREE, handoffs="[billing]", skill_policy="{allow: [books.pay], ask: [books.pay]}"
    ),
    "agents.d/billing.yaml": agent("billing", runtime_policy=FREE, skill_policy='{allow: ["*"]}'),
    "agentsd.yaml": "routing: {default_agent: front}\n",
}
HANDED = (calls(("handoff.billing", {})), calls(("books.wipe", {})), PAYS[0], "paid by billing", PAYS[0], "again")
"""`front` asks before it pays, and has no `books.wipe`; `billing` may call both."""
Pick = Callable[[schema.ToolCallUpdate, Sequence[schema.PermissionOption]], str | None]


def first(_call: schema.ToolCallUpdate, options: Sequence[schema.PermissionOption]) -> str:
    return options[0].option_id


@dataclass
class Editor:
    """What an editor has received."""

    pick: Pick
    updates: list[Any] = field(default_factory=list)
    asked: list[schema.ToolCallUpdate] = field(default_factory=list)
    asks: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when an update has arrived."""
    closes: asyncio.Event | None = None
    """Set when the person answers; until then, they think."""
    link: Any = None
    """The connection to agentsd."""

    async def request_permission(
        self, tool_call: schema.ToolCallUpdate, options: Sequence[schema.PermissionOption], **_: Any
    ) -> schema.RequestPermissionResponse:
        self.asked.append(tool_call)
        self.asks.set()
        if self.closes is not None:
            await self.closes.wait()
        if (picked := self.pick(tool_call, options)) is None:
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        return schema.RequestPermissionResponse(outcome=schema.AllowedOutcome(outcome="selected", option_id=picked))

    async def session_update(self, update: Any, **_: Any) -> None:
        self.updates.append(update)
        self.arrived.set()

    async def until(self, seen: Callable[[], bool]) -> None:
        while not seen():
            self.arrived.clear()
            await self.arrived.wait()

    def text(self) -> str:
        chunks = (one for one in self.updates if isinstance(one, schema.AgentMessageChunk))
        return "".join(getattr(one.content, "text", "") for one in chunks)

    def calls(self) -> list[tuple[str | None, str | None]]:
        """Return title and status of each update of a call."""
        return [
            (one.title, one.status)
            for one in self.updates
            if isinstance(one, schema.ToolCallStart | schema.ToolCallProgress)
        ]

    async def begin(self, **options: Any) -> str:
        return str((await self.link.new_session(cwd="/", mcp_servers=[], **options)).session_id)

    async def say(self, session: str, *parts: Any) -> str:
        blocks = [acp.text_block(part) if isinstance(part, str) else part for part in parts]
        return str((await self.link.prompt(session_id=session, prompt=blocks)).stop_reason)


@asynccontextmanager
async def opened(root: Path, *turns: Turn) -> AsyncIterator[Runtime]:
    models = {"scripted": ScriptedModel(*turns)}
    async with Runtime.open(root, models=models, store=STORE, watch=False, single_user=True) as runtime:
        yield runtime


@asynccontextmanager
async def connected(
    runtime: Runtime, pick: Pick = first, *, only: str | None = None, decides: Risk | None = "high"
) -> AsyncIterator[Editor]:
    """Connect an editor to a runtime over a socket."""
    here, there = socket.socketpair()
    server = AcpServer(runtime, Path("/project"), only, decides)
    reader, ours = await asyncio.open_connection(sock=here)
    serving = asyncio.create_task(acp.run_agent(cast(acp.Agent, server), ours, reader, use_unstable_protocol=True))
    editor = Editor(pick)
    reader, writer = await asyncio.open_connection(sock=there)
    editor.link = acp.connect_to_agent(cast(acp.Client, editor), writer, reader, use_unstable_protocol=True)
    await editor.link.initialize(protocol_version=acp.PROTOCOL_VERSION)
    try:
        yield editor
    finally:
        await editor.link.close()
        writer.close()
        await writer.wait_closed()
        await serving
        ours.close()
        await ours.wait_closed()


def paid(root: Path) -> str:
    return (root / "paid").read_text() if (root / "paid").exists() else ""


def test_a_permission_in_the_editor_is_a_decision(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(write(tmp_path, FILES), *PAYS, *PAYS) as runtime, connected(runtime) as editor:
            session = await editor.begin()
            assert await editor.say(session, "pay 80") == "end_turn"
            assert editor.text() == "done"
            assert editor.calls() == [("books.pay", "pending"), (None, "in_progress"), (None, "completed")]
            (asked,) = editor.asked
            assert (asked.title, asked.raw_input) == ("books.pay", {"amount": 80})
            assert asked.tool_call_id == editor.updates[0].tool_call_id
            assert "may it call books.pay?" in asked.content[0].content.text  # type: ignore[index]
            editor.pick = lambda _call, options: options[-1].option_id
            assert await editor.say(session, "pay again") == "end_turn"
            assert editor.calls()[-1] == (None, "failed")
        assert paid(tmp_path) == "80\n"

    asyncio.run(main())


def test_a_handoff_changes_the_mode_and_the_rules_of_both_agents_apply(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(write(tmp_path, DESK), *HANDED, "I am front.") as runtime, connected(runtime) as editor:
            session = await editor.begin()
            await editor.link.set_session_mode(session_id=session, mode_id="front")
            assert await editor.say(session, "pay 80") == "end_turn"
            assert editor.text() == "paid by billing"
            assert [status for _, status in editor.calls() if status in ("completed", "failed")] == [
                *("completed", "failed", "completed")
            ]
            assert [asked.title for asked in editor.asked] == ["books.pay"]
            modes = [one.current_mode_id for one in editor.updates if isinstance(one, schema.CurrentModeUpdate)]
            assert modes == ["billing"]
            assert await editor.say(session, "pay again") == "end_turn"
            assert len(editor.asked) == 1, "the first agent's rules applied to one message"
        async with opened(tmp_path, "Still billing.", "I am front.") as runtime, connected(runtime) as editor:
            loaded = await editor.link.load_session(cwd="/", session_id=session, mcp_servers=[])
            assert loaded.modes.current_mode_id == "billing"
            editor.updates.clear()
            assert await editor.say(session, "and now?") == "end_turn"
            await editor.link.set_session_mode(session_id=session, mode_id="front")
            assert await editor.say(session, "back") == "end_turn"
            *_, newest = await runtime.store.runs()
            assert (await runtime.store.load_run(newest.run_id)).answering == "front", "a mode chooses again"
        assert paid(tmp_path) == "80\n80\n"

    asyncio.run(main())


def test_an_approval_can_be_remembered_for_the_session(tmp_path: Path) -> None:
    offered: list[tuple[str, str, str]] = []

    def always(_call: schema.ToolCallUpdate, options: Sequence[schema.PermissionOption]) -> str:
        offered.extend((one.option_id, one.name, one.kind) for one in options if one.kind == "allow_always")
        return offered[1][0]

    async def main() -> None:
        turns = (PAYS[0], calls(("books.pay", {"amount": 20})), "done")
        async with opened(write(tmp_path, FILES), *turns, *PAYS) as runtime, connected(runtime, always) as editor:
            assert await editor.say(await editor.begin(), "pay 80, then 20") == "end_turn"
            assert [title for title, *_ in offered] == ["remember-call", "remember-arguments", "remember-tool"]
            assert offered[1][1] == (
                "Allow in this session: books.pay when amount >= 0 and amount <= 80 (1 of 1 calls in 30 days)"
            )
            assert len(editor.asked) == 1
            assert await editor.say(await editor.begin(), "pay 80") == "end_turn"
            assert len(editor.asked) == 2, "another session asks again"
        assert paid(tmp_path) == "80\n20\n80\n"

    asyncio.run(main())


def test_a_closed_question_leaves_the_run_paused_and_the_next_message_asks_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            opened(write(tmp_path, FILES), *PAYS, "hello") as runtime,
            connected(runtime, lambda _call, _options: None) as editor,
        ):
            session = await editor.begin()
            assert await editor.say(session, "pay 80") == "end_turn"
            assert [one.status for one in await runtime.store.runs(RunQuery())] == ["paused"]
            editor.pick = first
            assert await editor.say(session, "yes, do it") == "end_turn"  # words approve nothing
            assert len(editor.asked) == 2
            assert editor.text() == "donehello"
            runs = await runtime.store.runs(RunQuery())
            assert [(one.message, one.status) for one in runs] == [
                ("pay 80", "completed"),
                ("yes, do it", "completed"),
            ]
        assert paid(tmp_path) == "80\n"

    asyncio.run(main())


def test_what_another_process_decides_meanwhile_ends_the_question(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(write(tmp_path, FILES), *PAYS) as runtime, connected(runtime) as editor:
            editor.closes = asyncio.Event()
            answer = asyncio.create_task(editor.say(await editor.begin(), "pay 80"))
            await editor.asks.wait()
            async with opened(tmp_path, "done elsewhere") as other:
                (run,) = await other.store.runs(RunQuery())
                (asked,) = await other.pending(run.run_id)
                await other.resume(run.run_id, {asked.id: Approve()})
            assert await answer == "end_turn"
            assert editor.text() == "done elsewhere"
            editor.closes.set()  # the person answers the old question: nothing happens
            await asyncio.sleep(0)
        assert paid(tmp_path) == "80\n"

    asyncio.run(main())


@pytest.mark.parametrize("decides", ["high", None])
def test_what_is_too_risky_for_the_editor_waits_for_a_decision_elsewhere(tmp_path: Path, decides: Risk | None) -> None:
    tool = "books.pay" if decides is None else "books.wipe"

    async def main() -> None:
        turns = (calls((tool, {"amount": 80} if decides is None else {})), "done")
        async with opened(write(tmp_path, FILES), *turns) as runtime, connected(runtime, decides=decides) as editor:
            answer = asyncio.create_task(editor.say(await editor.begin(), "go"))
            await editor.until(lambda: "agentsd runs decide" in editor.text())
            (run,) = await runtime.store.runs(RunQuery())
            (asked,) = await runtime.pending(run.run_id)
            await runtime.decide(run.run_id, {asked.id: Approve()}, execute=True)
            assert await answer == "end_turn"
            assert editor.text().endswith("done")
            assert editor.asked == []

    asyncio.run(main())


def test_the_next_message_answers_a_question_of_the_model(tmp_path: Path) -> None:
    async def main() -> None:
        turns = (calls(("ask_user", {"question": "Which colour?"})), "it is blue")
        async with opened(write(tmp_path, FILES), *turns) as runtime, connected(runtime) as editor:
            session = await editor.begin()
            assert await editor.say(session, "paint it") == "end_turn"
            assert "Which colour?" in editor.text()
            assert await editor.say(session, "blue") == "end_turn"
            assert editor.text().endswith("it is blue")
            (run,) = await runtime.store.runs(RunQuery())
            (call,) = (await runtime.store.load_run(run.run_id)).calls.values()
            assert call.result
            assert call.result.output == "blue"

    asyncio.run(main())


def test_a_prompt_can_be_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            opened(write(tmp_path, FILES), calls(("books.wait", {})), "never") as runtime,
            connected(runtime) as editor,
        ):
            session = await editor.begin()
            answer = asyncio.create_task(editor.say(session, "wait"))
            await editor.until(lambda: (None, "in_progress") in editor.calls())
            with pytest.raises(acp.RequestError, match="busy"):
                await editor.say(session, "and this?")
            await editor.link.cancel(session_id=session)
            assert await answer == "cancelled"
            assert [one.status for one in await runtime.store.runs(RunQuery())] == ["cancelled"]

    asyncio.run(main())


def test_sessions_are_the_stored_conversations(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(write(tmp_path, FILES), *PAYS, "hi", "in the copy") as runtime:
            async with connected(runtime) as editor:
                session, other = await editor.begin(), await editor.begin()
                await editor.say(session, "pay 80")
                await editor.say(other, "hello")
            async with connected(runtime) as editor:
                listed = await editor.link.list_sessions(cwd="/elsewhere")
                assert {(one.session_id, one.title, one.cwd) for one in listed.sessions} == {
                    (session, "pay 80", "/elsewhere"),
                    (other, "hello", "/elsewhere"),
                }
                with pytest.raises(acp.RequestError, match="load it first"):
                    await editor.say(session, "hello")
                loaded = await editor.link.load_session(cwd="/", session_id=session, mcp_servers=[])
                assert loaded.modes.current_mode_id == "billing"
                said = [one.content.text for one in editor.updates if isinstance(one, schema.UserMessageChunk)]
                assert (said, editor.text()) == (["pay 80"], "done")
                assert editor.calls() == [("books.pay", "completed")]
                copy = await editor.link.fork_session(cwd="/", session_id=session)
                await editor.say(copy.session_id, "go on")
                assert editor.text().endswith("in the copy")
                await editor.link.close_session(session_id=session)
                with pytest.raises(acp.RequestError, match="load it first"):
                    await editor.say(session, "hello")
                await editor.link.resume_session(cwd="/", session_id=session, mcp_servers=[])
                for unknown in ("nope", "../etc", "", "\0"):
                    with pytest.raises(acp.RequestError):
                        await editor.link.load_session(cwd="/", session_id=unknown, mcp_servers=[])
            async with connected(runtime, only="helper") as editor:
                assert (await editor.link.list_sessions()).sessions == []
                with pytest.raises(acp.RequestError, match="no session"):
                    await editor.link.load_session(cwd="/", session_id=session, mcp_servers=[])

    asyncio.run(main())


def test_modes_are_agents(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(write(tmp_path, FILES), "of helper", "of billing") as runtime:
            async with connected(runtime) as editor:
                begun = await editor.link.new_session(cwd="/", mcp_servers=[])
                assert begun.modes.current_mode_id == "auto"
                assert [mode.id for mode in begun.modes.available_modes] == ["auto", "billing", "helper"]
                await editor.link.set_session_mode(mode_id="helper", session_id=begun.session_id)
                await editor.say(begun.session_id, "hello")
                await editor.link.set_session_mode(mode_id="auto", session_id=begun.session_id)
                await editor.say(begun.session_id, "hello")
                assert [one.agent for one in await runtime.store.runs(RunQuery())] == ["helper", "billing"]
                with pytest.raises(acp.RequestError, match="no mode 'root'"):
                    await editor.link.set_session_mode(mode_id="root", session_id=begun.session_id)
            async with connected(runtime, only="helper") as editor:
                begun = await editor.link.new_session(cwd="/", mcp_servers=[])
                assert [mode.id for mode in begun.modes.available_modes] == ["helper"]
                with pytest.raises(acp.RequestError, match="no mode 'billing'"):
                    await editor.link.set_session_mode(mode_id="billing", session_id=begun.session_id)

    asyncio.run(main())


def test_parts_of_a_prompt_are_what_they_contain_and_links_are_not_read(tmp_path: Path) -> None:
    image = acp.image_block(base64.b64encode(png()).decode(), "image/png")
    link = acp.resource_link_block("secret", "file:///etc/passwd")
    embedded = acp.resource_block(acp.embedded_text_resource("file:///a.py", "print(1)"))

    async def main() -> None:
        async with opened(write(tmp_path, FILES), "seen") as runtime, connected(runtime) as editor:
            session = await editor.begin()
            await editor.say(session, "look:", link, embedded, image)
            (run,) = await runtime.store.runs(RunQuery())
            message = next(one for one in (await runtime.store.load_run(run.run_id)).messages if one.role == "user")
            assert "[secret](file:///etc/passwd)" in message.content
            assert "file:///a.py:\n\nprint(1)" in message.content
            assert "root:" not in message.content
            assert [part.media_type for part in message.media] == ["image/png"]
            for part in (acp.image_block("no base64!", "image/png"), acp.image_block("aGk=", "image/png")):
                with pytest.raises(acp.RequestError):
                    await editor.say(session, part)

    asyncio.run(main())


def test_what_an_editor_sends_with_a_session_gives_nothing(tmp_path: Path) -> None:
    server = schema.McpServerStdio(name="evil", command="/bin/touch", args=[str(tmp_path / "started")], env=[])

    async def main() -> None:
        async with opened(write(tmp_path, FILES), "hi") as runtime, connected(runtime) as editor:
            begun = await editor.link.new_session(cwd=str(tmp_path), additional_directories=["/"], mcp_servers=[server])
            before = set(runtime.catalog.current.agents["billing"].toolset.tools)
            await editor.say(begun.session_id, "hello")
            assert set(runtime.catalog.current.agents["billing"].toolset.tools) == before
        assert not (tmp_path / "started").exists()

    asyncio.run(main())


def test_a_run_that_a_limit_stops_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        write(tmp_path, {**FILES, "agents.d/billing.yaml": agent("billing", limits="{steps: 1}")})
        async with (
            opened(tmp_path, calls(("books.pay", {"amount": "x"})), "x") as runtime,
            connected(runtime) as editor,
        ):
            assert await editor.say(await editor.begin(), "go") == "max_turn_requests"
            assert "max_steps" in editor.text()

    asyncio.run(main())


def test_a_failed_run_is_an_error_with_its_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(write(tmp_path, FILES)) as runtime, connected(runtime) as editor:  # no turn is left
            with pytest.raises(acp.RequestError, match="script"):
                await editor.say(await editor.begin(), "go")

    asyncio.run(main())


# --- the process

OFFLINE = {
    **FILES,
    "agents.d/billing.yaml": FILES["agents.d/billing.yaml"].replace("model: scripted", "model: offline"),
}
OFFLINE["agents.d/helper.yaml"] = FILES["agents.d/helper.yaml"].replace("model: scripted", "model: offline")


@contextmanager
def started(root: Path, *arguments: str) -> Iterator[Fork]:
    process = Fork(["acp", *arguments], cwd=root, env=ENVIRONMENT, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    with process:
        try:
            yield process
        finally:
            process.kill()


def send(process: Fork, method: str, number: int, **params: Any) -> None:
    assert process.stdin
    process.stdin.write(
        json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"
    )
    process.stdin.flush()


def receive(process: Fork, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the next message that is wanted. Every line is a message: what tools print is not among them."""
    assert process.stdout
    while True:
        message: dict[str, Any] = json.loads(process.stdout.readline())
        if wanted(message):
            return message


def begin(process: Fork, session: str | None = None) -> str:
    send(process, "initialize", 1, protocolVersion=1, clientCapabilities={})
    assert receive(process, lambda one: one.get("id") == 1)["result"]["agentInfo"]["name"] == "agentsd"
    if session is None:
        send(process, "session/new", 2, cwd="/", mcpServers=[])
        return str(receive(process, lambda one: one.get("id") == 2)["result"]["sessionId"])
    send(process, "session/load", 2, cwd="/", sessionId=session, mcpServers=[])
    receive(process, lambda one: one.get("id") == 2)
    return session


@pytest.mark.parametrize("number", range(FACTOR))
def test_a_killed_editor_and_process_lose_nothing_and_repeat_nothing(tmp_path: Path, number: int) -> None:
    """Processes are killed while the editor asks: half of the second ones, too."""
    prompt = [{"type": "text", "text": "pay 80"}]
    with started(write(tmp_path, OFFLINE)) as process:
        session = begin(process)
        send(process, "session/prompt", 3, sessionId=session, prompt=prompt)
        receive(process, lambda one: one.get("method") == "session/request_permission")
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
    assert paid(tmp_path) == ""
    for _ in range(number % 2):
        with started(tmp_path) as process:
            begin(process, session)
            send(process, "session/prompt", 3, sessionId=session, prompt=[{"type": "text", "text": "hello"}])
            receive(process, lambda one: one.get("method") == "session/request_permission")
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE)
    with started(tmp_path) as process:
        begin(process, session)
        send(process, "session/prompt", 3, sessionId=session, prompt=[{"type": "text", "text": "hello"}])
        asked = receive(process, lambda one: one.get("method") == "session/request_permission")
        assert process.stdin
        answer = {"outcome": {"outcome": "selected", "optionId": "approve"}}
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}).encode() + b"\n")
        process.stdin.flush()
        assert receive(process, lambda one: one.get("id") == 3)["result"]["stopReason"] == "end_turn"
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
    assert paid(tmp_path) == "80\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_while_the_editor_is_connected(tmp_path: Path, number: int) -> None:
    with started(write(tmp_path, OFFLINE)) as process:
        begin(process)
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0
        assert process.stderr
        assert b"Traceback" not in process.stderr.read()


def test_garbage_does_no_harm(tmp_path: Path) -> None:
    with started(write(tmp_path, OFFLINE)) as process:
        begin(process)
        assert process.stdin
        process.stdin.write(b"\n\nnot json\n\xff\xfe\n{}\n[]\n7\n")
        send(process, "session/prompt", 3, sessionId=7, prompt="x")
        assert receive(process, lambda one: one.get("id") == 3)["error"]["code"] == -32602
        send(process, "no/such", 4)
        assert receive(process, lambda one: one.get("id") == 4)["error"]["code"] == -32601
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def test_files_are_read_and_written_like_pipes(tmp_path: Path) -> None:
    """`agentsd acp <requests >answers` is how one looks at what an editor would see; `/dev/null` has nothing to say."""
    write(tmp_path, OFFLINE)
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    (tmp_path / "requests").write_text(json.dumps(asked) + "\n", "utf-8")
    for source, answers in (("/dev/null", 0), ("requests", 1)):
        with (
            (tmp_path / source).open() as requests,
            (tmp_path / "answers").open("w") as written,
            Fork(
                ["acp"], cwd=tmp_path, env=ENVIRONMENT, stdin=requests.fileno(), stdout=written.fileno(), stderr=PIPE
            ) as process,
        ):
            assert process.wait(PATIENCE) == 0
            assert process.stderr
            assert b"Traceback" not in process.stderr.read()
        assert len((tmp_path / "answers").read_text("utf-8").splitlines()) == answers


@pytest.mark.parametrize(
    ("files", "arguments", "code", "message"),
    [
        ({"agents.d/a.yaml": "name: a", "agentsd.yaml": "reload: {mode: strict}"}, (), 78, "'description' is missing"),
        ({}, ("-a", "b"), 2, "no agent named 'b'"),
    ],
)
def test_problems_of_the_project_are_reported_on_standard_error(
    tmp_path: Path, files: dict[str, str], arguments: tuple[str, ...], code: int, message: str
) -> None:
    write(tmp_path, {"agents.d/.keep": "", "agents.d/c.yaml": agent("c", model="offline"), **files})
    with started(tmp_path, *arguments) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.read() == b""
        assert message in process.stderr.read().decode()
        assert process.wait(PATIENCE) == code
