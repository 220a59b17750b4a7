"""`agentsd conversations import`: reads a conversation from a file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import click

from framework.cli.location import Location, locate
from framework.cli.options import PROJECT_OPTION, tenant_option, user_option
from framework.cli.project import read_project
from framework.cli.records import new_conversation, open_project_store, store_as_turn
from framework.engine.runtime.request import Caller
from framework.llm.message_formats import FORMS, Form, imported_with_files
from framework.types.errors import RequestError
from framework.types.state import RunState
from framework.types.strict_json import read_json

MAX_BYTES = 128 * 1024 * 1024


@click.command("import")
@click.argument("file")
@click.option("-c", "--conversation", metavar="ID", help="Its id. Default: a new one, which is printed.")
@click.option("-a", "--agent", required=True, metavar="AGENT", help="The agent that continues it.")
@user_option("The user it belongs to.")
@tenant_option("The tenant it belongs to.")
@click.option("-f", "--format", "form", type=click.Choice(FORMS), default="messages", show_default=True, help="Format.")
@PROJECT_OPTION
def command(
    file: str,
    conversation: str | None,
    agent: str,
    user: str | None,
    tenant: str | None,
    form: Form,
    project: str,
) -> int:
    """Read a conversation from FILE, in the format of `export` or of a provider's API, and print its id.

    System messages are omitted: the agent has its own instructions.
    """
    made = conversation or new_conversation()
    owner = Caller(user=user, tenant=tenant)
    asyncio.run(_import(locate(project), file, made, agent, owner, form))
    click.echo(made)
    return 0


async def _import(location: Location, file: str, conversation: str, agent: str, owner: Caller, form: Form) -> None:
    project = await read_project(location)
    known = project.catalog.current.agent(agent)
    tools = [tool.definition for tool in known.toolset.offered.values()]
    read, files = imported_with_files(_read(file), form, tools, what=file)
    messages = [message for message in read if message.role != "system"]
    if not messages or messages[0].role != "user":
        raise RequestError(f"{file}: a conversation must begin with a user message")
    state = RunState(
        agent=known.name,
        conversation_id=conversation,
        conversation_ttl=known.spec.conversation.ttl,
        user=owner.user,
        tenant=owner.tenant,
        messages=messages,
        metadata={"imported": True},
    )
    await _store(location, conversation, state, files)


async def _store(location: Location, conversation: str, state: RunState, files: Mapping[str, bytes]) -> None:
    """Store all messages as one completed turn."""
    async with open_project_store(location) as store:
        existing = await store.conversation(conversation, state.tenant, state.user)
        if existing.is_stored:
            raise RequestError(f"conversation {conversation!r} already exists")
        await store_as_turn(store, existing, state, files)


def _read(file: str) -> object:
    path = Path(file)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise RequestError(f"{file} is larger than {MAX_BYTES // 1024 // 1024} MB")
        return read_json(path.read_text("utf-8"), max_values=MAX_BYTES)
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise RequestError(f"{file} is not JSON: {error}") from None
