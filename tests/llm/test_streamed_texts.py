"""Texts of a streamed run: what arrives in deltas is what the numbered events contain, in every provider's format."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from framework import Runtime, tool
from framework.testing import JsonStore
from framework.types.events import ContentReceived, Event, Thought
from tests.support.formats import Format, each_format, says
from tests.support.projects import agent, write
from tests.support.wire import wire_server


@tool(risk="low")
async def look() -> str:
    """Look."""
    return "seen"


@each_format
def test_the_numbered_events_contain_the_text_of_the_deltas(form: Format, tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one")})
    store = JsonStore()
    answers = [
        says(form, "wait a bit", calls=(("look", {}),), thought="let me see"),
        says(form, "it is done now", thought="that was it"),
    ]

    async def main() -> tuple[list[Event], list[dict[str, Any]]]:
        async with wire_server(answers) as server:
            options: dict[str, Any] = {"models": {"scripted": form.model(server.url)}, "tools": [look], "watch": False}
            async with Runtime.open(tmp_path, store=store, **options) as runtime, runtime.stream("go") as stream:
                received = [event async for event in stream]
                return received, [dict(event) for event in await store.events(stream.run_id)]

    received, stored = asyncio.run(main())
    thought = {"msg.1": "let me see\nwait a bit", "msg.2": "that was it"}
    answer = {"msg.2": "it is done now"}
    assert {event["message_id"]: event["text"] for event in stored if event["event"] == "thinking"} == thought
    assert {event["message_id"]: event["text"] for event in stored if event["event"] == "content"} == answer
    assert joined(received, Thought) == thought
    assert joined(received, ContentReceived) == {"msg.1": "wait a bit", **answer}


def joined(events: list[Event], kind: type[Thought | ContentReceived]) -> dict[str, str]:
    """Return the text of each message, as a listener puts it together."""
    texts: dict[str, str] = {}
    for event in events:
        if isinstance(event, kind):
            texts[event.message_id] = texts.get(event.message_id, "") + event.text
    return texts
