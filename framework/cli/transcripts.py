"""`agentsd conversations show`, `fork`, `export`, `import` and `delete`: one conversation and its messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click

from framework.cli.location import (
    PROJECT_OPTION,
    RECENT,
    Location,
    ago,
    in_store,
    load_files,
    locate,
    new_conversation,
    open_project_store,
    runs_of,
    tenant_option,
    user_option,
)
from framework.cli.project import read_project
from framework.cli.runs import as_data
from framework.cli.show import counted
from framework.cli.terminal import as_json_text, print_json, write_out
from framework.engine.runtime.request import Caller
from framework.engine.runtime.start import ForkPoint, fork_conversation, load_conversation
from framework.llm.message_formats import FORMS, Form, exported, imported_with_files
from framework.store.types import Conversation, ConversationQuery, RunInfo
from framework.types.errors import RequestError
from framework.types.messages import Message
from framework.types.state import RunState
from framework.types.text import did_you_mean, read_json, visible

if TYPE_CHECKING:
    from framework.store.store import Store

_SEEN_STATUSES = ("completed", "stopped")
"""Statuses of turns that models see; the others are only shown."""


async def find_conversation(
    store: Store, conversation: str, tenant: str | None = None, user: str | None = None
) -> Conversation:
    """Load a stored conversation, of any tenant and user by default.

    Raises:
        RequestError: it does not exist, with the closest ids, or several owners have it.
    """
    found = await load_conversation(store, conversation, Caller(tenant=tenant, user=user, single_user=True))
    if found.is_stored:
        return found
    known = [info.id for info in await store.conversations(ConversationQuery(limit=RECENT))]
    raise RequestError(f"there is no conversation {conversation!r}{did_you_mean(conversation, known)}")


@click.command("show")
@click.argument("conversation")
@tenant_option()
@user_option()
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def conversations_show(conversation: str, tenant: str | None, user: str | None, project: str, as_json: bool) -> int:
    """Show the messages of CONVERSATION, turn by turn, with the generation that answered each."""

    async def load(store: Store) -> tuple[Conversation, Sequence[RunInfo]]:
        found = await find_conversation(store, conversation, tenant, user)
        return found, await runs_of(store, found)

    found, runs = in_store(project, load)
    if as_json:
        data = {
            "id": found.id,
            "tenant": found.tenant,
            "user": found.user,
            "agent": found.agent,
            "open_run": found.open_run,
            "turns": [as_data(info) for info in runs],
            "messages": exported(found.messages, "messages"),
            "summary": found.summary.model_dump() if found.summary else None,
        }
        print_json(data)
        return 0
    for line in conversation_lines(found, runs):
        click.echo(line)
    return 0


def conversation_lines(conversation: Conversation, runs: Sequence[RunInfo], last: int | None = None) -> Iterator[str]:
    """Yield the lines that show a conversation.

    `runs` are its runs in order; `last` is the number of runs to show, from the end.
    """
    turns = _turns_by_run(conversation.messages, [info.run_id for info in runs if info.status in _SEEN_STATUSES])
    for info in runs[-last if last else 0 :]:
        head = f"{info.turn}. {ago(info.created_at)}, {info.agent}, generation {info.generation}, {info.run_id}"
        yield click.style(head if info.turn else f"-. {ago(info.created_at)}, {info.run_id}", dim=True)
        for turn in turns.get(info.run_id, ()):
            yield from _turn(turn)
        if info.status != "completed":
            if info.status not in _SEEN_STATUSES:
                yield from _turn([Message(role="user", content=info.message)])
            yield click.style(f"  {_ended(info)}", fg="yellow")
    if conversation.summary:
        upto = conversation.summary.upto
        yield click.style(f"models get this summary of the first {upto} messages:", dim=True)
        yield from (click.style(f"  {visible(line)}", dim=True) for line in conversation.summary.text.splitlines())


def _ended(info: RunInfo) -> str:
    """Describe a status other than `completed`, with what to do about an interrupted run."""
    if info.orphaned:
        return f"orphaned: its process ended; resume it: agentsd runs resume {info.run_id}"
    return f"{info.status} ({info.finish_reason})" if info.finish_reason else info.status


def _turn(messages: Sequence[Message]) -> Iterator[str]:
    yield f"{click.style('you:', bold=True)} {visible(' '.join(messages[0].description.split()))}"
    calls = sum(len(message.tool_calls) for message in messages)
    if calls:
        yield click.style(f"  ({calls} tool call{'s' if calls > 1 else ''})", dim=True)
    answer = next((m.content for m in reversed(messages) if m.role == "assistant" and not m.tool_calls), "")
    yield from (f"  {visible(line)}" for line in answer.splitlines())


def _turns_by_run(messages: Sequence[Message], good: Sequence[str]) -> dict[str, list[Sequence[Message]]]:
    """Assign turns to runs: one each; the first run of an imported conversation has all earlier ones."""
    turns = list(turns_of(messages))
    first = len(turns) - len(good) + 1
    if not good:
        return {}
    return {run: turns[:first] if place == 0 else [turns[first + place - 1]] for place, run in enumerate(good)}


def turns_of(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Split messages into turns: each starts with a user message."""
    starts = [place for place, message in enumerate(messages) if message.role == "user"]
    yield from (messages[start:end] for start, end in pairwise([*starts, len(messages)]))


@click.command("fork")
@click.argument("conversation")
@click.option("--before", metavar="RUN", help="Leave out this run, its message, and all after it.")
@click.option("--after", metavar="RUN", help="Keep this run, and those before it. Default: all.")
@click.option("-c", "--new", metavar="ID", help="Id of the new conversation. Default: a new one, which is printed.")
@tenant_option()
@user_option()
@PROJECT_OPTION
def conversations_fork(
    conversation: str,
    before: str | None,
    after: str | None,
    new: str | None,
    tenant: str | None,
    user: str | None,
    project: str,
) -> int:
    """Start a new conversation with the history of CONVERSATION, and print its id. Nothing is executed.

    `agentsd chat -c ID` continues it; the other one stays as it is.
    """

    async def fork(store: Store) -> str:
        found = await find_conversation(store, conversation, tenant, user)
        if not found.messages:
            raise RequestError(f"conversation {conversation!r} has no answered message to copy")
        point = ForkPoint(before, after, None if before or after else len(found.messages))
        return (await fork_conversation(store, found, point, new or new_conversation())).id

    click.echo(in_store(project, fork))
    return 0


@click.command("export")
@click.argument("conversation")
@click.option("-f", "--format", "form", type=click.Choice(FORMS), default="messages", show_default=True, help="Format.")
@click.option("-o", "--output", metavar="FILE", help="Write to this file instead of standard output.")
@tenant_option()
@user_option()
@PROJECT_OPTION
def conversations_export(
    conversation: str, form: Form, output: str | None, tenant: str | None, user: str | None, project: str
) -> int:
    """Write all messages of CONVERSATION as JSON: in our own format (`messages`) or in that of a provider's API.

    Images, PDFs and audio are contained in base64.
    """

    async def load(store: Store) -> tuple[Conversation, Mapping[str, bytes]]:
        found = await find_conversation(store, conversation, tenant, user)
        return found, await load_files(store, found.messages)

    found, files = in_store(project, load)
    write_out(as_json_text(exported(found.messages, form, files=files)), output)
    return 0


MAX_BYTES = 128 * 1024 * 1024


@click.command("import")
@click.argument("file")
@click.option("-c", "--conversation", metavar="ID", help="Its id. Default: a new one, which is printed.")
@click.option("-a", "--agent", required=True, metavar="AGENT", help="The agent that continues it.")
@user_option("The user it belongs to.")
@tenant_option("The tenant it belongs to.")
@click.option("-f", "--format", "form", type=click.Choice(FORMS), default="messages", show_default=True, help="Format.")
@PROJECT_OPTION
def conversations_import(
    file: str, conversation: str | None, agent: str, user: str | None, tenant: str | None, form: Form, project: str
) -> int:
    """Read a conversation from FILE, in the format of `export` or of a provider's API, and print its id.

    System messages are omitted: the agent has its own instructions.
    """
    made = conversation or new_conversation()
    owner = Caller(user=user, tenant=tenant)
    asyncio.run(_import(locate(project), file, made, agent, owner, form))
    click.echo(made)
    return 0


async def _import(location: Location, file: str, conversation: str, agent: str, owner: Caller, form: Form) -> None:
    project = await read_project(location)
    known = project.catalog.current.agent(agent)
    tools = [tool.definition for tool in known.toolset.offered.values()]
    read, files = imported_with_files(_read(file), form, tools, what=file)
    messages = [message for message in read if message.role != "system"]
    if not messages or messages[0].role != "user":
        raise RequestError(f"{file}: a conversation must begin with a user message")
    state = RunState(
        agent=known.name,
        conversation_id=conversation,
        conversation_ttl=known.spec.conversation.ttl,
        user=owner.user,
        tenant=owner.tenant,
        messages=messages,
        metadata={"imported": True},
    )
    async with open_project_store(location) as store:
        existing = await store.conversation(conversation, state.tenant, state.user)
        if existing.is_stored:
            raise RequestError(f"conversation {conversation!r} already exists")
        await store_as_turn(store, existing, state, files)


async def store_as_turn(store: Store, conversation: Conversation, state: RunState, files: Mapping[str, bytes]) -> None:
    """Store all messages of a state as one completed turn of a new conversation; raises StoreError."""
    if files:
        await store.save_media(state.run_id, files)
    record = await store.start(state, conversation, None)
    state.status, state.finish_reason = "completed", "final"
    await record.write(state, last=True)


def _read(file: str) -> object:
    path = Path(file)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise RequestError(f"{file} is larger than {MAX_BYTES // 1024 // 1024} MB")
        return read_json(path.read_text("utf-8"), max_values=MAX_BYTES)
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise RequestError(f"{file} is not JSON: {error}") from None


@click.command("delete")
@click.argument("conversation")
@tenant_option()
@user_option()
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print what was deleted as JSON.")
def conversations_delete(conversation: str, tenant: str | None, user: str | None, project: str, as_json: bool) -> int:
    """Delete CONVERSATION with all of its runs, their events and traces. This cannot be undone."""

    async def delete(store: Store) -> int:
        found = await find_conversation(store, conversation, tenant, user)
        return await store.delete_conversation(found.id, found.tenant, found.user)

    runs = in_store(project, delete)
    if as_json:
        click.echo(json.dumps({"conversation": conversation, "runs": runs}))
    else:
        click.echo(f"deleted {conversation} with {counted(runs, 'run')}")
    return 0
