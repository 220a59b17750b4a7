"""`agentsd runs decide`: a human's word on what a run asks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import click

from framework.cli.confirm import decided
from framework.cli.location import arguments_of, locate
from framework.cli.resuming import go_on
from framework.cli.screen import prints_on_stderr
from framework.cli.session import print_result
from framework.cli.show import QUESTIONS, short_id
from framework.cli.terminal import is_terminal
from framework.types.confirmation_kinds import CONFIRMATION_KINDS, subject_of
from framework.types.errors import RequestError
from framework.types.state import Approve, Confirmation, Decision, Edit, Reject, Respond


@click.command("decide")
@click.argument("run")
@click.option("-y", "--approve", multiple=True, metavar="ID", help="Do it as shown.")
@click.option("--approve-all", is_flag=True, help="Do everything that is asked, as shown.")
@click.option("-r", "--reject", multiple=True, metavar="ID", help="Do not do it.")
@click.option("--reason", default="", help="Why not: the model is told.")
@click.option("-e", "--edit", multiple=True, metavar="ID=JSON", help="Do it with these arguments instead.")
@click.option("--respond", multiple=True, metavar="ID=TEXT", help="Do not do it; take this text as its result.")
@click.option("--answer", metavar="TEXT", help="Answer the question that is open, where there is only one.")
@click.option("--by", "user", help="Who decides: of a user's run, that user.")
@click.option("-C", "--project", default=".", show_default=True, help="The project's folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
def command(run: str, project: str, as_json: bool, user: str | None, **given: Any) -> int:
    """Answer what RUN asks (`agentsd runs show RUN` lists it), and go on with it until it ends or asks again.

    What is not decided stays open. On a terminal, without any option, each question is asked here.
    Exit codes are those of `agentsd run`.
    """
    with prints_on_stderr():
        result = asyncio.run(
            go_on(locate(project), run, lambda asked: _decided(asked, given), user=user, quiet=as_json)
        )
    return print_result(result, as_json=as_json)


async def _decided(pending: Iterable[Confirmation], given: dict[str, Any]) -> dict[str, Decision]:
    """The decisions that the options name; raises RequestError where there is none, or one says two things."""
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
            raise RequestError(f"say what is decided, such as --approve ID or --approve-all; asked: {listed}")
        found = await decided(open_ones.values())
    return found


def matching(given: str, pending: Iterable[Confirmation]) -> str:
    """The id of the question that is meant by its id, by what it is about (a tool, `plan`), or by how its id begins.

    What matches nothing is returned as it is. A repeated question has the id of the first one, `~` and a suffix. The
    first one's id does not select it, because what is asked may be different.

    Raises:
        RequestError: several questions match. An id takes no precedence over a tool's name: models choose ids.
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
    """The answer to the one question that is open; raises RequestError where there are several, or none."""
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
