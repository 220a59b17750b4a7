"""Remembered approvals: what they cover, whose they are, and what ends them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Approve, Reject, RequestError, Respond, RunResult, Runtime, Tool, ToolContext, tool
from framework.engine.tool_call.call import explain_tools
from framework.llm.client import ModelRequest
from framework.replay import replay
from framework.store.types import GrantQuery
from framework.testing import ScriptedModel, Turn, calls
from framework.types.grant import Grant, Remember
from tests.support.cases import cases
from tests.support.projects import agent, write

ASKS = '{allow: ["*"], ask: [{tool: refund, reason: money leaves}]}'
Call = dict[str, Any]


class Desk:
    """A project whose agent `desk` calls `refund` as its user's message says, directly or through `helper`."""

    def __init__(self) -> None:
        self.paid: list[Call] = []

    def tools(self, *, note: str = "") -> list[Tool]:
        @tool(risk="low", description=f"Pay an order back.{note}")
        async def refund(order: str, amount: float, express: bool = False, tags: list[str] | None = None) -> str:
            self.paid.append({"order": order, "amount": amount, "express": express, "tags": tags})
            return "refunded"

        return [refund]

    def script(self, request: ModelRequest) -> Turn:
        """Make the calls that the message lists as JSON, one a turn; `helper` is asked to make the others."""
        texts = [message.content for message in request.messages if message.role == "user"]
        task = json.loads(texts[-1])
        after = next(n for n, m in enumerate(reversed(request.messages)) if m.role == "user")
        done = sum(message.role == "tool" for message in request.messages[len(request.messages) - after :])
        if done == len(task):
            return "done"
        helper, call = task[done]
        is_helper = any("You are helper" in message.content for message in request.messages)
        if helper and not is_helper:
            return calls(("agent.helper", {"message": json.dumps([[True, call]])}))
        return calls(("refund", call))


def project(root: Path, *, asks: str = ASKS, grants: str = "", **keys: str) -> Path:
    settings = f"version: 1\ngrants: {grants}\n" if grants else "version: 1\n"
    limits = "{max_steps: 100, max_tool_calls: 100, max_repeated_calls: 100, max_total_tokens: 10000000}"
    desk = agent("desk", skill_policy=asks, sub_agents="[helper]", runtime_policy=limits, **keys)
    helper = agent("helper", skill_policy=ASKS, runtime_policy=limits)
    return write(root, {"agents.d/desk.yaml": desk, "agents.d/helper.yaml": helper, "agentsd.yaml": settings})


@asynccontextmanager
async def opened(root: Path, desk: Desk, tools: Sequence[Tool] | None = None) -> AsyncIterator[Runtime]:
    models = {"scripted": ScriptedModel(script=desk.script)}
    options: dict[str, Any] = {"tools": tools or desk.tools(), "models": models, "watch": False}
    async with Runtime.open(root, store=f"sqlite:///{root}/state.db", **options) as runtime:
        yield runtime


async def ask(runtime: Runtime, *made: Call, helper: bool = False, **options: Any) -> RunResult:
    return await runtime.run(json.dumps([[helper, call] for call in made]), agent="desk", **options)


async def remember(runtime: Runtime, call: Call, **remembered: Any) -> tuple[RunResult, Grant]:
    """Have a call approved and remembered; return the result and the grant."""
    owner = {name: remembered.pop(name) for name in ("user", "tenant", "conversation") if name in remembered}
    paused = await ask(runtime, call, **owner)
    (asked,) = paused.pending
    owner.pop("conversation", None)
    decision = Approve(remember=Remember.model_validate(remembered))
    result = await runtime.resume(paused.run_id, {asked.id: decision}, **owner)
    (grant, *_) = await runtime.store.grants.list(GrantQuery())
    return result, grant


CHEAP = {"width": "arguments", "when": {"amount": "<= 20"}, "for": "user", "ttl": "7d"}


def test_a_remembered_approval_answers_the_next_question_and_says_so(tmp_path: Path) -> None:
    desk = Desk()

    async def main() -> None:
        async with opened(project(tmp_path), desk) as runtime:
            first, grant = await remember(runtime, {"order": "A-1", "amount": 12.5}, user="ann", **CHEAP)
            assert (first.status, grant.uses, grant.at_most) == ("completed", 0, "10/day")
            assert grant.covers_text() == "refund when amount <= 20"
            second = await ask(runtime, {"order": "B-2", "amount": 20}, user="ann")
            assert (second.status, [call["amount"] for call in desk.paid]) == ("completed", [12.5, 20])
            (used,) = await runtime.store.events_named(second.run_id, "grant_used")
            assert (used["grant"], used["covers"]) == (grant.id, "refund when amount <= 20")
            assert used["rule"].startswith("ask refund (agents.d/desk.yaml:")
            assert used["origin"].endswith(f"in run {first.run_id}")
            (again,) = await runtime.store.grants.list(GrantQuery(id=grant.id))
            assert (again.uses, again.last_used_at is not None) == (1, True)
            assert (await ask(runtime, {"order": "B-2", "amount": 20.01}, user="ann")).status == "paused"
            assert (await ask(runtime, {"order": "B-2", "amount": 5}, user="ben")).status == "paused"
            assert (await ask(runtime, {"order": "B-2", "amount": 5})).status == "paused"

    asyncio.run(main())


def test_an_offer_has_three_widths_and_survives_the_process(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(project(tmp_path), Desk()) as runtime:
            paused = await ask(runtime, {"order": "A-17", "amount": 12.5}, conversation="c1")
        offer = paused.pending[0].remember
        assert offer is not None
        assert (offer.scopes, offer.agent) == (("run", "conversation", "user"), "desk")
        assert {one.width: dict(one.when) for one in offer.widths} == {
            "call": {},
            "arguments": {
                "order": ("A-*",),
                "amount": (">= 0", "<= 12.5"),
                "express": (False,),
                "tags": ("null",),
            },
            "tool": {},
        }
        async with opened(tmp_path, desk := Desk()) as runtime:
            decision = Approve(remember=Remember(width="arguments", scope="conversation"))
            await runtime.resume(paused.run_id, {paused.pending[0].id: decision})
            assert (await ask(runtime, {"order": "A-2", "amount": 1}, conversation="c1")).status == "completed"
            assert (await ask(runtime, {"order": "B-2", "amount": 1}, conversation="c2")).status == "paused"
            express = {"order": "A-2", "amount": 1, "express": True}
            assert (await ask(runtime, express, conversation="c3")).status == "paused"
            assert len(desk.paid) == 2

    asyncio.run(main())


class Way(Enum):
    """How money is paid back."""

    CARD = "card"
    CASH = "cash"


@pytest.mark.parametrize("width", ["call", "arguments"])
def test_a_default_that_is_no_json_data_can_be_remembered(tmp_path: Path, width: str) -> None:
    @tool(risk="low")
    def refund(order: str, way: Way = Way.CARD) -> str:
        """Pay an order back."""
        return f"{order} {way}"

    async def main() -> None:
        async with opened(project(tmp_path), Desk(), [refund]) as runtime:
            _, grant = await remember(runtime, {"order": "A-1"}, user="ann", **{"width": width, "for": "user"})
            assert (grant.width, "way" in grant.names) == (width, False)
            assert (await ask(runtime, {"order": "A-1"}, user="ann")).status == "completed"

    asyncio.run(main())


def test_whatever_restricts_wins(tmp_path: Path) -> None:
    desk, call = Desk(), {"order": "A-1", "amount": 5}

    async def main() -> None:
        async with opened(project(tmp_path), desk) as runtime:
            _, grant = await remember(runtime, call, **CHEAP)
            assert (await ask(runtime, call)).status == "completed"
            project(tmp_path, grants="{never: [{tool: '*', when: {amount: '>= 5'}}]}")
            await runtime.reload()
            assert (await ask(runtime, call)).status == "paused"
            assert (await ask(runtime, {"order": "A-1", "amount": 4})).status == "completed"
            project(tmp_path, grants="{offer: [run]}")
            await runtime.reload()
            assert (await ask(runtime, call)).status == "paused"
            project(tmp_path)
            await runtime.reload()
            assert await runtime.store.grants.revoke(grant.id, "ops")
            assert (await ask(runtime, call)).status == "paused"
            await remember(runtime, call, **CHEAP)
            project(tmp_path, asks=ASKS.replace("allow", "deny: [{tool: refund, when: {amount: '> 4'}}], allow"))
            await runtime.reload()
            denied = await ask(runtime, call)
            assert [one.status for one in denied.tool_calls] == ["denied"]

    asyncio.run(main())


def test_a_change_ends_a_grant_also_if_it_is_taken_back(tmp_path: Path) -> None:
    desk, call = Desk(), {"order": "A-1", "amount": 5}

    async def edit(runtime: Runtime, **keys: str) -> None:
        project(tmp_path, **keys)
        await runtime.reload()

    async def check(runtime: Runtime, reason: str) -> None:
        assert (await ask(runtime, call)).status == "paused"
        assert (await runtime.store.grants.list(GrantQuery()))[0].void == reason

    async def main() -> None:
        async with opened(project(tmp_path), desk) as runtime:
            await remember(runtime, call, **CHEAP)
            await edit(runtime, instructions="Another prompt in the rule's file.")
            await edit(runtime)
            await check(runtime, "agents.d/desk.yaml has changed since")
            await remember(runtime, call, **CHEAP)
            (tmp_path / "agents.d/desk.yaml").unlink()
            await runtime.reload()
            await edit(runtime)
            await check(runtime, "agent 'desk' was removed since")
            paused = await ask(runtime, call)
            await edit(runtime, instructions="Another prompt between the question and the answer.")
            decision = Approve(remember=Remember.model_validate(CHEAP))
            await runtime.resume(paused.run_id, {paused.pending[0].id: decision})
            await edit(runtime)
            await check(runtime, "agents.d/desk.yaml has changed since")
            await remember(runtime, call, **CHEAP)
        async with opened(tmp_path, desk, desk.tools(note=" Now by post.")) as runtime:
            await check(runtime, "the tool has changed since")
        async with opened(tmp_path, desk) as runtime:
            await check(runtime, "the tool has changed since")
            await remember(runtime, call, **CHEAP)
        project(tmp_path, instructions="Another prompt while no process has the files open.")
        async with opened(tmp_path, desk) as runtime:
            await edit(runtime)
            await check(runtime, "agents.d/desk.yaml has changed since")

    asyncio.run(main())


def test_small_amounts_cannot_add_up_to_a_large_one(tmp_path: Path) -> None:
    desk = Desk()
    parts = [{"order": f"A-{n}", "amount": 20} for n in range(45)]

    async def main() -> None:
        async with opened(project(tmp_path), desk) as runtime:
            await remember(runtime, parts[0], **CHEAP)
            result = await ask(runtime, *parts)
            assert (result.status, len(desk.paid)) == ("paused", 11), "the approved call and ten more in a day"
        async with opened(tmp_path, desk) as runtime:
            assert (await ask(runtime, parts[1])).status == "paused", "the store counts, not the process"

    asyncio.run(main())


def test_a_replay_remembers_nothing_and_finds_what_was_granted(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(project(tmp_path), Desk()) as runtime:
            first, grant = await remember(runtime, {"order": "A-1", "amount": 5}, **CHEAP)
            second = await ask(runtime, {"order": "A-2", "amount": 6}, {"order": "A-3", "amount": 7})
            for run in (first, second):
                stored = await runtime.store.stored_run(await runtime.store.load_run(run.run_id))
                assert await replay(tmp_path, stored, runtime.catalog.current) == ()
            (again,) = await runtime.store.grants.list(GrantQuery())
            assert (again.id, again.uses) == (grant.id, 2)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("remembered", "message"),
    [
        ({"for": "conversation"}, "cannot be remembered for conversation: possible: run, user"),
        ({"ttl": "31d"}, "at most 2592000 s"),
        ({"width": "arguments", "when": {"amount": "<= 4"}}, "do not cover the call itself"),
        ({"width": "arguments", "when": {"amout": "<= 20"}}, "do not cover the call itself"),
        ({"width": "arguments", "when": {"amount": "lots"}}, "can never be met"),
        ({"width": "arguments", "when": {}}, "`when` is empty"),
        ({"width": "tool", "when": {"amount": "<= 20"}}, "belongs to the width `arguments`"),
    ],
)
def test_what_cannot_be_remembered_is_refused(tmp_path: Path, remembered: Call, message: str) -> None:
    async def main() -> None:
        async with opened(project(tmp_path), Desk()) as runtime:
            with pytest.raises(RequestError, match=message.replace("[", r"\[")):
                await remember(runtime, {"order": "A-1", "amount": 5}, **remembered)
            assert not await runtime.store.grants.list(GrantQuery())

    asyncio.run(main())


AMOUNTS = st.sampled_from(
    [
        "0",
        "5",
        "20",
        "20.0",
        "2e1",
        "1e9",
        "20.000000000000001",
        "20.0000001",
        "21",
        "-1",
        "-0.0",
        '"5"',
        '"20"',
        '" 5"',
        '"1e1"',
        '"2_0"',
        '"٥"',
        '"Infinity"',
        '"NaN"',
        "null",
        "true",
        "[5]",
        '{"amount": 5}',
        "1e308",
    ]
)
ORDERS = st.sampled_from(["A-1", "A-", "a-1", "Ａ-1", "B-1", " A-1", "A-1\n", "A*1", "A-1/../B", ""])
MORE = st.sampled_from(
    [{}, {"express": False}, {"express": True}, {"tags": []}, {"tags": ["x"]}, {"Amount": 900}, {"amount ": 900}]
)


@cases(10)
@given(made=st.lists(st.tuples(st.booleans(), ORDERS, AMOUNTS, MORE), min_size=1, max_size=8))
def test_no_call_outside_a_granted_rule_passes(made: list[tuple[bool, str, str, Call]]) -> None:
    desk = Desk()
    texts = [{"order": order, "amount": json.loads(amount), **more} for _, order, amount, more in made]

    async def main(root: Path) -> None:
        async with opened(project(root, grants="{offer: [user]}"), desk) as runtime:
            when = {"order": "A-*", "amount": [">= 0", "<= 20"]}
            await remember(
                runtime,
                {"order": "A-0", "amount": 1},
                width="arguments",
                when=when,
                **{"for": "user", "at_most": "9999/day"},
            )
            desk.paid.clear()
            for (helper, *_), call in zip(made, texts, strict=True):
                before = len(desk.paid)
                result = await ask(runtime, call, helper=helper)
                paid = desk.paid[before:]
                assert not (helper and paid), "a grant of the caller does not cover its sub-agent"
                for one in paid:
                    assert fnmatchcase(one["order"], "A-*")
                    assert 0 <= Decimal(one["amount"]) <= 20
                    assert (one["express"], one["tags"]) == (False, None)
                    assert len(await runtime.store.events_named(result.run_id, "grant_used")) == 1

    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))


@pytest.mark.parametrize(("kind", "status"), [("deny", "denied"), ("ask", "cancelled")])
def test_a_rule_with_at_most_applies_to_the_calls_beyond(tmp_path: Path, kind: str, status: str) -> None:
    rule = "{tool: refund, when: {amount: '<= 20'}, at_most: 2/month, reason: enough for now}"
    desk, asks = Desk(), f'{{allow: ["*"], {kind}: [{rule}]}}'
    made = [{"order": f"A-{n}", "amount": 20} for n in range(4)]

    async def main() -> None:
        async with opened(project(tmp_path, asks=asks), desk) as runtime:
            assert (await ask(runtime, made[0], {"order": "B", "amount": 21}, user="ann")).status == "completed"
        async with opened(tmp_path, desk) as runtime:
            result = await ask(runtime, *made[1:3], user="ann")
            if kind == "ask":
                (asked,) = result.pending
                assert asked.reason == "more than 2/month: enough for now"
                assert asked.rule.startswith("ask refund (agents.d/desk.yaml:")
                result = await runtime.resume(result.run_id, {asked.id: Reject()}, user="ann")
            assert [call.status for call in result.tool_calls] == ["success", status]
            assert (await ask(runtime, made[3], user="ben")).status == "completed", "each user has their own"
            (found,) = [
                one for one in explain_tools(runtime.catalog.current.agents["desk"]) if one.tool.name == "refund"
            ]
            assert (found.verdict.kind, found.conditions[0].condition) == (
                "allow",
                "amount <= 20 and more than 2/month",
            )
            assert len(desk.paid) == 4

    asyncio.run(main())


def test_a_call_that_pauses_counts_once_for_a_rule_with_at_most(tmp_path: Path) -> None:
    """It waits for an answer to its own question, or for an approval in a sub-agent."""
    rules = "[{tool: choose, at_most: 1/month}, {tool: agent.helper, at_most: 1/month}]"

    @tool(risk="low")
    async def choose(context: ToolContext) -> str:
        """Ask twice."""
        return f"{await context.ask_human('one?')} {await context.ask_human('two?')}"

    desk = Desk()
    project(tmp_path, asks=f'{{allow: ["*"], deny: {rules}}}')

    def script(request: ModelRequest) -> Turn:
        if "You are helper" in request.messages[0].content:
            return "helped" if request.messages[-1].role == "tool" else calls(("refund", {"order": "A", "amount": 1}))
        if request.messages[-1].role == "tool":
            return "done"
        return calls(("choose", {}), ("agent.helper", {"message": "refund"}))

    async def main() -> list[str | None]:
        models = {"scripted": ScriptedModel(script=script)}
        async with Runtime.open(tmp_path, tools=[*desk.tools(), choose], models=models, watch=False) as runtime:
            first = await runtime.run("go", agent="desk")
            answers = {one.id: Approve() if one.kind == "tool" else Respond(text="a") for one in first.pending}
            second = await runtime.resume(first.run_id, answers)
            (asked,) = second.pending
            third = await runtime.resume(first.run_id, {asked.id: Respond(text="b")})
            beyond = await runtime.run("go", agent="desk")
            return [call.result for one in (third, beyond) for call in one.tool_calls if call.tool != "refund"]

    answered, helped, *denied = asyncio.run(main())
    assert (answered, helped, len(desk.paid)) == ("a b", "helped", 1)
    assert all("more than 1/month" in str(error) for error in denied)
    assert len(denied) == 2
