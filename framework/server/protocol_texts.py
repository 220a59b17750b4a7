"""Texts for clients that only show text: why a run has no answer, what it asks, and where to look."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from framework.tools.form import form_lines, visit_lines
from framework.types import events
from framework.types.errors import LimitExceeded, RequestError
from framework.types.file import File
from framework.types.plan import Plan
from framework.types.state import Confirmation, RunResult
from framework.types.text import one_line, preview_lines, shorten, value_lines, visible

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection  # of the extra `serve`; `agentsd acp` works without it

_PROGRESS_CHARS = 200
_VALUE_CHARS = 2000
"""Characters of an argument that a question shows."""
_CONSOLE = "/#"
"""Path of the console's pages, which are public and ask for a key themselves."""


def pages_of(connection: HTTPConnection) -> str:
    """Return the base address of a run's pages: the console's or, in an app that does not serve it, the routes'."""
    has_console = getattr(connection.app.state, "serves_console", False)
    return str(connection.base_url).rstrip("/") + (_CONSOLE if has_console else "/agent")


def run_url(pages: str, run_id: str, pending: Sequence[Confirmation] = ()) -> str:
    """Return the address of a run or, if it waits for one decision in the console, of that decision."""
    if pages.endswith(_CONSOLE) and len(pending) == 1:
        return f"{pages}/approvals/{quote(run_id, safe='')}/{quote(pending[0].id, safe='')}"
    return f"{pages}/runs/{quote(run_id, safe='')}"


def where_to_decide(pages: str, run_id: str, pending: Sequence[Confirmation]) -> str:
    """Return the address for a decision: a page for people or, without the console, the route."""
    if pages.endswith(_CONSOLE):
        return run_url(pages, run_id, pending)
    return f"POST {run_url('/agent', run_id)}/decisions"


def reason_text(result: RunResult) -> str:
    """Return why a run that is not paused has no answer, or only a part of one; empty for a completed run."""
    if result.status == "completed":
        return ""
    if result.error is not None:
        return result.error.message
    if result.stopped_by is not None:
        return LimitExceeded.of(result.stopped_by).message
    return {
        "length": "the output limit cut the answer (on_truncation: stop)",
        "refused": "the model refused the request",
        "cancelled": "the run was cancelled",
    }.get(result.finish_reason, f"the run ended without an answer: {result.finish_reason}")


def file_of(data: str, media_type: str | None, param: str) -> File:
    """Return the file of a message part in base64; raises RequestError, which names the part."""
    try:
        return File.from_bytes(b64decode(data, validate=True), media_type=media_type)
    except ValueError:
        raise RequestError(f"{param}: a file is not base64", param=param) from None


def missing_text(text: str, sent: str, *, is_whole: bool) -> str:
    """Return what a delta or a whole text of a message adds to the part that was sent."""
    if not is_whole:
        return text
    return text[len(sent) :] if text.startswith(sent) else ""


def confirmations_text(pending: Iterable[Confirmation]) -> str:
    """Return what a paused run asks, one paragraph for each confirmation."""
    return "\n\n".join(map(confirmation_text, pending))


def confirmation_text(asked: Confirmation) -> str:
    """Return what one confirmation asks: the question, or the call or plan to approve, and why."""
    traits = asked.traits
    reason = "\n".join(map(visible, asked.reason.splitlines()))
    if traits.asked_by_tool:
        return "\n".join([f"{asked.agent} asks: {reason}{_choices(asked)}", *map("  {}".format, _details(asked))])
    if traits.is_question:
        return f"{asked.agent}: {reason}\n  {visible(one_line(asked.description, _VALUE_CHARS))}{_choices(asked)}"
    lines = _plan(asked.agent, asked.plan) if asked.plan else [f"{asked.agent} asks: may it call {asked.tool}?"]
    for name, value in asked.arguments.items() if not asked.plan else ():
        lines += [f"  {line}" for line in _cut(value_lines(name, value))]
    if changes := preview_lines(asked.preview):
        lines += ["  changes:", *(f"  {line}" for line in _cut(changes))]
    because = "; ".join(part for part in (reason, asked.rule) if part)
    return "\n".join([*lines, f"  ({', '.join(part for part in (because, f'risk {asked.risk}') if part)})"])


def _details(asked: Confirmation) -> Iterator[str]:
    """Yield the fields or the address of what a tool server asks, and who asks."""
    if asked.form is not None:
        yield from form_lines(asked.form)
    if asked.url:
        yield from visit_lines(asked.url, "server" if asked.kind == "login" else "visit")
    if asked.form is not None or asked.url:
        yield f"({'; '.join(part for part in (asked.rule, asked.tool, asked.description) if part)})"


def _plan(agent: str, plan: Plan) -> list[str]:
    lines = [f"{agent} asks: may it execute this plan? {visible(plan.goal)}"]
    for step in plan.steps:
        lines.append(f"  {step.id}. {visible(step.description)}{f' ({step.tool})' if step.tool else ''}")
        lines += [f"     {visible(term)}" for term in step.terms]
        for name, value in step.parameters.items():
            lines += [f"     {line}" for line in _cut(value_lines(name, value))]
    return lines


def _choices(asked: Confirmation) -> str:
    return f" ({' / '.join(map(visible, asked.choices))})" if asked.choices else ""


def _cut(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines up to the limit of characters; the last one says how many are left out."""
    left = _VALUE_CHARS
    kept = list(lines)
    for number, line in enumerate(kept):
        if left <= 0:
            yield f"  … {len(kept) - number} more lines"
            return
        yield shorten(line, left)
        left -= len(line)


def progress_text(event: events.Event) -> str | None:
    """Return an event as one line that clients show during a call; None for events that are not shown."""
    match event:
        case events.Routed(agent=agent):
            text = agent
        case events.HandedOff(agent=agent, origin=origin):
            text = f"{origin} hands the conversation over to {agent}"
        case events.ToolStarted(tool=tool, progress=None):
            text = f"{tool} …"
        case events.ToolStarted(tool=tool, progress=float(progress), message=message):
            text = f"{tool} {progress:.0%} {message or ''}"
        case events.ToolFinished(tool=tool, status=status):
            text = f"{tool}: {status}"
        case events.PlanProposed(revision=revision, steps=steps):
            text = f"plan {revision}: {'; '.join(step.description for step in steps)}"
        case events.PlanStepChanged(id=step, status=status, description=description):
            text = f"step {step} {status}: {description}"
        case events.Warned(message=message):
            text = f"warning: {message}"
        case _:
            return None
    return visible(one_line(text, _PROGRESS_CHARS))
