"""`agentsd policy suggest`: turns past decisions into rules of the agents' files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import click

from framework.cli.location import Location, locate, open_project_store, show_problem
from framework.cli.main import LazyGroup
from framework.cli.options import DURATION, project_path
from framework.cli.project import read_project
from framework.cli.terminal import prints_on_stderr, say
from framework.config.editing import FileChanged, write_if_unchanged
from framework.engine.runtime.project import Project
from framework.engine.runtime.suggestions import MAX_DECIDED_RUNS, Suggested, Suggestion, suggest
from framework.store.types import RunQuery
from framework.types.errors import ConfigError, RequestError
from framework.types.text import visible

COMMANDS = {"suggest": "Turn past decisions into rules: a diff of the agents' files."}
_STYLES = {"+": "green", "-": "red", "@": "cyan"}
_SIGNS = {"narrow": ("→", "green"), "deny": ("×", "red"), "unused": ("·", None), "kept": ("·", "yellow")}


@click.group("policy", cls=LazyGroup, commands_of=COMMANDS, modules={"suggest": "policy:policy_suggest"})
def command() -> None:
    """Learn rules from what people approved and rejected."""


@click.command("suggest")
@project_path
@click.option("-a", "--agent", metavar="AGENT", help="Only the rules of this agent.")
@click.option(
    "--since",
    type=DURATION,
    metavar="DURATION",
    default="30d",
    show_default=True,
    help="How old the runs may be, e.g. 12h or 7d.",
)
@click.option("--connect", is_flag=True, help="Connect to the tool servers, for rules about their tools.")
@click.option("--apply", "is_applied", is_flag=True, help="Write the edits to the files.")
@click.option("--json", "as_json", is_flag=True, help="Print the suggestions as JSON.")
def policy_suggest(path: str, agent: str | None, since: float, connect: bool, is_applied: bool, as_json: bool) -> int:
    """Compare the rules of a project, or of one agent file, with what people decided about its calls.

    A rule whose calls were approved is narrowed, unless the new one would allow a call that was rejected. Calls that
    were always rejected are denied. Rules that no call matched are listed. The diff is one that `git apply` accepts.
    """
    location = locate(path)
    with prints_on_stderr():
        found = asyncio.run(_suggest(location, agent, since, connect=connect, is_applied=is_applied))
    if as_json:
        data = [one.found.model_dump(mode="json") | {"applied": is_applied and bool(one.found.diff)} for one in found]
        click.echo(json.dumps({"agents": data}, ensure_ascii=False, indent=2))
        return 0
    suggestions = [suggestion for one in found for suggestion in one.found.suggestions]
    for suggestion in suggestions:
        _show(suggestion)
    if not suggestions:
        click.echo("no suggestions: no rule of these agents asked often enough", err=True)
    for one in found:
        for line in one.found.diff.splitlines():
            click.secho(visible(line), fg=_STYLES.get(line[:1]) if not is_applied else None)
        if is_applied and one.found.diff:
            click.secho(f"{one.found.path} is changed", fg="green", err=True)
    return 0


async def _suggest(
    location: Location, agent: str | None, since: float, *, connect: bool, is_applied: bool
) -> list[Suggested]:
    project = await read_project(location, connect=connect)
    generation = project.catalog.current
    for problem in generation.errors:
        show_problem(problem)
    name = location.agent(generation) if location.file is not None else agent
    if name is not None:
        generation.agent(name)
    async with open_project_store(location) as store:
        query = RunQuery(since=store.now() - since, limit=MAX_DECIDED_RUNS)
        decided = await store.decided_calls(query)
    agents = [one for one in generation.agents.values() if name in (None, one.name)]
    found = [suggest(one, generation, decided, decided, project.base_path) for one in agents]
    if is_applied:
        await _apply(project, location, [one for one in found if one.found.diff])
    return found


async def _apply(project: Project, location: Location, found: Sequence[Suggested]) -> None:
    """Write the edits, after all of them have been validated together; raises ConfigError or RequestError."""
    preview = await project.catalog.preview({one.found.path: one.after for one in found})
    known = {*project.catalog.current.errors}
    if caused := [problem for problem in preview.problems if problem.severity == "error" and problem not in known]:
        raise ConfigError("nothing was written, because the edited files are invalid", caused)
    for one in found:
        try:
            write_if_unchanged(location.folder, one.found.path, one.after, one.found.digest)
        except FileChanged:
            raise RequestError(f"{one.found.path} has changed meanwhile: run the command again") from None
        except OSError as error:
            raise RequestError(f"{one.found.path} cannot be written: {error.strerror}") from None


def _show(suggestion: Suggestion) -> None:
    """Print a suggestion on standard error, so that standard output is a diff."""
    sign, color = _SIGNS[suggestion.kind]
    click.secho(sign, fg=color, nl=False, err=True)
    say(f" {suggestion.agent}: {suggestion.rule}  ({suggestion.place})", err=True)
    say(f"    {suggestion.summary}", err=True)
