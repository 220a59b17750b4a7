"""Questions of MCP servers to people: pauses that another process answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from mcp.types import ElicitRequestFormParams
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from framework import Approve, Edit, Reject, Respond, RunResult, Runtime, ToolContext
from framework.llm.client import ModelRequest
from framework.store.store import Store
from framework.testing import ScriptedModel, Turn, calls
from framework.tools.mcp.content import ServerQuestions
from framework.tools.tool import Inquiry
from framework.types.errors import ApprovalRequired, RequestError
from framework.types.events import ToolFinished, ToolStarted
from framework.types.state import Decision
from tests.support.cases import FACTOR
from tests.support.forks import FORKS
from tests.support.loopback import fixed_port
from tests.support.paths import SUPPORT
from tests.support.projects import agent, write
from tests.support.waiting import until

PROGRAM = (sys.executable, str(SUPPORT / "mcp_booking.py"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[str, Path]]]:
    """Return a function that starts a server of the SDK, once for each era, and returns its URL and its log."""
    with ExitStack() as stack:

        @cache
        def start(era: str) -> tuple[str, Path]:
            log = tmp_path_factory.mktemp("booking") / "bookings.txt"
            process = stack.enter_context(
                subprocess.Popen([*PROGRAM, str(log), era], stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            assert process.stdout
            return f"http://127.0.0.1:{int(process.stdout.readline())}/mcp", log

        yield start


@dataclass(frozen=True)
class Airline:
    """A project with an agent that may use a booking server."""

    root: Path
    era: str
    log: Path
    where: str

    def configure(self, mode: str = "ask") -> Airline:
        server = f"version: 1\nmcp_servers:\n  air: {{{self.where}, elicitation: {mode}}}\n"
        write(self.root, {"plugins/servers.yaml": server, "agents.d/a.yaml": agent("a")})
        return self

    def flight(self, name: str) -> str:
        """Return the name of a flight of this test only."""
        return f"{name}-{self.root.name}"

    def events(self, flight: str = "") -> list[str]:
        """Return what the server noted about the flights of this test, or about one of them."""
        lines = self.log.read_text("utf-8").splitlines() if self.log.exists() else []
        words = [line.partition(" ") for line in lines]
        return [text for name, _, text in words if name.startswith(flight) and name.endswith(f"-{self.root.name}")]

    def bookings(self) -> list[str]:
        """Return what was booked for the flights of this test."""
        return [text for text in self.events() if text.startswith("[")]


@pytest.fixture(params=["newest", "older", "sdk"])
def airline(request: pytest.FixtureRequest, tmp_path: Path, served: Callable[[str], tuple[str, Path]]) -> Airline:
    if request.param != "older":
        url, log = served(request.param)
        return Airline(tmp_path, request.param, log, f"url: {url}").configure()
    log = tmp_path / "bookings.txt"
    return Airline(tmp_path, "older", log, f"command: {json.dumps([*PROGRAM, str(log), 'older'])}").configure()


def script(request: ModelRequest) -> Turn:
    """Book the flight that the message names, then answer with the result."""
    last = request.messages[-1]
    return calls(("mcp.air.book", {"flight": last.content})) if last.role == "user" else f"answer: {last.content}"


@asynccontextmanager
async def opened(root: Path) -> AsyncIterator[Runtime]:
    store = await Store.open(f"sqlite:///{root / 'runs.db'}", root)
    try:
        async with Runtime.open(
            root, store=store, models={"scripted": ScriptedModel(script=script)}, watch=False
        ) as runtime:
            yield runtime
    finally:
        await store.close()


async def played(airline: Airline, flight: str, *decisions: Decision) -> RunResult:
    """Start a run, and decide what it waits for, each in a new runtime."""
    async with opened(airline.root) as runtime:
        result = await runtime.run(airline.flight(flight))
    for decision in decisions:
        async with opened(airline.root) as runtime:
            (asked,) = await runtime.pending(result.run_id)
            result = await runtime.resume(result.run_id, {asked.id: decision})
    return result


def test_questions_of_a_server_are_pauses_that_other_processes_answer(airline: Airline) -> None:
    async def main() -> None:
        first = await played(airline, "LX1")
        (asked,) = first.pending
        assert (first.status, asked.kind, asked.tool) == ("paused", "elicitation", "mcp.air.book")
        assert (asked.reason, asked.rule) == (f"seat on {airline.flight('LX1')}?", "mcp.air asks")
        assert asked.form
        assert list(asked.form["properties"]) == ["seat", "bags"]
        assert ("starts again" in asked.description) == (airline.era != "newest")
        decisions = Respond(values={"seat": "window"}), Respond(values={"vegan": True})
        assert (await played(airline, "LX2", *decisions)).status == "completed"
        assert airline.bookings() == ['[{"bags": 1, "seat": "window"}, {"vegan": true}]'], "defaults are sent, too"

    asyncio.run(main())


def test_values_that_do_not_fit_the_form_are_refused_and_the_run_waits(airline: Airline) -> None:
    wrong: tuple[tuple[Decision, str], ...] = (
        (Respond(values={"seat": "roof"}), "seat"),
        (Respond(values={}), "seat"),
        (Respond(values={"seat": "window", "bags": 7}), "bags"),
        (Respond(values={"seat": "window", "class": "first"}), "no field 'class'"),
        (Respond(text="yes"), "is a form"),
        (Approve(), "is a question"),
    )

    async def main() -> None:
        paused = await played(airline, "LX1")
        async with opened(airline.root) as runtime:
            for decision, why in wrong:
                with pytest.raises(RequestError, match=why):
                    await runtime.resume(paused.run_id, {paused.pending[0].id: decision})
            assert len(await runtime.pending(paused.run_id)) == 1
        assert airline.bookings() == []

    asyncio.run(main())


def test_a_rejection_declines_the_question(airline: Airline) -> None:
    result = asyncio.run(played(airline, "LX1", Reject(reason="too expensive")))
    assert (result.status, airline.bookings()) == ("completed", [])
    assert "not booked: decline" in result.output


@pytest.mark.parametrize(("flight", "why"), [("secret", "asks for a secret"), ("nested", "no text, number, choice")])
def test_forms_that_ask_for_secrets_or_nested_data_are_never_shown(airline: Airline, flight: str, why: str) -> None:
    result = asyncio.run(played(airline, flight))
    assert (result.status, airline.bookings()) == ("completed", [])
    assert why in result.output


def test_an_address_is_shown_in_ascii_and_approved_after_the_visit(airline: Airline) -> None:
    async def main() -> None:
        (asked,) = (await played(airline, "pay")).pending
        assert (asked.url, asked.form) == ("https://pay.xn--exmple-cua.com/checkout?id=7", None)
        assert (await played(airline, "pay", Approve())).status == "completed"
        assert airline.bookings() == ["[{}]"]

    asyncio.run(main())


def test_a_state_that_the_server_has_forgotten_costs_no_answer(airline: Airline) -> None:
    """The states of the SDK's servers are valid for ten minutes and until their process ends."""
    decisions = Respond(values={"seat": "window"}), Respond(values={"vegan": True})
    assert asyncio.run(played(airline, "forgets", *decisions)).status == "completed"
    assert airline.bookings() == ['[{"bags": 1, "seat": "window"}, {"vegan": true}]']


def test_endless_questions_end_the_call(airline: Airline) -> None:
    aisle = Respond(values={"seat": "aisle"})

    async def main() -> None:
        asked = await played(airline, "endless", aisle)
        async with opened(airline.root) as runtime:
            result = await answer(runtime, asked.run_id, *[aisle] * 9)
        assert (result.status, airline.bookings()) == ("completed", [])
        assert "asked more than 10 questions" in result.output

    asyncio.run(main())


def test_without_the_setting_no_server_may_ask(airline: Airline) -> None:
    result = asyncio.run(played(airline.configure("decline"), "LX1"))
    assert (result.status, airline.bookings()) == ("completed", [])


def live(root: Path, message: str, answer: dict[str, Any] | None) -> None:
    """Start a run, or answer its question, and be killed without a chance to clean up."""

    async def main() -> None:
        async with opened(root) as runtime:
            if answer is None:
                (root / "run.txt").write_text((await runtime.run(message)).run_id, "utf-8")
            else:
                run_id = (root / "run.txt").read_text("utf-8")
                (asked,) = await runtime.pending(run_id)
                await runtime.resume(run_id, {asked.id: Respond(values=answer)})
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())


@pytest.mark.parametrize("number", range(FACTOR))
def test_no_answer_is_lost_or_doubled_when_each_process_is_killed(airline: Airline, number: int) -> None:
    seats = {"seat": ("window", "aisle")[number % 2]}
    for answer in (None, seats, {"vegan": False}):
        process = FORKS.Process(target=live, args=(airline.root, airline.flight("LX1"), answer))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert airline.bookings() == [f'[{{"bags": 1, "seat": "{seats["seat"]}"}}, {{"vegan": false}}]']


# --- an older server's call stays open for a while after the run has paused

SEAT, MEAL = Respond(values={"seat": "window"}), Respond(values={"vegan": True})
BOOKED = '[{"bags": 1, "seat": "window"}, {"vegan": true}]'
IN_TIME = ["called", "accept", "accept", BOOKED]
MADE_ANEW = ["called", "cancel", *IN_TIME]


@pytest.fixture
def older(tmp_path: Path, served: Callable[[str], tuple[str, Path]]) -> Airline:
    url, log = served("sdk")
    return Airline(tmp_path, "sdk", log, f"url: {url}").configure()


async def answer(runtime: Runtime, run_id: str, *decisions: Decision) -> RunResult:
    """Decide what a run waits for, one question after the other."""
    for decision in decisions:
        (asked,) = await runtime.pending(run_id)
        result = await runtime.resume(run_id, {asked.id: decision})
    return result


async def until_noted(airline: Airline, flight: str, *expected: str) -> None:
    await until(lambda: airline.events(flight) == [*expected], f"the server has noted {expected}")


def test_answers_in_time_continue_the_call(older: Airline, spans: InMemorySpanExporter) -> None:
    async def main() -> None:
        async with opened(older.root) as runtime:
            paused = await runtime.run(older.flight("LX1"))
            assert (paused.status, older.events()) == ("paused", ["called"])
            done = await answer(runtime, paused.run_id, SEAT, MEAL)
            events = [event async for event in runtime.follow(paused.run_id)]
        assert (done.status, older.events()) == ("completed", IN_TIME), "the server does its work once"
        assert BOOKED in done.output
        told = [event.message for event in events if isinstance(event, ToolStarted) and event.message]
        assert told == ["1 answered", "2 answered"], "the resumed run reports the progress of the open call"
        results = [event.status for event in events if isinstance(event, ToolFinished)]
        assert results == ["success"]
        names = [span.name for span in spans.get_finished_spans()]
        assert (names.count("mcp.continue_call"), names.count("MCP send tools/call book")) == (2, 1)

    asyncio.run(main())


def test_questions_asked_at_once_are_answered_one_after_the_other(older: Airline) -> None:
    async def main() -> None:
        async with opened(older.root) as runtime:
            paused = await runtime.run(older.flight("both"))
            await answer(runtime, paused.run_id, SEAT)
            (asked,) = await runtime.pending(paused.run_id)
            await runtime.decide(paused.run_id, {asked.id: MEAL}, execute=True)  # as HTTP and editors do
            assert (await runtime.result(paused.run_id)).status == "completed"
        assert older.events() == IN_TIME

    asyncio.run(main())


def test_a_rejection_in_time_declines_the_open_question(older: Airline) -> None:
    async def main() -> None:
        async with opened(older.root) as runtime:
            paused = await runtime.run(older.flight("LX1"))
            done = await answer(runtime, paused.run_id, Reject(reason="too expensive"))
        assert (done.status, older.events()) == ("completed", ["called", "decline"])

    asyncio.run(main())


def test_an_answer_that_comes_late_starts_the_call_again(older: Airline, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with opened(older.root) as runtime:
            with monkeypatch.context() as patch:
                patch.setattr("framework.tools.mcp.content.HOLD_SECONDS", 0.01)
                paused = await runtime.run(older.flight("LX1"))
                await until_noted(older, "LX1", "called", "cancel")
            await answer(runtime, paused.run_id, SEAT, MEAL)
        assert older.events() == MADE_ANEW

    asyncio.run(main())


def test_an_answer_in_the_moment_in_which_the_time_is_over_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.tools.mcp.content.HOLD_SECONDS", 0)

    async def decide(inquiries: Sequence[Inquiry], continuation: Mapping[str, Any]) -> list[Decision]:
        return [SEAT]

    async def main() -> None:
        context = replace(ToolContext("r", "c", "a", Path()), inquire=decide)
        questions = ServerQuestions("mcp.air", context, ("book", {}))
        form = {"type": "object", "properties": {"seat": {"type": "string"}}}
        asking = asyncio.create_task(questions.answer(ElicitRequestFormParams(message="seat?", requested_schema=form)))
        await questions.asks.wait()
        await questions.wait()
        questions.continue_call()  # asyncio has scheduled the timeout
        assert (await asking).action == "accept"

    asyncio.run(main())


def test_an_answer_in_another_process_starts_the_call_again_and_the_open_one_has_no_result(older: Airline) -> None:
    async def main() -> None:
        async with opened(older.root) as runtime:
            paused = await runtime.run(older.flight("LX1"))
            async with opened(older.root) as other:
                await answer(other, paused.run_id, SEAT, MEAL)
            assert older.events() == ["called", *IN_TIME]
            events = [event async for event in runtime.follow(paused.run_id)]
            assert sum(isinstance(event, ToolFinished) for event in events) == 1
        assert older.events() == ["called", *IN_TIME, "cancel"]

    asyncio.run(main())


def test_a_run_that_pauses_in_another_process_is_not_continued_from_an_earlier_question(older: Airline) -> None:
    async def main() -> None:
        async with opened(older.root) as runtime:
            paused = await runtime.run(older.flight("LX1"))
            async with opened(older.root) as other:
                await answer(other, paused.run_id, SEAT)
            done = await answer(runtime, paused.run_id, MEAL)
        assert (done.status, older.bookings()) == ("completed", [BOOKED])
        assert older.events().count("called") == 3

    asyncio.run(main())


def test_a_call_that_waits_for_a_person_makes_way_for_the_next(older: Airline) -> None:
    async def main() -> None:
        async with opened(older.root) as runtime:
            first = await runtime.run(older.flight("LX1"))
            second = await runtime.run(older.flight("LX2"))
            assert (older.events("LX1"), older.events("LX2")) == (["called", "cancel"], ["called"])
            await answer(runtime, second.run_id, SEAT, MEAL)
            await answer(runtime, first.run_id, SEAT, MEAL)
        assert (older.events("LX1"), older.events("LX2")) == (MADE_ANEW, IN_TIME)

    asyncio.run(main())


def test_a_server_that_does_not_end_the_cancelled_call_is_disconnected(
    older: Airline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framework.tools.mcp.content.CLOSE_SECONDS", 0.2)

    async def main() -> None:
        async with opened(older.root) as runtime:
            first = await runtime.run(older.flight("stubborn"))
            second = await runtime.run(older.flight("LX2"))  # the server asks about the first flight again meanwhile
            await answer(runtime, second.run_id, SEAT, MEAL)
            await answer(runtime, first.run_id, SEAT, MEAL)
        assert (older.events("stubborn"), older.events("LX2")) == (MADE_ANEW, IN_TIME)

    asyncio.run(main())


def test_the_open_call_of_a_cancelled_run_ends(older: Airline) -> None:
    async def main() -> None:
        async with opened(older.root) as runtime:
            paused = await runtime.run(older.flight("LX1"))
            assert await runtime.cancel(paused.run_id) == "cancelled"
            await until_noted(older, "LX1", "called", "cancel")

    asyncio.run(main())


def test_the_open_call_of_no_run_ends(older: Airline) -> None:
    async def main() -> None:
        async with opened(older.root) as runtime:
            with pytest.raises(ApprovalRequired):
                await runtime.call_tool("a", "mcp.air.book", {"flight": older.flight("LX1")})
            await until_noted(older, "LX1", "called", "cancel")

    asyncio.run(main())


def test_a_stricter_rule_is_not_passed_by_a_call_that_is_open(older: Airline) -> None:
    async def main() -> None:
        async with opened(older.root) as runtime:
            paused = await runtime.run(older.flight("LX1"))
            write(older.root, {"agents.d/a.yaml": agent("a", skill_policy="{deny: ['mcp.*']}")})
            await runtime.reload()
            done = await answer(runtime, paused.run_id, SEAT)
            assert "the policy forbids this call" in done.output
        assert older.events() == ["called", "cancel"]

    asyncio.run(main())


def test_an_edited_call_is_another_one(older: Airline) -> None:
    async def main() -> None:
        async with opened(older.root) as runtime:
            paused = await runtime.run(older.flight("LX1"))
            write(older.root, {"agents.d/a.yaml": agent("a", skill_policy="{ask: ['mcp.*']}")})
            await runtime.reload()
            edit = Edit(arguments={"flight": older.flight("LX2")})
            assert (await answer(runtime, paused.run_id, SEAT, edit)).status == "paused"
            assert (older.events("LX1"), older.events("LX2")) == (["called", "cancel"], ["called"])

    asyncio.run(main())


def test_closing_ends_a_call_that_waits_for_a_person(older: Airline) -> None:
    async def main() -> None:
        async with opened(older.root) as runtime:
            await runtime.run(older.flight("LX1"))
        assert older.events() == ["called", "cancel"], "the server is told"
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_an_answer_reaches_a_server_that_was_restarted_meanwhile(tmp_path: Path) -> None:
    log, port = tmp_path / "bookings.txt", fixed_port()
    command = [*PROGRAM, str(log), "sdk", str(port)]
    older = Airline(tmp_path, "sdk", log, f"url: 'http://127.0.0.1:{port}/mcp'").configure()

    @contextmanager
    def started() -> Iterator[None]:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout
                assert process.stdout.readline()
                yield
            finally:
                process.kill()

    async def main() -> None:
        first = ExitStack()
        first.enter_context(started())
        with first:
            async with opened(older.root) as runtime:
                paused = await runtime.run(older.flight("LX1"))
                first.close()
                with started():
                    await answer(runtime, paused.run_id, SEAT, MEAL)
        assert older.events() == ["called", *IN_TIME]

    asyncio.run(main())


def test_a_call_whose_process_is_killed_starts_again(older: Airline) -> None:
    process = FORKS.Process(target=live, args=(older.root, older.flight("LX1"), None))
    process.start()
    process.join()
    assert older.events() == ["called"]

    async def main() -> None:
        async with opened(older.root) as runtime:
            await answer(runtime, (older.root / "run.txt").read_text("utf-8"), SEAT, MEAL)
        assert older.events() == ["called", *IN_TIME]

    asyncio.run(main())
