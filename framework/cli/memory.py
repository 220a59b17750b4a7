"""`agentsd memory`: lists, shows and forgets the notes that agents keep across conversations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from framework.cli.location import ago, locate, open_project_store, times_as_text
from framework.cli.main import LazyGroup
from framework.cli.options import PROJECT_OPTION, tenant_option, user_option
from framework.cli.show import counted, show_table
from framework.store.notes import Notes
from framework.store.types import NoteQuery
from framework.types.errors import RequestError
from framework.types.memory import Note
from framework.types.text import one_line, visible

T = TypeVar("T")
COMMANDS = {
    "list": "List notes, the newest first.",
    "show": "Show a note: its text, and the run that saved it.",
    "forget": "Delete notes.",
}
_MODULES = {name: f"memory:notes_{name}" for name in COMMANDS}
_COLUMNS = ("note", "saved", "user", "agent", "scope", "text")
_TEXT_CHARS = 60


@click.group("memory", cls=LazyGroup, commands_of=COMMANDS, modules=_MODULES)
def command() -> None:
    """List, show and forget the notes that agents keep across conversations."""


@click.command("list")
@user_option("Only those of this user's runs.")
@tenant_option("Only those of this tenant.")
@click.option("-a", "--agent", metavar="AGENT", help="Only those that this agent saved.")
@click.option("-s", "--search", metavar="TEXT", help="Only those that contain this text.")
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), metavar="N", default=20, show_default=True, help="Maximum number."
)
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def notes_list(
    user: str | None,
    tenant: str | None,
    agent: str | None,
    search: str | None,
    limit: int,
    project: str,
    as_json: bool,
) -> int:
    """List the notes of agents, the newest first."""
    agents = None if agent is None else (agent,)
    query = NoteQuery(tenant=tenant, user=user, agents=agents, search=search, limit=limit)
    found = _with_notes(project, lambda notes: notes.list(query))
    if as_json:
        click.echo(json.dumps([_data(note) for note in found], ensure_ascii=False, indent=2))
    elif not found:
        click.echo("no notes are stored")
    else:
        show_table(_COLUMNS, [_row(note) for note in found])
    return 0


@click.command("show")
@click.argument("note")
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def notes_show(note: str, project: str, as_json: bool) -> int:
    """Show NOTE, or `last` for the newest: its text, whose it is, and which run saved it."""
    query = NoteQuery(limit=1) if note == "last" else NoteQuery(ids=[note])
    found = _with_notes(project, lambda notes: notes.list(query))
    if not found:
        raise RequestError(f"there is no note {note!r}; agentsd memory list shows those that there are")
    data = _data(found[0])
    if as_json:
        click.echo(json.dumps(data, ensure_ascii=False, indent=2))
        return 0
    click.echo(visible(data.pop("text")))
    data["untrusted"] = "yes: text of tools, files or servers led to it" if found[0].untrusted else "no"
    for key, value in data.items():
        click.echo(f"  {key.replace('_', ' '):<16} {visible(str(value))}")
    return 0


@click.command("forget")
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
    forgotten = _with_notes(project, lambda notes: notes.forget(query))
    if ids and not forgotten:
        raise RequestError(f"there is no such note: {', '.join(ids)}")
    click.echo(json.dumps({"forgotten": forgotten}) if as_json else f"forgot {counted(forgotten, 'note')}")
    return 0


def _with_notes(project: str, work: Callable[[Notes], Awaitable[T]]) -> T:
    async def opened() -> T:
        async with open_project_store(locate(project)) as store:
            return await work(store.notes)

    return asyncio.run(opened())


def _data(note: Note) -> dict[str, Any]:
    return times_as_text(note.model_dump())


def _row(note: Note) -> list[str]:
    mark = "(untrusted) " if note.untrusted else ""
    text = visible(one_line(mark + note.text, _TEXT_CHARS))
    return [note.id, ago(note.created_at), note.user or "-", note.agent, note.scope, text]
