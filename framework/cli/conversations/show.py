"""`agentsd conversations show`: shows the messages of a conversation, turn by turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise

import click

from framework.cli.conversations.find import find_conversation
from framework.cli.location import locate
from framework.cli.options import PROJECT_OPTION, tenant_option, user_option
from framework.cli.records import ago, open_project_store, runs_of
from framework.cli.runs.list import as_data
from framework.llm.message_formats import exported
from framework.store.types import Conversation, RunInfo
from framework.types.messages import Message
from framework.types.text import visible

_SEEN_STATUSES = ("completed", "stopped")
"""Statuses of turns that models see; the others are only shown."""


@click.command("show")
@click.argument("conversation")
@tenant_option()
@user_option()
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def command(conversation: str, tenant: str | None, user: str | None, project: str, as_json: bool) -> int:
    """Show the messages of CONVERSATION, turn by turn, with the generation that answered each."""
    found, runs = asyncio.run(_load(project, conversation, tenant, user))
    if as_json:
        data = {
            "id": found.id,
            "tenant": found.tenant,
            "user": found.user,
            "agent": found.agent,
            "open_run": found.open_run,
            "turns": [as_data(info) for info in runs],
            "messages": exported(found.messages, "messages"),
            "summary": found.summary.model_dump() if found.summary else None,
        }
        click.echo(json.dumps(data, ensure_ascii=False, indent=2))
        return 0
    for line in conversation_lines(found, runs):
        click.echo(line)
    return 0


async def _load(
    project: str, conversation: str, tenant: str | None, user: str | None
) -> tuple[Conversation, Sequence[RunInfo]]:
    async with open_project_store(locate(project)) as store:
        found = await find_conversation(store, conversation, tenant, user)
        return found, await runs_of(store, found)


def conversation_lines(conversation: Conversation, runs: Sequence[RunInfo], last: int | None = None) -> Iterator[str]:
    """Yield the lines that show a conversation.

    Args:
        conversation: the conversation.
        runs: all of its runs, in order.
        last: number of runs to show, from the end; all by default.
    """
    turns = _turns_by_run(conversation.messages, [info.run_id for info in runs if info.status in _SEEN_STATUSES])
    for info in runs[-last if last else 0 :]:
        head = f"{info.turn}. {ago(info.created_at)}, {info.agent}, generation {info.generation}, {info.run_id}"
        yield click.style(head if info.turn else f"-. {ago(info.created_at)}, {info.run_id}", dim=True)
        for turn in turns.get(info.run_id, ()):
            yield from _turn(turn)
        if info.status != "completed":
            if info.status not in _SEEN_STATUSES:
                yield from _turn([Message(role="user", content=info.message)])
            yield click.style(f"  {_ended(info)}", fg="yellow")
    if conversation.summary:
        upto = conversation.summary.upto
        yield click.style(f"models get this summary of the first {upto} messages:", dim=True)
        yield from (click.style(f"  {visible(line)}", dim=True) for line in conversation.summary.text.splitlines())


def _ended(info: RunInfo) -> str:
    """Describe a status other than `completed`, with what to do about an interrupted run."""
    if info.orphaned:
        return f"orphaned: its process ended; resume it: agentsd runs resume {info.run_id}"
    return f"{info.status} ({info.finish_reason})" if info.finish_reason else info.status


def _turn(messages: Sequence[Message]) -> Iterator[str]:
    yield f"{click.style('you:', bold=True)} {visible(' '.join(messages[0].description.split()))}"
    calls = sum(len(message.tool_calls) for message in messages)
    if calls:
        yield click.style(f"  ({calls} tool call{'s' if calls > 1 else ''})", dim=True)
    answer = next((m.content for m in reversed(messages) if m.role == "assistant" and not m.tool_calls), "")
    yield from (f"  {visible(line)}" for line in answer.splitlines())


def _turns_by_run(messages: Sequence[Message], good: Sequence[str]) -> dict[str, list[Sequence[Message]]]:
    """Assign turns to runs: one each; the first run of an imported conversation has all earlier ones."""
    turns = list(turns_of(messages))
    first = len(turns) - len(good) + 1
    if not good:
        return {}
    return {run: turns[:first] if place == 0 else [turns[first + place - 1]] for place, run in enumerate(good)}


def turns_of(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Split messages into turns: each begins with a user message."""
    starts = [place for place, message in enumerate(messages) if message.role == "user"]
    yield from (messages[start:end] for start, end in pairwise([*starts, len(messages)]))
