"""`agentsd run`: sends one message to an agent and prints the answer."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from framework.cli.location import Location, locate
from framework.cli.options import (
    INPUT_OPTION,
    LIMIT_OPTION,
    LOCALE_OPTION,
    MODEL_OPTION,
    PROJECT_OPTION,
    parse_inputs,
    parse_pairs,
    tenant_option,
    user_option,
)
from framework.cli.project import refresh_schemas, trace_export
from framework.cli.session import JsonLines, StartupProblems, answer, print_result, shown_from_now, view_of_run
from framework.cli.show import requested_waterfall
from framework.cli.terminal import prints_on_stderr
from framework.config.settings import Settings
from framework.engine.runtime.request import RunOptions, UserMessage
from framework.engine.runtime.runtime import Runtime
from framework.types.errors import outcome_for
from framework.types.file import File
from framework.types.messages import MAX_MESSAGE_CHARS
from framework.types.state import RunResult
from framework.types.trace import SpanRecord

Traced = tuple[RunResult, Sequence[SpanRecord]]
"""A result and its stored trace."""
STDIN = "-"
"""A message that is read from standard input."""


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


def _message(words: Sequence[str], files: Sequence[File]) -> UserMessage:
    """Return the message with its files; `-` alone is read from standard input."""
    text = " ".join(words)
    return [*files, sys.stdin.read(MAX_MESSAGE_CHARS + 1).strip() if text == STDIN else text]


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
            options = RunOptions(
                agent=agent,
                conversation=given["conversation"],
                user=given["user"],
                tenant=given["tenant"],
                model=given["model"],
                inputs=parse_inputs(given["inputs"]),
                limits=parse_pairs(given["limits"]),
                locale=given["locale"],
            )
            result = await answer(
                runtime, runtime.stream(_message(words, given["files"]), **options), view, hides=problems.repeats
            )
        return result, await runtime.store.spans(result.run_id)
