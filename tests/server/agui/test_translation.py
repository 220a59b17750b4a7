"""Runs as AG-UI events: AG-UI's own client accepts every stream, and builds the right messages and state from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from ag_ui.core import BaseEvent, Interrupt, RunAgentInput
from hypothesis import given
from hypothesis import strategies as st

from framework import ModelError, Runtime, tool
from framework.engine.context.events import RunStream
from framework.llm.client import Delta, ModelRequest
from framework.server.agui import interrupt_of
from framework.server.agui_events import AguiTranslator
from framework.testing import JsonStore, ScriptedModel, calls
from framework.types.events import Event, read_event
from framework.types.messages import Message, Reasoning
from framework.types.plan import PlanDraft
from framework.types.state import Approve, Confirmation, Reject, RunResult
from tests.support.agui import INSTALLED, AguiClient
from tests.support.cases import cases
from tests.support.projects import agent, write
from tests.support.worlds import Turns, World, project, turns_of

pytestmark = pytest.mark.skipif(not INSTALLED, reason="npm could not install @ag-ui/client")


async def translated(
    started: AbstractAsyncContextManager[RunStream], request: RunAgentInput, earlier: Sequence[Event] = ()
) -> tuple[list[BaseEvent], RunResult]:
    """Return a run as AG-UI events, and its result."""

    def as_interrupt(asked: Confirmation, known: frozenset[str]) -> Interrupt:
        return interrupt_of(result.run_id, asked, known)

    async with started as stream:
        translator = AguiTranslator(request, stream.run_id, earlier)
        found = [*translator.start()]
        async for event in stream:
            found += translator.translate(event)
        result = await stream.result()
    return [*found, *translator.finish(result, as_interrupt)], result


def sent(found: Sequence[BaseEvent]) -> list[Any]:
    return [json.loads(event.model_dump_json(by_alias=True)) for event in found]


def request_of(thread: str, number: int = 1, messages: Sequence[Any] = ()) -> RunAgentInput:
    return RunAgentInput.model_validate({"threadId": thread, "runId": f"r{number}", "messages": [*messages]})


async def shown(root: Path, model: Any, message: str = "go", **files: str) -> tuple[list[Any], dict[str, Any]]:
    """Run an agent, and return the AG-UI events and what the client made of them."""
    write(root, {f"agents.d/{name}.yaml": text for name, text in files.items()})
    given = [{"id": "u1", "role": "user", "content": message}]
    async with Runtime.open(root, models={"scripted": model}, tools=[look], watch=False) as runtime:
        found, _ = await translated(runtime.stream(message, agent="main"), request_of("t", messages=given))
    answer = await AguiClient()("t", events=sent(found), messages=given)
    assert answer["error"] is None, (answer["error"], sent(found))
    return sent(found), answer


def show(root: Path, model: Any, **files: str) -> tuple[list[Any], dict[str, Any]]:
    return asyncio.run(shown(root, model, **files))


@tool(risk="low")
async def look(at: str) -> str:
    """Look at something."""
    if at == "nothing":
        raise ValueError("there is nothing")
    return f"saw {at}"


def kinds(found: Sequence[Any]) -> list[str]:
    return [event["type"] for event in found if event["type"] != "CUSTOM"]


def test_text_reasoning_and_tool_calls(tmp_path: Path) -> None:
    first = Message(
        role="assistant",
        content="Let me look.",
        tool_calls=calls(("look", {"at": "a"}), ("look", {"at": "nothing"})),
        reasoning=Reasoning(text="It may be there."),
    )
    model = ScriptedModel(first, "It is a there.")
    found, client = show(tmp_path, model, main=agent("main"))
    by_role = {message["role"]: message for message in client["messages"][1:3]}
    called = [message for message in client["messages"] if "toolCalls" in message]
    results = {message["toolCallId"]: message["content"] for message in client["messages"] if message["role"] == "tool"}
    assert by_role["reasoning"]["content"] == "It may be there."
    assert by_role["assistant"]["content"] == "Let me look."
    assert found[0]["type"] == "RUN_STARTED"
    assert found[0]["protocolVersion"] == "1.0"
    arguments = {call["id"]: call["function"]["arguments"] for message in called for call in message["toolCalls"]}
    assert sorted(arguments.values()) == ['{"at": "a"}', '{"at": "nothing"}']
    assert {arguments[call]: content for call, content in results.items()}['{"at": "a"}'] == "saw a"
    assert client["messages"][-1]["content"] == "It is a there."
    assert found[-1]["outcome"] == {"type": "success"}
    assert found[-1]["result"] == client["result"] == "It is a there."
    assert found[-1]["usage"] == [
        {"inputTokens": 10, "outputTokens": 10, "totalTokens": 20, "cachedInputTokens": 0, "cacheWriteInputTokens": 0}
    ]


class Stumbling(ScriptedModel):
    """Breaks off its first answer."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        if len(self.requests) == 0 and request.stream:
            self.requests.append(request)
            yield Delta(text="Half an ans")
            raise ModelError("the connection broke", retryable=True)
        async for delta in super().stream(request):
            yield delta


def test_the_text_of_a_failed_attempt_disappears(tmp_path: Path) -> None:
    write(tmp_path, {"agentsd.yaml": "model_calls: {backoff: 1ms}\n"})
    found, client = show(tmp_path, Stumbling("A whole answer."), main=agent("main"))
    assert "Half an ans" in json.dumps(found)
    assert [message["content"] for message in client["messages"]] == ["go", "A whole answer."]
    assert [event["value"]["code"] for event in found if event.get("name") == "agentsd.warning"] == ["model_retry"]


PLAN = PlanDraft.model_validate(
    {
        "goal": "see",
        "steps": [
            {"id": "one", "description": "look at a", "tool": "look", "parameters": {"at": "a"}},
            {"id": "two", "description": "think about it", "depends_on": ["one"]},
        ],
    }
)


def test_a_plan_is_state_and_its_steps_are_steps(tmp_path: Path) -> None:
    model = ScriptedModel(PLAN, "thought about it", "All done.")
    found, client = show(tmp_path, model, main=agent("main", executor="plan"))
    assert [(step["id"], step["status"]) for step in client["state"]["plan"]["steps"]] == [
        ("one", "done"),
        ("two", "done"),
    ]
    started = [event["stepName"] for event in found if event["type"] == "STEP_STARTED"]
    assert started == [event["stepName"] for event in found if event["type"] == "STEP_FINISHED"]
    assert started == ["one: look at a", "two: think about it"]
    (subagent,) = [event for event in found if event["type"] == "SUBAGENT_STARTED"]
    assert subagent["name"] == "step-two"
    thought = next(m for m in client["messages"] if m.get("content") == "thought about it")
    assert thought["subagentRunId"] == subagent["subagentRunId"]


def test_a_todo_list_is_state(tmp_path: Path) -> None:
    model = ScriptedModel(calls(("todo", {"items": [{"task": "a", "status": "doing"}]})), "ok")
    _, client = show(tmp_path, model, main=agent("main"))
    assert [(item["task"], item["status"]) for item in client["state"]["todo"]] == [("a", "doing")]


def test_failures_and_limits_are_errors_with_their_reason(tmp_path: Path) -> None:
    found, _ = show(tmp_path, ScriptedModel(ModelError("no such model", permanent=True)), main=agent("main"))
    assert found[-1]["type"] == "RUN_ERROR"
    assert found[-1]["code"] == "model_error"
    assert "no such model" in found[-1]["message"]


def test_a_limit_is_an_error_with_its_place(tmp_path: Path) -> None:
    model = ScriptedModel(script=lambda request: calls(("look", {"at": str(len(request.messages))})))
    limits = "{max_steps: 2}"
    found, _ = show(tmp_path, model, main=agent("main", runtime_policy=limits))
    assert (found[-1]["type"], found[-1]["code"]) == ("RUN_ERROR", "max_steps")
    assert "agents.d/main.yaml:" in found[-1]["message"]


# --- pauses


async def decided(root: Path, turns: Turns, choices: Sequence[bool], client: AguiClient, executor: str) -> None:
    """Run nested agents that ask before each risky call; the client continues the thread after each interrupt."""
    world = World(turns)
    project(root, ask=True, executor=executor)
    store, messages = JsonStore(), [{"id": "u1", "role": "user", "content": "0"}]
    async with Runtime.open(
        root, models={"scripted": world.model()}, tools=world.tools(), store=store, watch=False
    ) as runtime:
        started = runtime.stream("0", agent="root")
        earlier: list[Event] = []
        answers: list[Any] = []
        thread = root.name
        for number in range(1, 50):
            found, result = await translated(started, request_of(thread, number, messages), earlier)
            seen = await client(thread, events=sent(found), messages=messages, parameters={"resume": answers})
            assert seen["error"] is None, (seen["error"], sent(found))
            messages = seen["messages"]
            if result.status != "paused":
                break
            assert [one["id"] for one in seen["interrupts"]] == [f"{result.run_id}/{one.id}" for one in result.pending]
            called = {call["id"] for message in messages for call in message.get("toolCalls") or ()}
            assert {one["toolCallId"] for one in seen["interrupts"]} <= called
            answers = [{"interruptId": one["id"], "status": "resolved", "payload": {}} for one in seen["interrupts"]]
            decisions = {
                one.id: Approve() if choices[index % len(choices)] else Reject()
                for index, one in enumerate(result.pending)
            }
            earlier = [read_event(row) for row in await store.events(result.run_id)]
            started = runtime.resume_stream(result.run_id, decisions)
    _check_messages(messages, result)


def _check_messages(messages: Sequence[Mapping[str, Any]], result: RunResult) -> None:
    called = [call["id"] for message in messages for call in message.get("toolCalls") or ()]
    answered = [message["toolCallId"] for message in messages if message["role"] == "tool"]
    assert len(called) == len({*called})
    assert sorted(called) == sorted(answered), "each call has exactly one result"
    assert result.status == "completed"
    assert messages[-1]["content"] == result.output


@given(turns_of(2), st.lists(st.booleans(), min_size=1, max_size=3))
@cases(6)
def test_every_run_of_nested_agents_is_accepted_over_all_its_interrupts(turns: Turns, choices: list[bool]) -> None:
    async def main() -> None:
        with TemporaryDirectory() as folder:
            (root := Path(folder) / "project").mkdir()
            await decided(root, turns, choices, AguiClient(), "react")

    asyncio.run(main())
