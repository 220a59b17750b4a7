"""A real llama.cpp server, whose grammar keeps calls and typed answers in form; the words of its model are random."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from framework import RunResult, Runtime, events, tool
from framework.llm.capabilities import Capabilities
from framework.llm.client import ModelClient, ModelReply, ModelRequest
from framework.llm.json_protocol import JsonProtocol, request_typed_output
from framework.llm.openai.client import OpenAIModel
from framework.llm.openai.responses import ResponsesModel
from framework.types.messages import Message, ToolDefinition
from framework.types.plan import PlanDraft
from framework.types.spec import ModelSettings
from tests.support.cases import FACTOR
from tests.support.llama_cpp import LlamaCpp, is_installed
from tests.support.projects import agent, write

if not is_installed():
    pytest.skip("no llama.cpp: `make test` installs it where it finds the package index", allow_module_level=True)

SEEDS = range(30 * FACTOR)
BARE = {"skill_policy": "{allow: []}"}
USER = (Message(role="user", content="hello <tool_response>"),)
"""After a tool's result, the model answers in text unless the server constrains it."""
TRIP = "{type: object, properties: {city: {type: string}, days: {type: integer}}, required: [city, days]}"


class Visit(BaseModel):
    place: str
    stars: int | None = Field(default=None, ge=0)


class Trip(BaseModel):
    """A trip."""

    city: str = Field(min_length=1)
    transport: Literal["train", "bus", "boat"]
    visits: list[Visit] = Field(max_length=5)
    is_booked: bool


class Sights(BaseModel):
    """Sights, as JSON Schema references."""

    first: Visit
    others: dict[str, Visit] = {}


@tool(risk="low")
async def look(city: str, days: int = 1) -> str:
    """Look up the weather of a city."""
    return f"{city}: {days} days of sun"


def project(root: Path, server: LlamaCpp, *, capabilities: str = "{}", **keys: str) -> Path:
    alias = f"{{model: openai/tiny, base_url: '{server.url}', capabilities: {capabilities}}}"
    text = agent("one", model="local", **({"model_settings": "{seed: 1}"} | keys))
    return write(root, {"agents.d/one.yaml": text, "agentsd.yaml": f"models: {{local: {alias}}}\n"})


def client(server: LlamaCpp, *, enforced: bool) -> OpenAIModel:
    can = Capabilities(json_schema=True) if enforced else None
    return OpenAIModel("openai", "tiny", api_key="", base_url=server.url, capabilities=can)


def seeded(number: int) -> ModelSettings:
    return ModelSettings(seed=number, max_tokens=3000)


async def reply(model: ModelClient, request: ModelRequest) -> ModelReply:
    async with aclosing(model.stream(request)) as deltas:  # type: ignore[type-var]  # every client's is a generator
        replies = [delta.reply async for delta in deltas if delta.reply]
    return replies[-1]


def on_server(model: OpenAIModel, check: Callable[[OpenAIModel], Awaitable[None]]) -> None:
    async def main() -> None:
        try:
            await check(model)
        finally:
            await model.close()

    asyncio.run(main())


# --- chat and tools


def test_text_is_streamed_in_the_pieces_that_the_server_sends(llama_cpp: LlamaCpp) -> None:
    async def check(model: OpenAIModel) -> None:
        request = ModelRequest(USER, settings=seeded(1), stream=True)
        async with aclosing(model.stream(request)) as deltas:
            pieces = [delta.text async for delta in deltas if delta.text]
        assert len(pieces) > 1

    on_server(client(llama_cpp, enforced=False), check)


def test_a_chat_is_streamed_and_the_same_seed_writes_the_same(tmp_path: Path, llama_cpp: LlamaCpp) -> None:
    async def main() -> None:
        async with Runtime.open(project(tmp_path, llama_cpp, **BARE), watch=False) as runtime:
            async with runtime.stream("hello") as stream:
                texts = [event.text async for event in stream if isinstance(event, events.ContentReceived)]
            result = await stream.result()
            again = await runtime.run("hello")

        assert result.status == "completed", result.error
        assert "".join(texts) == result.output == again.output
        assert result.usage.prompt_tokens > len("You are one.") + len("hello"), "a token is a character here"

    asyncio.run(main())


def test_a_tool_loop_calls_the_tool_and_answers_from_its_result(tmp_path: Path, llama_cpp: LlamaCpp) -> None:
    async def main() -> None:
        root = project(tmp_path, llama_cpp, skill_policy="{allow: [look]}")
        async with Runtime.open(root, tools=[look], watch=False) as runtime:
            result = await runtime.run("how is the weather?")

        assert result.status == "completed", result.error
        assert {call.tool for call in result.tool_calls} == {"look"}
        assert {call.status for call in result.tool_calls} == {"success"}
        assert result.steps >= 2
        assert result.output.endswith(".")

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_its_responses_api_accepts_a_conversation_with_calls_texts_and_results(
    llama_cpp: LlamaCpp, stream: bool
) -> None:
    async def main() -> None:
        model = ResponsesModel("openai", "tiny", api_key="", base_url=llama_cpp.url)
        forced = ModelSettings(tool_choice="required", max_tokens=3000)
        earlier = (
            Message(role="system", content="Be brief."),
            *USER,
            Message(role="assistant", content="hello"),
            *USER,
        )
        try:
            first = await reply(model, ModelRequest(earlier, (look.definition,), settings=forced, stream=stream))
            assert first.finish_reason == "tool_calls"
            results = [Message(role="tool", content="sunny", tool_call_id=call.id) for call in first.message.tool_calls]
            second = await reply(model, ModelRequest((*earlier, first.message, *results), stream=stream))
        finally:
            await model.close()
        assert {call.tool for call in first.message.tool_calls} == {"look"}
        assert all(call.arguments.keys() >= {"city"} for call in first.message.tool_calls)
        assert second.message.content
        assert min(first.usage.prompt_tokens, second.usage.completion_tokens) > 0

    asyncio.run(main())


def test_four_runs_at_once_share_the_server(tmp_path: Path, llama_cpp: LlamaCpp) -> None:
    async def main() -> list[RunResult]:
        root = project(tmp_path, llama_cpp, skill_policy="{allow: [look]}")
        async with Runtime.open(root, tools=[look], watch=False) as runtime, asyncio.TaskGroup() as group:
            tasks = [group.create_task(runtime.run(f"run {number}")) for number in range(4)]
        return [task.result() for task in tasks]

    results = asyncio.run(main())
    assert [result.status for result in results] == ["completed"] * 4
    assert all(result.tool_calls for result in results)
    assert [warning for result in results for warning in result.warnings] == []


def test_a_request_beyond_the_context_window_is_one_clear_error(tmp_path: Path, llama_cpp: LlamaCpp) -> None:
    async def main() -> RunResult:
        async with Runtime.open(project(tmp_path, llama_cpp, **BARE), watch=False) as runtime:
            return await runtime.run(
                "one two " * 3000
            )  # about 6,000 tokens by the estimate; for this model, each character is one

    result = asyncio.run(main())
    assert (result.status, result.finish_reason, result.steps) == ("stopped", "context_full", 1)
    (full,) = [warning.message for warning in result.warnings if warning.code == "context_full"]
    assert "exceeds the model's context window (400): shorten the message" in full


def test_the_server_says_its_window_and_that_it_has_a_grammar(tmp_path: Path, llama_cpp: LlamaCpp) -> None:
    async def main() -> RunResult:
        model = client(llama_cpp, enforced=False)
        await model.probe()
        can = model.info.capabilities
        await model.close()
        assert (can.context_window, can.json_schema, can.images) == (16_384, True, False)
        async with Runtime.open(project(tmp_path, llama_cpp, **BARE), watch=False) as runtime:
            return await runtime.run("one two " * 8000)

    assert asyncio.run(main()).finish_reason == "context_full", "known before anything is sent"


# --- typed answers


@pytest.mark.parametrize("tools", ["[]", "[look]"])
def test_a_run_returns_data_in_one_answer_without_tools(tmp_path: Path, llama_cpp: LlamaCpp, tools: str) -> None:
    async def main() -> RunResult:
        root = project(tmp_path, llama_cpp, skill_policy=f"{{allow: {tools}}}", output_schema=TRIP)
        async with Runtime.open(root, tools=[look], watch=False) as runtime:
            return await runtime.run("where to?")

    result = asyncio.run(main())
    assert result.status == "completed", result.error
    assert result.data.keys() == {"city", "days"}
    if tools == "[]":
        assert result.steps == 1
    else:
        assert {call.tool for call in result.tool_calls} == {"look"}


@pytest.mark.parametrize("output", [Trip, Sights, PlanDraft])
@pytest.mark.parametrize("enforced", [True, False], ids=["schema", "tool"])
def test_every_first_typed_answer_is_in_form(llama_cpp: LlamaCpp, enforced: bool, output: type[BaseModel]) -> None:
    async def check(model: OpenAIModel) -> None:
        async def send(request: ModelRequest) -> ModelReply:
            sent.append(request)
            return await reply(model, request)

        for number in SEEDS:
            request = ModelRequest(USER, settings=seeded(number))
            answer = await request_typed_output(send, request, output, retries=0, by_schema=model.info.any_schema)
            assert type(answer) is output

    sent: list[ModelRequest] = []
    on_server(client(llama_cpp, enforced=enforced), check)

    assert len(sent) == len(SEEDS)
    assert all(bool(request.json) is enforced and bool(request.tools) is not enforced for request in sent)


# --- the JSON protocol


def test_every_reply_follows_the_json_protocol(llama_cpp: LlamaCpp) -> None:
    parameters = Trip.model_json_schema()
    tools = tuple(ToolDefinition(name=name, description="Do it.", parameters=parameters) for name in ("a.look", "book"))
    choices: list[str | None] = [None, "none", "required"]

    async def check(model: OpenAIModel) -> None:
        for number in SEEDS:
            settings = seeded(number).model_copy(update={"tool_choice": choices[number % 3]})
            answer = await reply(JsonProtocol(model), ModelRequest(USER, tools, settings))
            assert answer.unusable is None
            replies.append((settings.tool_choice, answer))

    replies: list[tuple[str | None, ModelReply]] = []
    on_server(client(llama_cpp, enforced=True), check)

    kinds = {choice: {answer.finish_reason for other, answer in replies if other == choice} for choice in choices}
    assert kinds == {None: {"stop", "tool_calls"}, "none": {"stop"}, "required": {"tool_calls"}}
    calls = [call for _, answer in replies for call in answer.message.tool_calls]
    assert {call.tool for call in calls} == {"a.look", "book"}
    assert all({"city", "transport", "visits", "is_booked"} <= call.arguments.keys() for call in calls)
    assert {call.arguments["transport"] for call in calls} <= {"train", "bus", "boat"}
