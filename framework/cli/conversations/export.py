"""`agentsd conversations export`: writes a conversation as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import click

from framework.cli.conversations.find import find_conversation
from framework.cli.location import locate
from framework.cli.options import PROJECT_OPTION, tenant_option, user_option
from framework.cli.records import load_files, open_project_store
from framework.cli.terminal import as_json_text, write_out
from framework.llm.message_formats import FORMS, Form, exported
from framework.store.types import Conversation


@click.command("export")
@click.argument("conversation")
@click.option("-f", "--format", "form", type=click.Choice(FORMS), default="messages", show_default=True, help="Format.")
@click.option("-o", "--output", metavar="FILE", help="Write to this file instead of standard output.")
@tenant_option()
@user_option()
@PROJECT_OPTION
def command(
    conversation: str, form: Form, output: str | None, tenant: str | None, user: str | None, project: str
) -> int:
    """Write all messages of CONVERSATION as JSON: in our own format (`messages`) or in that of a provider's API.

    Images, PDFs and audio are contained in base64.
    """
    found, files = asyncio.run(_load(project, conversation, tenant, user))
    write_out(as_json_text(exported(found.messages, form, files=files)), output)
    return 0


async def _load(
    project: str, conversation: str, tenant: str | None, user: str | None
) -> tuple[Conversation, Mapping[str, bytes]]:
    async with open_project_store(locate(project)) as store:
        found = await find_conversation(store, conversation, tenant, user)
        return found, await load_files(store, found.messages)
