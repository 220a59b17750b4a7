"""Agents of other servers as sub-agents: their tasks, pauses, failures, and what they should not send."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from framework import Approve, Reject, Respond, RunResult, Runtime
from framework.llm.client import ModelRequest
from framework.store.store import Store
from framework.testing import ScriptedModel, Turn, calls
from framework.types.state import Decision
from tests.support.cases import FACTOR
from tests.support.forks import FORKS
from tests.support.paths import SUPPORT
from tests.support.projects import agent, write

PROGRAM = (sys.executable, str(SUPPORT / "a2a_agent.py"))
BINDINGS = ("JSONRPC", "HTTP+JSON")


@dataclass(frozen=True)
class Remote:
    """A running remote agent."""

    url: str
    log: Path

    def seen(self) -> list[str]:
        """Return what happened to its tasks since the last call."""
        lines = self.log.read_text("utf-8").splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


@pytest.fixture(scope="module", params=BINDINGS)
def remote(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    log = tmp_path_factory.mktemp("remote") / "log"
    with subprocess.Popen([*PROGRAM, str(log), request.param], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield Remote(f"http://127.0.0.1:{int(process.stdout.readline())}", log)
        finally:
            process.kill()


def project(root: Path, url: str, entry: str = "", **keys: str) -> Path:
    """Write a project with an agent that has a remote sub-agent."""
    card = f"{url}/.well-known/agent-card.json"
    source = f"version: 1\na2a_agents:\n  billing:\n    card: {card}\n    {entry}\n"
    return write(root, {"plugins/agents.yaml": source, "agents.d/a.yaml": agent("a", agents="[billing]", **keys)})


def script(request: ModelRequest) -> Turn:
    """Pass the message on to the remote agent, then answer with the result."""
    last = request.messages[-1]
    return calls(("agent.billing", {"message": last.content})) if last.role == "user" else f"answer: {last.content}"


@asynccontextmanager
async def opened(root: Path) -> AsyncIterator[Runtime]:
    store = await Store.open(f"sqlite:///{root / 'runs.db'}", root)
    try:
        models = {"scripted": ScriptedModel(script=script)}
        async with Runtime.open(root, store=store, models=models, watch=False) as runtime:
            yield runtime
    finally:
        await store.close()


async def played(root: Path, message: str, *decisions: Decision) -> RunResult:
    """Start a run, and decide what it waits for, each in a new runtime."""
    async with opened(root) as runtime:
        result = await runtime.run(message)
    for decision in decisions:
        async with opened(root) as runtime:
            (asked,) = await runtime.pending(result.run_id)
            result = await runtime.resume(result.run_id, {asked.id: decision})
    return result


def test_an_agent_calls_a_remote_agent_like_a_sub_agent(tmp_path: Path, remote: Remote) -> None:
    root = project(tmp_path, remote.url)

    async def main() -> None:
        async with opened(root) as runtime:
            current = runtime.catalog.current
            tool = current.agents["a"].toolset.offered["agent.billing"]
            assert (tool.definition.description, tool.risk) == ("Pays invoices.", "medium")
            assert "agent.billing" not in current.tools
            for message, answer in (
                ("say hello", "answer: hello"),
                ("data", 'answer: {"paid": true, "total": 80}'),
                ("text and data", 'answer: paid late\n{"total": 80}'),
                ("empty text and data", 'answer: {"total": 80}'),
                ("message", "answer: without a task"),
            ):
                result = await runtime.run(message)
                assert (result.status, result.output) == ("completed", answer)
            result = await runtime.run("file")
            assert "a picture" in result.output
            assert "dot.png" in result.output

    asyncio.run(main())
    remote.seen()


def test_a_question_of_the_agent_is_a_pause_that_another_process_answers(tmp_path: Path, remote: Remote) -> None:
    root = project(tmp_path, remote.url)
    paused = asyncio.run(played(root, "ask twice"))
    (asked,) = paused.pending
    assert (paused.status, asked.kind, asked.tool) == ("paused", "question", "agent.billing")
    assert (asked.reason, asked.rule) == ("{{ colour }} 1?[31m", "agent.billing asks")
    remote.seen()
    result = asyncio.run(played(root, "ask twice", Respond(text="blue"), Respond(text="red")))
    assert (result.status, result.output) == ("completed", "answer: said blue and red")
    assert remote.seen() == ["new ask twice", "answer blue", "answer red"]


def test_a_declined_question_cancels_the_task(tmp_path: Path, remote: Remote) -> None:
    result = asyncio.run(played(project(tmp_path, remote.url), "ask", Reject(reason="no")))
    assert "a human did not answer" in result.output
    assert remote.seen() == ["new ask", "cancel ask"]


def test_what_is_decided_elsewhere_is_only_looked_at(tmp_path: Path, remote: Remote) -> None:
    root = project(tmp_path, remote.url)
    signed = remote.log.parent / "signed"

    async def main() -> None:
        paused = await played(root, "sign")
        (asked,) = paused.pending
        assert (asked.kind, asked.traits.awaits) == ("login", "approval")
        assert asked.reason == "Sign it at https://example.com/sign"
        assert asked.rule == "agent.billing waits for a decision or a login where it runs"
        assert "decide it there" in asked.description
        async with opened(root) as runtime:  # an approval here decides nothing there
            result = await runtime.resume(paused.run_id, {asked.id: Approve()})
            assert result.status == "paused"
            assert result.pending[0].id != asked.id
            signed.touch()
            result = await runtime.resume(paused.run_id, {result.pending[0].id: Approve()})
        assert (result.status, result.output) == ("completed", "answer: signed")

    try:
        asyncio.run(main())
    finally:
        signed.unlink(missing_ok=True)
    assert remote.seen() == ["new sign"]


@pytest.mark.parametrize(
    ("message", "why"),
    [("fail", "agent.billing failed: no money left"), ("reject", "rejected the task: no money left")],
)
def test_a_task_that_fails_is_an_error_with_its_reason(tmp_path: Path, remote: Remote, message: str, why: str) -> None:
    result = asyncio.run(played(project(tmp_path, remote.url), message))
    assert result.status == "completed"
    assert why in result.output
    remote.seen()


def test_endless_work_questions_and_answers_end(tmp_path: Path, remote: Remote) -> None:
    result = asyncio.run(played(project(tmp_path, remote.url, "task_timeout: 300ms"), "work"))
    assert "did not finish within 0.3s" in result.output
    assert remote.seen() == ["new work", "cancel work"]
    result = asyncio.run(played(project(tmp_path, remote.url), "big"))
    assert "larger than 1000000 bytes" in result.output
    remote.seen()
    root = project(tmp_path, remote.url)

    async def endless() -> RunResult:
        async with opened(root) as runtime:
            result = await runtime.run("endless")
            for _ in range(20):
                (asked,) = result.pending
                result = await runtime.resume(result.run_id, {asked.id: Respond(text="x")})
            return result

    assert "asked more than 20 times" in asyncio.run(endless()).output
    assert remote.seen()[-1] == "cancel endless"


def test_a_cancelled_run_cancels_the_task(tmp_path: Path, remote: Remote) -> None:
    root = project(tmp_path, remote.url)

    async def main() -> None:
        async with opened(root) as runtime:
            paused = await runtime.run("ask")
            assert await runtime.cancel(paused.run_id) == "cancelled"
        assert remote.seen() == ["new ask", "cancel ask"]
        async with opened(root) as runtime:
            async with runtime.stream("work") as stream:
                async for event in stream:
                    if getattr(event, "message", "") == "working on it":
                        stream.cancel()
                result = await stream.result()
            assert result.status == "cancelled"
        assert remote.seen() == ["new work", "cancel work"]

    asyncio.run(main())


Answers = dict[str, Any]


@contextmanager
def answering(card: Any, results: Answers | None = None) -> Iterator[tuple[str, list[str]]]:
    """Serve a card, and a result for each method of JSON-RPC; yield the URL, and the methods that were called."""
    called: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(json.loads(json.dumps(card).replace("HERE", self.headers["host"])))

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            called.append(request["method"])
            given = (results or {})[request["method"]]
            if callable(given):
                given = [given(request["params"])]
            self.answer({"jsonrpc": "2.0", "id": request["id"], "result": given.pop(0) if len(given) > 1 else given[0]})

        def answer(self, data: Any) -> None:
            body = json.dumps(data).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # a test killed the client
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", called
        finally:
            server.shutdown()
            thread.join()


def card(url: str = "http://HERE/a2a", version: str = "1.0", binding: str = "JSONRPC") -> Answers:
    interface = {"url": url, "protocolBinding": binding, "protocolVersion": version}
    return {"name": "x", "description": "Pays.", "supportedInterfaces": [interface]}


def task(state: str, **more: Any) -> Answers:
    return {"id": "t1", "contextId": "c1", "status": {"state": state}, **more}


CARDS: tuple[tuple[Any, str], ...] = (
    (card("http://169.254.169.254/a2a"), "leads to another server, 'http://169.254.169.254/a2a'"),
    (card("https://HERE/a2a"), "leads to another server"),
    (card("http://HERE/a/../b"), "leads to another server"),
    (card(version="0.3"), "no interface of A2A 1.0 (JSONRPC, HTTP+JSON): ['JSONRPC 0.3']"),
    (card(binding="GRPC"), "no interface of A2A 1.0"),
    ({"name": "x", "url": "http://HERE/", "protocolVersion": "0.3.0"}, "no interface of A2A 1.0"),
    ([1], "without a card of A2A 1.0"),
    ({"x": [[]] * 20_000}, "no JSON that can be read"),
)


@pytest.mark.parametrize(("sent", "why"), CARDS, ids=range(len(CARDS)))
def test_a_card_that_cannot_be_used_is_a_warning_at_its_line(tmp_path: Path, sent: Any, why: str) -> None:
    async def main() -> None:
        with answering(sent) as (url, called):
            async with opened(project(tmp_path, url)) as runtime:
                (problem,) = runtime.catalog.current.problems
                assert (problem.path, problem.line, problem.severity) == ("plugins/agents.yaml", 3, "warning")
                assert why in problem.message
                result = await runtime.run("pay")
                assert result.status == "completed"
                assert any("agent.billing is unavailable" in warning.message for warning in result.warnings)
            assert called == []

    asyncio.run(main())


def test_a_card_at_the_address_of_a_metadata_service_is_never_requested(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(project(tmp_path, "http://169.254.169.254")) as runtime:
            (problem,) = runtime.catalog.current.problems
            assert "not public" in problem.message

    asyncio.run(main())


def test_another_server_than_that_of_the_card_must_be_named(tmp_path: Path) -> None:
    done = task("TASK_STATE_COMPLETED", artifacts=[{"artifactId": "a", "parts": [{"text": "paid"}]}])

    async def main() -> None:
        with (
            answering({}, {"SendMessage": [{"task": done}]}) as (other, called),
            answering(card(f"{other}/a2a")) as (
                url,
                _,
            ),
        ):
            async with opened(project(tmp_path, url, f"url: {other}")) as runtime:
                assert (await runtime.run("pay")).output == "answer: paid"
            assert called == ["SendMessage"]

    asyncio.run(main())


WORKING = task("TASK_STATE_WORKING")
TASKS: tuple[tuple[Answers, str], ...] = (
    ({"SendMessage": [{"task": WORKING}], "GetTask": [task("TASK_STATE_DREAMING")]}, "unknown state"),
    ({"SendMessage": [{"task": WORKING}], "GetTask": [task("TASK_STATE_COMPLETED") | {"id": "t2"}]}, "another task"),
    (
        {"SendMessage": [{"task": WORKING}], "GetTask": [task("TASK_STATE_COMPLETED") | {"contextId": "c2"}]},
        "another task",
    ),
    ({"SendMessage": [{"task": WORKING | {"id": "../admin"}}]}, "the task id '../admin' is not"),
    ({"SendMessage": [{"kind": "task", "id": "t1", "status": {"state": "working"}}]}, "cannot be read"),
    ({"SendMessage": [{"task": [1]}]}, "cannot be read"),
    ({"SendMessage": [None]}, "cannot be read"),
)


@pytest.mark.parametrize(("results", "why"), TASKS, ids=range(len(TASKS)))
def test_a_server_that_breaks_the_protocol_is_an_error_of_the_call(tmp_path: Path, results: Answers, why: str) -> None:
    async def main() -> None:
        with answering(card(), {**results, "CancelTask": [task("TASK_STATE_CANCELED")]}) as (url, called):
            async with opened(project(tmp_path, url)) as runtime:
                result = await runtime.run("pay")
            assert result.status == "completed"
            assert why in result.output
            assert ("CancelTask" in called) == ("GetTask" in results)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("files", "line", "why"),
    [
        ({"plugins/agents.yaml": "version: 1\na2a_agents:\n  billing: {url: http://x.example}\n"}, 3, "card"),
        ({"agents.d/billing.yaml": agent("billing")}, None, "there are two agents 'billing'"),
        ({"agents.d/a.yaml": agent("a", agents="[biling]")}, None, "did you mean billing?"),
    ],
    ids=["entry", "two", "unknown"],
)
def test_mistakes_in_files_are_errors_with_their_place(
    tmp_path: Path, files: dict[str, str], line: int | None, why: str
) -> None:
    with answering(card()) as (url, _):
        root = write(project(tmp_path, url), files)

        async def main() -> None:
            async with opened(root) as runtime:
                problems = [one for one in runtime.catalog.current.problems if one.severity == "error"]
                assert [one for one in problems if why in one.message and line in (None, one.line)]

        asyncio.run(main())


def live(root: Path, message: str, answer: str | None) -> None:
    """Start a run, or answer its question, and be killed without a chance to clean up."""

    async def main() -> None:
        async with opened(root) as runtime:
            if answer is None:
                (root / "run.txt").write_text((await runtime.run(message)).run_id, "utf-8")
            else:
                run_id = (root / "run.txt").read_text("utf-8")
                (asked,) = await runtime.pending(run_id)
                await runtime.resume(run_id, {asked.id: Respond(text=answer)})
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())


@pytest.mark.parametrize("number", range(FACTOR))
def test_no_answer_is_lost_or_doubled_when_each_process_is_killed(tmp_path: Path, remote: Remote, number: int) -> None:
    project(tmp_path, remote.url)
    for answer in (None, f"blue{number}", "red"):
        process = FORKS.Process(target=live, args=(tmp_path, "ask twice", answer))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert remote.seen() == ["new ask twice", f"answer blue{number}", "answer red"]


def killed_at_work(root: Path, message: str) -> None:
    """Start a run, and be killed once the remote agent works on it."""

    async def main() -> None:
        async with opened(root) as runtime, runtime.stream(message) as stream:
            async for event in stream:
                (root / "run.txt").write_text(event.run_id, "utf-8")
                if getattr(event, "message", "") == "working on it":
                    os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())


async def resumed(root: Path) -> RunResult:
    """Continue the run of a process that was killed."""
    async with opened(root) as runtime:
        return await runtime.resume((root / "run.txt").read_text("utf-8"), {})


@pytest.mark.parametrize("number", range(FACTOR))
def test_a_task_at_work_continues_when_its_process_is_killed(tmp_path: Path, remote: Remote, number: int) -> None:
    signed = remote.log.parent / "signed"
    process = FORKS.Process(target=killed_at_work, args=(project(tmp_path, remote.url), "slow"))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    signed.touch()
    try:
        result = asyncio.run(resumed(tmp_path))
    finally:
        signed.unlink()
    assert (result.status, result.output, number) == ("completed", "answer: slow but sure", number)
    assert remote.seen() == ["new slow"]


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_message_whose_outcome_is_unknown_is_sent_again_only_if_that_is_safe(
    tmp_path: Path, idempotent: bool
) -> None:
    done = task("TASK_STATE_COMPLETED", artifacts=[{"artifactId": "a", "parts": [{"text": "paid"}]}])
    ids: list[str] = []
    spawned: list[Any] = []

    def send(params: Any) -> Answers:
        ids.append(params["message"]["messageId"])
        if len(ids) == 1:
            spawned[0].kill()
            spawned[0].join()
        return {"task": done}

    with answering(card(), {"SendMessage": send}) as (url, _):
        root = project(tmp_path, url, f"idempotent: {str(idempotent).lower()}")
        spawned.append(FORKS.Process(target=killed_at_work, args=(root, "pay")))
        spawned[0].start()
        spawned[0].join()
        result = asyncio.run(resumed(root))
        if idempotent:
            assert result.output == "answer: paid"
            assert len(ids) == 2
            assert len(set(ids)) == 1
        else:
            assert "whether it took effect is unknown" in result.pending[0].reason
            assert len(ids) == 1
