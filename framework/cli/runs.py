"""`agentsd runs`, `conversations` and `memory`: lists of what is stored; other commands are imported when called."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, get_args

import click

from framework.cli.location import (
    COUNT_OPTION,
    DURATION,
    PROJECT_OPTION,
    ago,
    in_store,
    lenient_settings,
    locate,
    open_project_store,
    status_of,
    tenant_option,
    times_as_text,
    user_option,
)
from framework.cli.main import LazyGroup
from framework.cli.show import counted, show_table
from framework.cli.terminal import print_json
from framework.store.types import ConversationInfo, ConversationQuery, NoteQuery, Pruned, RunInfo, RunQuery
from framework.types.errors import RequestError
from framework.types.memory import Note
from framework.types.report import Status
from framework.types.state import RatingValue
from framework.types.text import one_line, visible

COMMANDS = {
    "list": "List stored runs: paused, interrupted and ended.",
    "show": "Show the steps of a run, and what it waits for.",
    "tail": "Follow a run that is queued or in progress, until it ends.",
    "decide": "Decide what a run waits for, and resume it.",
    "resume": "Resume a paused run, or one whose process ended.",
    "cancel": "Cancel a run that is in progress, paused or interrupted.",
    "replay": "Replay a run offline, and show what would be different now.",
    "export": "Write a run's messages as JSON, or the run as a case for `agentsd test`.",
    "prune": "Delete runs and conversations past their retention.",
}
_MODULES = {
    "list": "runs:runs_list",
    "prune": "runs:runs_prune",
    "show": "run_steps:runs_show",
    "export": "run_steps:runs_export",
    "decide": "run_control:runs_decide",
    "resume": "run_control:runs_resume",
    "cancel": "run_control:runs_cancel",
    "tail": "run_control:runs_tail",
    "replay": "run_control:runs_replay",
}


@click.group("runs", cls=LazyGroup, commands_of=COMMANDS, modules=_MODULES)
def command() -> None:
    """List, show, follow, decide, resume, cancel, replay and export stored runs.

    RUN is the id of a run, a prefix of one, or `last`.
    """


_COLUMNS = ("run", "status", "agent", "started", "steps", "tokens", "conversation", "message")
SHORT_ID = len("run_") + 8
"""Characters of an id that are enough to name the run."""
STATUSES = (*get_args(Status), "orphaned")


@click.command("list")
@click.option(
    "-s", "--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="Only runs with this status."
)
@click.option("-a", "--agent", metavar="AGENT", help="Only runs of this agent.")
@click.option("-c", "--conversation", metavar="ID", help="Only runs of this conversation.")
@user_option("Only runs of this user.")
@tenant_option("Only runs of this tenant.")
@click.option("--rated", type=click.Choice(get_args(RatingValue)), help="Only runs whose answer was rated so.")
@COUNT_OPTION
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def runs_list(project: str, as_json: bool, **given: Any) -> int:
    """List the stored runs, the newest first.

    A run is `queued` until a process starts it. If it waits for more than a free process, that is in parentheses. It is
    `orphaned` if its process ended before it: resume it with `agentsd runs resume`.
    """
    query = run_query(**given)
    found = in_store(project, lambda store: store.runs(query))
    if as_json:
        print_json([as_data(info) for info in found])
    elif not found:
        is_filtered = any(value for name, value in given.items() if name != "limit")
        click.echo("no such runs are stored" if is_filtered else "no runs are stored")
    else:
        show_table(_COLUMNS, [_row(info) for info in found])
    return 0


def run_query(statuses: tuple[str, ...], conversation: str | None, rated: RatingValue | None, **given: Any) -> RunQuery:
    """Return the query of the options of `agentsd runs list`."""
    wanted: set[Status] = {status for status in get_args(Status) if status in statuses}
    if "orphaned" in statuses:
        wanted.add("running")
    return RunQuery(
        statuses=wanted,
        conversation_id=conversation,
        rating=rated,
        orphaned=set(statuses) == {"orphaned"},
        newest_first=True,
        **given,
    )


def parse_run_query(text: str) -> RunQuery:
    """Return the query that `agentsd runs list` would use with these options; raises click.UsageError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise click.UsageError(f"--runs {text!r}: {error}") from None
    params = runs_list.make_context("agentsd runs list", words).params
    return run_query(**{name: value for name, value in params.items() if name not in ("project", "as_json")})


def as_data(info: RunInfo) -> dict[str, Any]:
    """Return a run as JSON data."""
    rating = info.rating and info.rating.model_dump(mode="json")
    return {**times_as_text(asdict(info)), "status": status_of(info), "rating": rating}


def _row(info: RunInfo) -> list[str]:
    return [
        info.run_id[:SHORT_ID] if sys.stdout.isatty() else info.run_id,
        _status(info),
        info.agent or "-",
        ago(info.created_at),
        str(info.steps),
        str(info.tokens),
        _turn(info),
        " ".join(info.message.split()),
    ]


def _status(info: RunInfo) -> str:
    """Return the status of a run, with what it waits for, unless that is only a free process."""
    return f"{status_of(info)} ({info.waits_for})" if info.waits_for not in (None, "capacity") else status_of(info)


def _turn(info: RunInfo) -> str:
    """Return the conversation of a run, with the number of its turn, which a queued run does not have yet."""
    return f"{info.conversation_id}#{info.turn or '?'}" if info.conversation_id else "-"


@click.command("prune")
@click.option(
    "--older-than", type=DURATION, metavar="DURATION", help="Use this retention instead of `store.retention`, e.g. 7d."
)
@click.option("--dry-run", is_flag=True, help="Only count, delete nothing.")
@click.option("--trust-clock", is_flag=True, help="Delete although nothing was saved for more than a day.")
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def runs_prune(older_than: float | None, dry_run: bool, trust_clock: bool, project: str, as_json: bool) -> int:
    """Delete runs that ended longer ago than `store.retention`, and conversations past their `conversation.ttl`.

    Runs in progress, paused runs and the turns of remaining conversations are kept. A SQLite file shrinks by its free
    pages; a file of an older version shrinks once no run is in progress.

    If nothing was saved for more than a day, the clock may be wrong: nothing is deleted without `--trust-clock`.
    """
    pruned = asyncio.run(_prune(project, older_than, dry_run=dry_run, trust_clock=trust_clock))
    if as_json:
        click.echo(json.dumps({**asdict(pruned), "dry_run": dry_run}))
        return 0
    verb = "would be deleted" if dry_run else "deleted"
    *first, last = [counted(count, what) for count, what in _counts(pruned)]
    freed = f", the file is {pruned.freed_bytes / 1e6:.1f} MB smaller" if pruned.freed_bytes else ""
    click.echo(f"{', '.join(first)} and {last} {verb}{freed}")
    return 0


def _counts(pruned: Pruned) -> Iterator[tuple[int, str]]:
    yield from ((pruned.runs, "run"), (pruned.conversations, "conversation"))
    yield from ((count, what) for count, what in ((pruned.files, "file"), (pruned.versions, "agent version")) if count)


async def _prune(project: str, older_than: float | None, *, dry_run: bool, trust_clock: bool) -> Pruned:
    location = locate(project)
    retention = lenient_settings(location).store.retention if older_than is None else older_than
    async with open_project_store(location) as store:
        now = store.now()
        before = None if retention is None else now - retention
        return await store.prune(before, now, dry_run=dry_run, trust_clock=trust_clock)


CONVERSATION_COMMANDS = {
    "list": "List conversations, the one with the latest turn first.",
    "show": "Show the messages of a conversation, and which generation answered.",
    "fork": "Begin a conversation with the history of another.",
    "export": "Write a conversation in a provider's format, or in our own.",
    "import": "Read a conversation from a file.",
    "delete": "Delete a conversation with its runs, events and traces.",
}
_CONVERSATION_MODULES = {
    "list": "runs:conversations_list",
    "delete": "transcripts:conversations_delete",
    "show": "transcripts:conversations_show",
    "fork": "transcripts:conversations_fork",
    "export": "transcripts:conversations_export",
    "import": "transcripts:conversations_import",
}


@click.group("conversations", cls=LazyGroup, commands_of=CONVERSATION_COMMANDS, modules=_CONVERSATION_MODULES)
def conversations_command() -> None:
    """List, show, fork, export, import and delete conversations. `agentsd chat` continues one."""


_CONVERSATION_COLUMNS = ("conversation", "turns", "agent", "last turn", "user", "waits with", "tenant")


@click.command("list")
@click.option("-a", "--agent", metavar="AGENT", help="Only those whose last turn this agent answered.")
@user_option("Only those of this user.")
@tenant_option("Only those of this tenant.")
@COUNT_OPTION
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def conversations_list(
    agent: str | None, user: str | None, tenant: str | None, limit: int, project: str, as_json: bool
) -> int:
    """List the stored conversations, the one with the latest turn first."""
    query = ConversationQuery(agent=agent, user=user, tenant=tenant, limit=limit)
    found = in_store(project, lambda store: store.conversations(query))
    if as_json:
        print_json([times_as_text(asdict(info)) for info in found])
    elif not found:
        click.echo("no conversations are stored")
    else:
        show_table(_CONVERSATION_COLUMNS, [_conversation_row(info) for info in found])
    return 0


def _conversation_row(info: ConversationInfo) -> list[str]:
    last_turn, open_run = ago(info.updated_at), info.open_run or "-"
    return [info.id, str(info.turns), info.agent or "-", last_turn, info.user or "-", open_run, info.tenant or "-"]


_NOTE_COLUMNS = ("note", "saved", "user", "agent", "scope", "text")
_TEXT_CHARS = 60


@click.group("memory")
def memory_command() -> None:
    """List, show and forget the notes that agents keep across conversations."""


@memory_command.command("list")
@user_option("Only those of this user's runs.")
@tenant_option("Only those of this tenant.")
@click.option("-a", "--agent", metavar="AGENT", help="Only those that this agent saved.")
@click.option("-s", "--search", metavar="TEXT", help="Only those that contain this text.")
@COUNT_OPTION
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def notes_list(
    user: str | None, tenant: str | None, agent: str | None, search: str | None, limit: int, project: str, as_json: bool
) -> int:
    """List the notes of agents, the newest first."""
    agents = None if agent is None else (agent,)
    query = NoteQuery(tenant=tenant, user=user, agents=agents, search=search, limit=limit)
    found = in_store(project, lambda store: store.notes.list(query))
    if as_json:
        print_json([_note_data(note) for note in found])
    elif not found:
        click.echo("no notes are stored")
    else:
        show_table(_NOTE_COLUMNS, [_note_row(note) for note in found])
    return 0


@memory_command.command("show")
@click.argument("note")
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def notes_show(note: str, project: str, as_json: bool) -> int:
    """Show NOTE, or `last` for the newest: its text, whose it is, and which run saved it."""
    query = NoteQuery(limit=1) if note == "last" else NoteQuery(ids=[note])
    found = in_store(project, lambda store: store.notes.list(query))
    if not found:
        known = "no notes are stored" if note == "last" else "`agentsd memory list` lists those that are stored"
        raise RequestError(f"there is no note {note!r}: {known}")
    data = _note_data(found[0])
    if as_json:
        print_json(data)
        return 0
    click.echo(visible(data.pop("text")))
    data["untrusted"] = "yes: text of tools, files or servers led to it" if found[0].untrusted else "no"
    for key, value in data.items():
        click.echo(f"  {key.replace('_', ' '):<16} {visible(str(value))}")
    return 0


@memory_command.command("forget")
@click.argument("ids", nargs=-1, metavar="[NOTE]...")
@click.option("--all", "is_all", is_flag=True, help="All notes of --user, in any scope.")
@user_option("Only notes of this user's runs.")
@tenant_option("Only notes of this tenant.")
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print how many were deleted as JSON.")
def notes_forget(
    ids: tuple[str, ...], is_all: bool, user: str | None, tenant: str | None, project: str, as_json: bool
) -> int:
    """Delete each NOTE, or all notes of a user. This cannot be undone.

    Runs that have begun with a note keep it until they end.
    """
    if is_all == bool(ids) or (is_all and user is None):
        raise click.UsageError("name the notes, or write: agentsd memory forget --all --user USER")
    query = NoteQuery(ids=ids or None, tenant=tenant, user=user)
    forgotten = in_store(project, lambda store: store.notes.forget(query))
    if ids and not forgotten:
        raise RequestError(f"there is no such note: {', '.join(ids)}")
    click.echo(json.dumps({"forgotten": forgotten}) if as_json else f"forgot {counted(forgotten, 'note')}")
    return 0


def _note_data(note: Note) -> dict[str, Any]:
    return times_as_text(note.model_dump())


def _note_row(note: Note) -> list[str]:
    mark = "(untrusted) " if note.untrusted else ""
    text = visible(one_line(mark + note.text, _TEXT_CHARS))
    return [note.id, ago(note.created_at), note.user or "-", note.agent, note.scope, text]
