"""`agentsd grants` and `policy`: the approvals that are remembered, and rules learned from past decisions."""

from __future__ import annotations

import asyncio
import getpass
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from framework.cli.location import (
    DURATION,
    PROJECT_OPTION,
    Location,
    has_store,
    in_store,
    locate,
    moment,
    open_project_store,
    project_path,
    show_problem,
    tenant_option,
    user_option,
)
from framework.cli.project import read_project
from framework.cli.show import NOTHING, counted, show_table
from framework.cli.terminal import print_json, prints_on_stderr, say
from framework.config.editing import FileChanged, write_if_unchanged
from framework.engine.context.grants import state_of
from framework.engine.runtime.project import Project
from framework.engine.runtime.suggestions import MAX_DECIDED_RUNS, Suggested, Suggestion, suggest
from framework.store.types import GrantQuery, RunQuery
from framework.types.errors import ConfigError, RequestError
from framework.types.grant import Grant
from framework.types.text import did_you_mean, visible

if TYPE_CHECKING:
    from framework.store.store import Store

_COLUMNS = ("grant", "agent", "for", "uses", "expires", "by", "state", "covers")
MAX_GRANTS = 1000


@click.group("grants")
def command() -> None:
    """List and revoke approvals that are remembered."""


@command.command("list")
@click.option("-a", "--agent", metavar="AGENT", help="Only those of this agent, or of its sub-agents.")
@user_option("Only those of this user.")
@tenant_option("Only those of this tenant.")
@click.option("--all", "with_ended", is_flag=True, help="Also those that have expired or were revoked.")
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def grants_list(
    agent: str | None, user: str | None, tenant: str | None, with_ended: bool, project: str, as_json: bool
) -> int:
    """List the approvals that are remembered, the newest first, with who approved what and how often it was used."""
    location = locate(project)
    query = GrantQuery(among=agent, user=user, tenant=tenant, limit=MAX_GRANTS)
    found, now = asyncio.run(read_grants(location, query))
    found = [one for one in found if with_ended or one.is_active(now)]
    read = asyncio.run(read_project(location, connect=False)) if found else None
    rows = [{**one.model_dump(mode="json"), "state": state_text(one, read, now)} for one in found if read]
    if as_json:
        print_json(rows)
    elif not rows:
        click.echo("no approvals are remembered")
    else:
        show_table(_COLUMNS, [_row(one, row["state"]) for one, row in zip(found, rows, strict=True)])
    return 0


@command.command("revoke")
@click.argument("grant", nargs=-1, required=True)
@PROJECT_OPTION
def grants_revoke(grant: tuple[str, ...], project: str) -> int:
    """End remembered approvals, by the ids that `agentsd grants list` shows. It applies to the next call at once."""

    async def revoke(store: Store) -> None:
        known = [one.id for one in await store.grants.list(GrantQuery(limit=MAX_GRANTS))]
        for one in grant:
            if not await store.grants.revoke(one, _user_name()):
                raise RequestError(f"there is no grant {one!r}{did_you_mean(one, known)}")
            click.echo(f"revoked {one}")

    in_store(project, revoke)
    return 0


async def read_grants(location: Location, query: GrantQuery) -> tuple[Sequence[Grant], float]:
    """Return the grants of the project's store that match, and its time. A store that does not exist is not created."""
    if not has_store(location):
        return (), 0.0
    async with open_project_store(location) as store:
        return await store.grants.list(query), store.now()


def state_text(grant: Grant, project: Project, now: float) -> str:
    """Return whether a grant is `active`, `expired`, `revoked …`, or why it is void."""
    state, reason = state_of(grant, project.catalog.current, now)
    if state == "revoked":
        return f"revoked by {grant.revoked_by or 'an unnamed person'}"
    return f"void: {reason}" if reason else state


def grant_line(grant: Grant, state: str) -> str:
    """Return a grant in one line, with its origin."""
    rate = f", at most {grant.at_most}" if grant.at_most else ""
    void = "" if state == "active" else f"; {state}"
    until, uses = moment(grant.expires_at), counted(grant.uses, "use")
    about = f"({grant.id}, {grant.origin()}, {uses}{void})"
    return f"{grant.covers_text()}, for {grant.scope_text()}{rate} until {until} {about}"


def _row(grant: Grant, state: str) -> list[str]:
    arguments = f"{grant.tool} {json.dumps(grant.arguments, ensure_ascii=False)}"
    return [
        grant.id,
        grant.agent,
        grant.scope_text(),
        f"{grant.uses}, {grant.at_most}" if grant.at_most else str(grant.uses),
        moment(grant.expires_at)[:10],
        grant.by or NOTHING,
        state,
        arguments if grant.width == "call" else grant.covers_text(),
    ]


def _user_name() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        return None


_STYLES = {"+": "green", "-": "red", "@": "cyan"}
_SIGNS = {"narrow": ("→", "green"), "deny": ("×", "red"), "unused": ("·", None), "kept": ("·", "yellow")}


@click.group("policy")
def policy_command() -> None:
    """Learn rules from what people approved and rejected."""


@policy_command.command("suggest")
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
        print_json({"agents": data})
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
