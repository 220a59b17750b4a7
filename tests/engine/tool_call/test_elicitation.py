"""Questions of MCP servers to people: pauses that another process answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from framework import Approve, Reject, Respond, RunResult, Runtime
from framework.llm.client import ModelRequest
from framework.store.store import Store
from framework.testing import ScriptedModel, Turn, calls
from framework.types.errors import RequestError
from framework.types.state import Decision
from tests.support.cases import FACTOR
from tests.support.forks import FORKS
from tests.support.paths import SUPPORT
from tests.support.projects import agent, write

PROGRAM = (sys.executable, str(SUPPORT / "mcp_booking.py"))


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Run the server of the newest protocol; return its URL and its log."""
    log = tmp_path_factory.mktemp("booking") / "bookings.txt"
    with subprocess.Popen([*PROGRAM, str(log), "newest"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp", log
        finally:
            process.kill()


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

    def bookings(self) -> list[str]:
        """Return what was booked for the flights of this test."""
        lines = self.log.read_text("utf-8").splitlines() if self.log.exists() else []
        return [line.partition(" ")[2] for line in lines if line.partition(" ")[0].endswith(f"-{self.root.name}")]


@pytest.fixture(params=["newest", "older"])
def airline(request: pytest.FixtureRequest, tmp_path: Path, newest: tuple[str, Path]) -> Airline:
    if request.param == "newest":
        return Airline(tmp_path, "newest", newest[1], f"url: {newest[0]}").configure()
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
        assert ("starts again" in asked.description) == (airline.era == "older")
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
    result = asyncio.run(played(airline, "endless", *[Respond(values={"seat": "aisle"})] * 10))
    assert (result.status, airline.bookings()) == ("completed", [])
    assert "asked more than 10 questions" in result.output


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
