"""A store that fails reports the reason, keeps its data, and does not end the process."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from examples.scale_demo.postgres import new_database
from framework import ConfigError, File, RequestError, Respond, Runtime, StoreError, ToolContext, tool
from framework.llm.client import ModelRequest
from framework.store.store import Store
from framework.testing import ScriptedModel, Turn, calls
from framework.types.messages import Message, Reasoning
from framework.types.state import RunRequest
from tests.support.media import png
from tests.support.projects import agent, write
from tests.support.waiting import until


@tool(risk="low", idempotent=True)
async def fill(size: int) -> str:
    """Return a long result."""
    return "x" * size


def project(root: Path) -> Path:
    policy = "{max_steps: null, max_total_tokens: null, max_tool_calls: null}"
    return write(root, {"agents.d/one.yaml": agent("one", skill_policy="{allow: [fill]}", runtime_policy=policy)})


def filling(request: ModelRequest) -> Turn:
    """Call the tool ten times, then answer."""
    turn = sum(message.role == "assistant" for message in request.messages)
    return calls(("fill", {"size": 50_000 + turn}), prefix=f"t{turn}") if turn < 10 else "done"


def url_of(root: Path) -> str:
    return f"sqlite:///{root}/state.db"


def is_intact(root: Path) -> bool:
    with closing(sqlite3.connect(root / "state.db")) as database:
        found: tuple[str] = database.execute("PRAGMA integrity_check").fetchone()
    return found == ("ok",)


def test_a_full_disk_suspends_the_run_which_can_be_resumed_later(tmp_path: Path) -> None:
    async def main() -> None:
        store = await Store.open(url_of(tmp_path), tmp_path, lease_seconds=0.05)
        models = {"scripted": ScriptedModel(script=filling)}
        async with Runtime.open(project(tmp_path), tools=[fill], models=models, store=store, watch=False) as runtime:
            await pages(store, 100)
            with pytest.raises(StoreError, match="full; free some space"):
                await runtime.run("go", conversation="c")
            assert (await store.conversation("c")).open_run is not None
            await pages(store, 1_000_000)
            (orphan,) = await until_orphaned(runtime)
            before = len((await store.load_run(orphan)).messages)
            assert before > 1, "the saved messages are unchanged"
            assert (await runtime.resume(orphan, {})).output == "done"
            assert (await runtime.run("go", conversation="c")).status == "completed"
        await store.close()

    asyncio.run(main())
    assert is_intact(tmp_path)


async def pages(store: Store, number: int) -> None:
    """Set the maximum size of the file."""
    await store._database.write(lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count={number}"))


async def until_orphaned(runtime: Runtime) -> list[str]:
    return [orphan.run_id for orphan in await until(runtime.orphans, "a run is orphaned")]


def test_a_locked_file_is_an_error_after_the_retry_time(tmp_path: Path) -> None:
    async def main() -> None:
        store = await Store.open(url_of(tmp_path) + "?timeout=0.05", tmp_path, retry_seconds=0.1)
        models = {"scripted": ScriptedModel("one", "two")}
        async with Runtime.open(project(tmp_path), tools=[fill], models=models, store=store, watch=False) as runtime:
            await runtime.run("go")
            with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                with pytest.raises(StoreError, match="locked; another process is using it"):
                    await runtime.run("go")
                assert len(await runtime.store.runs()) == 1, "reads still work"
            assert (await runtime.run("go")).output == "two"
        await store.close()

    asyncio.run(main())


def test_what_a_client_waits_for_gives_up_on_a_locked_file_soon(tmp_path: Path) -> None:
    """SQLite waits for a lock for 10 s, and each write for those before it."""

    async def main() -> None:
        store = await Store.open(url_of(tmp_path), tmp_path, retry_seconds=0.2)
        request = RunRequest(message=Message(role="user", content="hi"), options={})
        await store.enqueue(request)
        with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            begun = time.monotonic()
            for write in (store.enqueue(request), store.request_cancel(request.run_id), store.save_media("r", {})):
                with pytest.raises(StoreError, match="locked; another process is using it"):
                    await write
            assert time.monotonic() - begun < 8
        await store.enqueue(RunRequest(message=request.message, options={}))
        await store.close()

    asyncio.run(main())


def test_what_a_client_waits_for_does_not_wait_behind_slow_writes(tmp_path: Path) -> None:
    async def main() -> None:
        store = await Store.open(url_of(tmp_path), tmp_path, retry_seconds=0.1)
        request = RunRequest(message=Message(role="user", content="hi"), options={})
        begun, opened = threading.Event(), threading.Event()

        def hold(_: object) -> bool:
            begun.set()
            return opened.wait(30)

        slow = asyncio.ensure_future(store._database.write(hold))
        await asyncio.to_thread(begun.wait)
        with pytest.raises(StoreError, match=r"other writes take longer than 0.1 s"):
            await store.enqueue(request)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await store.enqueue(request)
        opened.set()
        assert await slow
        assert await store.runs() == [], "what was refused is not saved later"
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b"this is a text, not a database" * 100,
            "not a database; move the file away, or set `store.url` to another one",
        )
    ],
)
def test_a_file_that_is_not_a_database_is_rejected_and_unchanged(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "state.db"
    file.write_bytes(content)

    async def main() -> None:
        with pytest.raises(StoreError, match=said):
            await Store.open(url_of(tmp_path), tmp_path)

    asyncio.run(main())
    assert file.read_bytes() == content


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a folder in which nobody can create a file")
def test_a_folder_that_cannot_be_written_names_the_settings_that_help(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(StoreError, match=r"AGENTSD_STORE__URL=sqlite:////.*AGENTSD_STORE__URL=memory:"):
            await Store.open("sqlite:////sys/kernel/agentsd/state.db", tmp_path)

    asyncio.run(main())


def test_a_damaged_file_is_an_error_for_reads_of_the_damaged_part(tmp_path: Path) -> None:
    file = tmp_path / "state.db"

    async def lived() -> str:
        models = {"scripted": ScriptedModel(script=filling)}
        async with Runtime.open(
            project(tmp_path), tools=[fill], models=models, store=url_of(tmp_path), watch=False
        ) as runtime:
            return (await runtime.run("go")).run_id

    run_id = asyncio.run(lived())
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    body = bytearray(file.read_bytes())
    assert len(body) > 200 * 4096
    body[60 * 4096 : 100 * 4096] = b"\xff" * (40 * 4096)  # the schema comes before
    file.write_bytes(body)

    async def main() -> None:
        models = {"scripted": ScriptedModel("still here")}
        async with Runtime.open(
            project(tmp_path), tools=[fill], models=models, store=url_of(tmp_path), watch=False
        ) as runtime:
            with pytest.raises(StoreError, match="the file is damaged: restore a backup") as raised:
                await runtime.store.load_run(run_id)
        assert "xxx" not in str(raised.value), "the error does not quote stored text"

    asyncio.run(main())


@pytest.mark.parametrize("replaced", [False, True])
def test_a_deleted_or_replaced_file_is_no_longer_written(tmp_path: Path, replaced: bool) -> None:
    """Data written to a deleted file would be lost silently."""

    async def main() -> None:
        models = {"scripted": ScriptedModel("one", "two")}
        async with Runtime.open(
            project(tmp_path), tools=[fill], models=models, store=url_of(tmp_path), watch=False
        ) as runtime:
            await runtime.run("go")
            for suffix in ("", "-wal", "-shm"):
                (tmp_path / f"state.db{suffix}").unlink(missing_ok=True)
            if replaced:
                await (await Store.open(url_of(tmp_path), tmp_path)).close()
            for _ in range(2):
                with pytest.raises(StoreError, match="deleted or replaced while in use; restart the process"):
                    await runtime.run("go")
                with pytest.raises(StoreError, match="deleted or replaced"):
                    await runtime.store.runs()
        assert (tmp_path / "state.db").exists() == replaced

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_two_processes_that_start_concurrently_create_the_tables_once(
    kind: str, request: pytest.FixtureRequest
) -> None:
    sqlite = kind == "sqlite"
    url = request.getfixturevalue("file_url") if sqlite else new_database(request.getfixturevalue("postgres"))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            opened = [group.create_task(Store.open(url, Path("/"))) for _ in range(4)]
        for task in opened:
            assert await task.result().runs() == []
            await task.result().close()

    asyncio.run(main())


def test_opening_waits_while_another_process_writes_to_a_new_file(tmp_path: Path) -> None:
    """SQLite fails at once when it cannot switch a file that another connection writes to a write-ahead log."""

    async def main() -> None:
        with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as other:
            other.execute("CREATE TABLE first (id INTEGER)")
            other.execute("BEGIN IMMEDIATE")
            opening = asyncio.create_task(Store.open("sqlite:///state.db", tmp_path))
            done, _ = await asyncio.wait([opening], timeout=0.5)
            assert not done
            other.execute("COMMIT")
            store = await opening
        assert await store.runs() == []
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("state.db", "store.url is not a valid URL"),
        ("memory", r"postgresql://user@host/database or memory:$"),
        ("mysql://root:secret@host/x", "mysql is not supported"),
        ("sqlite://", "SQLite needs a file"),
        ("sqlite:///:memory:", "SQLite needs a file"),
    ],
)
def test_an_invalid_url_is_a_config_error(tmp_path: Path, url: str, said: str) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match=said):
            async with Runtime.open(project(tmp_path), tools=[fill], store=url, watch=False):
                pass

    asyncio.run(main())


def test_the_error_for_an_unreachable_server_omits_the_password(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(StoreError, match="refused") as raised:
            async with Runtime.open(
                project(tmp_path), tools=[fill], store="postgresql://ann:geheim@127.0.0.1:1/x", watch=False
            ):
                pass
        assert "geheim" not in str(raised.value)

    asyncio.run(main())


def test_a_message_of_ten_megabytes_is_rejected_and_a_result_of_that_size_is_stored(
    tmp_path: Path, store_url: str
) -> None:
    async def main() -> None:
        models = {"scripted": ScriptedModel(calls(("fill", {"size": 10_000_000})), "done")}
        options = {"tools": [fill], "models": models, "store": store_url, "watch": False}
        async with Runtime.open(project(tmp_path), **options) as runtime:  # type: ignore[arg-type]
            with pytest.raises(RequestError, match="the message has 10000000 characters; at most 1000000 are allowed"):
                await runtime.run("x" * 10_000_000, conversation="c")
            assert await runtime.store.runs() == []
            result = await runtime.run("go", conversation="c")
            state = await runtime.store.load_run(result.run_id)
            (made,) = state.calls.values()
            assert made.result is not None
            assert len(made.result.output) == 10_000_000

    asyncio.run(main())


HOOK = """
from framework import hook
from framework.types.errors import Refused

@hook
def refuse(context, message):
    raise Refused("\\ud800")
"""
THOUGHT = Message(role="assistant", content="done", reasoning=Reasoning(text="\ud800", data={"part": "\ud83d\ude00"}))


@tool(risk="low")
async def talk(context: ToolContext) -> list[str | File]:
    """Report, ask and return a file by names that are no valid text, as those of files can be."""
    assert context.progress is not None
    await context.progress(0.5, "\ud800")
    return [await context.ask_human("\ud800", ["yes", "\ud800"]), File.from_bytes(png(), name="\ud800.png")]


@pytest.mark.parametrize(
    ("turns", "hooks", "status"),
    [
        ([calls(("talk", {})), "done"], "{}", "completed"),
        ([THOUGHT], "{}", "completed"),
        ([], "{before_run: [hooks.refuse]}", "stopped"),
    ],
    ids=["tool", "model", "hook"],
)
def test_text_that_cannot_be_encoded_ends_no_run(tmp_path: Path, turns: list[Turn], hooks: str, status: str) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one", hooks=hooks), "plugins/hooks.py": HOOK})

    async def main() -> None:
        models = {"scripted": ScriptedModel(*turns)}
        async with Runtime.open(root, tools=[talk], models=models, store=url_of(root), watch=False) as runtime:
            result = await runtime.run("go")
            if result.pending:
                result = await runtime.resume(result.run_id, {result.pending[0].id: Respond(text="yes")})
            assert result.status == status
            stored = await runtime.store.load_run(result.run_id)
            assert (stored.status, stored.output) == (status, result.output)
            stored.model_dump_json()
            assert [event["seq"] for event in await runtime.store.events(result.run_id)]

    asyncio.run(main())


@pytest.mark.parametrize("name", ["conversation", "user", "tenant"])
@pytest.mark.parametrize("value", ["a\x00b", "\ud800", "x" * 201, "a\nb"])
def test_an_id_that_a_database_rejects_is_a_request_error(tmp_path: Path, name: str, value: str) -> None:
    async def main() -> None:
        models = {"scripted": ScriptedModel("done")}
        async with Runtime.open(
            project(tmp_path), tools=[fill], models=models, store=url_of(tmp_path), watch=False
        ) as runtime:
            with pytest.raises(RequestError, match=f"{name}: expected at most 200 printable characters"):
                await runtime.run("go", **{name: value})  # type: ignore[arg-type]
            assert await runtime.store.runs() == []

    asyncio.run(main())


def test_the_file_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    async def main() -> None:
        await (await Store.open("sqlite:///below/state.db", tmp_path)).close()

    asyncio.run(main())
    assert (tmp_path / "below/state.db").stat().st_mode & 0o777 == 0o600
