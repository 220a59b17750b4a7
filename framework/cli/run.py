"""`agentsd run`: sends one message to an agent and prints the answer."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from framework.cli.exporting import exporting
from framework.cli.location import Location, locate, show_problem
from framework.cli.schema import refresh_schemas
from framework.cli.screen import prints_on_stderr
from framework.cli.session import JsonLines, answer, print_result
from framework.cli.waterfall import waterfall, widths_of
from framework.config.settings import Settings
from framework.engine.runtime.request import RunOptions
from framework.engine.runtime.runtime import Runtime
from framework.engine.runtime.user_input import UserMessage
from framework.types.file import File
from framework.types.outcome import outcome_for
from framework.types.state import RunResult
from framework.types.trace import SpanRecord

Traced = tuple[RunResult, Sequence[SpanRecord]]
"""A result and its stored trace."""


def parse_pairs(values: tuple[str, ...]) -> dict[str, Any]:
    """Parse `name=value` options; a value that is valid JSON is decoded."""
    parse_pairs: dict[str, Any] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals:
            raise click.UsageError(f"write {value}=VALUE")
        try:
            parse_pairs[name] = json.loads(text)
        except json.JSONDecodeError:
            parse_pairs[name] = text
    return parse_pairs


@click.command("run")
@click.argument("words", nargs=-1, required=True, metavar="[FILE] MESSAGE")
@click.option("-a", "--agent", help="Which agent; otherwise the router chooses.")
@click.option(
    "-f", "--file", "files", multiple=True, metavar="FILE", help="Attach an image, a PDF or audio; repeatable."
)
@click.option("--conversation", metavar="ID", help="Continue this conversation, or start it.")
@click.option("-C", "--project", default=".", show_default=True, help="The project's folder.")
@click.option("-m", "--model", help="Use this model instead of the agents' own, e.g. openai/gpt-5.4-mini.")
@click.option("-i", "--input", "inputs", multiple=True, metavar="NAME=VALUE", help="An input of the agent.")
@click.option(
    "-l", "--limit", "limits", multiple=True, metavar="NAME=VALUE", help="Override a limit, e.g. max_steps=3."
)
@click.option("--locale", help="Language of the prompts, e.g. zh.")
@click.option("--trace", is_flag=True, help="Draw the trace as a waterfall at the end.")
@click.option("--otlp", metavar="URL", help="Send the trace to this endpoint, e.g. http://127.0.0.1:6006 (Phoenix).")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
@click.option("--events", is_flag=True, help="Print each event as it happens, as one line of JSON.")
def command(words: tuple[str, ...], project: str, as_json: bool, trace: bool, **given: Any) -> int:
    """Send MESSAGE to an agent and print its answer.

    FILE is an agent file, e.g. `agentsd run ./one.yaml "hi"`; it needs no project.
    Exit codes: 0 answered, 1 stopped or failed, 3 waits for approval, 130 cancelled.
    """
    one_file = len(words) > 1 and words[0].endswith((".yaml", ".yml"))
    path, message = (words[0], " ".join(words[1:])) if one_file else (project, " ".join(words))
    if as_json and given["events"]:
        raise click.UsageError("use --json or --events, not both")
    given["events"] = JsonLines(sys.stdout) if given["events"] else None
    content: UserMessage = [*map(File.from_path, given.pop("files")), message]
    with prints_on_stderr():
        result, spans = asyncio.run(_run(path, content, given, quiet=as_json or given["events"] is not None))
    code = outcome_for(result.finish_reason).exit_code if given["events"] else print_result(result, as_json=as_json)
    for line in waterfall(spans, widths_of(sys.stderr)) if trace else ():
        click.echo(line, err=True)
    return code


async def _run(path: str, message: UserMessage, given: Mapping[str, Any], *, quiet: bool) -> Traced:
    location = locate(path)
    settings = location.settings()
    with exporting(settings, given["otlp"]):
        return await _answer(location, settings, message, given, quiet=quiet)


async def _answer(
    location: Location, settings: Settings, message: UserMessage, given: Mapping[str, Any], *, quiet: bool
) -> Traced:
    url = settings.store.url.get_secret_value()
    async with Runtime.open(location.root, settings=settings, store=url, watch=False, single_user=True) as runtime:
        refresh_schemas(runtime)
        generation = runtime.catalog.current
        if not quiet and generation.agents:
            for problem in generation.startup_problems:
                show_problem(problem)
        options = RunOptions(
            agent=given["agent"] or location.agent(generation),
            conversation=given["conversation"],
            model=given["model"],
            inputs=parse_pairs(given["inputs"]),
            limits=parse_pairs(given["limits"]),
            locale=given["locale"],
        )
        result = await answer(runtime, runtime.stream(message, **options), quiet=quiet, events=given["events"])
        return result, await runtime.store.spans(result.run_id)
