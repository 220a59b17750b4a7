"""A run pauses for approval once, at its root, after sibling calls have finished; resuming repeats nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Approve, Edit, Reject, RequestError, Respond, RunResult, Runtime, tool
from framework.testing import JsonStore, ScriptedModel, calls
from framework.types.events import wire
from framework.types.state import Decision
from tests.support.cases import cases
from tests.support.projects import agent, write
from tests.support.worlds import Call, Turns, World, project, turns_of


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("asking"), ask=True)


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("trusting"), ask=False)


async def run_to_the_end(root: Path, world: World) -> tuple[RunResult, int]:
    """Approve every confirmation, each time in a new runtime, so that only the store survives a pause."""
    store = JsonStore()
    pauses = 0
    async with Runtime.open(
        root, tools=world.tools(), models={"scripted": world.model()}, store=store, watch=False
    ) as runtime:
        result = await runtime.run("0", agent="root")
    while result.status == "paused":
        pauses += 1
        async with Runtime.open(
            root, tools=world.tools(), models={"scripted": world.model()}, store=store, watch=False
        ) as runtime:
            result = await runtime.resume(result.run_id, {asked.id: Approve() for asked in result.pending})
    return result, pauses


NESTED: Turns = ((Call("safe"), Call("agent", ((Call("safe"), Call("risky"), Call("risky")),)), Call("risky")),)


def test_siblings_of_a_call_that_needs_approval_finish_before_the_pause(asking: Path) -> None:
    async def main() -> None:
        world = World(NESTED)
        models = {"scripted": world.model()}
        async with Runtime.open(asking, tools=world.tools(), models=models, store=JsonStore(), watch=False) as runtime:
            async with runtime.stream("0", agent="root") as stream:
                events = [wire(event) async for event in stream]
            first = await stream.result()
            assert first.status == "paused"
            assert world.ran.keys() == {"0.0.0", "0.0.1.0.0"}, "siblings finished, at both levels"
            assert [asked.arguments["n"] for asked in first.pending] == ["0.0.1.0.1", "0.0.1.0.2", "0.0.2"]
            assert [e["event"] for e in events].count("done") == 1
            assert events[-1]["event"] == "done"
            assert events[-1]["status"] == "paused"
            assert [e["event"] for e in events].count("confirm_required") == 3
            last = await runtime.resume(first.run_id, {asked.id: Approve() for asked in first.pending})
        assert last.status == "completed"
        assert last.output == "end of 0"
        assert dict(world.ran) == dict.fromkeys(world.names(), 1)

    asyncio.run(main())


@cases(5)
@given(turns=turns_of(2))
def test_a_run_with_pauses_does_the_same_work_as_one_without(asking: Path, trusting: Path, turns: Turns) -> None:
    chopped, whole = World(turns), World(turns)
    after_pauses, pauses = asyncio.run(run_to_the_end(asking, chopped))
    uninterrupted, none = asyncio.run(run_to_the_end(trusting, whole))
    assert none == 0
    assert (pauses > 0) == any("risky" in str(turn) for turn in turns)
    assert chopped.ran == whole.ran
    assert dict(chopped.ran) == dict.fromkeys(chopped.names(), 1)
    undecided = [message.model_copy(update={"decision": None}) for message in after_pauses.messages]
    assert undecided == list(uninterrupted.messages), "the messages differ only in the recorded decisions"
    assert after_pauses.output == uninterrupted.output
    assert after_pauses.tool_stats.keys() == uninterrupted.tool_stats.keys()


DECISIONS: st.SearchStrategy[Decision] = st.sampled_from([Approve(), Reject(reason="no"), Respond(text="by hand")])


@cases(6)
@given(data=st.data(), turns=turns_of(1))
def test_every_call_is_decided_once_for_any_decisions_in_any_number_of_rounds(
    asking: Path, data: st.DataObject, turns: Turns
) -> None:
    world = World(turns)
    approved: set[str] = set()

    async def main() -> RunResult:
        options = {"tools": world.tools(), "models": {"scripted": world.model()}, "watch": False}
        async with Runtime.open(asking, store=JsonStore(), **options) as runtime:  # type: ignore[arg-type]
            result = await runtime.run("0", agent="root")
            while result.status == "paused":
                asked = {question.id: question.arguments["n"] for question in result.pending}
                some = data.draw(st.sets(st.sampled_from(sorted(asked)), min_size=1), label="decided")
                decisions: dict[str, Decision] = {name: data.draw(DECISIONS, label=name) for name in sorted(some)}
                approved.update(asked[name] for name, given in decisions.items() if isinstance(given, Approve))
                result = await runtime.resume(result.run_id, decisions)
            return result

    result = asyncio.run(main())
    assert result.status == "completed"
    assert set(world.ran) & world.names_of("risky") == approved
    assert set(world.ran.values()) <= {1}


# --- single decisions


@pytest.fixture
def shop(tmp_path: Path) -> tuple[Path, list[float]]:
    policy = "{deny: [{tool: pay, when: {amount: '> 100'}}], ask: [{tool: pay, reason: money}], allow: [pay]}"
    write(tmp_path, {"agents.d/shop.yaml": agent("shop", skill_policy=policy)})
    return tmp_path, []


def run_with(shop: tuple[Path, list[float]], decision: Decision) -> RunResult:
    root, paid = shop

    @tool(risk="low")
    def pay(amount: float) -> str:
        """Pay a person."""
        paid.append(amount)
        return f"paid {amount:g}"

    async def main() -> RunResult:
        model = ScriptedModel(calls(("pay", {"amount": 20})), "ok")
        async with Runtime.open(root, tools=[pay], models={"scripted": model}, watch=False) as runtime:
            first = await runtime.run("pay")
            assert first.status == "paused"
            assert first.pending[0].reason == "money"
            assert first.pending[0].rule == "ask pay (agents.d/shop.yaml:6)"
            return await runtime.resume(first.run_id, {first.pending[0].id: decision})

    return asyncio.run(main())


def test_an_edited_call_is_executed_with_the_edited_arguments(shop: tuple[Path, list[float]]) -> None:
    result = run_with(shop, Edit(arguments={"amount": 5}))
    assert shop[1] == [5]
    assert result.tool_calls[0].arguments == {"amount": 5}
    assert result.messages[-2].content == "paid 5"


@pytest.mark.hostile(7)
def test_the_policy_is_evaluated_again_for_an_edited_call(shop: tuple[Path, list[float]]) -> None:
    result = run_with(shop, Edit(arguments={"amount": 500}))
    assert shop[1] == []
    assert result.tool_calls[0].status == "denied"


def test_a_rejected_call_is_not_executed_and_the_model_receives_the_reason(shop: tuple[Path, list[float]]) -> None:
    result = run_with(shop, Reject(reason="too dear"))
    assert shop[1] == []
    assert result.messages[-2].content == "Cancelled: The user rejected this call: too dear"
    assert result.tool_calls[0].status == "cancelled"


def test_a_response_replaces_the_tools_result(shop: tuple[Path, list[float]]) -> None:
    result = run_with(shop, Respond(text="already paid"))
    assert shop[1] == []
    assert result.messages[-2].content == "already paid"
    assert result.tool_calls[0].status == "success"


@pytest.mark.hostile(7)
def test_decisions_for_unknown_or_decided_confirmations_are_rejected(asking: Path) -> None:
    async def main() -> None:
        world = World(((Call("risky"),),))
        async with Runtime.open(
            asking, tools=world.tools(), models={"scripted": world.model()}, watch=False
        ) as runtime:
            first = await runtime.run("0", agent="root")
            with pytest.raises(RequestError, match=r"no pending decision nope; pending: 0-0"):
                await runtime.resume(first.run_id, {"nope": Approve()})
            asked = first.pending[0].id
            await runtime.resume(first.run_id, {asked: Approve()})
            with pytest.raises(RequestError, match="is completed"):
                await runtime.resume(first.run_id, {asked: Approve()})
        assert world.ran.total() == 1

    asyncio.run(main())


def test_a_rule_tightened_during_a_pause_applies_after_the_resume(tmp_path: Path) -> None:
    async def main() -> None:
        root = project(tmp_path, ask=True)
        world = World(((Call("risky"),),))
        async with Runtime.open(root, tools=world.tools(), models={"scripted": world.model()}, watch=False) as runtime:
            first = await runtime.run("0", agent="root")
            write(
                root,
                {
                    "agents.d/root.yaml": agent(
                        "root", skill_policy='{deny: [{tool: risky, reason: stop}], allow: ["*"]}'
                    )
                },
            )
            await runtime.reload()
            last = await runtime.resume(first.run_id, {first.pending[0].id: Approve()})
        assert world.ran.total() == 0
        assert last.tool_calls[0].status == "denied"

    asyncio.run(main())
