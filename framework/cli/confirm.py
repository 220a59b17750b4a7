"""Asks the user for the decisions that a run waits for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import click
from pydantic import ValidationError

from framework.cli.location import arguments_of
from framework.cli.show import MARKS, arguments_text, confirmation_lines, counted
from framework.cli.terminal import discard_typed, open_editor, read_in_thread, wrapped_line
from framework.config.yaml.parse import ParseError, parse
from framework.tools.form import FormField, checked_values, form_fields
from framework.types.errors import RequestError, ToolError
from framework.types.grant import DEFAULT_AT_MOST, DEFAULT_TTL, GrantUsage, Remember, RememberOffer, Width, covers_text
from framework.types.plan import FixedDraft, FixedStep, Plan, PlanStep, Preflight, StepCheck
from framework.types.state import Approve, Confirmation, Decision, Edit, Reject, Respond
from framework.types.text import value_lines, visible

FILE = "the plan"
HEAD = """\
# Change the plan, save, and close the editor. An empty file changes nothing.
# A step has a tool and its parameters; or no tool: then its description is a goal, and `tools` lists what it may call.
# {{ steps.ID.output }} in a parameter stands for the result of a step that is in its depends_on.
"""


def as_text(draft: FixedDraft, plan: Plan, tools: Collection[str] = ()) -> str:
    """Return a draft as YAML with help in comments, which also list the finished steps."""
    return "\n".join([*_head(plan, tools), *_lines(draft)]) + "\n"


def with_problems(text: str, error: ParseError) -> str:
    """Return the text with the problems in comments above it."""
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#!")).strip("\n")
    comments = "\n".join(f"#! {line}" for line in str(error).splitlines())
    return f"{comments}\n{body}\n"


def read_text(text: str) -> FixedDraft:
    """Parse an edited plan; raises ParseError with every mistake at its place."""
    draft, _ = parse(FILE, text.encode("utf-8", "replace"), FixedDraft)
    return draft


def is_unchanged(text: str | None) -> bool:
    """Return whether the editor was closed without a plan in it."""
    return text is None or not [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def without(draft: FixedDraft, names: Collection[str]) -> FixedDraft:
    """Return the draft without these steps and those that depend on them."""
    gone = set(names)
    while more := {step.id for step in draft.steps if step.id not in gone and gone.intersection(step.depends_on)}:
        gone |= more
    return draft.model_copy(update={"steps": tuple(step for step in draft.steps if step.id not in gone)})


def _head(plan: Plan, tools: Collection[str]) -> Iterator[str]:
    yield HEAD.rstrip()
    if tools:
        yield f"# Tools: {', '.join(sorted(tools))}"
    for step in plan.steps:
        if step.status == "done":
            yield f"# done: {step.id}: {visible(step.description)}"


def _lines(draft: FixedDraft) -> Iterator[str]:
    yield f"goal: {_value(draft.goal)}"
    yield "steps:" if draft.steps else "steps: []"
    for step in draft.steps:
        first, *rest = _step(step)
        yield ""
        yield f"  - {first}"
        yield from (f"    {line}" for line in rest)


def _step(step: FixedStep) -> Iterator[str]:
    yield f"id: {_value(step.id)}"
    yield f"description: {_value(step.description)}"
    if step.tool is not None:
        yield f"tool: {_value(step.tool)}"
    if step.tool is not None or step.parameters:
        yield "parameters:" if step.parameters else "parameters: {}"
        yield from (f"  {_value(name)}: {_value(value)}" for name, value in step.parameters.items())
    if step.tools is not None:
        yield f"tools: {_value(list(step.tools))}"
    if step.depends_on or step.id.isdecimal():  # numbered steps run in order by default
        yield f"depends_on: [{', '.join(step.depends_on)}]"
    if step.expected:
        yield f"expected: {_value(step.expected)}"
    for key in ("when", "for_each", "max_items"):
        if (value := getattr(step, key)) != FixedStep.model_fields[key].default:
            yield f"{key}: {_value(value)}"


def _value(value: Any) -> str:
    """Format a value as JSON, which is also YAML; plain words without quotation marks."""
    if isinstance(value, str) and value.replace(" ", "").replace("_", "").isalnum() and _is_a_word(value):
        return value
    text = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in text)


def _is_a_word(text: str) -> bool:
    return (
        text.isascii() and text[0].isalpha() and text.strip() == text and text.lower() not in ("true", "false", "null")
    )


_PLAN_CHOICES = ("a", "e", "d", "s", "r")
_WORDS = {
    "approve": "a",
    "yes": "a",
    "y": "a",
    "remember": "m",
    "edit": "e",
    "drop": "d",
    "reject": "r",
    "no": "r",
    "n": "r",
}
"""Words that people type for a choice."""
_PLAN_PROMPT = "[a]pprove, [e]dit, [d]rop steps, [r]eject, or say what to change"


def ask_about_plan(asked: Confirmation, plan: Plan) -> Decision:
    """Show a plan and read the decision; raises click.Abort at the end of the input."""
    for line in _shown(asked, plan):
        click.echo(wrapped_line(line), err=True)
    while True:
        choice = read_choice(_PLAN_PROMPT, _PLAN_CHOICES)
        if decision := Respond(text=choice) if len(choice) > 1 else _plan_decision(choice, asked, plan):
            return decision


def read_choice(prompt: str, choices: Sequence[str]) -> str:
    """Return one of the choices, which are letters, or a text of at least two words: what to change."""
    while True:
        text = str(click.prompt(prompt, err=True)).strip()
        letter = next((letter for word, letter in _WORDS.items() if text.lower() == word), text.lower())
        if letter in choices:
            return letter
        if len(text.split()) > 1 or (len(text) > 1 and not text.isascii()):
            return text
        click.secho(f"type {', '.join(choices)}, or a sentence that says what to change", fg="red", err=True)


def _plan_decision(choice: str, asked: Confirmation, plan: Plan) -> Decision | None:
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


def _draft(asked: Confirmation, plan: Plan) -> FixedDraft:
    """Return the draft to change: the plan, or a rejected edit of it."""
    try:
        return FixedDraft.model_validate(asked.arguments) if asked.arguments else plan.draft
    except ValidationError:
        return plan.draft


def _edited(draft: FixedDraft, plan: Plan) -> Edit | None:
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


def _dropped(draft: FixedDraft, plan: Plan) -> Edit | None:
    known = [step.id for step in draft.steps]
    names = set(click.prompt(f"which ({', '.join(known)})", err=True).replace(",", " ").split())
    if unknown := sorted(names - set(known)):
        click.secho(f"there is no step {', '.join(unknown)}", fg="red", err=True)
        return None
    left = without(draft, names)
    if more := [name for name in known if name not in names and name not in {step.id for step in left.steps}]:
        click.secho(f"({', '.join(more)} depends on it and is dropped too)", dim=True, err=True)
    return _edit(left) if _is_meant(left, plan) else None


def _is_meant(left: FixedDraft, plan: Plan) -> bool:
    """Show the remaining steps, and ask whether to continue with them."""
    click.echo("remaining steps:" if left.steps else "no steps are left", err=True)
    for step in left.steps:
        click.echo(wrapped_line(f"  {MARKS['open']} {step.id}  {visible(step.description)}"), err=True)
    if left.steps:
        return click.confirm("continue with these steps?", default=True, err=True)
    done = any(step.status == "done" for step in plan.steps)
    what = "answer with what is done" if done else "end the run without doing anything"
    return click.confirm(f"{what}?", default=False, err=True)


def _edit(draft: FixedDraft) -> Edit:
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
        yield from _step_lines(step, checks.get(step.id))
    if asked.preflight:
        yield click.style(f"  {_estimate(asked.preflight)}", dim=True)
    yield click.style(f"  ({visible(asked.reason)}; {asked.rule}, risk {asked.risk})", dim=True)


def _step_lines(step: PlanStep, check: StepCheck | None) -> Iterator[str]:
    after = f"  (after {', '.join(step.depends_on)})" if step.depends_on else ""
    yield f"  {MARKS[step.status]} {step.id}  {visible(step.description)}{click.style(after, dim=True)}"
    for term in step.terms:
        yield f"      {visible(term)}"
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


_CHOICES = ("a", "e", "r", "s")
STEP_CHOICES: Mapping[str, str] = {"r": "retry", "s": "skip", "t": "stop"}
STEP_PROMPT = "[r]etry, [s]kip it and what depends on it, s[t]op the run"
_PROMPT = "[a]pprove, [e]dit, [r]eject, or say what to change"
_PROMPT_TO_REMEMBER = "[a]pprove, re[m]ember, [e]dit, [r]eject, or say what to change"
WidthUsage = Mapping[Width, GrantUsage]
"""What a remembered approval would have covered in each width."""
CountMatches = Callable[[str], Coroutine[Any, Any, WidthUsage]]
"""Returns the usage for the id of a confirmation."""


async def ask_for_decisions(pending: Iterable[Confirmation], count: CountMatches) -> dict[str, Decision]:
    """Ask for each decision in turn; raises click.Abort on Ctrl-C, with nothing decided."""
    loop = asyncio.get_running_loop()

    def usage_of(asked: Confirmation) -> WidthUsage:  # called in the thread that reads
        return asyncio.run_coroutine_threadsafe(count(asked.id), loop).result()

    return {asked.id: await read_in_thread(partial(ask_human, asked, usage_of)) for asked in pending}


def ask_human(asked: Confirmation, usage_of: Callable[[Confirmation], WidthUsage] = lambda _: {}) -> Decision:
    """Show one confirmation and read the decision; the end of the input is a rejection."""
    discard_typed()
    try:
        if asked.traits.asked_by_tool:
            source = "" if asked.kind == "ask_user" else f", for {asked.tool}"
            _say(f"{asked.agent} asks{source}: {visible(asked.reason)}", bold=True, first=True)
            if asked.form is not None or asked.url:
                return _reply_to_server(asked)
            return Respond(text=_answer(asked))
        if asked.kind == "step":
            return Respond(text=_after_failure(asked))
        if asked.plan is not None:
            return ask_about_plan(asked, asked.plan)
        _show(asked)
        while True:
            can_remember = asked.remember is not None
            prompt = _PROMPT_TO_REMEMBER if can_remember else _PROMPT
            choice = read_choice(prompt, (*_CHOICES, "m") if can_remember else _CHOICES)
            if choice == "m" and asked.remember is not None:
                decision: Decision | None = _remembered(asked, asked.remember, usage_of(asked))
            else:
                decision = _changed(choice) if len(choice) > 1 else _decision(choice, asked)
            if decision:
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


def _reply_to_server(asked: Confirmation) -> Decision:
    """Ask for the values of a form, or whether an address was visited."""
    for line in confirmation_lines(asked):
        _say(f"  {line}")
    _say(f"  ({'; '.join(part for part in (asked.rule, asked.description) if part)})", dim=True)
    done = "visited it"
    if asked.kind == "login":
        done = "decided it there" if asked.tool.startswith("agent.") else "logged in"
    prompt = "[f]ill in, [r]eject" if asked.form is not None else f"[a]pprove once you have {done}, [r]eject"
    accept = "f" if asked.form is not None else "a"
    if click.prompt(prompt, type=click.Choice([accept, "r"]), show_choices=False, err=True) == "r":
        return Reject(reason=click.prompt("why", default="", show_default=False, err=True))
    while asked.form is not None:
        given = ((field.name, _value_of(field)) for field in form_fields(asked.form))
        values = {name: value for name, value in given if value is not None}
        try:
            return Respond(values=checked_values(asked.form, values))
        except ToolError as error:
            click.secho(error.message, fg="red", err=True)
    return Approve()


def _value_of(field: FormField) -> Any:
    """Read the value of a field; an empty line is its default, or no value."""
    while True:
        default = "" if field.default is None else json.dumps(field.default, ensure_ascii=False).strip('"')
        label = f"  {visible(field.title)}{' (optional)' if not field.required else ''}"
        text = str(click.prompt(label, default=default, show_default=bool(default), err=True)).strip()
        if text == default:
            return field.default
        try:
            return field.read(text)
        except ToolError as error:
            click.secho(error.message, fg="red", err=True)


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


def _remembered(asked: Confirmation, offer: RememberOffer, usage: WidthUsage) -> Approve | None:
    """Ask for which later calls the approval is remembered; return None if the conditions are invalid."""
    for number, one in enumerate(offer.widths, 1):
        matched = click.style(f" ({usage[one.width].text()})", dim=True) if one.width in usage else ""
        _say(f"  {number}. {visible(covers_text(asked.tool, one.width, one.when))}{matched}")
    numbers = [str(number) for number in range(1, len(offer.widths) + 1)]
    chosen = click.prompt(f"which calls [1-{len(numbers)}]", type=click.Choice(numbers), show_choices=False, err=True)
    width = offer.widths[int(chosen) - 1]
    where = click.prompt(
        f"in which runs [{', '.join(offer.scopes)}]", type=click.Choice(offer.scopes), show_choices=False, err=True
    )
    values: dict[str, Any] = {"ttl": f"{min(DEFAULT_TTL, offer.max_ttl) / 86400:g}d"}
    if width.width != "call":
        values["at_most"] = DEFAULT_AT_MOST
    if width.width == "arguments":
        values["when"] = {name: list(listed) for name, listed in width.when.items()}
    about = f"for {values['ttl']}" + (f", at most {values['at_most']}" if "at_most" in values else "")
    try:
        if click.confirm(f"{about}; change that or the conditions first?", default=False, err=True):
            values = arguments_of(open_editor(json.dumps(values, ensure_ascii=False, indent=2), ".json"))
        return Approve(remember=read_remember({**values, "width": width.width, "for": where}))
    except RequestError as error:
        click.secho(error.message, fg="red", err=True)
        return None


def read_remember(values: Mapping[str, Any]) -> Remember:
    """Return how an approval is remembered; raises RequestError if a value is invalid."""
    try:
        return Remember.model_validate(values)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        reasons = (f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in details)
        raise RequestError("; ".join(reasons)) from None


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
