"""`/agent/runs` and `/agent/approvals`: runs in the background, their events, decisions, cancellation and lists."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from framework.llm.client import ModelRequest, ScriptedModel, Turn, calls
from framework.store.memory import MemoryStore
from framework.store.types import NOBODY, Deciders, RunRecord
from framework.types.errors import StoreError
from framework.types.state import Decision, RunState
from tests.support.api_keys import KEY, key_entry
from tests.support.projects import agent, write
from tests.support.runs_http import RunClient, ServerEvent, client_of
from tests.support.submitted_runs import Gate, project


async def submit(client: RunClient, message: str = "go", **fields: Any) -> str:
    """Submit a run, and return its id."""
    found: dict[str, str] = await client.post("runs", {"message": message, **fields}, 202)
    return found["run_id"]


async def finished(client: RunClient, run_id: str, **options: Any) -> list[ServerEvent]:
    """Follow a run until it ends or pauses, and return its events."""
    return await client.events(f"runs/{run_id}/events", **options)


def numbered(events: Sequence[ServerEvent]) -> list[int]:
    return [event.id for event in events if event.id is not None]


def test_a_submitted_run_is_202_with_its_location_and_continues_in_the_background(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        async with client_of(project(tmp_path), ScriptedModel(calls(("hold", {})), "done"), gate) as client:
            body, headers = {"message": "go", "conversation_id": "ü 1"}, {"idempotency-key": "k"}
            response = await client.http.post("/agent/runs", json=body, headers=headers)
            found = response.json()
            assert (response.status_code, found["conversation_id"]) == (202, "ü 1")
            assert found["status"] in ("queued", "running")
            assert response.headers["location"] == f"/agent/runs/{found['run_id']}"
            assert response.headers["x-agentsd-conversation-id"] == "%C3%BC%201"
            await gate.began.wait()
            assert (await client.get(f"runs/{found['run_id']}"))["status"] == "running"
            gate.opened.set()
            assert (await finished(client, found["run_id"]))[-1].data["output"] == "done"
            shown = await client.get(f"runs/{found['run_id']}")
            assert (shown["status"], shown["output"], shown["conversation_id"]) == ("completed", "done", "ü 1")
            assert [entry["tool"] for entry in shown["tool_calls"]] == ["hold"]
            repeated = await client.http.post("/agent/runs", json=body, headers=headers)
            assert repeated.json() == {**found, "status": "completed"}

    asyncio.run(main())


def test_a_reader_that_reconnects_after_any_event_gets_each_later_one_once(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel(calls(("calculator", {"expression": "1+2"})), "It is three.")
        async with client_of(project(tmp_path), model) as client:
            run_id = await submit(client)
            everything = await finished(client, run_id)
            last = numbered(everything)[-1]
            assert numbered(everything) == [*range(1, last + 1)]
            for seen in range(last):
                rest = await finished(client, run_id, headers={"last-event-id": str(seen)})
                assert numbered(rest) == [*range(seen + 1, last + 1)]
                assert numbered(await finished(client, run_id, params={"after": seen})) == [*range(seen + 1, last + 1)]
            texts = [event.data["text"] for event in everything if event.name == "content" and event.id]
            assert texts == ["It is three."]
            async with client.stream("GET", f"runs/{run_id}/events", headers={"last-event-id": str(last)}) as (over, _):
                assert over.status_code == 204, "browsers do not reconnect after 204"
            rest = await finished(client, run_id, headers={"last-event-id": "1"}, params={"after": last})
            assert numbered(rest)[0] == 2, "the header takes precedence"

    asyncio.run(main())


def test_a_stream_that_is_cut_in_the_middle_of_a_run_is_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        async with client_of(project(tmp_path), ScriptedModel(calls(("hold", {})), "done"), gate) as client:
            run_id = await submit(client)
            seen: list[ServerEvent] = []
            async with client.stream("GET", f"runs/{run_id}/events") as (_, events):
                async for event in events:
                    seen.append(event)
                    if event.name == "tool_call" and event.data["status"] == "running":
                        break
            following = asyncio.create_task(finished(client, run_id, headers={"last-event-id": str(seen[-1].id)}))
            gate.opened.set()
            numbers = numbered([*seen, *await following])
            assert numbers == [*range(1, len(numbers) + 1)]

    asyncio.run(main())


def test_ten_followers_receive_the_same_events(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        async with client_of(project(tmp_path), ScriptedModel(calls(("hold", {})), "a b c d"), gate) as client:
            run_id = await submit(client)
            await gate.began.wait()
            async with asyncio.TaskGroup() as group:
                readers = [group.create_task(finished(client, run_id)) for _ in range(10)]
                gate.opened.set()
            first, *others = [[(e.name, e.data) for e in reader.result() if e.id] for reader in readers]
            assert len(first) > 3
            assert all(other == first for other in others)

    asyncio.run(main())


INVALID_POSITIONS: list[tuple[Mapping[str, str], Mapping[str, Any], str]] = [
    ({"last-event-id": "x"}, {}, "Last-Event-ID"),
    ({"last-event-id": "-1"}, {}, "Last-Event-ID"),
    ({"last-event-id": "9" * 30}, {}, "Last-Event-ID"),
    ({"last-event-id": "²"}, {}, "Last-Event-ID"),
    ({}, {"after": -1}, "after"),
    ({}, {"after": "x"}, "after"),
    ({}, {"wait": "maybe"}, "wait"),
]


def test_an_invalid_position_is_400(tmp_path: Path) -> None:
    async def main() -> None:
        async with client_of(project(tmp_path), ScriptedModel("hi")) as client:
            run_id = await submit(client)
            await finished(client, run_id)
            for headers, query, param in INVALID_POSITIONS:
                raw = [(name, value.encode()) for name, value in headers.items()]
                error = await client.error("GET", f"runs/{run_id}/events", 400, headers=raw, params=query)
                assert error["param"] == param, (headers, query)

    asyncio.run(main())


def test_a_store_that_fails_in_mid_stream_is_an_error_event_and_a_reconnect_continues(tmp_path: Path) -> None:
    class Flaky(MemoryStore):
        fails = False

        async def events(self, run_id: str, after: int = 0) -> Sequence[Mapping[str, Any]]:
            if self.fails:
                raise StoreError("store postgresql://me@host/database: connection refused")
            return await super().events(run_id, after)

    async def main() -> None:
        gate, store = Gate(), Flaky()
        model = ScriptedModel(calls(("pay", {})), "paid")
        async with client_of(project(tmp_path), model, gate, store=store) as client:
            run_id = await submit(client)
            seen = await finished(client, run_id)
            store.fails = True
            failed = await finished(client, run_id, params={"after": seen[-2].id})
            assert [(event.name, event.id) for event in failed] == [("error", None)]
            assert failed[0].data == {
                "event": "error",
                "code": "store_error",
                "type": "server_error",
                "message": "the store of the server cannot read or save now; try again later",
                "param": None,
            }
            store.fails = False
            assert numbered(await finished(client, run_id, params={"after": seen[-2].id})) == [seen[-1].id]

    asyncio.run(main())


# --- decisions


async def paused(client: RunClient) -> tuple[str, str]:
    """Submit a run that pauses; return its id and that of the confirmation."""
    run_id = await submit(client)
    await finished(client, run_id)
    (entry,) = (await client.get("approvals"))["approvals"]
    assert (entry["run_id"], entry["message"]) == (run_id, "go")
    return run_id, entry["pending"][0]["id"]


@pytest.mark.parametrize(
    ("decision", "result", "paid"),
    [
        ({"type": "approve"}, "paid", 1),
        ({"type": "reject", "reason": "too much"}, "too much", 0),
        ({"type": "respond", "text": "paid already"}, "paid already", 0),
    ],
)
def test_a_decision_continues_the_run(tmp_path: Path, decision: dict[str, Any], result: str, paid: int) -> None:
    async def main() -> None:
        gate = Gate()
        model = ScriptedModel(calls(("pay", {})), "thanks")
        async with client_of(project(tmp_path), model, gate) as client:
            run_id, confirmation = await paused(client)
            seen = await finished(client, run_id)
            found = await client.post(f"runs/{run_id}/decisions", {"decisions": {confirmation: decision}}, 202)
            assert found["run_id"] == run_id
            after = await finished(client, run_id, params={"after": seen[-1].id})
            assert result in next(event for event in after if event.name == "tool_result").data["result"]
            assert (after[-1].data["status"], gate.paid) == ("completed", paid)
            assert (await client.get("approvals"))["approvals"] == []

    asyncio.run(main())


def test_edited_arguments_reach_the_tool_unmasked(tmp_path: Path) -> None:
    async def main() -> None:
        root = write(tmp_path, {"agents.d/a.yaml": agent("a", skill_policy="{allow: [echo], ask: [echo]}")})
        async with client_of(root, ScriptedModel(calls(("echo", {"text": "x"})), "done")) as client:
            run_id, confirmation = await paused(client)
            edit = {"type": "edit", "arguments": {"text": "password: hunter2"}}
            await client.post(f"runs/{run_id}/decisions", {"decisions": {confirmation: edit}}, 202)
            events = await finished(client, run_id, params={"wait": True})
            assert next(e for e in events if e.name == "tool_result").data["result"] == "password: hunter2"

    asyncio.run(main())


def test_a_stream_that_waits_continues_after_the_decision(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        async with client_of(project(tmp_path), ScriptedModel(calls(("pay", {})), "thanks"), gate) as client:
            run_id, confirmation = await paused(client)
            statuses = []
            async with client.stream("GET", f"runs/{run_id}/events", params={"wait": True}) as (_, events):
                async for event in events:
                    if event.name == "done":
                        statuses.append(event.data["status"])
                        if len(statuses) == 1:
                            body = {"decisions": {confirmation: {"type": "approve"}}}
                            await client.post(f"runs/{run_id}/decisions", body, 202)
            assert statuses == ["paused", "completed"]

    asyncio.run(main())


INVALID_DECISIONS: list[tuple[dict[str, Any], int, str]] = [
    ({}, 400, "decisions: Field required"),
    ({"decisions": {}}, 400, "at least 1 item"),
    ({"decisions": {"CALL": {"type": "maybe"}}}, 400, "decisions.CALL: "),
    ({"decisions": {"CALL": {}}}, 400, "decisions.CALL: 'type' is missing"),
    ({"decisions": {"CALL": {"type": "edit"}}}, 400, "decisions.CALL.edit.arguments: Field required"),
    ({"decisions": {"CALL": {"type": "approve", "arguments": {}}}}, 400, "unknown field"),
    ({"decisions": {"other": {"type": "approve"}}}, 400, "no pending decision other; pending: "),
    ({"decisions": {str(n): {"type": "approve"} for n in range(101)}}, 400, "at most 100 items"),
]


def test_an_invalid_decision_is_refused_and_the_run_stays_paused(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        async with client_of(project(tmp_path), ScriptedModel(calls(("pay", {}))), gate) as client:
            run_id, confirmation = await paused(client)
            for body, status, message in INVALID_DECISIONS:
                decisions = {key.replace("CALL", confirmation): one for key, one in body.get("decisions", {}).items()}
                sent = {"decisions": decisions} if "decisions" in body else {}
                error = await client.error("POST", f"runs/{run_id}/decisions", status, json=sent)
                assert message.replace("CALL", confirmation) in error["message"], body
                assert (await client.get(f"runs/{run_id}"))["status"] == "paused", body
                assert gate.paid == 0, body

    asyncio.run(main())


class _Deciders(MemoryStore):
    """Remembers who decided."""

    def __init__(self) -> None:
        super().__init__()
        self.by: list[str | None] = []

    async def acquire(
        self, state: RunState, decisions: Mapping[str, Decision], by: Deciders = NOBODY, *more: Any
    ) -> RunRecord:
        self.by += by.values()
        return await super().acquire(state, decisions, by, *more)


def test_the_store_records_which_key_decided(tmp_path: Path) -> None:
    async def main() -> None:
        store = _Deciders()
        async with client_of(
            project(tmp_path), ScriptedModel(calls(("pay", {})), "done"), Gate(), store=store
        ) as client:
            run_id = await submit(client, user="ann")
            await finished(client, run_id)
            (entry,) = (await client.get("approvals"))["approvals"]
            body = {"decisions": {entry["pending"][0]["id"]: {"type": "approve"}}}
            await client.post(f"runs/{run_id}/decisions", body, 202)
            await finished(client, run_id)
            assert store.by == ["local"]

    asyncio.run(main())


def test_a_second_decision_is_409(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        model = ScriptedModel(calls(("pay", {})), calls(("hold", {})), "done")
        async with client_of(project(tmp_path), model, gate) as client:
            run_id, confirmation = await paused(client)
            body = {"decisions": {confirmation: {"type": "approve"}}}
            await client.post(f"runs/{run_id}/decisions", body, 202)
            await gate.began.wait()
            error = await client.error("POST", f"runs/{run_id}/decisions", 409, json=body)
            assert error["code"] == "run_busy"
            gate.opened.set()
            await finished(client, run_id)
            error = await client.error("POST", f"runs/{run_id}/decisions", 409, json=body)
            assert (error["code"], error["type"]) == ("decision_refused", "conflict_error")
            assert "completed: no decision is pending" in error["message"]
            assert gate.paid == 1

    asyncio.run(main())


def test_an_expired_decision_is_409(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        root = project(tmp_path, runtime_policy="{confirm: {expires: 1ms, on_expiry: cancel}}")
        async with client_of(root, ScriptedModel(calls(("pay", {}))), gate) as client:
            run_id = await submit(client)
            seen = await finished(client, run_id, params={"wait": True})
            assert seen[-1].data["status"] == "cancelled"
            body = {"decisions": {"c1": {"type": "approve"}}}
            error = await client.error("POST", f"runs/{run_id}/decisions", 409, json=body)
            assert (error["code"], gate.paid) == ("decision_refused", 0)

    asyncio.run(main())


def test_a_decision_that_continues_more_runs_than_the_key_may_have_is_429_and_saves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        gate, root = Gate(), project(tmp_path)
        entry = key_entry("web", KEY, roles=["chat", "decide"], max_running=2, rate="10/h")
        write(root, {"agentsd.yaml": f"server: {{api_keys: [{json.dumps(entry)}]}}\n"})

        def script(request: ModelRequest) -> Turn:
            done = sum(message.role == "tool" for message in request.messages)
            turns: list[Turn] = [calls(("pay", {})), calls(("hold", {}), prefix="h"), "done"]
            return turns[done]

        async with client_of(root, ScriptedModel(script=script), gate, KEY) as client:
            paused = [await submit(client) for _ in range(5)]
            for run_id in paused:
                assert (await finished(client, run_id))[-1].data["status"] == "paused"
            body = {"decisions": {"c1": {"type": "approve"}}}
            async with asyncio.TaskGroup() as group:
                deciding = [client.http.post(f"/agent/runs/{run_id}/decisions", json=body) for run_id in paused]
                tasks = [group.create_task(one) for one in deciding]
            responses = [task.result() for task in tasks]
            assert sorted(one.status_code for one in responses) == [202] * 2 + [429] * 3
            refused = [one.json()["error"]["code"] for one in responses if one.status_code == 429]
            assert (refused, gate.paid <= 2) == (["too_many_runs"] * 3, True)
            await gate.began.wait()
            gate.opened.set()
            for run_id, response in zip(paused, responses, strict=True):
                if response.status_code == 202:
                    assert (await finished(client, run_id, params={"wait": True}))[-1].data["status"] == "completed"
            waiting = [run_id for run_id, one in zip(paused, responses, strict=True) if one.status_code == 429]
            for run_id in waiting:  # 5 starts and 2 decisions count for the rate, the refused ones do not
                await client.post(f"runs/{run_id}/decisions", body, 202)
                assert (await finished(client, run_id, params={"wait": True}))[-1].data["status"] == "completed"
            assert gate.paid == 5

    asyncio.run(main())


# --- cancellation


def test_a_run_is_cancelled_while_it_runs_waits_or_is_queued_and_a_second_time(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        model = ScriptedModel(script=lambda _: calls(("hold", {})))
        async with client_of(project(tmp_path), model, gate) as client:
            running = await submit(client, conversation_id="c")
            await gate.began.wait()
            queued = await submit(client, conversation_id="c", queue=True)
            for run_id in (queued, running, running):
                found = await client.post(f"runs/{run_id}/cancel", status=202)
                assert found["run_id"] == run_id
                assert (await finished(client, run_id))[-1].data["status"] == "cancelled"

    asyncio.run(main())


def test_a_cancellation_that_comes_too_late_is_200_with_what_happened(tmp_path: Path) -> None:
    async def main() -> None:
        async with client_of(project(tmp_path), ScriptedModel("done")) as client:
            run_id = await submit(client)
            await finished(client, run_id)
            assert (await client.post(f"runs/{run_id}/cancel", status=200))["status"] == "completed"

    asyncio.run(main())


# --- lists


def test_runs_are_listed_with_filters_and_pages(tmp_path: Path) -> None:
    async def main() -> None:
        root = write(tmp_path, {"agents.d/a.yaml": agent("a"), "agents.d/b.yaml": agent("b")})
        async with client_of(root, ScriptedModel(script=lambda _: "ok")) as client:
            ids = []
            for number in range(5):
                body = {"agent": "ab"[number % 2], "conversation_id": f"c{number % 2}", "user": f"u{number % 2}"}
                ids.append(await submit(client, f"message {number}", **body))
                await finished(client, ids[-1])
            listed = await client.get("runs")
            assert [run["run_id"] for run in listed["runs"]] == ids[::-1]
            assert listed["next"] is None
            page, seen = await client.get("runs?limit=2"), []
            while True:
                seen += [run["run_id"] for run in page["runs"]]
                if page["next"] is None:
                    break
                page = await client.get("runs", params={"limit": 2, "before": page["next"]})
            assert seen == ids[::-1]
            for query in ({"agent": "b"}, {"conversation_id": "c1"}, {"user": "u1"}):
                found = [run["run_id"] for run in (await client.get("runs", params=query))["runs"]]
                assert found == [ids[3], ids[1]], query
            assert (await client.get("runs?status=paused&status=failed"))["runs"] == []
            assert len((await client.get("runs?status=completed"))["runs"]) == 5
            conversations = (await client.get("conversations"))["conversations"]
            assert [one["conversation_id"] for one in conversations] == ["c0", "c1"]
            page = await client.get("conversations?limit=1")
            rest = await client.get("conversations", params={"limit": 1, "cursor": page["next"]})
            assert ([one["turns"] for one in page["conversations"] + rest["conversations"]], rest["next"]) == (
                [3, 2],
                None,
            )

    asyncio.run(main())


INVALID_FILTERS: list[tuple[str, str, str]] = [
    ("runs?limit=0", "limit", "greater than or equal to 1"),
    ("runs?limit=101", "limit", "less than or equal to 100"),
    ("runs?status=lost", "status.0", "Input should be 'queued'"),
    ("runs?before=run_nothing", "before", "run_nothing"),
    ("runs?conversation_id=%00", "conversation_id", "printable characters only"),
    ("conversations?cursor=x", "cursor", "start again without it"),
]


def test_an_invalid_filter_is_400(tmp_path: Path) -> None:
    async def main() -> None:
        async with client_of(project(tmp_path), ScriptedModel()) as client:
            for path, param, message in INVALID_FILTERS:
                error = await client.error("GET", path, 400)
                assert message in error["message"], path
                assert error["param"] == param, path

    asyncio.run(main())


def test_the_trace_of_a_run_is_its_stored_spans(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel(calls(("calculator", {"expression": "1+2"})), "three")
        async with client_of(project(tmp_path), model, store=f"sqlite:///{tmp_path}/state.db") as client:
            run_id = await submit(client)
            await finished(client, run_id)
            trace = await client.get(f"runs/{run_id}/trace")
            names = [span["name"] for span in trace["spans"]]
            assert any(name.startswith("execute_tool calculator") for name in names), names
            assert {span["trace_id"] for span in trace["spans"]} == {trace["trace_id"]}
            starts = [span["start_ns"] for span in trace["spans"]]
            assert starts == sorted(starts)
            assert trace["next"] is None
            pages, after = [], ""
            while True:
                page = await client.get(f"runs/{run_id}/trace?limit=2{after}")
                assert len(page["spans"]) <= 2
                pages.extend(page["spans"])
                if page["next"] is None:
                    break
                after = f"&after={page['next']}"
            assert pages == trace["spans"]
            error = await client.error("GET", f"runs/{run_id}/trace?after=nothing", 400)
            assert error["param"] == "after"

    asyncio.run(main())


def test_a_long_trace_is_compressed_if_the_client_accepts_it(tmp_path: Path) -> None:
    async def main() -> None:
        turns = [calls(("calculator", {"expression": f"1+{number}"})) for number in range(30)]
        root = project(tmp_path)
        async with client_of(root, ScriptedModel(*turns, "done"), store=f"sqlite:///{tmp_path}/state.db") as client:
            run_id = await submit(client)
            await finished(client, run_id)
            path = f"/agent/runs/{run_id}/trace"
            plain = await client.http.get(path, headers={"accept-encoding": "identity"})
            packed = await client.http.get(path, headers={"accept-encoding": "br, gzip;q=0.5"})
            assert "content-encoding" not in plain.headers
            assert packed.headers["content-encoding"] == "gzip"
            assert plain.headers["vary"] == packed.headers["vary"] == "accept-encoding"
            assert packed.json() == plain.json()
            assert int(packed.headers["content-length"]) < len(plain.content) / 4

    asyncio.run(main())


@pytest.mark.parametrize("run_id", ["run_nothing", "%00", "x" * 300, "%E2%80%AE", "run%0Ax"])
def test_an_unknown_run_is_404_on_every_route(tmp_path: Path, run_id: str) -> None:
    async def main() -> None:
        async with client_of(project(tmp_path), ScriptedModel()) as client:
            decide = {"json": {"decisions": {"c": {"type": "approve"}}}}
            for method, path, options in (
                ("GET", "", {}),
                ("GET", "/trace", {}),
                ("GET", "/events", {}),
                ("POST", "/cancel", {}),
                ("POST", "/decisions", decide),
            ):
                error = await client.error(method, f"runs/{run_id}{path}", 404, **options)
                assert error["code"] in ("run_not_found", "not_found")
            error = await client.error("GET", f"conversations/{run_id}", 404)
            assert error["code"] in ("conversation_not_found", "not_found")

    asyncio.run(main())


def test_a_conversation_is_deleted_with_its_runs_unless_one_is_in_progress(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        async with client_of(project(tmp_path), ScriptedModel(calls(("hold", {})), "done"), gate) as client:
            run_id = await submit(client, conversation_id="c")
            await gate.began.wait()
            error = await client.error("DELETE", "conversations/c", 409)
            assert error["code"] == "conversation_busy"
            gate.opened.set()
            await finished(client, run_id)
            assert await client.delete("conversations/c") == {"conversation_id": "c", "runs": 1}
            for path in ("conversations/c", f"runs/{run_id}"):
                await client.error("GET", path, 404)

    asyncio.run(main())


def test_lists_are_filtered_by_files_text_and_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with client_of(project(tmp_path), ScriptedModel("one", "two")) as client:
            first = await submit(client, "Refund order 7")
            await finished(client, first)
            second = await submit(client, "Status of 50%")
            await finished(client, second)
            newest, oldest = (await client.get("runs"))["runs"]
            assert (newest["run_id"], newest["cost_usd"], newest["elapsed_ms"] > 0) == (second, 0.0, True)
            later = oldest["updated_at"]
            for query, expected in (
                ({"text": "refund"}, [first]),
                ({"text": "0%"}, [second]),
                ({"generation": 1}, [second, first]),
                ({"generation": 2}, []),
                ({"digest": oldest["digest"][:5]}, [second, first]),
                ({"digest": "nosuch"}, []),
                ({"since": later}, [second]),
                ({"until": later, "status": "completed"}, [first]),
                ({"until": later, "status": ["failed", "paused"]}, []),
            ):
                found = await client.get("runs", params=query)
                assert [one["run_id"] for one in found["runs"]] == expected, query

    asyncio.run(main())


WRONG_FILTERS: list[tuple[Mapping[str, Any], str]] = [
    ({"generation": "new"}, "generation: .*valid integer"),
    ({"generation": 0}, "generation: .*greater than or equal to 1"),
    ({"since": "yesterday"}, "since: .*valid datetime"),
    ({"since": "2026-11-23T00:00:00"}, "since: .*timezone"),
    ({"text": ""}, "text: .*at least 1 character"),
    ({"text": "x" * 201}, "text: .*at most 200 characters"),
    ({"text": "\x00"}, "text: .*printable characters only"),
    ({"digest": "a\nb"}, "digest: .*printable characters only"),
    ({"status": "done"}, "status.*'completed'"),
]


def test_a_wrong_filter_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with client_of(project(tmp_path)) as client:
            for query, message in WRONG_FILTERS:
                error = await client.error("GET", "runs", 400, params=query)
                assert re.search(message, error["message"]), (query, error)

    asyncio.run(main())


def test_a_run_shows_its_times_limits_and_who_decided(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        root = project(tmp_path, runtime_policy="{max_steps: 4}")
        async with client_of(root, ScriptedModel("hi", calls(("pay", {})), "done"), gate) as client:
            await client.post("chat", {"message": "hello", "conversation_id": "c"})
            paused = await client.post("chat", {"message": "pay", "conversation_id": "c"}, 202)
            path = f"runs/{paused['run_id']}"
            before = await client.get(path)
            assert (before["decisions"], before["limits"]["max_steps"], before["earlier_messages"]) == ([], 4, 2)
            assert "risk_level" not in before["limits"]
            assert not before["orphaned"]
            decisions = {paused["pending"][0]["id"]: {"type": "reject", "reason": "no"}}
            await client.post(f"{path}/decisions", {"decisions": decisions}, 202)
            await client.events(f"{path}/events", params={"wait": True})
            after = await client.get(path)
            (made,) = after["decisions"]
            assert (made["confirmation_id"], made["decision"], made["by"]) == (
                paused["pending"][0]["id"],
                {"type": "reject", "reason": "no"},
                "local",
            )
            assert after["created_at"] == before["created_at"] < made["at"] <= after["updated_at"]

    asyncio.run(main())
