"""`agentsd runs show` and `export`: what a run did."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from framework.cli.location import PROJECT_OPTION, find_run, find_whole_run, in_store, load_files
from framework.cli.show import (
    MARKS,
    arguments_text,
    confirmation_lines,
    counted,
    first_line,
    how_to_decide,
    reason_for_no_answer,
    short_id,
    waterfall,
    widths_of,
)
from framework.cli.terminal import as_json_text, print_json, wrapped_line, write_out
from framework.config.editing import replace_file
from framework.engine.run_report import build_result
from framework.evals.suite import case_file, case_line, export_case, with_case
from framework.llm.message_formats import FORMS, Form, exported
from framework.store.types import RunInfo, RunQuery
from framework.telemetry.spans import otlp_json as otlp_trace
from framework.types.errors import RequestError
from framework.types.messages import REFUSED_STATUSES, Message
from framework.types.report import SpanRecord, TraceEntry, incomplete_text
from framework.types.state import (
    Approve,
    Confirmation,
    Edit,
    MadeDecision,
    Rating,
    Reject,
    Respond,
    RunResult,
    RunState,
)
from framework.types.text import DATA_SUFFIX, value_lines, visible

if TYPE_CHECKING:
    from framework.store.store import Store


@click.command("show")
@click.argument("run")
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the whole result and the spans of its trace as JSON.")
@click.option("--otlp-json", is_flag=True, help="Print the trace as OTLP JSON, which backends and collectors read.")
def runs_show(run: str, project: str, as_json: bool, otlp_json: bool) -> int:
    """Show the steps of RUN (an id, a prefix of one, or `last`), its trace, and what it waits for."""
    state, info, spans, decisions = in_store(project, lambda store: _load(store, run))
    result = build_result(state)
    if otlp_json:
        click.echo(json.dumps(otlp_trace(spans), ensure_ascii=False))
        return 0
    if as_json:
        body = result.model_dump(mode="json", exclude_none=True) | {
            "priority": info.priority,
            "waits_for": info.waits_for,
            "refusals": dict(info.refusals or {}),
            "rating": info.rating and info.rating.model_dump(mode="json"),
            "decisions": [one.model_dump(mode="json") for one in decisions],
            "spans": [asdict(span) for span in spans],
        }
        print_json(body)
        return 0
    for line in run_lines(state, result, decisions, info):
        click.echo(wrapped_line(line, sys.stdout))
    if result.pending:
        click.secho(how_to_decide(result), dim=True)
    for line in waterfall(spans, widths_of(sys.stdout)):
        click.secho(line, dim=True)
    return 0


async def _load(store: Store, run: str) -> tuple[RunState, RunInfo, Sequence[SpanRecord], Sequence[MadeDecision]]:
    state = await find_run(store, run)
    (info,) = await store.runs(RunQuery(run_id=state.run_id))
    return state, info, await store.spans(state.run_id), await store.decisions(state.run_id)


def run_lines(state: RunState, result: RunResult, decisions: Sequence[MadeDecision], info: RunInfo) -> Iterator[str]:
    """Yield the lines that show a run: its head, its steps, its answer, what was decided, and what it waits for."""
    reason = f" ({result.finish_reason})" if result.finish_reason not in ("", "final") else ""
    yield click.style(f"{result.run_id}  {result.status}{reason}", bold=True)
    yield click.style(f"  {'  '.join(_facts(state, result))}", dim=True)
    yield from (click.style(f"  {visible(text)}", fg="yellow") for text in _reasons_to_wait(info))
    yield f"{click.style('you:', bold=True)} {visible(' '.join(state.messages[0].description.split()))}"
    if state.plan is not None:
        yield f"  plan {state.plan.revision}: {visible(state.plan.goal)}"
        for step in state.plan.steps:
            yield f"    {MARKS[step.status]} {step.id} {visible(step.description)}"
    for entry in result.trace:
        yield from _entry(entry, several=len({one.agent for one in result.trace}) > 1)
    for call in _open_calls(state):
        yield f"  … {call}"
    yield from map(_decided, decisions)
    if result.output:
        yield click.style("answer:", bold=True)
        yield from (f"  {visible(line)}" for line in result.output.splitlines())
    if (rating := info.rating) is not None:
        by, comment = f" by {visible(rating.by)}" if rating.by else "", f": {visible(rating.comment)}"
        yield f"rated {rating.value}{by}{comment if rating.comment else ''}"
    yield from (click.style(f"warning: {visible(one.message)}", fg="yellow") for one in result.warnings)
    if result.incomplete and result.status == "completed":
        yield click.style(incomplete_text(result.incomplete), fg="yellow")
    if (text := reason_for_no_answer(result)) and result.status not in ("paused", "queued"):
        yield click.style(text, fg="red")
    for asked in result.pending:
        yield from _question(asked)


def _reasons_to_wait(info: RunInfo) -> Iterator[str]:
    """Yield what a run waits for, and what processes lacked that could not execute it."""
    if info.waits_for:
        yield f"waits for {info.waits_for}" + (f", priority {info.priority}" if info.priority else "")
    yield from (f"{process} {lacks}" for process, lacks in (info.refusals or {}).items())


def _facts(state: RunState, result: RunResult) -> Iterator[str]:
    usage = result.usage
    has_begun = bool(state.digest)
    if has_begun:
        yield f"agent {result.agent}, generation {result.generation}"
    elif state.agent:
        yield f"agent {state.agent}"
    if state.conversation_id:
        yield f"conversation {state.conversation_id}"
    if state.user:
        yield f"user {state.user}"
    if not has_begun:
        return
    tool_calls = sum(stat.count for stat in result.tool_stats.values())
    yield f"{counted(result.steps, 'step')}, {counted(tool_calls, 'tool call')}"
    cost = ", cost unknown" if usage.cost_usd is None else f", {usage.cost_usd:.4f} USD" if usage.cost_usd else ""
    yield f"{usage.total_tokens} tokens{cost}, {result.elapsed_ms / 1000:.1f} s"
    if state.trace_id:
        yield f"trace {state.trace_id}"


def _entry(entry: TraceEntry, *, several: bool) -> Iterator[str]:
    who = f"{entry.agent}: " if several else ""
    if entry.action.type == "final":
        return
    if entry.thought:
        yield click.style(f"  {entry.step:>2} {who}· {first_line(entry.thought)}", dim=True)
    refused = next(
        (kind for kind in REFUSED_STATUSES if (entry.observation or "").startswith(kind.capitalize())), "error"
    )
    mark = MARKS[refused if entry.error else "success"]
    call = " ".join(filter(None, (entry.action.tool, arguments_text(entry.action.args or {}))))
    yield f"  {entry.step:>2} {who}{mark} {call}  {entry.elapsed_ms:.0f} ms"
    yield click.style(f"       {first_line(entry.observation or '')}", dim=True)
    yield from (click.style(f"       repaired: {repair}", dim=True) for repair in entry.repairs)


def _open_calls(state: RunState) -> Iterator[str]:
    """Yield the calls without a result: waiting, or in progress when the process ended."""
    for record in state.calls.values():
        if record.result is None and record.call.id not in state.children:
            begun = "in progress" if record.started else "not started"
            yield f"{record.call.tool} {arguments_text(record.call.arguments)} ({begun})"
    for child in state.children.values():
        yield from _open_calls(child)


def _decided(made: MadeDecision) -> str:
    """Return the line that shows a decision: which, about what, by whom, and when."""
    match made.decision:
        case _ if made.expired:
            what = "expired"
        case Approve():
            what = "approved"
        case Edit(arguments=arguments):
            what = f"approved with changes: {arguments_text(arguments)}"
        case Reject(reason=reason):
            what = f"rejected{': ' + first_line(reason) if reason else ''}"
        case Respond(values=dict(values)):
            what = f"answered: {arguments_text(values)}"
        case Respond(text=text):
            what = f"answered: {first_line(text)}"
    by = f" by {visible(made.by)}" if made.by else ""
    return click.style(
        f"decided: {short_id(made.confirmation_id)}{by}, {made.at:%Y-%m-%d %H:%M:%S} UTC: {what}", dim=True
    )


def _question(asked: Confirmation) -> Iterator[str]:
    asks = asked.traits.is_question or bool(asked.url)
    what = "asks" if asks else "waits for approval"
    what = "waits for its client" if asked.kind == "client_tool" else what
    head = f"{what}: {short_id(asked.id)}  {asked.tool or asked.kind}"
    if asked.description:
        head += f" ({visible(asked.description)})"
    if asks:
        head += f": {visible(asked.reason)}"
    yield click.style(head, fg="yellow")
    yield from (f"    {line}" for line in confirmation_lines(asked))
    for step in asked.plan.steps if asked.plan else ():
        yield f"    {step.id}. {visible(step.description)}{f'  {step.tool}' if step.tool else ''}"
        yield from (f"       {visible(term)}" for term in step.terms)
        for name, value in step.parameters.items():
            yield from (f"       {line}" for line in value_lines(name, value))
    reason = f"{visible(asked.reason)}; " if asked.reason and not asks else ""
    expires = f", until {asked.expires_at:%Y-%m-%d %H:%M:%S} UTC" if asked.expires_at else ""
    yield click.style(f"    ({reason}{asked.rule}, risk {asked.risk}{expires})", dim=True)


@click.command("export")
@click.argument("run")
@click.option("-f", "--format", "form", type=click.Choice(FORMS), default="messages", show_default=True, help="Format.")
@click.option("--as-test", is_flag=True, help="Write it as a case for `agentsd test` instead.")
@click.option("--with-rating", is_flag=True, help="Write an object with the messages and the rating of the answer.")
@click.option("-o", "--output", metavar="FILE", help="Write to this file instead of standard output.")
@PROJECT_OPTION
def runs_export(run: str, form: Form, as_test: bool, with_rating: bool, output: str | None, project: str) -> int:
    """Write the messages of RUN and of earlier turns as JSON: in our own format or in that of a provider's API.

    Images, PDFs and audio are contained in base64.

    With --as-test, write a test case with the recorded responses of models and tools, for a file
    `agents.d/NAME.test.yaml`, or as a line for a file of data, `NAME.jsonl`. If the file exists, the case is
    appended. Its note is the rating of the answer.
    """
    if as_test:
        stored = in_store(project, lambda store: find_whole_run(store, run))
        case = export_case(stored.state, stored.events, stored.rating)
        if output and output != "-" and Path(output).exists():
            append_case(case, Path(output))
        else:
            write_out(case_line(case) if output and output.endswith(DATA_SUFFIX) else case_file(case), output)
    else:
        found = in_store(project, lambda store: _find_messages(store, run))
        body = exported(found.messages, form, files=found.files)
        if with_rating:
            rating = found.rating and found.rating.model_dump(mode="json")
            body = {**(body if isinstance(body, dict) else {"messages": body}), "rating": rating}
        write_out(as_json_text(body), output)
    return 0


@dataclass(frozen=True, slots=True)
class _Found:
    """The messages of a run and of earlier turns, their files by digest, and the rating of the run."""

    messages: Sequence[Message]
    files: Mapping[str, bytes]
    rating: Rating | None


async def _find_messages(store: Store, run: str) -> _Found:
    found = await find_run(store, run)
    messages = (*found.history, *found.messages)
    (info,) = await store.runs(RunQuery(run_id=found.run_id))
    return _Found(messages, await load_files(store, messages), info.rating)


def append_case(case: Mapping[str, Any], file: Path) -> None:
    """Add a case to a file of cases; raises RequestError."""
    try:
        replace_file(file, with_case(file.read_bytes(), case, str(file)).encode())
    except OSError as error:
        raise RequestError(f"{file} cannot be written: {error.strerror}") from None
    click.echo(f"added to {file}", err=True)
