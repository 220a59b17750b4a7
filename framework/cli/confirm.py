"""Asks the person at the terminal what a run wants to know."""

from __future__ import annotations

import json

import click

from framework.cli.plan_question import ask_about_plan
from framework.cli.show import shown, visible
from framework.types.state import Approve, Confirmation, Decision, Edit, Reject, Respond

CHOICES = ("a", "e", "r", "s")


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
            choice = click.prompt("[a]pprove, [e]dit, [r]eject, re[s]pond", type=click.Choice(CHOICES), err=True)
            if decision := _decision(choice, asked):
                return decision
    except click.Abort:
        return Reject(reason="the terminal was closed")


def _show(asked: Confirmation) -> None:
    click.secho(f"\n{asked.agent} asks: may it call {asked.tool}?", bold=True, err=True)
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
    text = click.edit(json.dumps(asked.arguments, ensure_ascii=False, indent=2), extension=".json")
    try:
        edited = json.loads(text or "")
    except json.JSONDecodeError as error:
        click.secho(f"not JSON: {error}", fg="red", err=True)
        return None
    return Edit(arguments=edited) if isinstance(edited, dict) else None
