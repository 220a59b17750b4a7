"""The guarantees of every store: in memory, in a file, on a server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.store.runs import StateDiff, assemble_state
from framework.store.store import Store
from framework.store.types import Blueprint, Conversation, RunQuery
from framework.types.errors import ConversationBusy, DecisionRefused, RunBusy, RunNotFound, RunTaken, StoreError
from framework.types.events import ToolFinished
from framework.types.messages import Message, ModelUse, ToolCall, ToolResult, Usage
from framework.types.plan import Plan, PlanStep
from framework.types.report import Action, TraceEntry
from framework.types.state import Approve, CallRecord, Confirmation, Decision, Edit, Reject, Respond, RunState
from tests.support.cases import cases
from tests.support.halts import halted
from tests.support.stores import with_store
from tests.support.waiting import until

BLUEPRINT = Blueprint("b1", {"agents.d/one.yaml": "name: one"})


def begun(**more: object) -> RunState:
    said = [Message(role="user", content="hello")]
    return RunState.model_validate({"agent": "one", "blueprint": "b1", "messages": said, **more})


def answered(state: RunState, text: str = "hi") -> RunState:
    state.messages.append(Message(role="assistant", content=text))
    state.status, state.finish_reason, state.output = "completed", "final", text
    return state


def finished(state: RunState, call: str) -> ToolFinished:
    state.seq += 1
    head = {"run_id": state.run_id, "seq": state.seq, "generation": 1}
    return ToolFinished(**head, id=call, tool="t", status="success", result="r", elapsed_ms=1)


# --- a run and its record


def test_a_run_is_loaded_unchanged_with_its_events_in_order(store_url: str) -> None:
    async def body(store: Store) -> None:
        state = begun(inputs={"a": [1, None, "ü\x00"]}, user="ann", metadata={"k": {"x": 1.5}})
        record = await store.start(state, None, BLUEPRINT)
        call = ToolCall(id="c1", tool="t", arguments={"x": "\u2028"})
        state.messages.append(Message(role="assistant", tool_calls=(call,)))
        state.calls["c1"] = CallRecord(call=call, started=1)
        await record.write(state, [finished(state, "c1")])
        state.calls["c1"] = CallRecord(call=call, started=1, result=ToolResult(status="success", output={"y": [1]}))
        state.trace.append(TraceEntry(step=1, agent="one", action=Action(type="final"), timestamp=datetime.now(UTC)))
        child = state.children["step-a"] = begun(run_id=state.run_id, path=("step-a",))
        child.children["c/2"] = begun(run_id=state.run_id, path=("step-a", "c/2"), session={"s": 1})
        state.plan = Plan(goal="g", steps=(PlanStep(id="a", description="d"),))
        state.session = {"cart": ["a"]}
        state.usage = Usage(total_tokens=7)
        await record.write(state, [finished(state, "c2"), finished(state, "c3")])
        assert await store.load_run(state.run_id) == state
        answered(child)
        await record.write(answered(state), last=True)
        assert await store.load_run(state.run_id) == state
        events = await store.events(state.run_id)
        assert [event["seq"] for event in events] == [1, 2, 3]
        assert [event["id"] for event in await store.events(state.run_id, after=2)] == ["c3"]
        (info,) = await store.runs()
        assert (info.status, info.message, info.tokens, info.user, info.held) == ("completed", "hello", 7, "ann", False)
        kept = await store.blueprint("b1")
        assert kept == BLUEPRINT

    with_store(body, store_url)


def test_a_step_writes_only_what_has_changed() -> None:
    state = begun()
    diff = StateDiff()
    diff.changes(state)
    for n in range(400):
        state.messages.append(Message(role="assistant", content=str(n)))
    assert len(diff.changes(state)) == 401
    call = ToolCall(id="c1", tool="t")
    state.calls["c1"] = CallRecord(call=call, started=1)
    assert [(part.kind, part.n) for part in diff.changes(state)] == [("call", 0), ("state", 0)]
    state.messages[-1] = Message(role="assistant", content="replaced by a hook")
    assert [(part.kind, part.n) for part in diff.changes(state)] == [("message", 400), ("state", 0)]
    assert [part.kind for part in diff.changes(state)] == ["state"]


TEXTS = st.text(max_size=5)
DECIDED: st.SearchStrategy[Decision] = st.sampled_from([Approve(), Reject(), Edit(arguments={}), Respond(text="")])


def change(data: st.DataObject, root: RunState, state: RunState) -> None:
    """Make one generated change to a run, or to a sub-run."""
    text = data.draw(TEXTS)
    call = ToolCall(id=text, tool="t")
    match data.draw(st.integers(0, 8)):
        case 0:
            state.messages.append(Message(role="assistant", content=text))
        case 1:
            state.messages[-1] = Message(role="user", content=text)
        case 2:
            state.calls[call.id] = CallRecord(call=call, started=data.draw(st.integers(0, 3)))
        case 3 if len(state.path) < 2:
            state.children.setdefault(text, begun(run_id=root.run_id, path=(*state.path, text)))
        case 4:
            state.session[text] = data.draw(TEXTS)
        case 5:
            state.session.pop(text, None)
        case 6:
            root.decisions[text] = data.draw(DECIDED)
        case 7:
            state.plan = data.draw(st.sampled_from([None, Plan(goal=text, steps=())]))
        case _:
            state.steps += 1


@cases(60)
@given(data=st.data())
def test_the_rows_of_any_changes_assemble_to_the_state(data: st.DataObject) -> None:
    root = begun()
    diff, rows = StateDiff(), dict[tuple[str, str, int], str]()
    for _ in range(data.draw(st.integers(1, 6))):
        for _ in range(data.draw(st.integers(0, 4))):
            states = [root, *root.children.values(), *(c for k in root.children.values() for c in k.children.values())]
            change(data, root, data.draw(st.sampled_from(states)))
        rows |= {(part.path, part.kind, part.n): part.body for part in diff.changes(root)}
    parts = [(path, kind, body) for (path, kind, _), body in sorted(rows.items())]
    assert assemble_state(parts, [], 0) == root  # type: ignore[arg-type]  # kinds are kinds


def test_a_run_is_read_in_one_snapshot(store_url: str) -> None:
    async def main() -> None:
        store = await Store.open(store_url, Path("/"))
        state = begun()
        record = await store.start(state, None, None)
        with halted(store, "SELECT agentsd_messages") as halt:
            reading = asyncio.create_task(store.load_run(state.run_id))
            await halt.reached()
            state.messages.append(Message(role="assistant", content="later"))
            await record.write(state)
            halt.go()
            assert len((await reading).messages) == len(state.messages) - 1
        await store.close()

    asyncio.run(main())


def test_only_the_holder_of_a_run_can_write_it(store_url: str) -> None:
    async def body(store: Store) -> None:
        other = await Store.open(store_url, Path("/"))
        state = begun()
        record = await store.start(state, None, BLUEPRINT)
        seen = await other.load_run(state.run_id)
        with pytest.raises(RunBusy):
            await other.acquire(seen, {})
        await record.release()
        taken = await other.acquire(seen, {})
        state.messages.append(Message(role="assistant", content="of a process that is late"))
        with pytest.raises(RunTaken):
            await record.write(state, [finished(state, "late")])
        with pytest.raises(RunTaken):
            await record.write(state, last=True)
        assert await store.events(state.run_id) == []
        await taken.write(answered(seen), [finished(seen, "c1")], last=True)
        last = await store.load_run(state.run_id)
        assert (last.status, [message.content for message in last.messages]) == ("completed", ["hello", "hi"])
        await other.close()

    with_store(body, store_url)


def test_only_one_of_two_concurrent_takeovers_succeeds(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        state = begun()
        record = await store.start(state, None, BLUEPRINT)
        asked = Confirmation(id="c1", kind="tool", agent="one", tool="t", hash="h")
        state.status, state.finish_reason, state.pending = "paused", "confirmation", [asked]
        await record.write(state, last=True)
        one, two = await store.load_run(state.run_id), await store.load_run(state.run_id)
        assert one.pending == [asked]
        await store.acquire(one, {"c1": Approve()}, {"c1": "ann"})
        with pytest.raises(RunBusy):
            await store.acquire(two, {"c1": Reject()}, {"c1": "bob"})

    with_store(body, any_url)


def test_a_decision_is_stored_once(store_url: str) -> None:
    async def body(store: Store) -> None:
        state = begun()
        record = await store.start(state, None, BLUEPRINT)
        await record.release()
        record = await store.acquire(state, {"c1": Approve()}, {"c1": "ann"})
        await record.release()
        with pytest.raises(DecisionRefused, match="already decided: c1"):
            await store.acquire(state, {"c1": Reject()}, {"c1": "bob"})
        seen = await store.load_run(state.run_id)
        assert (seen.decisions, seen.pending) == ({"c1": Approve()}, []), "though nothing was written since"
        await store.acquire(seen, {"c2": Reject()}, {"c2": "bob"})

    with_store(body, store_url)


def test_a_run_is_orphaned_once_its_lease_is_not_renewed(store_url: str) -> None:
    async def main() -> None:
        store = await Store.open(store_url, Path("/"), lease_seconds=0.05)
        other = await Store.open(store_url, Path("/"))
        state = begun()
        await store.start(state, None, BLUEPRINT)
        await until(partial(other.runs, RunQuery(orphaned=True)), "the run is orphaned")
        store.lease_seconds = 60
        assert await store.renew([state.run_id, "run_unknown"]) == {state.run_id: False}
        assert await other.runs(RunQuery(orphaned=True)) == []
        with pytest.raises(RunBusy):
            await other.acquire(await other.load_run(state.run_id), {})
        store.lease_seconds = 0.05
        await store.renew([state.run_id])
        await until(partial(other.runs, RunQuery(orphaned=True)), "the run is orphaned")
        await other.acquire(await other.load_run(state.run_id), {})
        assert await store.renew([state.run_id]) == {}, "it belongs to another process"
        assert await other.runs(RunQuery(orphaned=True)) == []
        (info,) = await other.runs()
        assert info.attempts == 1
        await store.close()
        await other.close()

    asyncio.run(main())


# --- conversations


def test_a_conversation_has_one_open_run_and_contains_its_answered_turns(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        for number, status in enumerate(("completed", "failed", "stopped", "cancelled", "completed"), 1):
            conversation = await store.conversation("c")
            state = begun(conversation_id="c", history=list(conversation.messages))
            record = await store.start(state, conversation, BLUEPRINT)
            with pytest.raises(ConversationBusy):
                await store.start(begun(conversation_id="c"), await store.conversation("c"), BLUEPRINT)
            state.session = {"turn": number}
            answered(state, f"answer {number}").status = status  # type: ignore[assignment]  # each is a Status
            await record.write(state, last=True)
            assert (await store.load_run(state.run_id)).history == list(conversation.messages)
        conversation = await store.conversation("c")
        assert [m.content for m in conversation.messages[1::2]] == ["answer 1", "answer 3", "answer 5"]
        assert (conversation.turns, conversation.open_run, conversation.session) == (5, None, {"turn": 5})
        runs = await store.runs(RunQuery(conversation_id="c"))
        assert [(run.turn, run.status) for run in runs] == list(
            enumerate(("completed", "failed", "stopped", "cancelled", "completed"), 1)
        )

    with_store(body, any_url)


def test_a_paused_run_keeps_its_conversation_open(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        state = begun(conversation_id="c")
        record = await store.start(state, Conversation("c"), BLUEPRINT)
        state.status = "paused"
        await record.write(state, last=True)
        assert (await store.conversation("c")).open_run == state.run_id
        taken = await store.load_run(state.run_id)
        record = await store.acquire(taken, {})
        await record.write(answered(taken), last=True)
        assert (await store.conversation("c")).open_run is None

    with_store(body, any_url)


def test_a_run_begun_on_an_outdated_conversation_is_rejected(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        seen = await store.conversation("c")
        state = begun(conversation_id="c")
        await (await store.start(state, seen, BLUEPRINT)).write(answered(state), last=True)
        with pytest.raises(ConversationBusy):
            await store.start(begun(conversation_id="c"), seen, BLUEPRINT)

    with_store(body, any_url)


# --- missing data


def test_missing_data_raises_or_returns_none(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        for call in (store.load_run, store.events, store.decisions, store.request_cancel):
            with pytest.raises(RunNotFound):
                await call("run_x")
        assert (await store.blueprint("none")) is None
        assert list(await store.runs()) == []

    with_store(body, any_url)


def test_lists_return_what_the_query_selects(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        names = []
        for user, tenant in (("ann", "a"), ("bob", "a"), ("ann", "b")):
            state = begun(user=user, tenant=tenant)
            record = await store.start(state, None, BLUEPRINT)
            names.append(state.run_id)
            if user == "ann":
                await record.write(answered(state), last=True)
        queries = {
            RunQuery(): [0, 1, 2],
            RunQuery(user="ann"): [0, 2],
            RunQuery(tenant="a", statuses=frozenset({"running"})): [1],
            RunQuery(newest_first=True, limit=2): [2, 1],
            RunQuery(agent="two"): [],
        }
        for query, expected in queries.items():
            assert [run.run_id for run in await store.runs(query)] == [names[n] for n in expected]

    with_store(body, any_url)


def test_a_cost_that_is_unknown_is_none_in_lists(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        for is_last in (False, True):
            for cost in (0.0, None, 0.25):
                state = begun()
                record = await store.start(state, None, BLUEPRINT)
                state.usage = Usage(total_tokens=3, cost_usd=cost)
                state.model_uses["openai/m"] = ModelUse().plus(state.usage)
                await record.write(answered(state) if is_last else state, last=is_last)
        assert [one.cost_usd for one in await store.runs()] == [0.0, None, 0.25] * 2

    with_store(body, any_url)


def test_lists_are_filtered_by_contents_files_and_time(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        names = []
        said = ("Refund 50% of order_1", "refund the rest", "Status", "退款 50_ off")
        for number, text in enumerate(said):
            message = [Message(role="user", content=text)]
            state = begun(messages=message, generation=number // 2, digest=f"{number // 2}abcdef0")
            record = await store.start(state, None, BLUEPRINT)
            state.usage, state.elapsed_ms = Usage(total_tokens=3, cost_usd=0.25 * number), 10.5 * number
            await record.write(answered(state), last=True)
            names.append(state.run_id)
        infos = await store.runs()
        assert [(one.cost_usd, one.elapsed_ms) for one in infos] == [
            (0.0, 0.0),
            (0.25, 10.5),
            (0.5, 21.0),
            (0.75, 31.5),
        ]
        second = infos[1].created_at
        queries = {
            RunQuery(run_id=names[2]): [2],
            RunQuery(run_id=names[2], agent="two"): [],
            RunQuery(text="REFUND"): [0, 1],
            RunQuery(text="50%"): [0],
            RunQuery(text="50_"): [3],
            RunQuery(text="退款"): [3],
            RunQuery(text="r_1", newest_first=True, limit=1): [0],
            RunQuery(text="\\"): [],
            RunQuery(text="\x00"): [],
            RunQuery(search="REFUND"): [0, 1],
            RunQuery(search="50_"): [3],
            RunQuery(search=names[2].upper()): [2],
            RunQuery(search="ONE"): [0, 1, 2, 3],
            RunQuery(search="\x00"): [],
            RunQuery(generation=1): [2, 3],
            RunQuery(digest="0abc"): [0, 1],
            RunQuery(digest="%"): [],
            RunQuery(since=second): [n for n, one in enumerate(infos) if one.created_at >= second],
            RunQuery(until=second): [n for n, one in enumerate(infos) if one.created_at < second],
            RunQuery(since=second, until=second): [],
        }
        for query, expected in queries.items():
            assert [run.run_id for run in await store.runs(query)] == [names[n] for n in expected], query

    with_store(body, any_url)


def test_texts_are_searched_in_the_newest_runs_only(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(store: Store) -> None:
        monkeypatch.setattr("framework.store.lists.SEARCHED_RUNS", 2)
        states = [begun() for _ in range(3)]
        for state in states:
            await store.start(state, None, BLUEPRINT)
        for query in (RunQuery(text="hello"), RunQuery(search="hello")):
            found = await store.runs(query)
            assert [one.run_id for one in found] == [state.run_id for state in states[1:]]

    with_store(body, store_url)


def test_decisions_say_who_made_them(any_url: str | None) -> None:
    async def body(store: Store) -> None:
        state = begun()
        record = await store.start(state, None, BLUEPRINT)
        assert await store.decisions(state.run_id) == []
        for number, by in enumerate(("ann", None)):
            state.status, state.finish_reason = "paused", "confirmation"
            await record.write(state, last=True)
            made = {f"c{number}": Edit(arguments={"amount": number})}
            record = await store.acquire(await store.load_run(state.run_id), made, dict.fromkeys(made, by))
        found = await store.decisions(state.run_id)
        assert [(one.confirmation_id, one.decision, one.by) for one in found] == [
            ("c0", Edit(arguments={"amount": 0}), "ann"),
            ("c1", Edit(arguments={"amount": 1}), None),
        ]
        assert found[0].at <= found[1].at <= datetime.now(UTC)
        assert {one.run_id for one in found} == {state.run_id}
        assert await store.latest_decisions(["run_x", state.run_id], 9) == [*found[::-1]]
        assert await store.latest_decisions([state.run_id], 1) == [found[1]]
        assert await store.latest_decisions([], 9) == []

    with_store(body, any_url)


def test_a_state_that_is_not_serializable_is_rejected_and_not_stored(store_url: str) -> None:
    async def body(store: Store) -> None:
        for wrong in ({"inputs": {"x": "\ud800"}}, {"metadata": {"x": object()}}):
            with pytest.raises(StoreError, match="cannot be serialized as JSON"):
                await store.start(begun(**wrong), None, BLUEPRINT)
        assert await store.runs() == []

    with_store(body, store_url)
