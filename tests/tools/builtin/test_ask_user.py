"""`ask_user`: the model asks the user, the run pauses, and any process may resume it with the answer."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from framework import Approve, Edit, Reject, RequestError, Respond, RunResult, Runtime
from framework.testing import JsonStore, ScriptedModel, Turn, calls
from framework.types.events import wire
from framework.types.state import Decision
from tests.support.commands import agentsd_process, read_until, terminal
from tests.support.projects import agent, write
from tests.support.wire import calls as wire_calls
from tests.support.wire import says, wire_server

WHERE = calls(("ask_user", {"question": "Where to?"}))
WHICH = calls(("ask_user", {"question": "Which seat?", "choices": ["window", "aisle"]}))


def one(root: Path, allow: str = "ask_user", **keys: str) -> Path:
    return write(root, {"agents.d/one.yaml": agent("one", skill_policy=f"{{allow: [{allow}]}}", **keys)})


def paused(root: Path, store: JsonStore, *turns: Turn) -> RunResult:
    async def main() -> RunResult:
        async with Runtime.open(root, models={"scripted": ScriptedModel(*turns)}, store=store, watch=False) as runtime:
            return await runtime.run("book a trip")

    return asyncio.run(main())


def resumed(root: Path, store: JsonStore, first: RunResult, decision: Decision, *turns: Turn) -> RunResult:
    """Resume the run in another runtime with a decision for its first question."""

    async def main() -> RunResult:
        async with Runtime.open(root, models={"scripted": ScriptedModel(*turns)}, store=store, watch=False) as runtime:
            return await runtime.resume(first.run_id, {first.pending[0].id: decision})

    return asyncio.run(main())


def test_the_answer_reaches_the_model_in_another_process(tmp_path: Path) -> None:
    root, store = one(tmp_path), JsonStore()
    first = paused(root, store, WHERE)
    assert (first.status, first.finish_reason) == ("paused", "confirmation")
    (question,) = first.pending
    assert (question.kind, question.tool, question.reason, question.choices) == (
        "ask_user",
        "ask_user",
        "Where to?",
        (),
    )
    last = resumed(root, store, first, Respond(text="Rome"), "booked Rome")
    assert (last.status, last.output) == ("completed", "booked Rome")
    assert [message.content for message in last.messages if message.role == "tool"] == ["Rome"]


def test_the_event_has_the_question_and_its_choices(tmp_path: Path) -> None:
    async def main() -> list[dict[str, Any]]:
        model = ScriptedModel(WHICH)
        async with (
            Runtime.open(one(tmp_path), models={"scripted": model}, watch=False) as runtime,
            runtime.stream("book a trip") as stream,
        ):
            return [wire(event) async for event in stream]

    (question,) = (event for event in asyncio.run(main()) if event["event"] == "confirm_required")
    shown = {key: question[key] for key in ("kind", "reason", "choices", "rule")}
    assert shown == {
        "kind": "ask_user",
        "reason": "Which seat?",
        "choices": ["window", "aisle"],
        "rule": "the model asks",
    }


@pytest.mark.parametrize("decision", [Respond(text="roof"), Respond(text=""), Approve(), Edit(arguments={})])
def test_an_invalid_answer_is_rejected_and_the_question_stays_open(tmp_path: Path, decision: Decision) -> None:
    root, store = one(tmp_path), JsonStore()
    first = paused(root, store, WHICH)
    with pytest.raises(RequestError, match=first.pending[0].id.replace("?", r"\?")):
        resumed(root, store, first, decision)
    assert resumed(root, store, first, Respond(text="aisle"), "booked").output == "booked"


def test_the_model_learns_that_the_user_did_not_answer(tmp_path: Path) -> None:
    root, store = one(tmp_path), JsonStore()
    last = resumed(root, store, paused(root, store, WHERE), Reject(reason="busy"), "another day")
    assert last.output == "another day"
    assert "did not answer the question: busy" in next(m.content for m in last.messages if m.role == "tool")


@pytest.mark.parametrize(
    "arguments",
    [
        {"question": " "},
        {"question": "q" * 3000},
        {"question": "Which?", "choices": ["a", "a"]},
        {"question": "Which?", "choices": ["a", " "]},
        {"question": "Which?", "choices": [str(n) for n in range(30)]},
    ],
)
def test_an_invalid_question_is_an_error_for_the_model(tmp_path: Path, arguments: dict[str, Any]) -> None:
    result = paused(one(tmp_path), JsonStore(), calls(("ask_user", arguments)), "well")
    assert (result.status, [call.status for call in result.tool_calls]) == ("completed", ["error"])


def test_ask_user_is_offered_only_if_the_agent_allows_it(tmp_path: Path) -> None:
    result = paused(one(tmp_path, "echo"), JsonStore(), WHERE, "well")
    assert (result.status, [call.status for call in result.tool_calls]) == ("completed", ["denied"])


def test_a_sub_agent_may_ask_and_both_questions_of_a_turn_pause_the_run(tmp_path: Path) -> None:
    files = {
        "agents.d/boss.yaml": agent("boss", skill_policy="{allow: [ask_user]}", sub_agents="[one]"),
        "agents.d/one.yaml": agent("one", skill_policy="{allow: [ask_user]}"),
    }
    root, store = write(tmp_path, files), JsonStore()
    both = calls(("agent.one", {"message": "find out"}), ("ask_user", {"question": "When?"}))

    async def main() -> RunResult:
        model = ScriptedModel(both, WHERE, "Rome it is", "done")
        async with Runtime.open(root, models={"scripted": model}, store=store, watch=False) as runtime:
            first = await runtime.run("go", agent="boss")
            answers = {"Where to?": "Rome", "When?": "Monday"}
            assert {question.reason for question in first.pending} == answers.keys()
            decisions: dict[str, Decision] = {one.id: Respond(text=answers[one.reason]) for one in first.pending}
            return await runtime.resume(first.run_id, decisions)

    result = asyncio.run(main())
    assert [message.content for message in result.messages if message.role == "tool"] == ["Rome it is", "Monday"]


# --- the command line


def test_the_command_line_shows_and_answers_the_question_in_other_processes(tmp_path: Path) -> None:
    asking = wire_calls(("ask_user", {"question": "Which seat?", "choices": ["window", "aisle"]}))

    async def main() -> None:
        async with wire_server([asking, says("booked the aisle"), asking, says("by the window")]) as server:
            alias = f"{{model: openai/test, base_url: '{server.url}', api_key: sk-test-1234567890}}"
            write(one(tmp_path, model="local"), {"agentsd.yaml": f"models: {{local: {alias}}}\n"})
            run = await asyncio.to_thread(agentsd_process, "run", "book", cwd=tmp_path)
            assert run.returncode == 3
            assert "--answer 'window|aisle'" in run.stderr
            shown = await asyncio.to_thread(agentsd_process, "runs", "show", "last", cwd=tmp_path)
            assert "ask_user: Which seat?" in shown.stdout
            decided = await asyncio.to_thread(
                agentsd_process, "runs", "decide", "last", "--answer", "aisle", cwd=tmp_path
            )
            assert (decided.returncode, decided.stdout.strip()) == (0, "booked the aisle")
            assert server.requests[1]["messages"][-1]["content"] == "aisle"
            await asyncio.to_thread(_at_the_terminal, tmp_path)

    asyncio.run(main())


def _at_the_terminal(root: Path) -> None:
    with terminal("run", "book", cwd=root) as (process, master):
        assert "one asks: Which seat?" in (shown := read_until(master, "the answer"))
        assert "1. window" in shown
        os.write(master, b"roof\n")
        read_until(master, "type a number from 1 to 2")
        os.write(master, b"1\n")
        read_until(master, "by the window")
        assert process.wait(30) == 0
