"""Asks the person at the terminal what a run wants to know."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial

import click

from framework.cli.location import arguments_of
from framework.cli.plan_question import ask_about_plan
from framework.cli.show import shown, visible
from framework.cli.terminal import edited, typed
from framework.types.errors import RequestError
from framework.types.state import Approve, Confirmation, Decision, Edit, Reject, Respond

CHOICES = ("a", "e", "r", "s")
PROMPT = "[a]pprove, [e]dit, [r]eject, re[s]pond"


async def decided(pending: Iterable[Confirmation]) -> dict[str, Decision]:
    """Ask one question after the other; raises click.Abort at Ctrl-C, and nothing is decided then."""
    return {asked.id: await typed(partial(ask_human, asked)) for asked in pending}


def ask_human(asked: Confirmation) -> Decision:
    """Show one question and read the decision; the end of input means no."""
    try:
        if asked.kind == "question":
            click.secho(f"\n{asked.agent} asks, for {asked.tool}: {visible(asked.reason)}", bold=True, err=True)
            return Respond(text=click.prompt("the answer", err=True))
        if asked.plan is not None:
            return ask_about_plan(asked, asked.plan)
        _show(asked)
        while True:
            choice = click.prompt(PROMPT, type=click.Choice(CHOICES), show_choices=False, err=True)
            if decision := _decision(choice, asked):
                return decision
    except click.Abort:
        return Reject(reason="the terminal was closed")


def _show(asked: Confirmation) -> None:
    click.secho(f"\n{asked.agent} asks: may it call {asked.tool}?", bold=True, err=True)
    if asked.description:
        click.secho(f"  {visible(asked.description)}", dim=True, err=True)
    for name, value in asked.arguments.items():
        click.echo(f"  {visible(name)}: {shown(value)}", err=True)
    because = f"{asked.reason}; " if asked.reason else ""
    click.secho(f"  ({because}{asked.rule}, risk {asked.risk})", dim=True, err=True)


def _decision(choice: str, asked: Confirmation) -> Decision | None:
    match choice:
        case "a":
            return Approve()
        case "r":
            return Reject(reason=click.prompt("why", default="", show_default=False, err=True))
        case "s":
            return Respond(text=click.prompt("the answer", err=True))
    return edited_arguments(asked)


def edited_arguments(asked: Confirmation) -> Edit | None:
    """The arguments from the person's editor, if these can be used."""
    text = edited(json.dumps(asked.arguments, ensure_ascii=False, indent=2), ".json")
    if not text.strip():
        click.secho("nothing was changed", dim=True, err=True)
        return None
    try:
        arguments = arguments_of(text)
    except RequestError as error:
        click.secho(error.message, fg="red", err=True)
        return None
    return Edit(arguments=arguments)
