"""Asks the user to approve a plan: shows it with the verdict of each step, and reads changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
from pydantic import ValidationError

from framework.cli.plan_text import as_text, is_unchanged, read_text, with_problems, without
from framework.cli.show import MARKS, counted
from framework.cli.terminal import open_editor
from framework.cli.wrapping import wrapped_line
from framework.config.yaml.parse import ParseError
from framework.types.plan import Plan, PlanDraft, PlanStep, Preflight, StepCheck
from framework.types.state import Approve, Confirmation, Decision, Edit, Reject, Respond
from framework.types.text import value_lines, visible

_CHOICES = ("a", "e", "d", "s", "r")
_WORDS = {"approve": "a", "yes": "a", "y": "a", "edit": "e", "drop": "d", "reject": "r", "no": "r", "n": "r"}
"""Words that people type for a choice."""
_PROMPT = "[a]pprove, [e]dit, [d]rop steps, [r]eject, or say what to change"


def ask_about_plan(asked: Confirmation, plan: Plan) -> Decision:
    """Show a plan and read the decision; raises click.Abort at the end of the input."""
    for line in _shown(asked, plan):
        click.echo(wrapped_line(line), err=True)
    while True:
        choice = read_choice(_PROMPT, _CHOICES)
        if decision := Respond(text=choice) if len(choice) > 1 else _decision(choice, asked, plan):
            return decision


def read_choice(prompt: str, choices: Sequence[str]) -> str:
    """Return one of the choices, which are letters, or a text of at least two words: what to change."""
    while True:
        text = str(click.prompt(prompt, err=True)).strip()
        letter = next((letter for word, letter in _WORDS.items() if text.lower() == word), text.lower())
        if letter in choices:
            return letter
        if len(text.split()) > 1 or not text.isascii():
            return text
        click.secho(f"type {', '.join(choices)}, or a sentence that says what to change", fg="red", err=True)


def _decision(choice: str, asked: Confirmation, plan: Plan) -> Decision | None:
    match choice:
        case "a":
            return Approve()
        case "e":
            return _edited(_draft(asked, plan), plan)
        case "d":
            return _dropped(_draft(asked, plan), plan)
        case "s":
            return Respond(text=click.prompt("what should be different", err=True))
    return Reject(reason=click.prompt("why", default="", show_default=False, err=True))


def _draft(asked: Confirmation, plan: Plan) -> PlanDraft:
    """Return the draft to change: the plan, or a rejected edit of it."""
    try:
        return PlanDraft.model_validate(asked.arguments) if asked.arguments else plan.draft
    except ValidationError:
        return plan.draft


def _edited(draft: PlanDraft, plan: Plan) -> Edit | None:
    """Open the plan in the user's editor until it can be parsed."""
    text = as_text(draft, plan)
    while True:
        text = open_editor(text, ".yaml")
        if is_unchanged(text):
            click.secho("nothing was changed", dim=True, err=True)
            return None
        try:
            changed = read_text(text)
        except ParseError as error:
            click.secho(str(error), fg="red", err=True)
            if not click.confirm("edit it again?", default=True, err=True):
                return None
            text = with_problems(text, error)
            continue
        if changed == draft:
            click.secho("nothing was changed", dim=True, err=True)
            return None
        return _edit(changed)


def _dropped(draft: PlanDraft, plan: Plan) -> Edit | None:
    known = [step.id for step in draft.steps]
    names = set(click.prompt(f"which ({', '.join(known)})", err=True).replace(",", " ").split())
    if unknown := sorted(names - set(known)):
        click.secho(f"there is no step {', '.join(unknown)}", fg="red", err=True)
        return None
    left = without(draft, names)
    if more := [name for name in known if name not in names and name not in {step.id for step in left.steps}]:
        click.secho(f"({', '.join(more)} depends on it and is dropped too)", dim=True, err=True)
    return _edit(left) if _is_meant(left, plan) else None


def _is_meant(left: PlanDraft, plan: Plan) -> bool:
    """Show the remaining steps, and ask whether to continue with them."""
    click.echo("remaining steps:" if left.steps else "no steps are left", err=True)
    for step in left.steps:
        click.echo(wrapped_line(f"  {MARKS['open']} {step.id}  {visible(step.description)}"), err=True)
    if left.steps:
        return click.confirm("continue with these steps?", default=True, err=True)
    done = any(step.status == "done" for step in plan.steps)
    what = "answer with what is done" if done else "end the run without doing anything"
    return click.confirm(f"{what}?", default=False, err=True)


def _edit(draft: PlanDraft) -> Edit:
    arguments = draft.model_dump(mode="json", exclude_defaults=True)
    for step, written in zip(draft.steps, arguments["steps"], strict=True):
        written["depends_on"] = list(step.depends_on)
    return Edit(arguments=arguments)


# --- output


def _shown(asked: Confirmation, plan: Plan) -> Iterator[str]:
    revision = f", revision {plan.revision}" if plan.revision > 1 else ""
    yield click.style(f"\n{asked.agent} asks: may it execute this plan{revision}?", bold=True)
    yield f"  {visible(plan.goal)}"
    checks = {check.id: check for check in asked.preflight.steps} if asked.preflight else {}
    for step in plan.steps:
        yield from _step(step, checks.get(step.id))
    if asked.preflight:
        yield click.style(f"  {_estimate(asked.preflight)}", dim=True)
    yield click.style(f"  ({visible(asked.reason)}; {asked.rule}, risk {asked.risk})", dim=True)


def _step(step: PlanStep, check: StepCheck | None) -> Iterator[str]:
    after = f"  (after {', '.join(step.depends_on)})" if step.depends_on else ""
    yield f"  {MARKS[step.status]} {step.id}  {visible(step.description)}{click.style(after, dim=True)}"
    if step.tool is not None:
        yield f"      {visible(step.tool)}"
        for name, value in step.parameters.items():
            yield from (f"        {line}" for line in value_lines(name, value))
    elif step.tools is not None:
        yield f"      may use {visible(', '.join(step.tools)) or 'no tools'}"
    if check is not None:
        yield click.style(f"      {_verdict(check)}", fg="yellow" if check.verdict != "allow" else None, dim=True)
        yield from (click.style(f"      {visible(risk)}", fg="yellow", dim=True) for risk in check.risks)


def _verdict(check: StepCheck) -> str:
    match check.verdict, bool(check.waits_for):
        case "allow", False:
            return f"allowed, risk {check.risk}"
        case "allow", True:
            return f"decided when {', '.join(check.waits_for)} is done, risk {check.risk}"
        case "ask", False:
            return f"approved with the plan: {check.rule}, risk {check.risk}"
        case "ask", True:
            return f"needs approval again when {', '.join(check.waits_for)} is done: {check.rule}, risk {check.risk}"
    return f"has no tool: each of its calls is decided on its own, risk up to {check.risk}"


def _estimate(preflight: Preflight) -> str:
    expected = preflight.estimate
    parts = [
        counted(expected.tool_calls, "tool call"),
        f"{counted(expected.model_calls, 'model call')} or more",
        f"about {expected.tokens:,} tokens",
    ]
    if expected.cost_usd is not None:
        parts.append(f"${expected.cost_usd:.4f}")
    return ", ".join(parts)
