"""Complete runs on the Responses API: the same agent files as on chat completions, with the same results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from framework import Approve, RunResult, Runtime, Tool, events, tool
from framework.llm.message_formats import exported
from framework.replay import replay
from tests.support.formats import OPENAI, RESPONSES, SIGNATURE, Calls, Format, says
from tests.support.projects import agent, write
from tests.support.wire import Answer, WireServer, wire_server

SCHEMA = "{type: object, properties: {city: {type: string}, people: {type: integer}}, required: [city, people]}"
PLAN = {
    "goal": "calculate",
    "steps": [{"id": "a", "description": "add", "tool": "calculator", "parameters": {"expression": "1 + 1"}}],
}
WHOLE = {"city": "Rome", "people": 3}
CALCULATE: Calls = (("calculator", {"expression": "6 * 7"}), ("echo", {"text": "hi"}))


@dataclass(frozen=True)
class Scenario:
    """An agent file, and the answers of its model."""

    answers: tuple[dict[str, Any], ...]
    keys: dict[str, str] = field(default_factory=dict)
    capabilities: str = "{}"


SCENARIOS = {
    "tool loop": Scenario(({"calls": CALCULATE, "thought": "let me see"}, {"text": "It is 42."})),
    "typed by a tool": Scenario(
        ({"text": "Rome has three."}, {"calls": (("Answer", WHOLE),)}), {"output_schema": SCHEMA}
    ),
    "typed by a schema": Scenario(
        ({"text": json.dumps(WHOLE)},),
        {"output_schema": SCHEMA},
        "{json_schema: true, json_object: true, json_with_tools: true}",
    ),
    "json protocol": Scenario(
        (
            {"text": '{"type":"action","tool":"calculator","args":{"expression":"6 * 7"}}', "thought": "hm"},
            {"text": '{"type":"final","answer":"42"}'},
        ),
        {"protocol": "json"},
    ),
    "plan": Scenario(({"calls": (("PlanDraft", PLAN),)}, {"text": "It is 2."}), {"executor": "plan"}),
    "cut": Scenario(({"text": "half an", "end": "length"},), {"on_truncation": "warn"}),
    "continued": Scenario(
        ({"text": "half an", "end": "length", "thought": "hm"}, {"text": " answer", "thought": "so"}),
        {"on_truncation": "continue"},
    ),
    "refused": Scenario(({"text": "x", "end": "refused"},)),
    "forced": Scenario(
        ({"calls": CALCULATE[:1]}, {"text": "done"}), {"model_settings": "{tool_choice: calculator, max_tokens: 99}"}
    ),
}


def project(root: Path, url: str, form: Format, scenario: Scenario) -> Path:
    alias = form.alias(url, f", capabilities: {scenario.capabilities}")
    files = {"agents.d/one.yaml": agent("one", model="there", **scenario.keys)}
    return write(root, {**files, "agentsd.yaml": f"models: {{there: {alias}}}\n"})


async def listen(runtime: Runtime, *, streamed: bool) -> tuple[RunResult, list[str]]:
    """Run once; return the result and the kinds of events with their texts."""
    if not streamed:
        return await runtime.run("go"), []
    async with runtime.stream("go") as stream:
        heard = [event async for event in stream]
    texts = "".join(event.text for event in heard if isinstance(event, events.ContentReceived))
    kinds = [type(event).__name__ for event in heard if not isinstance(event, events.ContentReceived)]
    return await stream.result(), [*kinds, texts]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_an_agent_file_gives_the_same_run_on_both_apis(tmp_path: Path, name: str, streamed: bool) -> None:
    scenario = SCENARIOS[name]

    async def on(form: Format) -> tuple[Any, list[str]]:
        async with wire_server([says(form, **answer) for answer in scenario.answers]) as server:
            root = project(tmp_path / form.id, server.url, form, scenario)
            async with Runtime.open(root, watch=False) as runtime:
                result, heard = await listen(runtime, streamed=streamed)
            assert len(server.requests) == len(scenario.answers)
            assert {path.rpartition("/v1/")[2] for path in server.paths} == {
                "responses" if form is RESPONSES else "chat/completions"
            }
        calls = [(call.tool, call.arguments, call.status, call.result) for call in result.tool_calls]
        ending = (result.status, result.finish_reason, result.error.code if result.error else None)
        return (ending, result.output, result.data, calls, result.steps, result.usage), heard

    chat, responses = asyncio.run(on(OPENAI)), asyncio.run(on(RESPONSES))
    assert responses == chat
    assert chat[0][0][0] == ("stopped" if name == "refused" else "completed")


@dataclass
class Counter:
    """A tool that counts its calls."""

    calls: int = 0

    def as_tool(self) -> Tool:
        @tool(risk="low")
        async def count() -> str:
            """Count."""
            self.calls += 1
            return f"counted {self.calls}"

        return count


CUT_ANSWER = says(RESPONSES, "wait a bit", calls=(("count", {}), ("count", {})), thought="let me see")


@pytest.mark.hostile(34)
@pytest.mark.parametrize("ending", ["clean", "cut"])
@pytest.mark.parametrize("length", range(1, len(CUT_ANSWER.streamed)))
def test_a_stream_cut_after_any_event_executes_nothing_and_is_retried(tmp_path: Path, length: int, ending: Any) -> None:
    counter, executed_before_the_retry = Counter(), list[int]()
    cut = Answer(events=CUT_ANSWER.streamed[:length], ending=ending)

    def answer(body: dict[str, Any]) -> Answer:
        attempt = len(executed_before_the_retry)
        executed_before_the_retry.append(counter.calls)
        return (cut, CUT_ANSWER, says(RESPONSES, "done"))[attempt]

    async def run() -> tuple[RunResult, list[str]]:
        async with wire_server(answer) as server:
            root = project(tmp_path, server.url, RESPONSES, Scenario(()))
            text = (root / "agentsd.yaml").read_text() + "model_calls: {backoff: 1ms, max_backoff: 1ms}\n"
            (root / "agentsd.yaml").write_text(text)
            async with Runtime.open(root, tools=[counter.as_tool()], watch=False) as runtime:
                return await listen(runtime, streamed=True)

    result, kinds = asyncio.run(run())

    assert (result.status, result.output) == ("completed", "done"), result.error
    assert executed_before_the_retry == [0, 0, 2]
    assert kinds.count("Warned") == 1
    assert "model_retry" in [warning.code for warning in result.warnings]


def reasoning_items(body: dict[str, Any]) -> list[str]:
    return [item["encrypted_content"] for item in body["input"] if item.get("type") == "reasoning"]


def test_a_stored_run_resumes_in_another_process_with_its_reasoning_and_can_be_replayed(tmp_path: Path) -> None:
    """The port of the server changes in between, as that of a local proxy may."""
    asking = {"skill_policy": '{allow: ["*"], ask: [calculator]}'}

    async def serve(
        answers: Callable[[dict[str, Any]], Answer], work: Callable[[Runtime], Any]
    ) -> tuple[RunResult, WireServer]:
        async with wire_server(answers) as server:
            root = project(tmp_path, server.url, RESPONSES, Scenario((), asking))
            async with Runtime.open(root, store="sqlite:///state.db", watch=False) as runtime:
                return await work(runtime), server

    async def main() -> None:
        asked = says(RESPONSES, calls=CALCULATE, thought="let me see")
        paused, _ = await serve(lambda _: asked, lambda runtime: runtime.run("go"))
        assert paused.status == "paused"

        async def resume(runtime: Runtime) -> RunResult:
            (pending,) = paused.pending
            result = await runtime.resume(paused.run_id, {pending.id: Approve()})
            record = await runtime.store.load_run(paused.run_id)
            stored = await runtime.store.stored_run(record)
            assert await replay(runtime.root, stored, runtime.catalog.current) == ()
            return result

        result, server = await serve(lambda _: says(RESPONSES, "It is 42."), resume)
        assert (result.status, result.output) == ("completed", "It is 42.")
        (body,) = server.requests
        assert reasoning_items(body) == [SIGNATURE]
        kinds = [item.get("type", item.get("role")) for item in body["input"]]
        results = ["function_call", "function_call", "function_call_output", "function_call_output"]
        assert kinds == ["system", "user", "reasoning", *results]

    asyncio.run(main())


def test_a_conversation_moves_between_the_apis_and_keeps_the_reasoning_of_each_to_itself(tmp_path: Path) -> None:
    async def turn(form: Format, answer: Answer) -> dict[str, Any]:
        async with wire_server([answer]) as server:
            root = project(tmp_path, server.url, form, Scenario(()))
            async with Runtime.open(root, store="sqlite:///state.db", watch=False) as runtime:
                result = await runtime.run("go", conversation="c")
                assert result.status == "completed", result.error
        (body,) = server.requests
        return body

    async def main() -> None:
        await turn(RESPONSES, says(RESPONSES, "one", thought="first"))
        chat = await turn(OPENAI, says(OPENAI, "two", thought="second"))
        again = await turn(RESPONSES, says(RESPONSES, "three"))

        assert SIGNATURE not in json.dumps(chat)
        assert [message["content"] for message in chat["messages"][1:]] == ["go", "one", "go"]
        assert reasoning_items(again) == [SIGNATURE]
        assert "second" not in json.dumps(again)

    asyncio.run(main())


def test_a_fallback_on_another_api_gets_the_conversation_without_the_reasoning(tmp_path: Path) -> None:
    async def main() -> None:
        answers = {
            "responses": [says(RESPONSES, calls=CALCULATE, thought="hm"), RESPONSES.failed(401, "no")],
            "chat/completions": [says(OPENAI, "It is 42.")],
        }

        def answer(body: dict[str, Any]) -> Answer:
            return answers["responses" if "input" in body else "chat/completions"].pop(0)

        async with wire_server(answer) as server:
            models = f"models: {{first: {RESPONSES.alias(server.url)}, second: {OPENAI.alias(server.url)}}}\n"
            files = {
                "agents.d/one.yaml": agent("one", model="first", fallback_models="[second]"),
                "agentsd.yaml": models,
            }
            async with Runtime.open(write(tmp_path, files), watch=False) as runtime:
                result = await runtime.run("go")
        assert (result.status, result.output) == ("completed", "It is 42.")
        last = server.requests[-1]["messages"]
        assert [message["role"] for message in last] == ["system", "user", *2 * ["assistant", "tool"]]
        assert SIGNATURE not in json.dumps(last)

    asyncio.run(main())


def test_exported_conversations_do_not_contain_encrypted_reasoning(tmp_path: Path) -> None:
    async def main() -> RunResult:
        async with wire_server([says(RESPONSES, calls=CALCULATE, thought="hm"), says(RESPONSES, "done")]) as server:
            root = project(tmp_path, server.url, RESPONSES, Scenario(()))
            async with Runtime.open(root, watch=False) as runtime:
                return await runtime.run("go")

    messages = asyncio.run(main()).messages
    assert SIGNATURE in json.dumps(exported(messages, "messages")), "the neutral format is lossless"
    for form in ("openai", "anthropic", "gemini"):
        data = json.dumps(exported(messages, form))
        assert SIGNATURE not in data
        assert "6 * 7" in data
    without = [replace_reasoning(message) for message in messages]
    assert exported(messages, "openai") == exported(without, "openai")


def replace_reasoning(message: Any) -> Any:
    return message.model_copy(update={"reasoning": None})
