"""Asks the user for the decisions that a run waits for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial

import click

from framework.cli.location import arguments_of
from framework.cli.plan_question import ask_about_plan, read_choice
from framework.cli.show import arguments_text, confirmation_lines
from framework.cli.terminal import open_editor, read_in_thread
from framework.cli.wrapping import wrapped_line
from framework.types.errors import RequestError
from framework.types.state import CONFIRMATION_KINDS, Approve, Confirmation, Decision, Edit, Reject, Respond
from framework.types.text import visible

_CHOICES = ("a", "e", "r", "s")
STEP_CHOICES: Mapping[str, str] = {"r": "retry", "s": "skip", "t": "stop"}
STEP_PROMPT = "[r]etry, [s]kip it and what depends on it, s[t]op the run"
_PROMPT = "[a]pprove, [e]dit, [r]eject, or say what to change"


async def ask_for_decisions(pending: Iterable[Confirmation]) -> dict[str, Decision]:
    """Ask for each decision in turn; raises click.Abort on Ctrl-C, with nothing decided."""
    return {asked.id: await read_in_thread(partial(ask_human, asked)) for asked in pending}


def ask_human(asked: Confirmation) -> Decision:
    """Show one confirmation and read the decision; the end of the input is a rejection."""
    try:
        if CONFIRMATION_KINDS[asked.kind].asked_by_tool:
            source = "" if asked.kind == "ask_user" else f", for {asked.tool}"
            _say(f"{asked.agent} asks{source}: {visible(asked.reason)}", bold=True, first=True)
            return Respond(text=_answer(asked))
        if asked.kind == "step":
            return Respond(text=_after_failure(asked))
        if asked.plan is not None:
            return ask_about_plan(asked, asked.plan)
        _show(asked)
        while True:
            choice = read_choice(_PROMPT, _CHOICES)
            if decision := _changed(choice) if len(choice) > 1 else _decision(choice, asked):
                return decision
    except click.Abort:
        return Reject(reason="the terminal was closed")


def _changed(text: str) -> Respond:
    """Return a sentence of the user as the result of the call: the model must not take it for that of the tool."""
    return Respond(text=f"The call was not executed. The user asks for a change: {text}")


def _answer(asked: Confirmation) -> str:
    """Read an answer; with choices, one of them, by its number or its text."""
    for number, choice in enumerate(asked.choices, 1):
        _say(f"  {number}. {visible(choice)}")
    while True:
        text = str(click.prompt("the answer", err=True)).strip()
        if not asked.choices:
            return text
        if text in asked.choices:
            return text
        if text.isdecimal() and 1 <= int(text) <= len(asked.choices):
            return asked.choices[int(text) - 1]
        click.secho(f"type a number from 1 to {len(asked.choices)}, or the choice itself", fg="red", err=True)


def _after_failure(asked: Confirmation) -> str:
    """Ask how to continue after a failed step of a plan."""
    _say(f"{asked.agent}: {visible(asked.reason)}", bold=True, first=True)
    _say(f"  {visible(asked.description)}")
    if asked.tool:
        _say(f"  {visible(asked.tool)} {arguments_text(asked.arguments)}")
    if asked.call_id is not None:
        _say(f"  call id {visible(asked.call_id)}, idempotency key {visible(asked.idempotency_key or '')}", dim=True)
    _say(f"  ({asked.rule}, risk {asked.risk})", dim=True)
    choice = click.prompt(STEP_PROMPT, type=click.Choice([*STEP_CHOICES]), show_choices=False, err=True)
    return STEP_CHOICES[choice]


def _show(asked: Confirmation) -> None:
    _say(f"{asked.agent} asks: may it call {asked.tool}?", bold=True, first=True)
    if asked.description:
        _say(f"  {visible(asked.description)}", dim=True)
    for line in confirmation_lines(asked):
        _say(f"  {line}")
    because = f"{asked.reason}; " if asked.reason else ""
    _say(f"  ({because}{asked.rule}, risk {asked.risk})", dim=True)


def _say(line: str, *, bold: bool = False, dim: bool = False, first: bool = False) -> None:
    """Print a line of a question, wrapped; the first one below an empty line."""
    styled = click.style(line, bold=bold or None, dim=dim or None)
    click.echo(("\n" if first else "") + wrapped_line(styled), err=True)


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
    """Open the arguments in the user's editor; return None if they are unchanged or invalid."""
    text = open_editor(json.dumps(asked.arguments, ensure_ascii=False, indent=2), ".json")
    if not text.strip():
        click.secho("nothing was changed", dim=True, err=True)
        return None
    try:
        arguments = arguments_of(text)
    except RequestError as error:
        click.secho(error.message, fg="red", err=True)
        return None
    return Edit(arguments=arguments)
