"""What the console shows of a run: the same from its live events, after lost connections, and after a reload."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Approve, Edit, ModelError, Runtime, tool
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, calls
from framework.types.events import wire
from framework.types.messages import Message, Reasoning
from tests.support.cases import cases
from tests.support.node_modules import call
from tests.support.plans import draft, model_step, tool_step
from tests.support.projects import agent, write

Events = list[dict[str, Any]]
RUNS = ("tools", "plan", "retry")


@tool(risk="low")
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(risk="low")
async def note(text: str) -> str:
    """Write a note."""
    if text == "bad":
        raise ValueError("no ink")
    return f"noted {text}"


POLICY = """
  allow: ["*"]
  ask: [{tool: pay, when: {amount: "> 50"}, reason: money}]
  deny: [{tool: pay, when: {amount: "> 500"}}]
"""
FILES = {
    "agents.d/a.yaml": agent("a", skill_policy=POLICY, runtime_policy="{risk_level: high}", sub_agents="[b]"),
    "agents.d/b.yaml": agent("b"),
    "agents.d/p.yaml": agent("p", executor="plan", plan="{approval: {from: low}, on_failure: replan}"),
}
LOOK = Message(
    role="assistant",
    content="Let me 看 😀",
    reasoning=Reasoning(text="hm 😀, an order"),
    tool_calls=calls(
        ("pay", {"amount": 900}),
        ("nope", {}),
        ("pay", {"amount": 60}),
        ("agent.b", {"message": "write"}),
        ("note", {"text": "x"}),
    ),
)
ANSWER = Message(role="assistant", content="all is done now", reasoning=Reasoning(text="finished"))


PLANS = (
    draft(
        tool_step("s1", "note", text="bad"),
        tool_step("s2", "note", text="one"),
        tool_step("s3", "note", "s1", text="two"),
    ),
    draft(tool_step("s4", "note", text="three"), model_step("s5", "s4")),
)


class Failing(ScriptedModel):
    """A model that fails once, in the middle of an answer."""

    async def stream(self, request: ModelRequest) -> Any:
        if not self.requests:
            async for delta in super().stream(request):
                yield delta
                raise ModelError("the provider hung up", retryable=True)
        async for delta in super().stream(request):
            yield delta


@cache
def events_of(name: str) -> Events:
    """Return the events of a real run, as a client gets them that follows it from the beginning."""
    model = {
        "tools": ScriptedModel(LOOK, calls(("note", {"text": "y"})), "b wrote it", ANSWER),
        "plan": ScriptedModel(*PLANS, calls(("note", {"text": "four"})), "thought about it", "the notes are written"),
        "retry": Failing("the first attempt", "the second one, and more"),
    }[name]

    async def main(root: Path) -> Events:
        found, options = Events(), {"models": {"scripted": model}, "tools": [pay, note], "watch": False}
        async with Runtime.open(write(root, FILES), **options) as runtime:  # type: ignore[arg-type]  # of several types
            assert runtime.catalog.problems == ()
            run_id = (await runtime.submit("go", agent="p" if name == "plan" else "a")).run_id
            async for event in runtime.follow(run_id, through_pauses=True):
                found.append(wire(event))
                if found[-1].get("status") == "paused":
                    edit = Edit(arguments={"amount": 70})
                    pending = await runtime.pending(run_id)
                    await runtime.decide(run_id, {one.id: edit if one.tool == "pay" else Approve() for one in pending})
        return found

    with TemporaryDirectory() as folder:
        return asyncio.run(main(Path(folder)))


def fold(*connections: Events) -> Any:
    return call("widgets/run-model.js", "fold", *connections)


def stored(name: str) -> Events:
    """Return the events that the store has: those with a number."""
    return [event for event in events_of(name) if event["seq"]]


def reconnected(events: Events, cuts: Sequence[tuple[int, int]]) -> Iterator[Events]:
    """Yield what arrives over each connection, if each is lost before an event, and the next begins at a later one.

    Numbered events in between arrive then. Of deltas, the text so far of messages in progress arrives as one.
    """
    begin, missed = 0, Events()
    for lost, back in [*cuts, (len(events), len(events))]:
        yield [*missed, *so_far(events[:begin]), *events[begin:lost]] if begin else events[:lost]
        missed = [event for event in events[lost:back] if event["seq"]]
        begin = back


def so_far(events: Events) -> Iterator[dict[str, Any]]:
    """Yield one delta for each text of the last message at each path, unless it is complete or void."""
    texts: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
    for event in events:
        path, kind = tuple(event["path"]), event["event"]
        if kind in ("thinking", "content") and not event["seq"]:
            kept = texts.setdefault(path, {})
            if any(other["message_id"] != event["message_id"] for other in kept.values()):
                kept.clear()
            before = kept.get(kind, {"text": ""})["text"]
            kept[kind] = event | {"text": before + event["text"]}
        elif event.get("message_id") and kind in ("thinking", "content", "warning"):
            texts.pop(path, None)
    for kept in texts.values():
        yield from kept.values()


@pytest.mark.parametrize("name", RUNS)
def test_a_reload_shows_what_was_shown_live(name: str) -> None:
    assert fold(stored(name)) == fold(events_of(name))


@given(st.sampled_from(RUNS), st.lists(st.floats(0, 1), max_size=6), st.floats(0, 1))
@cases(40)
def test_lost_connections_change_nothing(name: str, shares: list[float], end: float) -> None:
    events = events_of(name)
    events = events[: round(end * len(events))]
    places = sorted(round(share * len(events)) for share in shares[: len(shares) // 2 * 2])
    cuts = list(zip(places[::2], places[1::2], strict=True))
    assert fold(*reconnected(events, cuts)) == fold(events)


@given(st.sampled_from(RUNS), st.floats(0, 1), st.floats(0, 1))
@cases(40)
def test_events_that_arrive_again_change_nothing(name: str, one: float, other: float) -> None:
    events = stored(name)
    first, second = sorted(round(share * len(events)) for share in (one, other))
    assert fold(events[:second], events[first:]) == fold(events)


@given(st.sampled_from(RUNS), st.floats(0, 1))
@cases(40)
def test_texts_in_progress_follow_what_is_complete(name: str, share: float) -> None:
    events = events_of(name)
    items = fold(events[: round(share * len(events))])["items"]
    numbers = [item["seq"] or float("inf") for item in items]
    assert all(before <= after for before, after in pairwise(numbers))


def test_a_run_with_tools_that_was_decided() -> None:
    model = fold(stored("tools"))
    kinds = [(item["kind"], item.get("status")) for item in model["items"]]
    assert kinds == [
        ("thought", None),
        ("text", None),
        ("call", "denied"),
        ("call", "error"),
        ("call", "success"),
        ("call", "success"),
        ("call", "success"),
        ("ask", "decided"),
        ("thought", None),
        ("text", None),
    ]
    thought, said, _, _, paid, delegated, *_, last = model["items"]
    assert (thought["text"], said["text"]) == ("hm 😀, an order", "Let me 看 😀")
    assert (paid["arguments"], paid["result"]) == ({"amount": 70}, "paid 70")
    assert paid["confirmation"]["arguments"] == {"amount": 60}
    assert [item["kind"] for item in delegated["items"]] == ["call", "text"]
    assert (last["text"], model["status"], model["pending"]) == ("all is done now", "completed", [])


def test_a_run_that_waits() -> None:
    events = stored("tools")
    until = next(n for n, event in enumerate(events, 1) if event.get("status") == "paused")
    model = fold(events[:until])
    assert (model["status"], [one["tool"] for one in model["pending"]]) == ("paused", ["pay"])
    assert [item["status"] for item in model["items"] if item["kind"] in ("call", "ask")][2:] == [
        "waiting", "success", "success", "open",
    ]  # fmt: skip


def test_a_plan_keeps_what_a_revision_took_away() -> None:
    model = fold(stored("plan"))
    steps = [(s["id"], s["status"], s.get("added"), s.get("removed")) for s in model["plan"]["steps"]]
    assert steps == [
        ("s1", "failed", None, None),
        ("s2", "done", None, None),
        ("s3", "open", None, 2),
        ("s4", "done", 2, None),
        ("s5", "done", 2, None),
    ]
    [goal] = [item for item in model["items"] if item["kind"] == "sub"]
    assert (goal["id"], [item["kind"] for item in goal["items"]]) == ("s5", ["call", "text"])


def test_the_text_of_a_failed_attempt_is_void() -> None:
    events = events_of("retry")
    until = next(n for n, event in enumerate(events) if event["event"] == "warning")
    assert [item["kind"] for item in fold(events[:until])["items"]] == ["text"]
    assert [(item["kind"], item.get("text")) for item in fold(events)["items"]] == [
        ("notice", None),
        ("text", "the second one, and more"),
    ]


def test_a_delta_after_the_whole_text_changes_nothing() -> None:
    events = stored("retry")
    whole = next(event for event in events if event["event"] == "content")
    late = whole | {"seq": 0, "text": "late"}
    at = events.index(whole) + 1
    assert fold([*events[:at], late, *events[at:]]) == fold(events)


def test_an_older_run_has_its_reasoning_in_one_text() -> None:
    old = {"event": "thinking", "run_id": "r", "seq": 1, "generation": 1, "path": [], "message_id": "m", "text": "a\nb"}
    assert [(item["kind"], item["text"]) for item in fold([old])["items"]] == [("thought", "a\nb")]
