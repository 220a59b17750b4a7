"""`agentsd conversations delete`: deletes a conversation with its runs, events and traces."""

from __future__ import annotations

import asyncio
import json

import click

from framework.cli.conversations.find import find_conversation
from framework.cli.location import locate
from framework.cli.options import PROJECT_OPTION, tenant_option, user_option
from framework.cli.records import open_project_store
from framework.cli.show import counted


@click.command("delete")
@click.argument("conversation")
@tenant_option()
@user_option()
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print what was deleted as JSON.")
def command(conversation: str, tenant: str | None, user: str | None, project: str, as_json: bool) -> int:
    """Delete CONVERSATION with all of its runs, their events and traces. This cannot be undone."""
    runs = asyncio.run(_delete(project, conversation, tenant, user))
    if as_json:
        click.echo(json.dumps({"conversation": conversation, "runs": runs}))
    else:
        click.echo(f"deleted {conversation} with {counted(runs, 'run')}")
    return 0


async def _delete(project: str, conversation: str, tenant: str | None, user: str | None) -> int:
    async with open_project_store(locate(project)) as store:
        found = await find_conversation(store, conversation, tenant, user)
        return await store.delete_conversation(found.id, found.tenant, found.user)
