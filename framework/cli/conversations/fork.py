"""`agentsd conversations fork`: begins a conversation with the history of another."""

from __future__ import annotations

import asyncio

import click

from framework.cli.conversations.find import find_conversation
from framework.cli.location import locate
from framework.cli.options import PROJECT_OPTION, tenant_option, user_option
from framework.cli.records import new_conversation, open_project_store
from framework.engine.runtime.conversation import ForkPoint, fork_conversation
from framework.types.errors import RequestError


@click.command("fork")
@click.argument("conversation")
@click.option("--before", metavar="RUN", help="Leave out this run, its message, and all after it.")
@click.option("--after", metavar="RUN", help="Keep this run, and those before it. Default: all.")
@click.option("-c", "--new", metavar="ID", help="Id of the new conversation. Default: a new one, which is printed.")
@tenant_option()
@user_option()
@PROJECT_OPTION
def command(
    conversation: str,
    before: str | None,
    after: str | None,
    new: str | None,
    tenant: str | None,
    user: str | None,
    project: str,
) -> int:
    """Begin a new conversation with the history of CONVERSATION, and print its id. Nothing is executed.

    `agentsd chat -c ID` continues it; the other one stays as it is.
    """
    click.echo(asyncio.run(_fork(project, conversation, before, after, new or new_conversation(), tenant, user)))
    return 0


async def _fork(
    project: str,
    conversation: str,
    before: str | None,
    after: str | None,
    new: str,
    tenant: str | None,
    user: str | None,
) -> str:
    async with open_project_store(locate(project)) as store:
        found = await find_conversation(store, conversation, tenant, user)
        if not found.messages:
            raise RequestError(f"conversation {conversation!r} has no answered message to copy")
        point = ForkPoint(before, after, None if before or after else len(found.messages))
        return (await fork_conversation(store, found, point, new)).id
