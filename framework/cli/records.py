"""Finds stored runs and conversations for commands."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from framework.cli.location import Location, store_url
from framework.replay.stored_run import StoredRun, load_stored_run
from framework.store.types import Conversation, RunInfo, RunQuery
from framework.store.url import open_store
from framework.types.errors import RunNotFound
from framework.types.messages import Message
from framework.types.state import RunState

if TYPE_CHECKING:
    from framework.store.store import Store

LAST = "last"
RECENT = 200
"""Number of newest runs in which the prefix of an id is looked up."""
LISTED = 3
ID_CHARS = 12
_AGO = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


@asynccontextmanager
async def open_project_store(location: Location) -> AsyncIterator[Store]:
    """Open the store of a project; raises StoreError."""
    store = await open_store(store_url(location), location.folder)
    try:
        yield store
    finally:
        await store.close()


async def find_run(store: Store, given: str) -> RunState:
    """Load a run by its id, a prefix of it, or `last`; raises RunNotFound with the candidates."""
    recent = await store.runs(RunQuery(newest_first=True, limit=RECENT))
    if given == LAST and recent:
        return await store.load_run(recent[0].run_id)
    if given not in {info.run_id for info in recent}:
        begun = [info for info in recent if info.run_id.removeprefix("run_").startswith(given.removeprefix("run_"))]
        if len(begun) == 1 and given.removeprefix("run_"):
            return await store.load_run(begun[0].run_id)
        if begun:
            raise RunNotFound(f"{len(begun)} runs begin with {given!r}: {_listed(begun)}")
    try:
        return await store.load_run(given)
    except RunNotFound:
        raise RunNotFound(f"there is no run {given!r}; {_meant(recent)}") from None


async def find_whole_run(store: Store, given: str) -> StoredRun:
    """Load a run, as `find_run` does, with its events and files; raises the errors of `load_stored_run`."""
    return await load_stored_run(store, await find_run(store, given))


async def load_files(store: Store, messages: Iterable[Message]) -> Mapping[str, bytes]:
    """Load the files in messages, by digest; those that were deleted are missing. Raises StoreError."""
    digests = {part.digest for message in messages for part in message.media}
    return await store.load_media(digests) if digests else {}


def _meant(recent: Sequence[RunInfo]) -> str:
    return f"the latest: {_listed(recent)}" if recent else "no runs are stored"


def _listed(runs: Sequence[RunInfo]) -> str:
    return ", ".join(f"{info.run_id} ({info.agent}, {ago(info.created_at)})" for info in runs[:LISTED])


def new_conversation() -> str:
    """Return a new id that is short enough to type."""
    return uuid4().hex[:ID_CHARS]


def ago(moment: float) -> str:
    """Format the time since a moment in one unit, such as `3m ago`."""
    passed = max(0.0, time.time() - moment)
    for seconds, unit in _AGO:
        if passed >= seconds:
            return f"{passed / seconds:.0f}{unit} ago"
    return "now"


def moment(seconds: float) -> str:
    """Format seconds since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def status_of(info: RunInfo) -> str:
    """Return the status of a run; `orphaned` if its process ended before it."""
    return "orphaned" if info.orphaned else info.status


def times_as_text(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a list entry without empty values, times as ISO 8601."""
    known = {key: value for key, value in data.items() if value not in (None, "")}
    return {key: moment(value) if key.endswith("_at") else value for key, value in known.items()}


async def runs_of(store: Store, conversation: Conversation) -> Sequence[RunInfo]:
    """Return the runs of a conversation, oldest first."""
    return await store.runs(RunQuery.of_conversation(conversation))


async def store_as_turn(store: Store, conversation: Conversation, state: RunState, files: Mapping[str, bytes]) -> None:
    """Store all messages of a state as one completed turn of a new conversation; raises StoreError."""
    if files:
        await store.save_media(state.run_id, files)
    record = await store.start(state, conversation, None)
    state.status, state.finish_reason = "completed", "final"
    await record.write(state, last=True)
