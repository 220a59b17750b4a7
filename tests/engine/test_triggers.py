"""Cron triggers: one run for each time over any number of processes, by the clock of the store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Runtime, Tool, ToolContext, tool
from framework.engine.triggers import Triggers
from framework.store.store import Store
from framework.store.types import RunQuery
from framework.testing import ScriptedModel, calls
from tests.support.cases import cases
from tests.support.clocks import MovableClock
from tests.support.projects import agent, write
from tests.support.submitted_runs import until_statuses
from tests.support.waiting import until

NINE = datetime(2026, 11, 30, 9, tzinfo=UTC).timestamp()
"""A Monday."""
DAY = 86400.0
REPORT = 'agent: one\nmessage: "Report of {{ time.date() }}."\ncron: "0 9 * * mon-fri"\n'
EACH = 'agent: one\nmessage: tick\ncron: "* * * * *"\n'


class Fleet:
    """Processes that share a store, all with the same clock."""

    def __init__(self, root: Path, url: str) -> None:
        self.root, self.url = root, url
        self.clock = MovableClock()
        self.clock.at = NINE - 3600
        self.processes: list[tuple[Runtime, Triggers]] = []

    @property
    def triggers(self) -> Triggers:
        return self.processes[0][1]

    @property
    def store(self) -> Store:
        return self.processes[0][0].store

    async def at(self, time: float) -> None:
        """Move the clock, and let all processes look for what is due, at once."""
        self.clock.at = time
        async with asyncio.TaskGroup() as group:
            for _, triggers in self.processes:
                group.create_task(triggers.tick())

    async def messages(self) -> list[str]:
        """Return the messages of all runs, once these have ended."""
        for info in await self.store.runs():
            await self.processes[0][0].result(info.run_id, user=info.user, tenant=info.tenant)
        return [info.message for info in await self.store.runs()]


@asynccontextmanager
async def fleet(
    root: Path, files: Mapping[str, str], *tools: Tool, processes: int = 1, url: str = "sqlite:///runs.db"
) -> AsyncIterator[Fleet]:
    one = agent("one", skill_policy=f"{{allow: [{', '.join(tool.name for tool in tools)}]}}")
    paths = {f"triggers.d/{name}.yaml": text for name, text in files.items()}
    write(root, {"agents.d/one.yaml": one, **paths})
    made = Fleet(root, url)
    turns = [calls((one.name, {})) for one in tools]
    model = ScriptedModel(script=lambda request: turns[0] if turns and request.messages[-1].role == "user" else "done")
    async with AsyncExitStack() as stack:
        for _ in range(processes):
            store = await Store.open(url, root, clock=made.clock)
            stack.push_async_callback(store.close)
            opened = Runtime.open(root, store=store, models={"scripted": model}, tools=tools, watch=False)
            runtime = await stack.enter_async_context(opened)
            made.processes.append((runtime, Triggers(runtime)))
        await made.at(NINE - 3600)
        yield made


def test_each_time_makes_one_run_of_the_triggers_own_user(tmp_path: Path, store_url: str) -> None:
    async def main() -> None:
        async with fleet(tmp_path, {"morning": REPORT + "tenant: acme\n"}, processes=3, url=store_url) as made:
            for time in (NINE - 1, NINE + 0.5, NINE + 1, NINE + 30, NINE + DAY + 0.2, NINE + DAY + 2):
                await made.at(time)
                await made.messages()  # a run that has not ended would let the next one be skipped
            assert await made.messages() == ["Report of 2026-11-30.", "Report of 2026-12-01."]
            first, _ = await made.store.runs()
            assert (first.user, first.tenant, first.status) == ("trigger:morning", "acme", "completed")
            state = await made.store.load_run(first.run_id)
            assert state.metadata == {"trigger": "morning", "delivery": "2026-11-30T09:00+00:00"}
            (report,) = await made.triggers.reports()
            assert report.next_at == datetime(2026, 12, 2, 9, tzinfo=UTC)
            assert report.when == "At 09:00 on Monday through Friday (UTC)"

    asyncio.run(main())


def test_missed_times_are_skipped_or_make_one_run_and_new_schedules_have_missed_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        once = REPORT + "missed: run_once\n"
        async with fleet(tmp_path, {"morning": REPORT, "once": once}) as made:
            await made.at(NINE + 2 * DAY + 3600)
            await made.at(NINE + 2 * DAY + 3601)
            assert await made.messages() == ["Report of 2026-12-02."]
            skipped, run = await made.triggers.reports()
            assert (skipped.note, skipped.last_run) == (
                "missed 2026-12-02T09:00+00:00: no process was alive for a minute",
                None,
            )
            assert (run.note, bool(run.last_run)) == (None, True)
            write(tmp_path, {"triggers.d/once.yaml": once.replace("0 9", "0 8"), "triggers.d/new.yaml": once})
            await made.processes[0][0].reload()
            await made.at(NINE + 2 * DAY + 7200)
            assert len(await made.messages()) == 1

    asyncio.run(main())


def test_a_clock_that_is_set_back_repeats_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with fleet(tmp_path, {"each": EACH}, processes=2) as made:
            for minute in (0, 1, 2, 0, 1, 2, 3, -60, 2, 4):
                await made.at(NINE + 60 * minute + 0.5)
                await made.messages()
            assert len(await made.messages()) == 5

    asyncio.run(main())


@cases(6)
@given(st.lists(st.integers(1, 200), min_size=5, max_size=25), st.sampled_from(("run_once", "skip")))
def test_no_time_makes_two_runs_and_none_that_was_seen_makes_none(steps: list[int], missed: str) -> None:
    """Whatever the clock does: forward in small or large steps, with two processes that look at once."""

    async def main() -> None:
        file = f'agent: one\nmessage: "{{{{ time }}}}"\ncron: "*/2 * * * *"\noverlap: allow\nmissed: {missed}\n'
        async with fleet(Path(folder), {"each": file}, processes=2) as made:
            now, expected = NINE - 3600, set[float]()
            for step in steps:
                last, now = now, now + step
                await made.at(now)
                due = now // 120 * 120
                if due > last and (missed == "run_once" or now - due <= 60):
                    expected.add(due)
            messages = await made.messages()
            assert [datetime.fromisoformat(text).timestamp() for text in messages] == sorted(expected)

    with TemporaryDirectory() as folder:
        asyncio.run(main())


def test_runs_overlap_as_the_file_says(tmp_path: Path) -> None:
    async def main() -> None:
        gate = asyncio.Event()
        most, open_now = Counter[str](), Counter[str]()

        @tool(risk="low", idempotent=True)
        async def hold(context: ToolContext) -> str:
            """Wait until the test goes on."""
            name = context.metadata["trigger"]
            open_now[name] += 1
            most[name] = max(most[name], open_now[name])
            await gate.wait()
            open_now[name] -= 1
            return "held"

        names = ("skip", "queue", "allow")
        async with fleet(tmp_path, {name: f"{EACH}overlap: {name}\n" for name in names}, hold) as made:
            for minute in range(4):
                await made.at(NINE + 60 * minute + 1)
                await until(lambda: open_now["allow"] > minute, "the run has begun")  # noqa: B023 - called at once
            counts = {name: len(await made.store.runs(RunQuery(user=f"trigger:{name}"))) for name in names}
            assert counts == {"skip": 1, "queue": 2, "allow": 4}
            reports = {report.name: report for report in await made.triggers.reports()}
            assert "has not ended (running)" in (reports["skip"].note or "")
            assert "has not ended (queued)" in (reports["queue"].note or "")
            gate.set()
            await made.messages()
            assert most == {"skip": 1, "queue": 1, "allow": 4}

    asyncio.run(main())


def test_a_full_queue_is_logged_when_it_begins_and_when_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        gate = asyncio.Event()

        @tool(risk="low", idempotent=True)
        async def hold() -> str:
            """Wait until the test goes on."""
            await gate.wait()
            return "held"

        write(tmp_path, {"agentsd.yaml": "work: {max_waiting: 1, max_running: {agents: {one: 1}}}\n"})
        files = {"morning": REPORT + "overlap: allow\n", "late": REPORT.replace("0 9", "1 9") + "overlap: allow\n"}
        async with fleet(tmp_path, files, hold) as made:
            runtime = made.processes[0][0]
            await runtime.submit("first")
            await until_statuses(runtime, "running")
            await runtime.submit("second")
            for seconds in (0.5, 1.5, 2.5, 60, 61.5, 62.5, 130, 131):
                await made.at(NINE + seconds)
            logged = [one.message.partition(" retry")[0] for one in caplog.records if "trigger morning" in one.message]
            assert logged == [
                "trigger morning: 1 runs wait, the maximum (work.max_waiting):",
                "trigger morning: missed 2026-11-30T09:00+00:00: 1 runs wait, the maximum (work.max_waiting):",
            ]
            gate.set()
            assert sorted(await made.messages()) == ["first", "second"]
            late, morning = await made.triggers.reports()
            assert "missed 2026-11-30T09:01+00:00: 1 runs wait, the maximum" in (late.note or "")
            assert "missed 2026-11-30T09:00+00:00: 1 runs wait, the maximum" in (morning.note or "")
            caplog.clear()
            await made.at(NINE + 131)
            assert [one.message for one in caplog.records if "trigger" in one.message] == []
            await made.at(NINE + DAY + 1)
            assert len(await made.messages()) == 3

    asyncio.run(main())


def test_a_paused_trigger_starts_nothing_also_afterwards_for_the_time_of_the_pause(tmp_path: Path) -> None:
    async def main() -> None:
        async with fleet(tmp_path, {"morning": REPORT + "missed: run_once\n"}, processes=2) as made:
            trigger = made.triggers.find("morning")
            await made.triggers.pause(trigger, by="ann")
            (report,) = await made.triggers.reports()
            assert (report.paused_by, report.next_at) == ("ann", None)
            await made.at(NINE + 1)
            run_id = await made.triggers.run(trigger)
            assert (await made.messages()) == ["Report of 2026-11-30."]
            await made.at(NINE + DAY + 1)
            await made.triggers.resume(trigger)
            await made.at(NINE + DAY + 2)
            await made.at(NINE + 2 * DAY + 1)
            assert next(info.run_id for info in await made.store.runs()) == run_id
            assert await made.messages() == ["Report of 2026-11-30.", "Report of 2026-12-02."]

    asyncio.run(main())
