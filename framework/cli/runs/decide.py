"""`agentsd runs decide`: decides the confirmations that a run waits for, and resumes it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import click

from framework.cli.confirm import ask_for_decisions
from framework.cli.location import arguments_of, locate
from framework.cli.options import PROJECT_OPTION
from framework.cli.session import print_result, resume_run
from framework.cli.show import QUESTIONS, short_id
from framework.cli.terminal import is_terminal, prints_on_stderr
from framework.types.errors import RequestError
from framework.types.state import CONFIRMATION_KINDS, Approve, Confirmation, Decision, Edit, Reject, Respond, subject_of


@click.command("decide")
@click.argument("run")
@click.option("-y", "--approve", multiple=True, metavar="ID", help="Approve it as shown.")
@click.option("--approve-all", is_flag=True, help="Approve everything as shown.")
@click.option("-r", "--reject", multiple=True, metavar="ID", help="Reject it.")
@click.option("--reason", default="", metavar="TEXT", help="Reason of the rejection, which the model reads.")
@click.option("-e", "--edit", multiple=True, metavar="ID=JSON", help="Approve it with these arguments instead.")
@click.option("--respond", multiple=True, metavar="ID=TEXT", help="Do not execute it; use this text as its result.")
@click.option("--answer", metavar="TEXT", help="Answer the only open question.")
@click.option("--by", "user", metavar="USER", help="The user who decides; must be the owner of the run, if it has one.")
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
def command(run: str, project: str, as_json: bool, user: str | None, **given: Any) -> int:
    """Decide what RUN waits for (`agentsd runs show RUN` lists it), and resume it until it ends or waits again.

    Undecided confirmations stay open. On a terminal, without any option, you are asked for each of them.
    Exit codes are those of `agentsd run`.
    """
    with prints_on_stderr():
        result = asyncio.run(
            resume_run(locate(project), run, lambda asked: _decided(asked, given), user=user, quiet=as_json)
        )
    return print_result(result, as_json=as_json)


async def _decided(pending: Iterable[Confirmation], given: dict[str, Any]) -> dict[str, Decision]:
    """Return the decisions of the options; raises RequestError if there is none, or two for one confirmation."""
    open_ones = {asked.id: asked for asked in pending}
    to_approve = [asked.id for asked in open_ones.values() if CONFIRMATION_KINDS[asked.kind].can_approve]
    found: dict[str, Decision] = dict.fromkeys(to_approve, Approve()) if given["approve_all"] else {}
    named: set[str] = set()
    for key, decision in [*_named(given), *_answered(open_ones.values(), given["answer"])]:
        key = matching(key, open_ones.values())
        if key in named:
            raise RequestError(f"{key} is decided twice on one command line")
        named.add(key)
        found[key] = decision
    if given["reason"] and not given["reject"]:
        raise RequestError("--reason belongs to --reject ID")
    if not found and open_ones:
        if not is_terminal():
            listed = ", ".join(f"{short_id(asked.id)} ({asked.tool or asked.kind})" for asked in open_ones.values())
            raise RequestError(f"nothing is decided: use --approve ID, --approve-all or --reject ID; open: {listed}")
        found = await ask_for_decisions(open_ones.values())
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


def _named(given: dict[str, Any]) -> Iterable[tuple[str, Decision]]:
    yield from ((key, Approve()) for key in given["approve"])
    yield from ((key, Reject(reason=given["reason"])) for key in given["reject"])
    yield from ((key, Edit(arguments=arguments_of(text))) for key, text in _pairs(given["edit"], "--edit ID='{…}'"))
    yield from ((key, Respond(text=text)) for key, text in _pairs(given["respond"], "--respond ID=TEXT"))


def _answered(pending: Iterable[Confirmation], answer: str | None) -> Iterable[tuple[str, Decision]]:
    """Yield the answer to the only open question; raises RequestError unless there is exactly one."""
    if answer is None:
        return
    asked = [one.id for one in pending if one.kind in QUESTIONS]
    if len(asked) != 1:
        listed = ", ".join(asked) or "none"
        raise RequestError(f"--answer needs exactly one open question; open: {listed}; use --respond ID=TEXT")
    yield asked[0], Respond(text=answer)


def _pairs(values: Iterable[str], form: str) -> Iterable[tuple[str, str]]:
    for value in values:
        key, equals, text = value.partition("=")
        if not equals:
            raise click.UsageError(f"write {form}")
        yield key, text
