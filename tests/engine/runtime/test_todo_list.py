"""The to-do list of a conversation: ids and times, its event, and how programs change it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import ConversationBusy, RequestError, Runtime
from framework.testing import JsonStore, ScriptedModel, Turn, calls
from framework.types.events import wire
from framework.types.plan import TodoItem, TodoStatus, merge_items, read_items
from tests.support.cases import cases
from tests.support.projects import agent, write

LIST = [{"task": "look", "status": "done"}, {"task": "write", "status": "doing"}]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
STATUSES: tuple[TodoStatus, ...] = ("open", "doing", "done")


def keep(items: list[dict[str, str]], prefix: str = "c") -> Turn:
    return calls(("todo", {"items": items}), prefix=prefix)


def talk(root: Path, store: Any, *turns: Turn, then: Callable[[Runtime], Awaitable[None]] | None = None) -> list[Any]:
    """Run one turn of ann's conversation c, then call `then`. Return the items of the run's `todo` events."""
    write(root, {"agents.d/one.yaml": agent("one", skill_policy="{allow: [todo, ask_user]}")})

    async def main() -> list[Any]:
        async with Runtime.open(root, models={"scripted": ScriptedModel(*turns)}, store=store, watch=False) as runtime:
            seen = []
            if turns:
                async with runtime.stream("go", conversation="c", user="ann") as stream:
                    seen = [wire(event) async for event in stream]
            if then is not None:
                await then(runtime)
            return [event["items"] for event in seen if event["event"] == "todo"]

    return asyncio.run(main())


def test_each_change_is_an_event_with_ids_and_times(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    done = [{"task": "look", "status": "done"}, {"task": "write", "status": "done"}, {"task": "send", "status": "open"}]
    events = talk(tmp_path, JsonStore(), keep(LIST), keep(LIST, "d"), keep(done, "e"), "ok")
    first, second = events
    assert [(item["id"], item["task"], item["status"]) for item in first] == [
        ("t1", "look", "done"),
        ("t2", "write", "doing"),
    ]
    assert [item["id"] for item in second] == ["t1", "t2", "t3"]
    assert second[0] == first[0]
    assert second[1]["created_at"] == first[1]["created_at"]
    assert "completed_at" not in first[1]
    assert before <= datetime.fromisoformat(second[1]["completed_at"]) <= datetime.now(UTC)


def test_a_program_reads_and_changes_the_list_of_a_conversation(tmp_path: Path, file_url: str) -> None:
    async def change(runtime: Runtime) -> None:
        items = await runtime.todo("c", user="ann")
        assert [(item.id, item.task, item.status) for item in items] == [
            ("t1", "look", "done"),
            ("t2", "write", "doing"),
        ]
        ticked = [item.model_copy(update={"status": "done"}) for item in items]
        changed = await runtime.update_todo("c", [*ticked, {"title": "send"}], user="ann")
        assert [(item.id, item.task, item.status) for item in changed][1:] == [
            ("t2", "write", "done"),
            ("t3", "send", "open"),
        ]
        assert changed[0] == items[0]
        assert changed[1].completed_at is not None

    talk(tmp_path, file_url, keep(LIST), "ok", then=change)
    recited: list[str] = []

    async def read(runtime: Runtime) -> None:
        recited.extend(f"{item.status} {item.task}" for item in await runtime.todo("c", user="ann"))

    talk(tmp_path, file_url, then=read)
    assert recited == ["done look", "done write", "open send"]


def test_the_next_run_sees_the_programs_changes(tmp_path: Path) -> None:
    store = JsonStore()

    async def change(runtime: Runtime) -> None:
        await runtime.update_todo("c", [{"task": "send"}], user="ann")

    talk(tmp_path, store, keep(LIST), "ok", then=change)
    assert talk(tmp_path, store, calls(("todo", {}), prefix="d"), "ok") == [], "it was read, not changed"

    async def read(runtime: Runtime) -> None:
        (item,) = await runtime.todo("c", user="ann")
        assert (item.task, item.created_at is not None) == ("send", True)

    talk(tmp_path, store, then=read)


def test_the_list_of_another_user_or_an_unknown_conversation_is_not_found(tmp_path: Path) -> None:
    async def look(runtime: Runtime) -> None:
        for conversation, user in (("c", "bob"), ("nowhere", "ann")):
            with pytest.raises(RequestError, match=f"this user has no conversation '{conversation}'"):
                await runtime.todo(conversation, user=user)
            with pytest.raises(RequestError, match="this user has no conversation"):
                await runtime.update_todo(conversation, [], user=user)
        with pytest.raises(RequestError, match="to-do item: status: Input should be"):
            await runtime.update_todo("c", [{"task": "x", "status": "maybe"}], user="ann")
        with pytest.raises(RequestError, match="at most 50 are allowed"):
            await runtime.update_todo("c", [{"task": str(n)} for n in range(60)], user="ann")

    talk(tmp_path, JsonStore(), keep(LIST), "ok", then=look)


def test_the_list_cannot_be_replaced_while_a_run_is_paused(tmp_path: Path, file_url: str) -> None:
    async def look(runtime: Runtime) -> None:
        assert [item.task for item in await runtime.todo("c", user="ann")] == ["look", "write"], "of the paused run"
        with pytest.raises(ConversationBusy, match="conversation 'c' is busy"):
            await runtime.update_todo("c", [], user="ann")

    talk(tmp_path, file_url, keep(LIST), calls(("ask_user", {"question": "Go on?"}), prefix="d"), then=look)


def test_lists_of_older_versions_load_and_get_ids_and_times_with_the_next_change() -> None:
    old = read_items(LIST)
    assert [(item.id, item.task, item.created_at) for item in old] == [("t1", "look", None), ("t2", "write", None)]
    new = merge_items(old, [TodoItem(task="write", status="done"), TodoItem(task="send")], NOW)
    assert [(item.id, item.created_at, item.completed_at) for item in new] == [("t2", None, NOW), ("t3", NOW, None)]
    for other in ("text", 5, [1], [{"task": 1}], {"a": 1}, None):
        assert read_items(other) == ()


TASKS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(STATUSES)), max_size=5)


@cases(100)
@given(lists=st.lists(TASKS, min_size=1, max_size=5), by_id=st.booleans())
def test_ids_are_unique_and_times_belong_to_their_item(lists: list[list[tuple[str, TodoStatus]]], by_id: bool) -> None:
    items: tuple[TodoItem, ...] = ()
    for round_, tasks in enumerate(lists):
        now, before = NOW + timedelta(hours=round_), {item.id: item for item in items}
        names = [*before] if by_id else []
        given_now = [
            TodoItem(id=names[n] if n < len(names) else "", task=task, status=status)
            for n, (task, status) in enumerate(tasks)
        ]
        items = merge_items(items, given_now, now)
        assert [(item.task, item.status) for item in items] == tasks
        assert len({item.id for item in items}) == len(items)
        assert all(item.id for item in items)
        for item in items:
            known = before.get(item.id)
            assert item.created_at == (known.created_at if known else now)
            assert (item.completed_at is not None) == (item.status == "done")
            if known and known.status == item.status == "done":
                assert item.completed_at == known.completed_at
        assert merge_items(items, items, now + timedelta(hours=9)) == items
        assert read_items([item.model_dump(mode="json") for item in items]) == items
