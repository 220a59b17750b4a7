"""Unusual JSON, which not every parser accepts, is stored unchanged or rejected at its source; runs continue."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from framework import Approve, Runtime, Tool, ToolContext, tool
from framework.store.store import Store
from framework.testing import ScriptedModel, calls
from tests.support.projects import agent, write

LARGE = 2**70 + 1


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


class Till:
    """Tools with unusual arguments and results."""

    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.paid: list[object] = []

    def tools(self) -> list[Tool]:
        @tool(risk="low")
        async def pay(account: int) -> str:
            """Pay."""
            self.paid.append(account)
            return "paid"

        @tool(risk="low")
        async def keep(context: ToolContext) -> str:
            """Store a value for the conversation."""
            context.session.set("kept", self.value)
            return "kept"

        @tool(risk="low")
        async def look(context: ToolContext) -> str:
            """Set a span attribute."""
            with context.span("look", {"at": self.value}) as span:
                span.set_attribute("again", self.value)
            return "seen"

        return [pay, keep, look]


def project(root: Path) -> Path:
    policy = "{ask: [{tool: pay, reason: money}], allow: [pay, keep, look]}"
    return write(root, {"agents.d/one.yaml": agent("one", skill_policy=policy)})


def runtime(root: Path, till: Till, store: Store, *turns: Any) -> Any:
    models = {"scripted": ScriptedModel(*turns)}
    return Runtime.open(project(root), tools=till.tools(), models=models, store=store, watch=False)


def test_an_approval_applies_to_numbers_of_any_size(tmp_path: Path, store_url: str) -> None:
    till = Till()

    async def main() -> None:
        store = await Store.open(store_url, tmp_path)
        async with runtime(tmp_path, till, store, calls(("pay", {"account": LARGE})), "done") as opened:
            first = await opened.run("go")
            result = await opened.resume(first.run_id, {first.pending[0].id: Approve()})
            assert (result.status, result.output) == ("completed", "done")
            events = await store.events(first.run_id)
            assert {event["arguments"]["account"] for event in events if event["event"] == "tool_call"} == {LARGE}
        await store.close()

    asyncio.run(main())
    assert till.paid == [LARGE]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (LARGE, None),
        (nested(60), None),
        (nested(300), "nests deeper than 100 levels"),
        ("half a \ud800", "surrogates not allowed"),
        (float("nan"), "not JSON compliant"),
        (object(), "not JSON serializable"),
        ("x" * 70_000, "session values would have 70012 characters; the maximum is 65536"),
    ],
)
def test_session_values_are_stored_or_rejected(tmp_path: Path, store_url: str, value: Any, said: str | None) -> None:
    async def main() -> None:
        store = await Store.open(store_url, tmp_path)
        async with runtime(tmp_path, Till(value), store, calls(("keep", {})), "done") as opened:
            result = await opened.run("go", conversation="c")
        (call,) = result.tool_calls
        assert (result.status, call.status) == ("completed", "error" if said else "success")
        assert said is None or said in str(call.result)
        kept = {} if said else {"kept": value}
        assert (await store.load_run(result.run_id)).session == kept
        assert (await store.conversation("c")).session == kept
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, True),
        (2**62, 2**62),
        (LARGE, str(LARGE)),
        (Decimal("1.50"), "1.50"),
        ({"a": 1}, "{'a': 1}"),
        (["a", 1], ["a", "1"]),
        (float("inf"), "inf"),
        (b"x", "b'x'"),
        ("half a \ud800", "half a ?"),
    ],
)
def test_span_attributes_set_by_tools_can_be_stored_and_exported(
    tmp_path: Path, store_url: str, value: Any, shown: Any
) -> None:
    async def main() -> None:
        store = await Store.open(store_url, tmp_path)
        async with runtime(tmp_path, Till(value), store, calls(("look", {})), "done") as opened:
            result = await opened.run("go")
        (span,) = [span for span in await store.spans(result.run_id) if span.name == "look"]
        assert (span.attributes["at"], span.attributes["again"]) == (shown, shown)
        await store.close()

    asyncio.run(main())
