"""`agentsd grants`: lists the approvals that are remembered, and revokes them."""

from __future__ import annotations

import asyncio
import getpass
import json
from collections.abc import Sequence
from typing import Any

import click

from framework.cli.location import Location, locate, moment, open_project_store, store_url
from framework.cli.options import PROJECT_OPTION, tenant_option, user_option
from framework.cli.project import read_project
from framework.cli.show import NOTHING, counted, show_table
from framework.engine.context.grants import why_void
from framework.engine.runtime.project import Project
from framework.store.types import GrantQuery, database_paths
from framework.types.errors import RequestError
from framework.types.grant import Grant
from framework.types.text import did_you_mean

_COLUMNS = ("grant", "agent", "for", "uses", "expires", "by", "state", "covers")
MAX_GRANTS = 1000


@click.group("grants")
def command() -> None:
    """List and revoke approvals that are remembered."""


@command.command("list")
@click.option("-a", "--agent", metavar="AGENT", help="Only those of this agent.")
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
    query = GrantQuery(agent=agent, user=user, tenant=tenant, limit=MAX_GRANTS)
    found, now = asyncio.run(read_grants(location, query))
    found = [one for one in found if with_ended or one.is_active(now)]
    read = asyncio.run(read_project(location, connect=False)) if found else None
    rows = [{**one.model_dump(mode="json"), "state": state_of(one, read, now)} for one in found if read]
    if as_json:
        click.echo(json.dumps(rows, ensure_ascii=False, indent=2))
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

    async def revoke() -> None:
        async with open_project_store(locate(project)) as store:
            known = [one.id for one in await store.grants.list(GrantQuery(limit=MAX_GRANTS))]
            for one in grant:
                if not await store.grants.revoke(one, _user_name()):
                    raise RequestError(f"there is no grant {one!r}{did_you_mean(one, known)}")
                click.echo(f"revoked {one}")

    asyncio.run(revoke())
    return 0


async def read_grants(location: Location, query: GrantQuery) -> tuple[Sequence[Grant], float]:
    """Return the grants of the project's store that match, and its time. A store that does not exist is not created."""
    url = store_url(location)
    files = database_paths(url, location.root)
    if url.startswith("memory:") or (files and not files[0].exists()):
        return (), 0.0
    async with open_project_store(location) as store:
        return await store.grants.list(query), store.now()


def state_of(grant: Grant, project: Project, now: float) -> str:
    """Return whether a grant is `active`, `expired`, `revoked …`, or why it is void."""
    if grant.revoked_at is not None:
        return f"revoked by {grant.revoked_by or 'an unnamed person'}"
    if not grant.is_active(now):
        return "expired"
    void = why_void(grant, project.catalog.current.agents, project.settings)
    return f"void: {void}" if void else "active"


def grant_line(grant: Grant, state: str) -> str:
    """Return a grant in one line, with its origin."""
    rate = f", at most {grant.at_most}" if grant.at_most else ""
    void = "" if state == "active" else f"; {state}"
    until, uses = moment(grant.expires_at), counted(grant.uses, "use")
    about = f"({grant.id}, {grant.origin()}, {uses}{void})"
    return f"{grant.covers_text()}, for {grant.scope_text()}{rate} until {until} {about}"


def _row(grant: Grant, state: str) -> list[str]:
    covers: dict[str, Any] = {"call": f"{grant.tool} {json.dumps(grant.arguments, ensure_ascii=False)}"}
    return [
        grant.id,
        grant.agent,
        grant.scope_text(),
        f"{grant.uses}, {grant.at_most}" if grant.at_most else str(grant.uses),
        moment(grant.expires_at)[:10],
        grant.by or NOTHING,
        state,
        covers.get(grant.width, grant.covers_text()),
    ]


def _user_name() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        return None
