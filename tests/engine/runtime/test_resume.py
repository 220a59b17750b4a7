"""Resuming runs in other processes: what they use, who can cancel them, and when confirmations expire."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from framework import (
    AgentNotFound,
    Approve,
    ConfigError,
    ConversationBusy,
    DecisionRefused,
    Edit,
    Reject,
    RequestError,
    Respond,
    RunBusy,
    RunNotFound,
    RunResult,
    RunSuspended,
    Runtime,
    Tool,
    ToolContext,
    tool,
)
from framework.engine.runtime.background import EmbeddedSource
from framework.engine.runtime.resume import RunResumer
from framework.store.store import Store
from framework.store.types import RunInfo, RunQuery
from framework.testing import ScriptedModel, Turn, calls
from framework.types.errors import RunTaken
from framework.types.state import Confirmation
from tests.support.projects import agent, write
from tests.support.waiting import until, until_status

ASKING = "{ask: [{tool: pay, reason: money}], allow: [pay, look, hang]}"
PAY = calls(("pay", {"amount": 20}))


@dataclass
class Shop:
    """Tools that record their calls."""

    did: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    def tools(self) -> list[Tool]:
        @tool(risk="low")
        async def pay(amount: float, context: ToolContext) -> str:
            """Pay somebody."""
            self.did.append(f"pay {amount:g}")
            self.keys.append(context.idempotency_key)
            return f"paid {amount:g}"

        @tool(risk="low", idempotent=True)
        async def look() -> str:
            """Look around."""
            self.did.append("look")
            return "nothing there"

        @tool(risk="low")
        async def hang() -> str:
            """Wait for the test."""
            self.did.append("hang")
            self.began.set()
            await self.go.wait()
            return "continued"

        return [pay, look, hang]


Body = Callable[[Runtime], Awaitable[None]]


def life(root: Path, url: str, shop: Shop, body: Body, *turns: Turn, **options: Any) -> None:
    """Simulate a process: open another runtime on the same store."""

    async def main() -> None:
        shop.began, shop.go = asyncio.Event(), asyncio.Event()
        models = {"scripted": ScriptedModel(*turns)}
        given = {"tools": shop.tools(), "models": models, "store": url, "watch": False, **options}
        async with Runtime.open(root, **given) as runtime:
            await body(runtime)

    asyncio.run(main())


def project(root: Path, **keys: str) -> Path:
    return write(root, {"agents.d/shop.yaml": agent("shop", **{"skill_policy": ASKING, **keys})})


def paused(root: Path, url: str, shop: Shop, **options: Any) -> RunResult:
    """Return the result of a paused run whose process has ended."""
    found: list[RunResult] = []

    async def body(runtime: Runtime) -> None:
        found.append(await runtime.run("pay", **options))

    life(root, url, shop, body, PAY)
    assert found[0].status == "paused"
    return found[0]


# --- what a resumed run uses


def test_a_run_resumed_in_another_process_has_one_idempotency_key_per_call(tmp_path: Path, file_url: str) -> None:
    root, shop = project(tmp_path), Shop()
    first = paused(root, file_url, shop, conversation="c", user="ann")

    async def body(runtime: Runtime) -> None:
        with pytest.raises(ConversationBusy, match="waits for a decision on pay"):
            await runtime.run("again", conversation="c", user="ann")
        result = await runtime.resume(first.run_id, {first.pending[0].id: Approve()}, user="ann")
        assert (result.status, result.output, result.conversation_id) == ("completed", "ok", "c")
        events = await runtime.store.events(first.run_id)
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert [event["event"] for event in events].count("done") == 2
        assert (await runtime.run("thanks", conversation="c", user="ann")).messages[-1].content == "welcome"

    life(root, file_url, shop, body, "ok", "welcome")
    assert shop.did == ["pay 20"]
    assert shop.keys == [f"{first.run_id}:{first.pending[0].id}"]


def test_a_resumed_run_uses_the_files_it_began_with(tmp_path: Path, file_url: str) -> None:
    root = write(
        tmp_path,
        {
            "prompts/shop.j2": "Old. {{ extra }}",
            "agents.d/shop.yaml": agent(
                "shop", skill_policy=ASKING, instructions="{template: shop.j2, vars: {extra: Very.}}"
            ),
        },
    )
    shop = Shop()
    first = paused(root, file_url, shop)
    write(root, {"prompts/shop.j2": "New.", "agents.d/shop.yaml": agent("shop", skill_policy=ASKING, sub_agents="[]")})
    seen: list[str] = []

    def script(request: Any) -> Turn:
        seen.append(request.messages[0].content)
        return "ok"

    async def body(runtime: Runtime) -> None:
        result = await runtime.resume(first.run_id, {first.pending[0].id: Approve()})
        assert (result.status, result.digest, result.generation) == ("completed", first.digest, first.generation)
        await runtime.run("new")

    life(root, file_url, shop, body, models={"scripted": ScriptedModel(script=script)})
    assert seen[0].startswith("Old. Very.")
    assert not seen[1].startswith("Old.")


def test_an_approved_call_is_denied_if_the_agents_file_was_deleted(tmp_path: Path, file_url: str) -> None:
    root, shop = project(tmp_path), Shop()
    write(root, {"agents.d/other.yaml": agent("other")})
    first = paused(root, file_url, shop, agent="shop")
    (root / "agents.d/shop.yaml").unlink()

    async def body(runtime: Runtime) -> None:
        result = await runtime.resume(first.run_id, {first.pending[0].id: Approve()})
        assert (result.status, result.output) == ("completed", "ok")
        with pytest.raises(AgentNotFound):
            await runtime.run("pay", agent="shop")

    life(root, file_url, shop, body, "ok")
    assert shop.did == []


def test_a_run_is_resumed_if_its_agents_file_is_broken_after_a_restart(tmp_path: Path, file_url: str) -> None:
    root, shop = project(tmp_path), Shop()
    first = paused(root, file_url, shop)
    project(root, max_stepz="1")

    async def body(runtime: Runtime) -> None:
        result = await runtime.resume(first.run_id, {first.pending[0].id: Approve()})
        assert (result.status, result.output) == ("completed", "ok")

    life(root, file_url, shop, body, "ok")
    assert shop.did == ["pay 20"]


def test_rules_tightened_during_a_pause_apply(tmp_path: Path, file_url: str) -> None:
    root, shop = project(tmp_path), Shop()
    first = paused(root, file_url, shop)
    project(root, skill_policy="{deny: [{tool: pay, reason: shut}], allow: [look]}")

    async def body(runtime: Runtime) -> None:
        result = await runtime.resume(first.run_id, {first.pending[0].id: Approve()})
        assert result.tool_calls[0].status == "denied"

    life(root, file_url, shop, body, "ok")
    assert shop.did == []


def test_a_tool_whose_definition_changed_needs_a_new_approval(tmp_path: Path, file_url: str) -> None:
    root, shop = project(tmp_path), Shop()
    first = paused(root, file_url, shop)

    @tool(risk="low")
    async def pay(amount: float) -> str:
        """Pay, and send a notification."""
        shop.did.append(f"notify {amount:g}")
        return "notified"

    async def body(runtime: Runtime) -> None:
        again = await runtime.resume(first.run_id, {first.pending[0].id: Approve()})
        assert again.status == "paused"
        assert "has changed since approval" in again.pending[0].reason
        assert shop.did == []
        result = await runtime.resume(first.run_id, {again.pending[0].id: Approve()})
        assert result.status == "completed"

    life(root, file_url, shop, body, "ok", tools=[pay])
    assert shop.did == ["notify 20"]


def test_a_run_whose_hook_is_missing_is_not_resumed(tmp_path: Path, file_url: str) -> None:
    guard = "from framework import hook\n\n@hook\ndef look(context, call):\n    return None\n"
    root = project(tmp_path, hooks="{before_tool: [guard.look]}")
    write(root, {"plugins/guard.py": guard})
    shop = Shop()
    first = paused(root, file_url, shop)
    (root / "plugins/guard.py").unlink()
    project(root)

    async def body(runtime: Runtime) -> None:
        with pytest.raises(ConfigError, match=r"needs guard\.look: no plugin defines it any longer"):
            await runtime.resume(first.run_id, {first.pending[0].id: Approve()})
        assert [asked.id for asked in await runtime.pending(first.run_id)] == [first.pending[0].id], (
            "the run is still paused"
        )

    life(root, file_url, shop, body, "ok")
    assert shop.did == []


# --- decisions


def test_a_decision_applies_once_to_a_pending_confirmation_of_its_owner(tmp_path: Path, file_url: str) -> None:
    root, shop = project(tmp_path), Shop()
    own = {"user": "ann", "tenant": "a"}
    first = paused(root, file_url, shop, **own)
    asked = first.pending[0].id

    async def body(runtime: Runtime) -> None:
        for wrong in ({"user": "bob", "tenant": "a"}, {"user": "ann", "tenant": "b"}, {"user": "ann"}, {}):
            with pytest.raises(RunNotFound):
                await runtime.resume(first.run_id, {asked: Approve()}, **wrong)
            with pytest.raises(RunNotFound):
                await runtime.pending(first.run_id, **wrong)
            with pytest.raises(RunNotFound):
                await runtime.cancel(first.run_id, **wrong)
        with pytest.raises(RunNotFound):
            await runtime.resume("run_unknown", {asked: Approve()})
        with pytest.raises(RequestError, match="no pending decision x; pending: "):
            await runtime.resume(first.run_id, {"x": Approve()}, **own)
        async with runtime.resume_stream(first.run_id, {asked: Approve()}, **own) as stream:
            await shop.began.wait()  # the run is in progress until `go` is set
            with pytest.raises(RunBusy):
                await runtime.resume(first.run_id, {asked: Reject()}, **own)
            shop.go.set()
            assert (await stream.result()).status == "completed"
        with pytest.raises(RequestError, match="is completed"):
            await runtime.resume(first.run_id, {asked: Approve()}, **own)

    life(root, file_url, shop, body, calls(("hang", {}), prefix="h"), "ok")
    assert shop.did == ["pay 20", "hang"]


EXPIRING = "{confirm: {from: never, expires: %s, on_expiry: %s}}"


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes end before a confirmation expires, however slow they are: they ignore that it does."""
    monkeypatch.setattr(RunResumer, "_on_pause", lambda *_: None)


async def until_expired(confirmation: Confirmation) -> None:
    """Wait until a confirmation has expired, by the clock of the calendar."""
    assert confirmation.expires_at is not None
    while (left := (confirmation.expires_at - datetime.now(UTC)).total_seconds()) > 0:  # noqa: ASYNC110 - it is time
        await asyncio.sleep(left)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("on_expiry", ["reject", "cancel"])
def test_a_confirmation_expires_even_if_no_process_is_running(tmp_path: Path, file_url: str, on_expiry: str) -> None:
    root, shop = project(tmp_path, runtime_policy=EXPIRING % ("1s", on_expiry)), Shop()
    first = paused(root, file_url, shop, conversation="c")
    asked = first.pending[0]

    async def body(runtime: Runtime) -> None:
        await until_expired(asked)
        assert [info.run_id for info in await runtime.store.runs(RunQuery(expired_at=time.time()))] == [first.run_id]
        if on_expiry == "reject":
            with pytest.raises(DecisionRefused, match="expired at"):
                await runtime.resume(first.run_id, {asked.id: Approve()})
            assert (await runtime.resume(first.run_id, {})).tool_calls[0].result == (
                "The approval expired: no decision was made in time"
            )
        else:
            with pytest.raises(DecisionRefused, match="cancelled: no decision was made in time"):
                await runtime.resume(first.run_id, {asked.id: Approve()})
            assert (await runtime.store.load_run(first.run_id)).status == "cancelled"
        assert (await runtime.store.conversation("c")).open_run is None

    life(root, file_url, shop, body, "ok")
    assert shop.did == []


def test_a_confirmation_expires_while_its_runtime_is_open(tmp_path: Path, file_url: str) -> None:
    root, shop = project(tmp_path, runtime_policy=EXPIRING % ("50ms", "reject")), Shop()

    async def body(runtime: Runtime) -> None:
        first = await runtime.run("pay")
        assert (first.status, first.pending[0].on_expiry) == ("paused", "reject")
        await until_status(runtime.store, first.run_id, "completed")

    life(root, file_url, shop, body, PAY, "ok")
    assert shop.did == []


@pytest.mark.usefixtures("brief")
def test_an_expired_confirmation_is_decided_by_nobody_though_another_is_decided_with_it(
    tmp_path: Path, file_url: str
) -> None:
    write(tmp_path, {"agents.d/boss.yaml": agent("boss", sub_agents="[hasty, patient]")})
    for name, expires in (("hasty", "1s"), ("patient", "1h")):
        keys = {"skill_policy": ASKING, "model": name, "runtime_policy": EXPIRING % (expires, "reject")}
        write(tmp_path, {f"agents.d/{name}.yaml": agent(name, **keys)})
    both = calls(("agent.hasty", {"message": "pay"}), ("agent.patient", {"message": "pay"}))
    shop, asked = Shop(), dict[str, Confirmation]()

    async def pause(runtime: Runtime) -> None:
        asked.update({one.agent: one for one in (await runtime.run("pay", agent="boss", user="ann")).pending})

    async def resume(runtime: Runtime) -> None:
        (run_id,) = [info.run_id for info in await runtime.store.runs(RunQuery())]
        await until_expired(asked["hasty"])
        assert (await runtime.resume(run_id, {asked["patient"].id: Approve()}, user="ann")).status == "completed"
        made = {one.confirmation_id: one for one in await runtime.store.decisions(run_id)}
        assert [(made[asked[name].id].by, made[asked[name].id].expired) for name in ("hasty", "patient")] == [
            (None, True),
            ("ann", False),
        ]

    models = {name: ScriptedModel(PAY, "ok") for name in ("hasty", "patient")}
    for body, turn in ((pause, both), (resume, "done")):
        life(tmp_path, file_url, shop, body, models={**models, "scripted": ScriptedModel(turn)})
    assert shop.did == ["pay 20"]


# --- cancelling


def test_a_run_is_cancelled_from_another_process(tmp_path: Path, file_url: str) -> None:
    root, shop = project(tmp_path), Shop()

    async def body(runtime: Runtime) -> None:
        async with runtime.stream("hang", conversation="c") as stream:
            await shop.began.wait()
            async with Runtime.open(root, store=file_url, watch=False) as other:
                with pytest.raises(RunBusy):
                    await other.resume(stream.run_id, {})
                await other.cancel(stream.run_id)
            result = await stream.result()
        assert (result.status, result.finish_reason) == ("cancelled", "cancelled")
        assert (await runtime.store.conversation("c")).open_run is None

    life(root, file_url, shop, body, calls(("hang", {})))


def test_a_paused_run_is_cancelled_by_any_process_with_the_store(tmp_path: Path, file_url: str) -> None:
    root, shop = project(tmp_path), Shop()
    first = paused(root, file_url, shop, conversation="c")

    async def body(runtime: Runtime) -> None:
        await runtime.cancel(first.run_id)
        await runtime.cancel(first.run_id)
        assert (await runtime.store.load_run(first.run_id)).status == "cancelled"
        assert (await runtime.store.events(first.run_id))[-1]["status"] == "cancelled"
        with pytest.raises(RequestError, match="is cancelled"):
            await runtime.resume(first.run_id, {first.pending[0].id: Approve()})
        assert (await runtime.run("again", conversation="c")).messages[0].content == "again", (
            "without the cancelled turn"
        )

    life(root, file_url, shop, body, "ok")


def test_the_question_about_an_unknown_outcome_names_what_the_tool_was_given(tmp_path: Path, file_url: str) -> None:
    root, began, seen = project(tmp_path), asyncio.Event(), list[tuple[str, str]]()

    @tool(risk="low")
    async def look(context: ToolContext) -> str:
        """Book."""
        seen.append((context.call_id, context.idempotency_key))
        began.set()
        await asyncio.Event().wait()
        return ""

    async def main() -> None:
        options: dict[str, Any] = {"store": file_url, "tools": [*Shop().tools(), look], "watch": False}
        options["tools"] = [one for one in options["tools"] if one.name != "look" or one is look]
        models = {"scripted": ScriptedModel(calls(("look", {})))}
        async with Runtime.open(root, models=models, grace=0, **options) as runtime:
            submitted = await runtime.submit("book")
            await began.wait()
        async with Runtime.open(root, models=models, **options) as runtime:
            (asked,) = (await runtime.resume(submitted.run_id, {})).pending
            stored = await runtime.store.events_named(submitted.run_id, "confirm_required")
        assert (asked.call_id, asked.idempotency_key) == seen[0]
        assert asked.id != asked.call_id
        assert all(name in asked.reason for name in seen[0])
        assert (stored[0]["call_id"], stored[0]["idempotency_key"]) == seen[0]

    asyncio.run(main())


# --- closing


def test_runs_can_be_resumed_after_their_runtime_closed(tmp_path: Path, file_url: str) -> None:
    root, shop = project(tmp_path), Shop()
    runs: list[str] = []

    async def body(runtime: Runtime) -> None:
        async def run() -> None:
            async with runtime.stream("hang", conversation="c") as stream:
                runs.append(stream.run_id)
                with pytest.raises(RunSuspended, match="because the runtime was closed; resume it with"):
                    await stream.result()

        running.append(asyncio.create_task(run()))
        await shop.began.wait()
        while all(call.result is None for call in (await runtime.store.load_run(runs[0])).calls.values()):
            pass  # until the result of `look` is saved

    running: list[asyncio.Task[None]] = []

    async def whole() -> None:
        shop.began = asyncio.Event()
        models = {"scripted": ScriptedModel(calls(("look", {}), ("hang", {})))}
        async with Runtime.open(
            root, tools=shop.tools(), models=models, store=file_url, watch=False, grace=0.01
        ) as runtime:
            await body(runtime)
        await running[0]

    asyncio.run(whole())

    async def resume(runtime: Runtime) -> None:
        (orphan,) = await runtime.orphans()
        assert (orphan.run_id, orphan.status) == (runs[0], "running")
        asked = await runtime.resume(orphan.run_id, {})
        assert "whether it took effect is unknown" in asked.pending[0].reason
        result = await runtime.resume(orphan.run_id, {asked.pending[0].id: Respond(text="it hung")})
        assert [made.result for made in result.tool_calls] == ["nothing there", "it hung"]
        assert await runtime.orphans() == []

    life(root, file_url, shop, resume, "ok")
    assert shop.did == ["look", "hang"]


def test_a_call_that_a_person_edited_is_not_asked_about_in_its_first_form(tmp_path: Path, file_url: str) -> None:
    root, paid = project(tmp_path), list[float]()

    @tool(risk="low", name="pay")
    async def pay(amount: float) -> str:
        """Pay somebody; the first time, this takes longer than the process lives."""
        paid.append(amount)
        if len(paid) == 1:
            began.set()
            await asyncio.Event().wait()
        return "paid"

    began = asyncio.Event()
    models = {"scripted": ScriptedModel(calls(("pay", {"amount": 500})), "done")}
    options: dict[str, Any] = {
        "tools": [*Shop().tools()[1:], pay],
        "models": models,
        "store": file_url,
        "watch": False,
        "grace": 0,
    }

    async def main() -> None:
        async with Runtime.open(root, **options) as runtime:
            (asked,) = (paused := await runtime.run("pay")).pending
            await runtime.decide(paused.run_id, {asked.id: Edit(arguments={"amount": 50})}, execute=True)
            await began.wait()
        async with Runtime.open(root, **options) as runtime:
            (again,) = (await runtime.resume(paused.run_id, {})).pending
            assert "whether it took effect is unknown" in again.reason
            assert again.arguments == {"amount": 50}
            result = await runtime.resume(paused.run_id, {again.id: Approve()})
        assert paid == [50, 50]
        assert [message.decision for message in result.messages if message.role == "tool"] == ['edit: {"amount": 50}']

    asyncio.run(main())


def test_a_call_that_ends_within_the_grace_period_is_saved(tmp_path: Path, file_url: str) -> None:
    root, shop = project(tmp_path), Shop()

    async def main() -> str:
        shop.began, shop.go = asyncio.Event(), asyncio.Event()
        models = {"scripted": ScriptedModel(calls(("hang", {})))}
        async with Runtime.open(
            root, tools=shop.tools(), models=models, store=file_url, watch=False, grace=30
        ) as runtime:
            task = asyncio.create_task(runtime.run("hang"))
            await shop.began.wait()
            asyncio.get_running_loop().call_later(0.02, shop.go.set)
        with pytest.raises(RunSuspended):
            await task
        return ""

    asyncio.run(main())

    async def resume(runtime: Runtime) -> None:
        (orphan,) = await runtime.orphans()
        assert (await runtime.resume(orphan.run_id, {})).tool_calls[0].result == "continued"

    life(root, file_url, shop, resume, "ok")
    assert shop.did == ["hang"], "executed once, without another approval"


# --- orphans


def create_orphan(root: Path, url: str, shop: Shop, turn: Turn) -> str:
    """Return the id of a run whose process ended during a call."""
    found: list[str] = []

    async def main() -> None:
        shop.began, shop.go = asyncio.Event(), asyncio.Event()
        store = await Store.open(url, root)
        models = {"scripted": ScriptedModel(turn)}
        async with Runtime.open(root, tools=shop.tools(), models=models, store=store, watch=False, grace=0) as runtime:
            task = asyncio.create_task(runtime.run("hang"))
            await shop.began.wait()
            found.extend(info.run_id for info in await store.runs(RunQuery(statuses=frozenset({"running"}))))
        with pytest.raises(RunSuspended):
            await task
        await store.close()

    asyncio.run(main())
    return found[-1]


def test_orphans_are_resumed_only_on_request(tmp_path: Path, file_url: str) -> None:
    root, shop = project(tmp_path), Shop()
    run_id = create_orphan(root, file_url, shop, calls(("hang", {})))

    async def body(runtime: Runtime) -> None:
        assert (await runtime.run("hello")).output == "hi"
        assert [orphan.run_id for orphan in await runtime.orphans()] == [run_id]
        assert await runtime.resume_orphans() == [run_id]
        await until_status(runtime.store, run_id, "paused")
        assert (await runtime.pending(run_id))[0].tool == "hang"
        assert await runtime.resume_orphans() == []

    life(root, file_url, shop, body, "hi")


class LateReader(Store):
    """A store whose lists of runs to continue are older than the pause of a run, as under load."""

    late: RunInfo | None = None

    async def runs(self, query: RunQuery | None = None) -> Sequence[RunInfo]:
        is_asked = query is not None and (query.orphaned or query.expired_at is not None)
        return [self.late] if is_asked and self.late else await super().runs(query)


@pytest.mark.parametrize(("found_as", "capacity"), [("interrupted", 5), ("expired", 5), ("expired", 0)])
def test_a_run_that_waits_for_a_person_is_not_continued_by_a_process_that_is_late(
    tmp_path: Path, file_url: str, found_as: str, capacity: int
) -> None:
    """It could not be decided meanwhile, and its confirmation would be requested twice."""
    root, shop = project(tmp_path), Shop()

    async def main() -> None:
        store = await LateReader.open(file_url, root)
        assert isinstance(store, LateReader)
        models, work = {"scripted": ScriptedModel(PAY, "ok")}, EmbeddedSource(capacity)
        async with Runtime.open(
            root, tools=shop.tools(), models=models, store=store, watch=False, work=work
        ) as runtime:
            first = await runtime.run("pay")
            (info,) = await store.runs()
            store.late = replace(info, status="running" if found_as == "interrupted" else "paused", held=False)
            version, before = (await store.load_run(first.run_id)).version, await store.events(first.run_id)
            await (runtime.resume_orphans() if found_as == "interrupted" else runtime.expire())
        state = await store.load_run(first.run_id)
        assert (state.status, state.version) == ("paused", version)
        assert await store.events(first.run_id) == before
        assert [asked.tool for asked in state.pending] == ["pay"]
        await store.close()

    asyncio.run(main())


def test_the_reason_why_a_run_cannot_be_resumed_is_logged_once(
    tmp_path: Path, file_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "framework.engine.runtime.background")
    guard = "from framework import hook\n\n@hook\ndef look(context, call):\n    return None\n"
    root, shop = write(tmp_path, {"plugins/guard.py": guard}), Shop()
    run_id = create_orphan(project(root, hooks="{before_tool: [guard.look]}"), file_url, shop, calls(("hang", {})))
    (root / "plugins/guard.py").unlink()

    async def look(runtime: Runtime) -> None:
        for _ in range(3):
            assert await runtime.resume_orphans() == [run_id]
            await runtime._background.close()
        (logged,) = [record for record in caplog.records if run_id in record.message]
        assert "guard.look" in logged.message

    life(project(root), file_url, shop, look)


def test_a_run_that_crashes_several_processes_fails(tmp_path: Path, file_url: str) -> None:
    root, shop = project(tmp_path), Shop()
    run_id = create_orphan(root, file_url, shop, calls(("hang", {})))

    async def dying() -> None:
        store = await Store.open(file_url, root, lease_seconds=0.01)
        await store.acquire(await store.load_run(run_id), {})
        while not await store.runs(RunQuery(orphaned=True)):  # until the lease has expired
            pass
        await store.close()

    for _ in range(3):
        asyncio.run(dying())

    async def body(runtime: Runtime) -> None:
        assert await runtime.resume_orphans() == []
        state = await runtime.store.load_run(run_id)
        assert state.error is not None
        assert (state.status, state.error.code) == ("failed", "crashed")
        assert "3 processes in a row" in state.error.message
        events = await runtime.store.events(run_id)
        assert [event["event"] for event in events[-2:]] == ["error", "done"]
        assert (events[-2]["code"], events[-2]["message"]) == ("crashed", state.error.message)

    life(root, file_url, shop, body)


class Suspended(Store):
    """The store of a process that does not renew its lease, because it is suspended."""

    async def renew(self, run_ids: Collection[str]) -> Mapping[str, bool]:
        return dict.fromkeys(run_ids, False)


def test_a_suspended_process_whose_run_was_taken_over_stops_working_on_it(tmp_path: Path, store_url: str) -> None:
    root, shop = project(tmp_path), Shop()

    async def main() -> None:
        store = await Suspended.open(store_url, root, lease_seconds=0.01)
        models = {"scripted": ScriptedModel(calls(("hang", {})), calls(("look", {})), "never")}
        async with Runtime.open(root, tools=shop.tools(), models=models, store=store, watch=False) as runtime:
            task = asyncio.create_task(runtime.run("hang"))
            await shop.began.wait()
            other = await Store.open(store_url, root)
            (orphan,) = await until(partial(other.runs, RunQuery(orphaned=True)), "the run is orphaned")
            taken = await other.acquire(await other.load_run(orphan.run_id), {})
            shop.go.set()
            with pytest.raises(RunTaken):
                await task
            before = await other.events(orphan.run_id)
            assert [event["event"] for event in before] == ["route", "tool_call", "tool_call"], "no later events"
            await taken.release()
            await other.close()
        await store.close()

    asyncio.run(main())
    assert shop.did == ["hang"]
