"""Submitted runs: saved at once, begun in the background, in order within a conversation."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic import BaseModel

from framework import Approve, ConversationBusy, File, RequestError, RunNotFound, Runtime, events
from framework.llm.client import ModelRequest
from framework.store.schema import runs
from framework.store.store import Store
from framework.store.types import RunRecord
from framework.testing import ScriptedModel, Turn, calls
from framework.types.errors import AgentsdError, IdempotencyConflict, QueueFull, StoreError
from framework.types.messages import Message
from framework.types.state import IdempotencyKey, RunRequest, RunState
from tests.support.media import png
from tests.support.projects import agent, write
from tests.support.submitted_runs import Gate, opened, project, statuses
from tests.support.waiting import until

HOLD = calls(("hold", {}))


def test_a_submitted_run_ends_without_its_caller(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        async with opened(project(tmp_path), local_url, ScriptedModel("hello")) as runtime:
            submitted = await runtime.submit("hi", agent="a", metadata={"n": [1, None, {"x": True}]}, user="ann")
            result = await runtime.result(submitted.run_id, user="ann")
            assert (result.status, result.output, result.run_id) == ("completed", "hello", submitted.run_id)
            assert result.conversation_id == submitted.conversation_id
            state = await runtime.store.load_run(submitted.run_id)
            assert (state.metadata, state.user) == ({"n": [1, None, {"x": True}]}, "ann")
            with pytest.raises(RunNotFound):
                await runtime.result(submitted.run_id, user="bob")

    asyncio.run(main())


def test_a_conversation_is_created_unless_the_request_has_a_history(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(project(tmp_path), None, ScriptedModel(script=lambda _: "ok")) as runtime:
            new = await runtime.submit("hi")
            assert new.conversation_id is not None
            await runtime.result(new.run_id)
            again = await runtime.submit("and?", conversation=new.conversation_id)
            assert again.conversation_id == new.conversation_id
            assert len((await runtime.result(again.run_id)).messages) == 4
            for history in ([], [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]):
                other = await runtime.submit("hi", history=history)
                assert other.conversation_id is None
                assert len((await runtime.result(other.run_id)).messages) == len(history) + 2

    asyncio.run(main())


class Answer(BaseModel):
    """A typed answer."""

    number: int


def test_all_options_reach_the_run(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        model = ScriptedModel('{"number": 3}')
        files = {"agents.d/a.yaml": agent("a", inputs="{name: {type: string}}"), "work/x": ""}
        async with opened(write(tmp_path, files), local_url, model) as runtime:
            submitted = await runtime.submit(
                ["What is this?", File(png(), "image/png", "a.png")],
                agent="a",
                history=[{"role": "user", "content": "before"}, {"role": "assistant", "content": "yes"}],
                inputs={"name": "x"},
                limits={"max_steps": 3},
                model_settings={"temperature": 0, "stop": ("end",)},
                instructions="Be brief.",
                base_path=tmp_path / "work",
                locale="de",
                output_type=Answer,
            )
            result = await runtime.result(submitted.run_id)
            assert (result.status, result.data) == ("completed", {"number": 3})
            state = await runtime.store.load_run(submitted.run_id)
            assert [message.content for message in state.history] == ["before", "yes"]
            assert (state.inputs, state.limits.max_steps, state.locale) == ({"name": "x"}, 3, "de")
            assert (state.model_settings.temperature, state.model_settings.stop) == (0, ("end",))
            assert state.base_path == str(tmp_path / "work")
            assert "Be brief." in model.requests[0].messages[0].content
            assert (await runtime.load_file(state.messages[0].media[0])).data == png()

    asyncio.run(main())


NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Opaque:
    """An object that JSON cannot express."""


DEEP: dict[str, Any] = {}
for _ in range(200):
    DEEP = {"x": DEEP}


@pytest.mark.parametrize(
    ("message", "options", "error"),
    [
        ("", {}, "the message is empty"),
        ("x" * 1_000_001, {}, "1000001 characters; at most 1000000"),
        ("half \ud800", {}, "message is not valid Unicode text"),
        (None, {}, "no message: pass one"),
        ("hi", {"deps": object()}, "unknown option 'deps'"),
        ("hi", {"agent": "b"}, "no agent named 'b'"),
        ("hi", {"model": "unheard/of"}, "unheard/of"),
        ("hi", {"conversation": "c\n"}, "conversation: expected at most 200 printable"),
        ("hi", {"conversation": "c", "history": [{"role": "user", "content": "x"}]}, "exclude each other"),
        ("hi", {"history": [{"role": "wizard", "content": "x"}]}, "history"),
        ("hi", {"inputs": {"nam": "x"}}, "unknown input 'nam' of agent 'a'"),
        ("hi", {"limits": {"max_stepz": 1}}, "limits: unknown key 'max_stepz'"),
        ("hi", {"limits": {"max_steps": -1}}, "limits: max_steps"),
        ("hi", {"model_settings": {"temperature": "hot"}}, "model_settings: temperature"),
        (
            "hi",
            {"metadata": {"a": [1, {"when": datetime(2026, 1, 1)}]}},
            "metadata.a.1.when cannot be stored: datetime",
        ),
        ("hi", {"metadata": {"a": Opaque()}}, "metadata.a cannot be stored: Opaque; pass JSON data"),
        ("hi", {"metadata": {"a": math.nan}}, "metadata.a cannot be stored: nan"),
        ("hi", {"metadata": {"a": b"bytes"}}, "metadata.a cannot be stored: bytes"),
        ("hi", {"metadata": {1: "a"}}, "metadata cannot be stored: its keys must be texts, not int"),
        ("hi", {"metadata": {"a": "\ud800"}}, "metadata.a is not valid Unicode text"),
        ("hi", {"metadata": DEEP}, "metadata nests deeper than 100 levels"),
        ("hi", {"base_path": 3}, "base_path: expected str or PathLike, got int"),
    ],
)
def test_what_cannot_succeed_is_rejected_at_once(
    tmp_path: Path, message: str | None, options: dict[str, Any], error: str
) -> None:
    async def main() -> None:
        async with opened(project(tmp_path), None, ScriptedModel()) as runtime:
            with pytest.raises(RequestError) as rejected:
                await runtime.submit(message, **options)
            assert error in rejected.value.message
            assert await runtime.store.runs() == []

    asyncio.run(main())


def test_an_id_of_another_users_conversation_begins_a_new_one(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        gate = Gate()
        async with opened(project(tmp_path), local_url, ScriptedModel(script=echo), tools=gate.tools()) as runtime:
            first = await runtime.submit("hold", conversation="c", user="ann")
            await gate.began.wait()
            others: list[dict[str, Any]] = [{}, {"user": "bob"}, {"user": "bob", "tenant": "t"}, {"tenant": "t"}]
            for other in others:  # they do not wait for the first one
                run = await runtime.submit("hi", conversation="c", queue=True, **other)
                result = await runtime.result(run.run_id, **other)
                assert (result.conversation_id, len(result.messages)) == ("c", 2)
            gate.opened.set()
            assert (await runtime.result(first.run_id, user="ann")).status == "completed"

    asyncio.run(main())


def echo(request: ModelRequest) -> Turn:
    """Answer with the user's message; "hold" calls the tool first."""
    last = request.messages[-1]
    return HOLD if last.content.startswith("hold") else f"to {last.content}"


def test_turns_of_a_conversation_wait_in_order(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        gate = Gate()
        async with opened(project(tmp_path), local_url, ScriptedModel(script=echo), tools=gate.tools()) as runtime:
            first = await runtime.submit("hold", conversation="c")
            await gate.began.wait()
            with pytest.raises(ConversationBusy):
                await runtime.submit("now", conversation="c")
            waiting = [await runtime.submit(f"m{n}", conversation="c", queue=True) for n in range(20)]
            with pytest.raises(QueueFull):
                await runtime.submit("m20", conversation="c", queue=True)
            with pytest.raises(ConversationBusy):
                await runtime.run("now", conversation="c")
            assert await statuses(runtime) == ["running", *["queued"] * 20]
            gate.opened.set()
            results = [await runtime.result(one.run_id) for one in (first, *waiting)]
            assert [result.output for result in results] == ["to held", *(f"to m{n}" for n in range(20))]
            assert [info.turn for info in await runtime.store.runs()] == list(range(1, 22))

    asyncio.run(main())


def test_a_waiting_turn_begins_when_a_paused_run_is_resumed(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        model, gate = ScriptedModel(calls(("pay", {})), "paid", "second"), Gate()
        async with opened(project(tmp_path), local_url, model, tools=gate.tools()) as runtime:
            paused = await runtime.run("pay", conversation="c")
            second = await runtime.submit("next", conversation="c", queue=True)
            await runtime.start_queued()
            assert await statuses(runtime) == ["paused", "queued"]
            await runtime.decide(paused.run_id, {paused.pending[0].id: Approve()})
            assert (await runtime.result(second.run_id)).output == "second"
            assert (await runtime.result(paused.run_id)).output == "paid"

    asyncio.run(main())


def test_the_same_idempotency_key_returns_the_same_run(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        model = ScriptedModel("once")
        async with opened(project(tmp_path), local_url, model) as runtime:
            key = IdempotencyKey("scope", "key", "digest")
            first, again = [await runtime.submit("hi", idempotency=key) for _ in range(2)]
            assert first == again
            with pytest.raises(IdempotencyConflict):
                await runtime.submit("ho", idempotency=IdempotencyKey("scope", "key", "another"))
            await runtime.result(first.run_id)
            assert await runtime.submit("hi", idempotency=key) == first
        assert len(model.requests) == 1

    asyncio.run(main())


def test_a_full_queue_refuses_no_repetition_of_an_accepted_request(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        root, gate = write(project(tmp_path), {"agentsd.yaml": "work: {max_waiting: 1, concurrency: 1}\n"}), Gate()
        async with opened(root, local_url, ScriptedModel(script=echo), tools=gate.tools()) as runtime:
            await runtime.submit("hold")
            await gate.began.wait()
            key = IdempotencyKey("scope", "key", "digest")
            waiting = await runtime.submit("m", idempotency=key)
            for other in (None, IdempotencyKey("scope", "other", "digest")):
                with pytest.raises(QueueFull):
                    await runtime.submit("m", idempotency=other)
            assert await runtime.submit("m", idempotency=key) == waiting
            with pytest.raises(IdempotencyConflict):
                await runtime.submit("m", idempotency=IdempotencyKey("scope", "key", "another"))
            gate.opened.set()
            assert (await runtime.result(waiting.run_id)).output == "to m"

    asyncio.run(main())


def test_a_queued_run_can_be_cancelled(tmp_path: Path, local_url: str | None) -> None:
    async def main() -> None:
        gate = Gate()
        async with opened(project(tmp_path), local_url, ScriptedModel(script=echo), tools=gate.tools()) as runtime:
            first = await runtime.submit("hold", conversation="c", user="ann")
            await gate.began.wait()
            second, third = [await runtime.submit("m", conversation="c", queue=True, user="ann") for _ in range(2)]
            with pytest.raises(RunNotFound):
                await runtime.cancel(second.run_id, user="bob")
            await runtime.cancel(second.run_id, user="ann")
            seen = [event async for event in runtime.follow(second.run_id, user="ann")]
            assert [type(event) for event in seen] == [events.RunFinished]
            assert (await runtime.result(second.run_id, user="ann")).status == "cancelled"
            gate.opened.set()
            assert (await runtime.result(third.run_id, user="ann")).output == "to m"
            assert (await runtime.result(first.run_id, user="ann")).output == "to held"

    asyncio.run(main())


def test_claimed_runs_that_have_not_begun_can_be_cancelled(
    tmp_path: Path, local_url: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The router waits for a model, so the runs are claimed, and not begun. None is claimed again afterwards."""

    async def main() -> None:
        routed = asyncio.Semaphore(0)
        answer = asyncio.Event()

        class Slow(ScriptedModel):
            async def stream(self, request: ModelRequest) -> Any:
                routed.release()
                await answer.wait()
                async for delta in super().stream(request):
                    yield delta

        files = {
            "agents.d/a.yaml": agent("a"),
            "agents.d/b.yaml": agent("b"),
            "agentsd.yaml": "routing: {model: scripted}\n",
        }
        async with opened(write(tmp_path, files), local_url, Slow()) as runtime:
            submitted = [await runtime.submit("hi") for _ in range(8)]
            for _ in submitted:
                await routed.acquire()
            assert await statuses(runtime) == ["queued"] * 8

            async def cancel_and_look(run_id: str) -> None:
                await runtime.cancel(run_id)
                await runtime.resume_orphans()
                runtime.work.wake()

            async with asyncio.TaskGroup() as group:
                for one in submitted:
                    group.create_task(cancel_and_look(one.run_id))
            for one in submitted:
                result = await runtime.result(one.run_id)
                assert (result.status, result.finish_reason) == ("cancelled", "cancelled")
            assert routed.locked()  # no router was asked for a cancelled run again

    asyncio.run(main())
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


class Failing(Store):
    """A store that cannot start a run, once; the run is cancelled meanwhile."""

    error: AgentsdError | None = None
    runtime: Runtime

    async def start(self, state: RunState, *more: Any) -> RunRecord:
        if (error := self.error) is not None:
            self.error = None
            await self.runtime.cancel(state.run_id)
            raise error
        return await super().start(state, *more)


@pytest.mark.parametrize("error", [ConversationBusy("another run was first"), StoreError("the disk is full")])
def test_a_run_that_is_cancelled_while_its_start_fails_does_not_start_later(
    tmp_path: Path, store_url: str, error: AgentsdError
) -> None:
    async def main() -> None:
        root = project(tmp_path)
        store = await Failing.open(store_url, root)
        assert isinstance(store, Failing)
        models = {"scripted": ScriptedModel(script=echo)}
        async with Runtime.open(root, store=store, models=models, watch=False) as store.runtime:
            store.error = error
            submitted = await store.runtime.submit("hi")
            assert (await store.runtime.result(submitted.run_id)).status == "cancelled"
        await store.close()

    asyncio.run(main())


def test_a_claim_that_another_process_has_taken_over_is_forgotten(tmp_path: Path, file_url: str) -> None:
    """A cancellation then reaches the process that holds the run."""

    async def main() -> None:
        routed = asyncio.Event()

        class Slow(ScriptedModel):
            async def stream(self, _: ModelRequest) -> Any:
                routed.set()
                await asyncio.Event().wait()
                yield

        files = {"agents.d/a.yaml": agent("a"), "agents.d/b.yaml": agent("b")}
        root = write(tmp_path, {**files, "agentsd.yaml": "routing: {model: scripted}\n"})
        async with opened(root, file_url, Slow()) as runtime:
            run_id = (await runtime.submit("hi")).run_id
            await routed.wait()
            other = await Store.open(file_url, root)
            lost = sa.update(runs).values(owner=None, process=None, ready=True)
            await other._database.write(lambda connection: connection.execute(lost).rowcount)
            assert [request.run_id for request in await other.claim(1)] == [run_id]
            while runtime._queue._claims:  # until the process has noticed
                assert await other.renew([run_id]) == {run_id: False}
            await runtime.cancel(run_id)
            assert await other.renew([run_id]) == {run_id: True}
            await other.close()

    asyncio.run(main())


def test_a_run_that_cannot_begin_fails_with_the_usual_events(tmp_path: Path, local_url: str | None) -> None:
    """The agent is deleted while the run waits."""

    async def main() -> None:
        root, gate = project(tmp_path), Gate()
        write(root, {"agents.d/b.yaml": agent("b")})
        async with opened(root, local_url, ScriptedModel(script=echo), tools=gate.tools()) as runtime:
            await runtime.submit("hold", conversation="c", agent="a")
            await gate.began.wait()
            gone = await runtime.submit("m1", conversation="c", agent="b", queue=True)
            after = await runtime.submit("m2", conversation="c", agent="a", queue=True)
            (root / "agents.d/b.yaml").unlink()
            await runtime.reload()
            gate.opened.set()
            seen = [event async for event in runtime.follow(gone.run_id)]
            assert [type(event) for event in seen] == [events.RunFailed, events.RunFinished]
            result = await runtime.result(gone.run_id)
            assert (result.status, result.finish_reason) == ("failed", "agent_not_found")
            assert result.error is not None
            assert "no agent named 'b'" in result.error.message
            assert (await runtime.result(after.run_id)).output == "to m2"

    asyncio.run(main())


def test_at_most_a_number_of_runs_execute_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        gate, root = Gate(), write(project(tmp_path), {"agentsd.yaml": "work: {concurrency: 3}\n"})
        async with opened(root, None, ScriptedModel(script=echo), tools=gate.tools()) as runtime:
            submitted = [await runtime.submit("hold") for _ in range(7)]
            await gate.began.wait()
            await runtime.start_queued()
            assert sorted(await statuses(runtime)) == [*["queued"] * 4, *["running"] * 3]
            gate.opened.set()
            assert {(await runtime.result(one.run_id)).status for one in submitted} == {"completed"}

    asyncio.run(main())


def test_a_runtime_that_never_submitted_claims_nothing(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        root, gate = project(tmp_path), Gate()
        async with opened(root, file_url, ScriptedModel(script=echo), tools=gate.tools()) as first:
            await first.submit("hold", conversation="c")
            await gate.began.wait()
            waiting = await first.submit("m", conversation="c", queue=True)
            async with opened(root, file_url, ScriptedModel(script=echo)) as other:
                assert (await other.run("hello")).output == "to hello"
                assert (await other.store.load_run(waiting.run_id)).status == "queued"
            gate.opened.set()
            assert (await first.result(waiting.run_id)).output == "to m"

    asyncio.run(main())


def test_closing_releases_what_has_not_begun(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        root, gate = project(tmp_path), Gate()
        async with opened(root, file_url, ScriptedModel(script=echo), tools=gate.tools(), grace=0) as runtime:
            begun = await runtime.submit("hold", conversation="c")
            await gate.began.wait()
            waiting = [await runtime.submit(f"m{n}", conversation="c", queue=True) for n in range(3)]
        gate.opened.set()
        async with opened(root, file_url, ScriptedModel(script=echo), tools=gate.tools()) as runtime:
            assert await runtime.resume_orphans() == [begun.run_id]
            await runtime.start_queued()
            results = [await runtime.result(one.run_id) for one in (begun, *waiting)]
            assert [result.output for result in results] == ["to held", "to m0", "to m1", "to m2"]

    asyncio.run(main())


def test_a_request_that_ended_three_processes_fails(tmp_path: Path, file_url: str) -> None:
    async def main() -> None:
        root = project(tmp_path)
        request = RunRequest(message=Message(role="user", content="hi"))
        for number in range(3):
            store = await Store.open(file_url, root, lease_seconds=0.05)
            if number == 0:
                await store.enqueue(request)
            await until(partial(store.claim, 1), "the lease of the store before has expired")
            await store.close()
        async with opened(root, file_url, ScriptedModel()) as runtime:
            while await statuses(runtime) == ["queued"]:  # the runtime may also look for it in the background
                await runtime.start_queued()
            result = await runtime.result(request.run_id)
            assert (result.status, result.finish_reason) == ("failed", "crashed")

    asyncio.run(main())
