"""`agentsd runs decide`, `resume`, `cancel`, `tail`, `replay` and `agentsd triggers`: execute or follow runs."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from difflib import unified_diff
from typing import Any, TextIO, get_args
from zoneinfo import ZoneInfo

import click

from framework.cli.confirm import CountMatches, ask_for_decisions, read_remember
from framework.cli.location import (
    LAST,
    PROJECT_OPTION,
    ago,
    arguments_of,
    find_run,
    find_whole_run,
    locate,
    open_project_store,
    pairs,
)
from framework.cli.project import read_project
from framework.cli.run import JsonLines, open_runtime, print_result, resume_run
from framework.cli.show import NOTHING, Lines, short_id, show_table
from framework.cli.terminal import draws, is_terminal, print_json, prints_on_stderr, say
from framework.engine.triggers import TriggerReport, Triggers, trigger_reports
from framework.replay import Difference, replay
from framework.store.types import OPEN_STATUSES
from framework.tools.form import form_fields
from framework.types.errors import RequestError, TriggerNotFound, outcome_for
from framework.types.grant import GRANT_SCOPES, Remember, Width
from framework.types.report import Status
from framework.types.state import (
    Approve,
    Confirmation,
    Decision,
    Edit,
    Reject,
    Respond,
    RunResult,
    RunState,
    subject_of,
)
from framework.types.text import did_you_mean, visible


@click.command("decide")
@click.argument("run")
@click.option("-y", "--approve", multiple=True, metavar="ID", help="Approve it as shown.")
@click.option("--approve-all", is_flag=True, help="Approve everything as shown.")
@click.option("-r", "--reject", multiple=True, metavar="ID", help="Reject it.")
@click.option("--reason", default="", metavar="TEXT", help="Reason of the rejection, which the model reads.")
@click.option("-e", "--edit", multiple=True, metavar="ID=JSON", help="Approve it with these arguments instead.")
@click.option("--respond", multiple=True, metavar="ID=TEXT", help="Do not execute it; use this text as its result.")
@click.option("--answer", metavar="TEXT", help="Answer the only open question.")
@click.option("--value", multiple=True, metavar="NAME=VALUE", help="Fill in a field of the only open form.")
@click.option("--remember", type=click.Choice(get_args(Width)), help="Remember what is approved, for such calls.")
@click.option("--for", "scope", type=click.Choice(GRANT_SCOPES), default="run", help="Where it is remembered.")
@click.option("--ttl", metavar="TIME", help="How long it is remembered, such as 12h. Default: 7d.")
@click.option("--when", multiple=True, metavar="NAME=CONDITION", help="Remember it for calls that meet this.")
@click.option("--at-most", metavar="N/PERIOD", help="How often it can be used, such as 10/day.")
@click.option("--by", "user", metavar="USER", help="The user who decides; must be the owner of the run, if it has one.")
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
def runs_decide(run: str, project: str, as_json: bool, user: str | None, **given: Any) -> int:
    """Decide what RUN waits for (`agentsd runs show RUN` lists it), and resume it until it ends or waits again.

    Undecided confirmations stay open. On a terminal, without any option, you are asked for each of them.
    Exit codes are those of `agentsd run`.
    """
    with prints_on_stderr():
        result = asyncio.run(
            resume_run(
                locate(project), run, lambda asked, count: _decided(asked, count, given), user=user, quiet=as_json
            )
        )
    return print_result(result, as_json=as_json)


async def _decided(pending: Iterable[Confirmation], count: CountMatches, given: dict[str, Any]) -> dict[str, Decision]:
    """Return the decisions of the options; raises RequestError if there is none, or two for one confirmation."""
    open_ones = {asked.id: asked for asked in pending}
    to_approve = [one.id for one in open_ones.values() if one.traits.can_approve]
    approve = Approve(remember=_remembered(given))
    found: dict[str, Decision] = dict.fromkeys(to_approve, approve) if given["approve_all"] else {}
    named: set[str] = set()
    answers = (*_answered(open_ones.values(), given["answer"]), *_filled(open_ones.values(), given["value"]))
    for key, decision in [*_named(given, approve), *answers]:
        key = matching(key, open_ones.values())
        if key in named:
            raise RequestError(f"{key} is decided twice on one command line")
        named.add(key)
        found[key] = decision
    if given["reason"] and not given["reject"]:
        raise RequestError("--reason belongs to --reject ID")
    if not found and open_ones:
        if not is_terminal():
            form = ", or --value NAME=VALUE" if any(one.form is not None for one in open_ones.values()) else ""
            listed = ", ".join(f"{short_id(asked.id)} ({asked.tool or asked.kind})" for asked in open_ones.values())
            options = f"--approve ID, --approve-all or --reject ID{form}"
            raise RequestError(f"nothing is decided: use {options}; open: {listed}")
        found = await ask_for_decisions(open_ones.values(), count)
    return found


def matching(given: str, pending: Iterable[Confirmation]) -> str:
    """Return the id of the confirmation named by its id, its subject (a tool, `plan`) or a prefix of its id.

    A name without a match is returned unchanged. A repeated question has the id of the first one, `~` and a suffix; the
    id of the first one does not select it, because its content can differ.

    Raises:
        RequestError: several match. An id has no precedence over a tool's name, because models choose ids.
    """
    asked = {one.id: subject_of(one.kind, one.tool) for one in pending}
    found = [key for key, subject in asked.items() if given in (key, subject)] or [
        key for key in asked if given and key.startswith(given) and not key.startswith(f"{given}~")
    ]
    if len(found) > 1:
        raise RequestError(f"{given!r} matches several open questions: {', '.join(found)}")
    return found[0] if found else given


def _remembered(given: dict[str, Any]) -> Remember | None:
    """Return how the approvals of the options are remembered; None if they are not; raises RequestError."""
    if given["remember"] is None:
        if given["ttl"] or given["when"] or given["at_most"]:
            raise RequestError("--ttl, --when and --at-most belong to --remember")
        return None
    if not (given["approve"] or given["approve_all"]):
        raise RequestError("--remember belongs to --approve ID, or --approve-all")
    when: dict[str, list[str]] = {}
    for name, condition in pairs(given["when"], "--when NAME=CONDITION, such as --when 'amount=<= 20'"):
        when.setdefault(name, []).append(condition)
    values = {"width": given["remember"], "for": given["scope"], "ttl": given["ttl"], "at_most": given["at_most"]}
    return read_remember({**values, "when": when or None})


def _named(given: dict[str, Any], approve: Approve) -> Iterable[tuple[str, Decision]]:
    yield from ((key, approve) for key in given["approve"])
    yield from ((key, Reject(reason=given["reason"])) for key in given["reject"])
    yield from ((key, Edit(arguments=arguments_of(text))) for key, text in pairs(given["edit"], "--edit ID='{…}'"))
    yield from ((key, Respond(text=text)) for key, text in pairs(given["respond"], "--respond ID=TEXT"))


def _answered(pending: Iterable[Confirmation], answer: str | None) -> Iterable[tuple[str, Decision]]:
    """Yield the answer to the only open question; raises RequestError unless there is exactly one."""
    if answer is None:
        return
    asked = [one.id for one in pending if one.traits.is_question and one.form is None]
    if len(asked) != 1:
        listed = ", ".join(asked) or "none"
        raise RequestError(f"--answer needs exactly one open question; open: {listed}; use --respond ID=TEXT")
    yield asked[0], Respond(text=answer)


def _filled(pending: Iterable[Confirmation], values: Sequence[str]) -> Iterable[tuple[str, Decision]]:
    """Yield the values for the only open form; raises RequestError unless there is exactly one."""
    if not values:
        return
    asked = [(one.id, one.form) for one in pending if one.form is not None]
    if len(asked) != 1:
        raise RequestError(f"--value needs exactly one open form; open: {', '.join(key for key, _ in asked) or 'none'}")
    (key, form), filled = asked[0], {}
    fields = {field.name: field for field in form_fields(form)}
    for name, text in pairs(values, "--value NAME=VALUE"):
        if name not in fields:
            raise RequestError(f"the form has no field {name!r}{did_you_mean(name, list(fields))}")
        filled[name] = fields[name].read(text)
    yield key, Respond(values=filled)


@click.command("resume")
@click.argument("run")
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
def runs_resume(run: str, project: str, as_json: bool) -> int:
    """Resume RUN, which was interrupted when its process ended; a paused run asks for its decisions.

    Finished calls are not repeated. Exit codes are those of `agentsd run`.
    """
    with prints_on_stderr():
        result = asyncio.run(resume_run(locate(project), run, _undecided, quiet=as_json))
    return print_result(result, as_json=as_json)


async def _undecided(*_: object) -> dict[str, Decision]:  # open confirmations are asked for again
    return {}


@click.command("cancel")
@click.argument("run")
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def runs_cancel(run: str, project: str, as_json: bool) -> int:
    """Cancel RUN: queued, in progress in another process, paused, or interrupted.

    Exit codes: 0 it is cancelled, or its process was asked to cancel it; 1 it had already ended.
    """
    before, after, happened = asyncio.run(_cancel(project, run))
    had_ended = before.status not in OPEN_STATUSES or happened not in (*OPEN_STATUSES, "cancelled")
    if as_json:
        click.echo(json.dumps({"run_id": after.run_id, "status": after.status, "was": before.status}))
    elif had_ended:
        click.echo(f"{after.run_id} had already ended: {after.status}")
    elif after.status == "cancelled":
        click.echo(f"{after.run_id} is cancelled")
    else:
        click.echo(f"{after.run_id}: the process that runs it was asked to cancel it")
    return 1 if had_ended else 0


async def _cancel(project: str, run: str) -> tuple[RunState, RunState, Status]:
    async with open_runtime(locate(project)) as runtime:
        before = await find_run(runtime.store, run)
        happened = await runtime.cancel(before.run_id)
        return before, await runtime.store.load_run(before.run_id), happened


@click.command("tail")
@click.argument("run", default=LAST)
@PROJECT_OPTION
@click.option("--events", is_flag=True, help="Print each event as it happens, as one line of JSON.")
def runs_tail(run: str, project: str, events: bool) -> int:
    """Follow RUN (default: the newest) from its beginning, until it ends or waits for a decision.

    The run may be queued, or in progress in any process that shares the store. Ctrl-C leaves; the run continues.
    Exit codes are those of `agentsd run`.
    """
    with prints_on_stderr() as output:
        result = asyncio.run(_follow(project, run, JsonLines(output) if events else Lines()))
    return outcome_for(result.finish_reason).exit_code if events else print_result(result, as_json=False)


async def _follow(project: str, run: str, view: JsonLines | Lines) -> RunResult:
    async with open_runtime(locate(project)) as runtime:
        state = await find_run(runtime.store, run)
        click.secho(f"{state.run_id}  {state.status}", bold=True, err=True)
        async for event in runtime.follow(state.run_id):
            view.show(event)
        view.close()
        return await runtime.result(state.run_id)


TITLES = {
    "agent": "agent",
    "offered": "tools offered to",
    "prompt": "prompt of",
    "asked": "question",
    "call": "call",
    "plan": "plan",
    "record": "the record",
    "status": "status",
    "output": "output",
}


@click.command("replay")
@click.argument("run")
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
def runs_replay(run: str, project: str, as_json: bool) -> int:
    """Replay RUN under the current files, and show what would be different.

    Models and tools return their recorded responses: nothing is called, no network is used. Earlier decisions apply
    again; new questions are approved. Exit codes: 0 no differences, 1 differences.
    """
    run_id, found = asyncio.run(_replay(project, run))
    if as_json:
        data = {"run_id": run_id, "differences": [asdict(one) for one in found]}
        print_json(data)
    elif not found:
        click.echo(f"{run_id}: nothing differs")
    else:
        for one in found:
            for line in difference_lines(one):
                click.echo(line)
    return 1 if found else 0


async def _replay(project: str, run: str) -> tuple[str, Sequence[Difference]]:
    location = locate(project)
    read = await read_project(location)
    async with open_project_store(location) as store:
        stored = await find_whole_run(store, run)
    return stored.state.run_id, await replay(read.root, stored, read.catalog.current)


def difference_lines(one: Difference) -> Iterator[str]:
    """Yield the lines that show a difference: its subject, the record and the replay."""
    yield click.style(f"{TITLES[one.what]} {visible(one.subject)}".rstrip(), bold=True)
    if one.what in ("prompt", "plan", "output"):
        changed = unified_diff(one.before.splitlines(), one.after.splitlines(), lineterm="", n=1)
        for line in list(changed)[2:]:
            yield click.style(f"  {visible(line)}", fg={"-": "red", "+": "green"}.get(line[:1]), dim=line[:1] == "@")
        return
    if one.before:
        yield click.style(f"  - {visible(one.before)}", fg="red")
    if one.after:
        yield click.style(f"  + {visible(one.after)}", fg="green")


_COLUMNS = ("trigger", "agent", "starts", "next", "last", "run", "note")


@click.group("triggers")
def triggers_command() -> None:
    """List, run, pause and resume triggers. `agentsd serve` and `agentsd worker` start their runs."""


@triggers_command.command("list")
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON, as GET /agent/triggers returns them.")
def triggers_list(project: str, as_json: bool) -> int:
    """List the triggers of a project: when each starts runs, next and last, and why not."""
    reports = asyncio.run(_reports(project))
    if as_json:
        items = [report.model_dump(mode="json") for report in reports]
        print_json({"items": items})
    elif not reports:
        click.echo("no triggers: put one under triggers.d/")
    else:
        show_table(_COLUMNS, [_row(report) for report in reports])
    return 0


async def _reports(path: str) -> tuple[TriggerReport, ...]:
    location = locate(path)
    triggers = (await read_project(location)).catalog.current.triggers
    if not triggers:
        return ()
    async with open_project_store(location) as store:
        return trigger_reports(triggers, await store.triggers.all(), store.now())


def _row(report: TriggerReport) -> list[str]:
    state = "paused" if report.paused_at else _local(report.next_at, report.timezone)
    note = "; ".join(filter(None, ("the file is invalid" if report.stale else "", report.note or "")))
    return [
        report.name,
        report.agent,
        report.when,
        state,
        ago(report.last_at.timestamp()) if report.last_at else NOTHING,
        short_id(report.last_run) if report.last_run else NOTHING,
        note or NOTHING,
    ]


def _local(time: datetime | None, zone: str | None) -> str:
    return time.astimezone(ZoneInfo(zone) if zone else UTC).strftime("%a %Y-%m-%d %H:%M") if time else NOTHING


@triggers_command.command("run")
@click.argument("name")
@click.option(
    "--body", metavar="FILE", type=click.File("r", "utf-8"), help="For a webhook: JSON file with the body of a request."
)
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
def triggers_run(name: str, body: TextIO | None, project: str, as_json: bool) -> int:
    """Start the run of the trigger NAME now, also while it is paused, and wait for its end."""
    try:
        data = None if body is None else json.loads(body.read())
    except (ValueError, RecursionError) as error:
        raise RequestError(f"--body: not JSON: {error}") from None

    async def run() -> RunResult:
        async with open_runtime(locate(project), quiet=as_json) as runtime:
            triggers = Triggers(runtime)
            trigger = triggers.find(name)
            run_id = await triggers.run(trigger, data)
            return await runtime.result(run_id, user=trigger.user, tenant=trigger.spec.tenant)

    with prints_on_stderr():
        result = asyncio.run(run())
    if result.output and not as_json and sys.stdout.isatty() and draws():  # `print_result` takes it for shown
        say(result.output)
    return print_result(result, as_json=as_json)


@triggers_command.command("pause")
@click.argument("name")
@click.option("--by", metavar="USER", help="Who pauses it, for the list.")
@PROJECT_OPTION
def triggers_pause(name: str, by: str | None, project: str) -> int:
    """Pause the trigger NAME, in all processes of the store. Times of the pause are not made up for."""
    return asyncio.run(_pause(name, project, is_paused=True, by=by))


@triggers_command.command("resume")
@click.argument("name")
@PROJECT_OPTION
def triggers_resume(name: str, project: str) -> int:
    """Resume the trigger NAME, in all processes of the store."""
    return asyncio.run(_pause(name, project, is_paused=False))


async def _pause(name: str, project: str, *, is_paused: bool, by: str | None = None) -> int:
    location = locate(project)
    known = (await read_project(location)).catalog.current.triggers
    async with open_project_store(location) as store:
        if name not in known and name not in await store.triggers.all():
            raise TriggerNotFound(f"there is no trigger {name!r}{did_you_mean(name, sorted(known))}")
        changed = await store.triggers.pause(name, is_paused=is_paused, by=by)
    state = "paused" if is_paused else "active"
    click.echo(f"{name} is {state}" if changed else f"{name} was {state} already")
    return 0
