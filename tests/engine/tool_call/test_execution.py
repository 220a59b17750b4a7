"""Features of tools: retries, rate limits, questions to a person, session values, spans."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from framework import Approve, ConfigError, Reject, Respond, RunResult, Runtime, Tool, ToolContext, ToolError, tool
from framework.llm.client import ModelRequest
from framework.testing import JsonStore, Script, ScriptedModel, Turn, calls
from framework.tools.tool import MAX_SESSION_CHARS, Session
from tests.support.projects import agent, write

ALL = '{allow: ["*"]}'


def run(root: Path, tools: Sequence[Tool], *turns: Turn, script: Script | None = None) -> RunResult:
    write(root, {"agents.d/a.yaml": agent("a", skill_policy=ALL)})

    async def main() -> RunResult:
        models = {"scripted": ScriptedModel(*turns, script=script)}
        async with Runtime.open(root, tools=tools, models=models, watch=False) as runtime:
            return await runtime.run("go")

    return asyncio.run(main())


def flaky(error: type[Exception], failures: int, *, retries: int) -> tuple[Tool, list[str]]:
    tried: list[str] = []

    @tool(idempotent=True, retries=retries)
    async def fetch(context: ToolContext) -> str:
        """Fetch something."""
        tried.append(context.idempotency_key)
        if len(tried) <= failures:
            raise error("not now")
        return "there"

    return fetch, tried


def test_an_unexpected_failure_is_retried(tmp_path: Path) -> None:
    fetch, tried = flaky(ConnectionError, 2, retries=2)
    result = run(tmp_path, [fetch], calls(("fetch", {})), "done")
    assert result.tool_calls[0].result == "there"
    assert len(tried) == 3
    assert len(set(tried)) == 1, "one call, one idempotency key"
    assert result.tool_stats["fetch"].count == 1


@pytest.mark.parametrize("at_once", [1, 2])
def test_context_variables_that_a_tool_sets_end_with_its_call(tmp_path: Path, at_once: int) -> None:
    variable, seen = ContextVar("variable", default="of nobody"), list[str]()

    @tool(risk="low")
    async def customer(number: int) -> str:
        """Look a customer up."""
        seen.append(variable.get())
        variable.set("of a customer")
        return "found"

    turns = [calls(*[("customer", {"number": turn + one}) for one in range(at_once)]) for turn in (0, 10)]
    assert run(tmp_path, [customer], *turns, "done").status == "completed"
    assert seen == ["of nobody"] * 2 * at_once


@pytest.mark.parametrize(
    ("error", "retries", "tries"), [(ConnectionError, 1, 2), (ConnectionError, 0, 1), (ToolError, 5, 1)]
)
def test_retries_are_limited_and_tool_errors_are_not_retried(
    tmp_path: Path, error: type[Exception], retries: int, tries: int
) -> None:
    fetch, tried = flaky(error, 9, retries=retries)
    result = run(tmp_path, [fetch], calls(("fetch", {})), "done")
    assert (result.tool_calls[0].status, len(tried)) == ("error", tries)


def test_a_tool_that_is_not_idempotent_cannot_declare_retries() -> None:
    with pytest.raises(ConfigError, match="idempotent"):
        tool(retries=1)(str)


@pytest.mark.parametrize("rate", ["5", "5/x", "0/s", "-1/s", "1.5/s", "s"])
def test_an_invalid_rate_is_refused(rate: str) -> None:
    with pytest.raises(ConfigError, match=r"invalid rate .*: write it as 5/s"):
        tool(rate=rate)(str)


def test_a_rate_applies_to_all_runs_of_the_process(tmp_path: Path) -> None:
    times: list[float] = []

    @tool(rate="4/s", idempotent=True)
    async def ping(n: int) -> str:
        """Ping."""
        times.append(asyncio.get_running_loop().time())
        return str(n)

    write(tmp_path, {"agents.d/a.yaml": agent("a", model="offline", skill_policy=ALL)})

    async def main() -> None:
        async with Runtime.open(tmp_path, tools=[ping], watch=False) as runtime, asyncio.TaskGroup() as group:
            times.append(asyncio.get_running_loop().time())
            for n in range(6):
                group.create_task(runtime.call_tool("a", "ping", {"n": n}))

    asyncio.run(main())
    assert len(times) == 7
    assert times[6] - times[0] > 0.4, "four immediately, then one each quarter of a second"


def test_a_rate_applies_to_retries(tmp_path: Path) -> None:
    times: list[float] = []

    @tool(rate="1/s", idempotent=True, retries=1)
    async def ping() -> str:
        """Ping."""
        times.append(asyncio.get_running_loop().time())
        raise ConnectionError("lost")

    def ask(request: ModelRequest) -> Turn:
        if request.messages[-1].role == "tool":
            return "done"
        times.append(asyncio.get_running_loop().time())
        return calls(("ping", {}))

    run(tmp_path, [ping], script=ask)
    assert len(times) == 3
    assert times[2] - times[0] > 0.9, "waiting before another attempt takes 0.2 seconds at most"


# --- questions


def asking() -> tuple[Tool, list[str]]:
    done: list[str] = []

    @tool
    async def book(city: str, context: ToolContext) -> str:
        """Book a trip."""
        day = await context.ask_human(f"When to {city}?")
        seat = await context.ask_human("Window or aisle?")
        done.append(f"{city} {day} {seat}")
        return done[-1]

    return book, done


def test_a_tool_can_ask_several_questions_and_acts_once(tmp_path: Path) -> None:
    book, done = asking()
    write(tmp_path, {"agents.d/a.yaml": agent("a", skill_policy=ALL)})
    store = JsonStore()
    model = ScriptedModel(calls(("book", {"city": "Rome"})), "booked")

    async def main() -> RunResult:
        options: dict[str, Any] = {"tools": [book], "models": {"scripted": model}, "store": store, "watch": False}
        async with Runtime.open(tmp_path, **options) as runtime:
            result = await runtime.run("go")
        for question, answer in (("When to Rome?", "Monday"), ("Window or aisle?", "aisle")):
            (asked,) = result.pending
            assert (asked.kind, asked.tool, asked.reason) == ("question", "book", question)
            async with Runtime.open(tmp_path, **options) as runtime:  # another process may resume it
                result = await runtime.resume(result.run_id, {asked.id: Respond(text=answer)})
        return result

    assert asyncio.run(main()).output == "booked"
    assert done == ["Rome Monday aisle"]


@pytest.mark.parametrize(("decision", "status"), [(Reject(reason="ask later"), "error"), (Approve(), "success")])
def test_a_question_can_be_declined_or_approved(tmp_path: Path, decision: Any, status: str) -> None:
    @tool
    async def sure(context: ToolContext) -> str:
        """Make sure."""
        return await context.ask_human("Sure?")

    write(tmp_path, {"agents.d/a.yaml": agent("a", skill_policy=ALL)})
    model = ScriptedModel(calls(("sure", {})), "done")

    async def main() -> RunResult:
        async with Runtime.open(tmp_path, tools=[sure], models={"scripted": model}, watch=False) as runtime:
            paused = await runtime.run("go")
            return await runtime.resume(paused.run_id, {paused.pending[0].id: decision})

    (call,) = asyncio.run(main()).tool_calls
    assert call.status == status
    assert ("ask later" in call.result) if status == "error" else call.result == "yes"


def test_a_tool_cannot_ask_outside_a_run() -> None:
    context = ToolContext("r", "c", "a", Path())
    with pytest.raises(ToolError, match="no one can answer"):
        asyncio.run(ask(context))


async def ask(context: ToolContext) -> str:
    return await context.ask_human("Well?")


# --- session values


def test_notes_and_the_todo_list_live_as_long_as_the_conversation(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/a.yaml": agent("a", skill_policy=ALL)})
    items = [{"task": "read", "status": "done"}, {"task": "write", "status": "doing"}, {"task": "send"}]
    model = ScriptedModel(
        calls(("session_set", {"key": "colour", "value": "red"}), ("todo", {"items": items})),
        "noted",
        calls(("session_get", {"key": "colour"}), ("todo", {}), ("session_get", {})),
        "read",
        calls(("session_get", {"key": "colour"}), ("todo", {})),
        "elsewhere",
    )

    async def main() -> list[RunResult]:
        async with Runtime.open(tmp_path, models={"scripted": model}, store=JsonStore(), watch=False) as runtime:
            return [await runtime.run("go", conversation=name) for name in ("one", "one", "two")]

    _, again, other = asyncio.run(main())
    assert [call.result for call in again.tool_calls] == ["red", "[x] read\n[>] write\n[ ] send", ["colour"]]
    assert [call.status for call in other.tool_calls] == ["error", "success"]
    assert other.tool_calls[1].result == "(nothing to do)"


def test_notes_of_a_failed_run_are_discarded(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/a.yaml": agent("a", skill_policy=ALL)})
    model = ScriptedModel(
        calls(("session_set", {"key": "k", "value": "v"})), RuntimeError("down"), calls(("session_get", {})), "read"
    )

    async def main() -> RunResult:
        async with Runtime.open(tmp_path, models={"scripted": model}, watch=False) as runtime:
            assert (await runtime.run("go", conversation="c")).status == "failed"
            return await runtime.run("go", conversation="c")

    assert asyncio.run(main()).tool_calls[0].result == []


def test_a_session_stores_copies_of_json_data_up_to_its_size_limit() -> None:
    session, cart = Session(), ["apple"]
    session.set("cart", cart)
    cart.append("pear")
    session.get("cart").append("plum")
    assert session.get("cart") == ["apple"]
    with pytest.raises(ToolError, match="the maximum is"):
        session.set("big", "x" * MAX_SESSION_CHARS)
    for value in (object(), float("nan"), {1, 2}):
        with pytest.raises(ToolError, match="not JSON"):
            session.set("odd", value)
    session.delete("cart")
    session.delete("cart")
    assert list(session) == []
