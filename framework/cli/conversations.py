"""`agentsd conversations`: lists stored conversations; the other commands are imported when called."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from framework.cli.location import ago, locate, open_project_store, times_as_text
from framework.cli.main import LazyGroup
from framework.cli.options import PROJECT_OPTION, tenant_option, user_option
from framework.cli.show import show_table
from framework.store.types import ConversationInfo, ConversationQuery

if TYPE_CHECKING:
    pass


COMMANDS = {
    "list": "List conversations, the one with the latest turn first.",
    "show": "Show the messages of a conversation, and which generation answered.",
    "fork": "Begin a conversation with the history of another.",
    "export": "Write a conversation in a provider's format, or in our own.",
    "import": "Read a conversation from a file.",
    "delete": "Delete a conversation with its runs, events and traces.",
}
_MODULES = {
    "list": "conversations:conversations_list",
    "delete": "transcripts:conversations_delete",
    "show": "transcripts:conversations_show",
    "fork": "transcripts:conversations_fork",
    "export": "transcripts:conversations_export",
    "import": "transcripts:conversations_import",
}


@click.group("conversations", cls=LazyGroup, commands_of=COMMANDS, modules=_MODULES)
def command() -> None:
    """List, show, fork, export, import and delete conversations. `agentsd chat` continues one."""


_COLUMNS = ("conversation", "turns", "agent", "last turn", "user", "waits with", "tenant")


@click.command("list")
@click.option("-a", "--agent", metavar="AGENT", help="Only those whose last turn this agent answered.")
@user_option("Only those of this user.")
@tenant_option("Only those of this tenant.")
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), metavar="N", default=20, show_default=True, help="Maximum number."
)
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def conversations_list(
    agent: str | None, user: str | None, tenant: str | None, limit: int, project: str, as_json: bool
) -> int:
    """List the stored conversations, the one with the latest turn first."""
    query = ConversationQuery(agent=agent, user=user, tenant=tenant, limit=limit)
    found = asyncio.run(_conversations(project, query))
    if as_json:
        click.echo(json.dumps([times_as_text(asdict(info)) for info in found], ensure_ascii=False, indent=2))
    elif not found:
        click.echo("no conversations are stored")
    else:
        show_table(_COLUMNS, [_row(info) for info in found])
    return 0


async def _conversations(project: str, query: ConversationQuery) -> Sequence[ConversationInfo]:
    async with open_project_store(locate(project)) as store:
        return await store.conversations(query)


def _row(info: ConversationInfo) -> list[str]:
    last_turn, open_run = ago(info.updated_at), info.open_run or "-"
    return [info.id, str(info.turns), info.agent or "-", last_turn, info.user or "-", open_run, info.tenant or "-"]
