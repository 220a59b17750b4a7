"""Runs one message in the terminal: `agentsd run`, and what other commands share with it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO

import click

from framework.cli.confirm import CountMatches, ask_for_decisions
from framework.cli.location import (
    INPUT_OPTION,
    LIMIT_OPTION,
    LOCALE_OPTION,
    MODEL_OPTION,
    PROJECT_OPTION,
    Location,
    find_run,
    locate,
    model_of,
    parse_inputs,
    parse_pairs,
    show_problem,
    store_url,
    tenant_option,
    user_option,
)
from framework.cli.project import refresh_schemas, trace_export
from framework.cli.show import Lines, View, how_to_decide, reason_for_no_answer, requested_waterfall
from framework.cli.terminal import (
    draws,
    is_terminal,
    on_interrupt,
    print_json,
    prints_on_stderr,
    raw_stderr,
    say,
    shows_answers,
    wrapped_line,
)
from framework.config.settings import Settings
from framework.engine.context.events import RunStream
from framework.engine.runtime.request import RunOptions
from framework.engine.runtime.runtime import Runtime
from framework.store.types import RunQuery
from framework.types.errors import ConfigError, StoreError, outcome_for
from framework.types.events import Event, Warned, wire
from framework.types.file import File
from framework.types.messages import MAX_MESSAGE_CHARS
from framework.types.problem import Problem
from framework.types.report import SpanRecord, incomplete_text
from framework.types.state import Confirmation, Decision, RunResult

if TYPE_CHECKING:
    from framework.cli.run_view import LiveArea

_REPEATED = ("tool_server", "missing_package")


class StartupProblems:
    """The problems that a command has shown, so that the warnings of its runs do not repeat them."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def show(self, problems: Iterable[Problem]) -> None:
        """Print problems on standard error."""
        for problem in problems:
            show_problem(problem)
            self._shown.add(problem.message)

    @contextmanager
    def shown_once(self) -> Iterator[None]:
        """Remove the problems from a ConfigError if all of them have been printed."""
        try:
            yield
        except ConfigError as error:
            if error.problems and all(problem.message in self._shown for problem in error.problems):
                raise ConfigError(error.message) from None
            raise

    def repeats(self, event: Event) -> bool:
        """Return whether an event warns of unavailable tools as a problem or another run did."""
        if not isinstance(event, Warned) or event.code not in _REPEATED:
            return False
        if any(text in event.message for text in self._shown):
            return True
        self._shown.add(event.message)
        return False


Ask = Callable[[Iterable[Confirmation], CountMatches], Awaitable[Mapping[str, Decision]]]
Interrupts = Callable[[Callable[[], object]], AbstractContextManager[None]]
Hides = Callable[[Event], bool]
COUNT_SECONDS = 1.0


def view_of_run(title: str = "…", area: LiveArea | None = None) -> View:
    """Return a drawing of the run on a terminal, lines elsewhere."""
    if not draws():
        return Lines()
    run_view = import_module("framework.cli.run_view")  # with Markdown and its highlighting, only for terminals
    view: View = run_view.RunView(area or run_view.TerminalArea(raw_stderr()), title, shows_answer=shows_answers())
    return view


@asynccontextmanager
async def shown_from_now(view: View | None) -> AsyncIterator[None]:
    """Show that a run starts, e.g. while tool servers are started; end the view with the context."""
    if view is not None:
        view.start()
    try:
        yield
    finally:
        if view is not None:
            view.close()


class JsonLines(View):
    """Prints each event in its wire format as one line of JSON, as it happens."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def show(self, event: Event) -> None:
        click.echo(json.dumps(wire(event), ensure_ascii=False), file=self._output)


async def answer(
    runtime: Runtime,
    started: AbstractAsyncContextManager[RunStream],
    view: View | None,
    *,
    ask: Ask = ask_for_decisions,
    interrupts: Interrupts = on_interrupt,
    hides: Hides = lambda _: False,
) -> RunResult:
    """Show a run until it ends; on a terminal, ask for decisions and resume it. Ctrl-C there leaves it paused.

    With None or `JsonLines` as its view, no question is asked. Events that `hides` names are not shown: the user has
    seen their content.
    """
    result = await _watch(runtime, started, view, interrupts, hides)
    while result.status == "paused" and view and not isinstance(view, JsonLines) and is_terminal():
        try:
            decisions = await ask(result.pending, partial(runtime.preview_widths, result.run_id))
        except click.Abort:
            break
        result = await _watch(runtime, runtime.resume_stream(result.run_id, decisions), view, interrupts, hides)
    return result


async def _watch(
    runtime: Runtime,
    started: AbstractAsyncContextManager[RunStream],
    view: View | None,
    interrupts: Interrupts,
    hides: Hides,
) -> RunResult:
    """Show a run until it ends or pauses; Ctrl-C cancels it in order."""
    async with started as stream:
        counting = asyncio.create_task(_count(runtime, stream, view)) if view and view.is_drawn else None
        try:
            with interrupts(stream.cancel):
                async for event in stream:
                    if view is not None and not hides(event):
                        view.show(event)
        finally:
            if counting is not None:
                counting.cancel()
            if view is not None:
                view.close()
        return await stream.result()


async def _count(runtime: Runtime, stream: RunStream, view: View) -> None:
    """Show what the run has used so far, as of its last stored step."""
    with suppress(StoreError):  # the run reports it
        while True:
            await asyncio.sleep(COUNT_SECONDS)
            for info in await runtime.store.runs(RunQuery(run_id=stream.run_id, limit=1)):
                view.count(info.tokens, info.cost_usd)


def data_of(result: RunResult) -> dict[str, Any]:
    """Return a result as JSON data. Results of tools, which may be large, are in `tool_calls`, and nowhere else.

    What the model read instead, e.g. a cut result, is the content of the tool's message.
    """
    data = result.model_dump(mode="json", exclude_none=True)
    outputs = {call["id"]: call.get("result") for call in data["tool_calls"]}
    seen = {message.get("tool_call_id"): message["content"] for message in data["messages"]}
    for entry in data["trace"]:
        call = entry["call_id"]
        if "tool_output" in entry and call in outputs and entry["tool_output"] == outputs[call]:
            del entry["tool_output"]
        if "observation" in entry and entry["observation"] == seen.get(call):
            del entry["observation"]
    for message in data["messages"]:
        if _is_text_of(message["content"], outputs.get(message.get("tool_call_id"))):
            del message["content"]
    return data


def _is_text_of(text: str, value: object) -> bool:
    """Return whether a text is all that a model reads of a tool's result."""
    if value is None or text == value:
        return value is not None
    try:
        return bool(json.loads(text) == value)
    except ValueError:
        return False


def print_result(result: RunResult, *, as_json: bool) -> int:
    """Print the answer on standard output, or the reason for none on standard error; return the exit code."""
    if as_json:
        print_json(data_of(result))
    else:
        if result.output and not (sys.stdout.isatty() and draws()):  # on a terminal, it was shown as it arrived
            say(result.output)
        if result.truncated and result.status == "completed":
            say(wrapped_line("incomplete: the output limit cut this answer"), fg="yellow", err=True)
        if result.incomplete and result.status == "completed":
            say(wrapped_line(incomplete_text(result.incomplete)), fg="yellow", err=True)
        if text := reason_for_no_answer(result):
            colour = "yellow" if result.status == "paused" else "red"
            say("\n".join(map(wrapped_line, text.splitlines())), fg=colour, err=True)
        if result.pending:
            click.secho(how_to_decide(result), dim=True, err=True)
    return outcome_for(result.finish_reason).exit_code


@asynccontextmanager
async def open_runtime(location: Location, *, quiet: bool = True) -> AsyncIterator[Runtime]:
    """Open a project's runtime on its store; print its startup problems unless `quiet`."""
    with trace_export(location.settings()):
        url = store_url(location)
        opened = Runtime.open(location.root, store=url, watch=False, single_user=True, gate_start=False)
        async with opened as runtime:
            StartupProblems().show(() if quiet else runtime.catalog.current.startup_problems)
            yield runtime


async def resume_run(
    location: Location,
    run: str,
    decide: Callable[[Sequence[Confirmation], CountMatches], Awaitable[Mapping[str, Decision]]],
    *,
    user: str | None = None,
    quiet: bool,
) -> RunResult:
    """Resume a run until it ends or waits again.

    `run` is the id of a run, a prefix of one, or `last`.

    Raises:
        RunNotFound: no such run is stored.
        RequestError: the run cannot be resumed, or a decision does not match.
    """
    async with open_runtime(location, quiet=quiet) as runtime:
        state = await find_run(runtime.store, run)
        decisions = await decide(state.pending, partial(runtime.preview_widths, state.run_id))
        resumed = runtime.resume_stream(state.run_id, decisions, user=user)
        return await answer(runtime, resumed, None if quiet else view_of_run(f"● {state.answering} (resumed)"))


Traced = tuple[RunResult, Sequence[SpanRecord]]
STDIN = "-"


@click.command("run")
@click.argument("words", nargs=-1, required=True, metavar="[FILE] MESSAGE")
@click.option("-a", "--agent", metavar="AGENT", help="Which agent; otherwise the router chooses.")
@click.option(
    "-f", "--file", "files", multiple=True, metavar="FILE", help="Attach an image, a PDF or audio; repeatable."
)
@click.option("-c", "--conversation", metavar="ID", help="Continue this conversation, or start it.")
@user_option("The user of the conversation.")
@tenant_option("The tenant of the conversation.")
@PROJECT_OPTION
@MODEL_OPTION
@INPUT_OPTION
@LIMIT_OPTION
@LOCALE_OPTION
@click.option("--trace", is_flag=True, help="Draw the trace as a waterfall at the end.")
@click.option("--otlp", metavar="URL", help="Send the trace to this endpoint, e.g. http://127.0.0.1:6006 (Phoenix).")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
@click.option("--events", is_flag=True, help="Print each event as it happens, as one line of JSON.")
def command(words: tuple[str, ...], project: str, as_json: bool, trace: bool, **given: Any) -> int:
    """Send MESSAGE to an agent and print its answer.

    MESSAGE `-` is read from standard input, e.g. `agentsd run - < question.txt`.
    FILE is an agent file, e.g. `agentsd run ./one.yaml "hi"`; it needs no project.
    Exit codes: 0 answered, 1 stopped or failed, 3 waits for approval, 130 cancelled.
    """
    one_file = len(words) > 1 and words[0].endswith((".yaml", ".yml"))
    path, words = (words[0], words[1:]) if one_file else (project, words)
    if as_json and given["events"]:
        raise click.UsageError("use --json or --events, not both")
    given["events"] = JsonLines(sys.stdout) if given["events"] else None
    given["files"] = [*map(File.from_path, given["files"])]
    with prints_on_stderr():
        result, spans = asyncio.run(_run(path, words, given, quiet=as_json or given["events"] is not None))
    code = outcome_for(result.finish_reason).exit_code if given["events"] else print_result(result, as_json=as_json)
    for line in requested_waterfall(spans, sys.stderr) if trace else ():
        click.echo(line, err=True)
    return code


async def _run(path: str, words: Sequence[str], given: Mapping[str, Any], *, quiet: bool) -> Traced:
    location = locate(path)
    settings = location.settings()
    with trace_export(settings, given["otlp"]):
        return await _answer(location, settings, words, given, quiet=quiet)


async def _answer(
    location: Location, settings: Settings, words: Sequence[str], given: Mapping[str, Any], *, quiet: bool
) -> Traced:
    url = settings.store.url.get_secret_value()
    view = given["events"] or (None if quiet else view_of_run())
    async with (
        shown_from_now(view),
        Runtime.open(
            location.root, settings=settings, store=url, watch=False, single_user=True, gate_start=False
        ) as runtime,
    ):
        refresh_schemas(runtime)
        generation = runtime.catalog.current
        problems = StartupProblems()
        if not quiet and generation.agents:
            problems.show(generation.startup_problems)
        with problems.shown_once():
            agent = given["agent"] or location.agent(generation)
            if agent is None and len(words) > 1 and words[0] in generation.agents:  # `agentsd run AGENT MESSAGE`
                agent, *words = words
            text = " ".join(words)
            message = [*given["files"], sys.stdin.read(MAX_MESSAGE_CHARS + 1).strip() if text == STDIN else text]
            options = RunOptions(
                agent=agent,
                conversation=given["conversation"],
                user=given["user"],
                tenant=given["tenant"],
                model=model_of(given["model"]),
                inputs=parse_inputs(given["inputs"]),
                limits=parse_pairs(given["limits"]),
                locale=given["locale"],
            )
            result = await answer(runtime, runtime.stream(message, **options), view, hides=problems.repeats)
        return result, await runtime.store.spans(result.run_id)
