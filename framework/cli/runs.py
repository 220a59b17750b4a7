"""`agentsd runs`, `conversations`, `memory`, `fleet` and `budgets`: lists of what is in a store.

Other commands about runs and conversations are imported when they are called.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

import click

from framework.cli.location import (
    COUNT_OPTION,
    DURATION,
    PROJECT_OPTION,
    ago,
    in_store,
    lenient_settings,
    locate,
    one_unit,
    open_project_store,
    project_path,
    status_of,
    tenant_option,
    times_as_text,
    user_option,
)
from framework.cli.main import LazyGroup
from framework.cli.show import NOTHING, counted, show_table
from framework.cli.terminal import print_json
from framework.store.types import ConversationInfo, ConversationQuery, NoteQuery, Pruned, RunInfo, RunQuery
from framework.types.budget import BudgetStatus, budget_statuses
from framework.types.errors import RequestError
from framework.types.memory import Note
from framework.types.report import Fleet, FleetProcess, Status, WaitingRuns
from framework.types.state import RatingValue
from framework.types.text import did_you_mean, one_line, visible

if TYPE_CHECKING:
    from framework.store.store import Store

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


_DIGEST_LENGTH = 8
_PROCESSES = ("process", "kind", "version", "runs", "takes", "generation", "agents", "seen")
_WAITING = ("waiting", "agent", "queue", "oldest", "why")
_WHY = {
    "capacity": "for a process with free capacity",
    "no_worker": "no live process takes them: start `agentsd worker`, or check its --agents and --queues",
    "conversation": "for another run of their conversation",
    "handed_on": "handed on: see below",
    "released": "interrupted: the next free process continues them",
}


@click.command("fleet")
@project_path
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, as GET /agent/fleet returns it.")
def fleet_command(path: str, as_json: bool) -> int:
    """Show the processes that share the store of the project at PATH, and what waits where and why."""
    fleet = in_store(path, lambda store: store.fleet())
    if as_json:
        click.echo(fleet.model_dump_json(indent=2))
        return 0
    if fleet.processes:
        show_table(_PROCESSES, [_process_row(one, fleet) for one in fleet.processes])
    else:
        click.echo("no process: start `agentsd serve` or `agentsd worker`")
    for line in _differences(fleet):
        click.secho(line, fg="yellow")
    if any((fleet.running, fleet.paused, fleet.waiting)):
        waiting = sum(group.count for group in fleet.waiting)
        click.echo(f"\n{counted(fleet.running, 'run')} in progress, {fleet.paused} paused, {waiting} waiting")
    if fleet.waiting:
        show_table(_WAITING, [_waiting_row(one) for one in fleet.waiting])
    for run in fleet.handed_on:
        for process, reason in run.reasons.items():
            click.echo(f"{run.run_id}: {visible(process)} {visible(reason)}")
    return 0


def _process_row(one: FleetProcess, fleet: Fleet) -> list[str]:
    different = sum(digest != next(iter(fleet.digests.get(name, {digest: 1}))) for name, digest in one.agents.items())
    agents = counted(len(one.agents), "agent")
    problems = f", {counted(one.problems, 'problem')}" if one.problems else ""
    return [
        one.name,
        one.kind or NOTHING,
        one.version or NOTHING,
        f"{one.running} of {one.capacity}" if one.works else NOTHING,
        _takes(one),
        str(one.generation or NOTHING),
        agents + (f", {different} different" if different and one.alive else "") + problems,
        ago(one.seen_at.timestamp()) if one.alive else f"ended, last seen {ago(one.seen_at.timestamp())}",
    ]


def _takes(one: FleetProcess) -> str:
    if not one.works:
        return "nothing"
    if one.queues is None and one.only_agents is None:
        return "all runs"
    parts = (("queues", one.queues), ("agents", one.only_agents))
    return "; ".join(f"{kind} {', '.join(names)}" for kind, names in parts if names) or "nothing"


def _differences(fleet: Fleet) -> Iterator[str]:
    """Yield a line for each version and each agent that live processes do not share."""
    alive = [one for one in fleet.processes if one.alive]
    versions = sorted({one.version for one in alive if one.version})
    if len(versions) > 1:
        yield f"versions differ: {', '.join(f'{name} ({_named(alive, name)})' for name in versions)}"
    for name, digests in fleet.digests.items():
        if len(digests) > 1:
            (common, count), *others = digests.items()
            holders = ", ".join(
                f"{one.name} has {one.agents[name][:_DIGEST_LENGTH]}"
                for one in alive
                if one.agents.get(name) in dict(others)
            )
            share = f"{count} of {sum(digests.values())} processes"
            yield f"agent {name}: {share} have {common[:_DIGEST_LENGTH]}; {holders}"


def _named(processes: Sequence[FleetProcess], version: str) -> str:
    return ", ".join(one.name for one in processes if one.version == version)


def _waiting_row(group: WaitingRuns) -> list[str]:
    why = f"limit {group.limit}" if group.reason == "limit" else _WHY[group.reason]
    return [str(group.count), group.agent or "any", group.queue or NOTHING, one_unit(group.oldest_seconds), why]


_BUDGET_COLUMNS = ("budget", "for", "share", "resets (UTC)", "used")


@click.command("budgets")
@click.argument("name", required=False)
@COUNT_OPTION
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def budgets_command(name: str | None, limit: int, project: str, as_json: bool) -> int:
    """Show how much of the shared budgets is used in the current periods, the fullest first.

    With NAME, that budget only. Budgets are defined in agentsd.yaml; all processes of the store share them.
    """
    defined = lenient_settings(locate(project)).budgets
    if name is not None and name not in defined:
        raise RequestError(f"there is no budget {name!r}{did_you_mean(name, sorted(defined))}")
    chosen = defined if name is None else {name: defined[name]}

    async def read(store: Store) -> Sequence[BudgetStatus]:
        return budget_statuses(chosen, await store.budget_uses(), store.now())

    found = in_store(project, read) if chosen else ()
    if as_json:
        print_json([one.model_dump(mode="json") for one in found[:limit]])
    elif not found:
        click.echo("agentsd.yaml defines no budgets")
    else:
        show_table(_BUDGET_COLUMNS, [_budget_row(one) for one in found[:limit]])
        if (more := len(found) - limit) > 0:
            click.echo(f"and {more} more: use --limit")
    return 0


def _budget_row(one: BudgetStatus) -> list[str]:
    scope = ", ".join(f"{kind} {value}" if value else f"no {kind}" for kind, value in one.scope.items())
    return [
        one.budget,
        scope or NOTHING,
        f"{one.share:.0%}",
        f"{one.resets_at:%Y-%m-%d}" if one.resets_at else "never",
        ", ".join(_amounts(one)),
    ]


def _amounts(one: BudgetStatus) -> list[str]:
    amounts = []
    if one.max_total_tokens is not None:
        amounts.append(f"{one.tokens:,} of {one.max_total_tokens:,} tokens")
    if one.max_cost_usd is not None:
        amounts.append(f"${one.cost_usd:,.2f} of ${one.max_cost_usd:,.2f}")
    return amounts
