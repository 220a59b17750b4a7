"""The openai SDK, unchanged, as a client of agents: chat, streams, responses, structured output and errors."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from framework import Approve
from framework.llm.client import ModelRequest
from framework.store.types import RunInfo
from framework.testing import ScriptedModel, Turn, calls
from framework.types.errors import ModelError
from framework.types.messages import Message, Reasoning
from tests.support.media import png
from tests.support.projects import agent, write
from tests.support.serving import Serving, now, serving

USER: Any = [{"role": "user", "content": "what time is it?"}]


class City(BaseModel):
    city: str
    people: int


def project(root: Path, **keys: str) -> Path:
    one = agent("one", **{"skill_policy": '{allow: ["clock.*"]}', "description": "Tells the time.", **keys})
    return write(root, {"agents.d/one.yaml": one, "agents.d/two.yaml": agent("two", routing="{keywords: [weather]}")})


def serve(
    root: Path,
    *script: Turn,
    use: Callable[[AsyncOpenAI, Serving], Awaitable[Any]],
    **options: Any,
) -> tuple[Any, list[RunInfo], list[ModelRequest]]:
    """Serve the project on a scripted model; return what the client got, the recorded runs, and the requests."""
    model = ScriptedModel(*script)

    async def main() -> Any:
        async with (
            serving(root, models={"scripted": model}, tools=[now], **options) as server,
            AsyncOpenAI(base_url=server.v1, api_key="none") as client,
        ):
            return await use(client, server), await server.runs()

    result, runs = asyncio.run(main())
    return result, runs, model.requests


FUNCTION: Any = {"type": "function", "function": {"name": "set_city", "parameters": City.model_json_schema()}}
OTHER: Any = {"type": "function", "function": {"name": "other"}}
ITEM: Any = {"type": "function", **FUNCTION["function"]}
JSON_OBJECT: Any = {"type": "json_object"}
LOOKS = calls(("clock.now", {}))


def test_chat_answers_with_an_agent_and_its_tools(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        return await client.chat.completions.with_raw_response.create(model="one", messages=USER, user="ann")

    raw, (run,), requests = serve(project(tmp_path), LOOKS, "It is noon.", use=use)
    answer = raw.parse()
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason, choice.message.tool_calls) == ("It is noon.", "stop", None)
    assert (answer.object, answer.model, answer.usage.total_tokens) == ("chat.completion", "one", 20)
    assert raw.headers["x-agentsd-run-id"] == run.run_id
    assert answer._request_id == raw.headers["x-request-id"] != ""
    assert (run.agent, run.user, run.status, run.conversation_id) == ("one", "ann", "completed", None)
    assert [message.content for message in requests[0].messages[1:]] == ["what time is it?"]


def test_chat_streams_the_answer_and_the_reasoning_but_no_tool_calls(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        stream = await client.chat.completions.create(model="one", messages=USER, stream=True)
        return [chunk async for chunk in stream]

    reply = Message(role="assistant", content="It is noon.", reasoning=Reasoning(text="The clock says", provider="x"))
    chunks, _, _ = serve(project(tmp_path), LOOKS, reply, use=use)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "It is noon."
    assert sum(bool(delta.content) for delta in deltas) > 1, "it arrives in pieces"
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == "The clock says"
    assert not any(delta.tool_calls for delta in deltas)
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
    assert {chunk.model for chunk in chunks} == {"one"}
    assert not any(chunk.usage or hasattr(chunk, "agentsd") for chunk in chunks)


def test_the_usage_of_a_stream_is_sent_only_on_request(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        options: Any = {"include_usage": True}
        stream = await client.chat.completions.create(model="one", messages=USER, stream=True, stream_options=options)
        return [chunk async for chunk in stream]

    chunks, _, _ = serve(project(tmp_path), "noon", use=use)
    assert [len(chunk.choices) for chunk in chunks] == [1] * (len(chunks) - 1) + [0]
    assert chunks[-1].usage.total_tokens == 10


def test_the_sdk_accumulates_a_stream_of_chat_and_of_responses(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        async with client.chat.completions.stream(model="one", messages=USER) as chat:
            completion = await chat.get_final_completion()
        async with client.responses.stream(model="one", input="what time is it?") as events:
            kinds = [event.type async for event in events]
            return completion, await events.get_final_response(), kinds

    (completion, response, kinds), _, _ = serve(project(tmp_path), LOOKS, "It is noon.", "Still noon.", use=use)
    assert completion.choices[0].message.content == "It is noon."
    assert (response.output_text, response.status, response.usage.total_tokens) == ("Still noon.", "completed", 10)
    assert [*dict.fromkeys(kinds)] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.output_text.done", "response.content_part.done",
        "response.output_item.done", "response.completed",
    ]  # fmt: skip


def test_responses_answer_with_the_conversation_in_the_input(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        conversation: Any = [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "yes?"},
            {"role": "user", "content": "what time is it?"},
        ]
        return await client.responses.create(model="one", input=conversation, instructions="Be brief.")

    response, (run,), requests = serve(project(tmp_path), "noon", use=use)
    assert (response.output_text, response.status, response.model) == ("noon", "completed", "one")
    assert response.id == run.run_id.replace("run_", "resp_")
    system, *others = requests[0].messages
    assert [message.content for message in others] == ["hello", "yes?", "what time is it?"]
    assert "<caller_instructions>\nBe brief.\n</caller_instructions>" in system.content


def test_structured_output_is_parsed_by_the_sdk(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        chat = await client.chat.completions.parse(model="one", messages=USER, response_format=City)
        response = await client.responses.parse(model="one", input="which city?", text_format=City)
        async with client.chat.completions.stream(model="one", messages=USER, response_format=City) as stream:
            streamed = await stream.get_final_completion()
        return chat.choices[0].message.parsed, response.output_parsed, streamed.choices[0].message.parsed

    rome = City(city="Rome", people=3)
    script: list[Turn] = [rome.model_dump_json(), "It is Rome, with 3.", rome, LOOKS, "Rome, I think.", rome]
    found, _, _ = serve(project(tmp_path), *script, use=use)
    assert found == (rome, rome, rome)


def test_models_are_the_agents_and_the_router(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        listed = [model async for model in client.models.list()]
        routed = await client.chat.completions.create(
            model="auto", messages=[{"role": "user", "content": "the weather?"}]
        )
        return [model.id for model in listed], (await client.models.retrieve("one")).id, routed.model

    assert serve(project(tmp_path), "sunny", use=use)[0] == (["auto", "one", "two"], "one", "two")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_run_that_failed_is_not_executed_again(tmp_path: Path, api: str, stream: bool) -> None:
    """The SDK repeats requests by itself, and the tools of a run may have had effects."""

    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        if api == "responses":
            answer: Any = await client.responses.create(model="one", input="what time is it?", stream=stream)
        else:
            answer = await client.chat.completions.create(model="one", messages=USER, stream=stream)
        return [event async for event in answer]

    async def fail(client: AsyncOpenAI, server: Serving) -> Any:
        assert client.max_retries == 2
        try:
            return await use(client, server)
        except openai.APIError as error:
            return error

    error, runs, requests = serve(project(tmp_path), LOOKS, ModelError("the provider is down"), use=fail)
    assert [run.status for run in runs] == ["failed"]
    assert len(requests) == 2
    if api == "responses" and stream:
        assert error[-1].type == "response.failed"
        assert "model_error: the provider is down" in error[-1].response.error.message
    else:
        assert isinstance(error, openai.APIError)
        assert "the provider is down" in error.message
    if not stream:
        assert isinstance(error, openai.UnprocessableEntityError)
        assert (error.code, error.response.headers["x-agentsd-run-id"]) == ("model_error", runs[0].run_id)
        assert error.response.headers["x-should-retry"] == "false"


class _LosesFirstAnswer(httpx2.AsyncBaseTransport):
    """Sends requests, but loses the answer to the first one."""

    def __init__(self) -> None:
        self._inner = httpx2.AsyncHTTPTransport()
        self.requests = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests += 1
        response = await self._inner.handle_async_request(request)
        if self.requests == 1:
            await response.aclose()
            raise httpx2.ReadTimeout("no answer arrived")
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_whose_answer_is_lost_is_not_executed_again(tmp_path: Path, stream: bool) -> None:
    async def use(_: AsyncOpenAI, server: Serving) -> Any:
        transport = _LosesFirstAnswer()
        http = openai.DefaultAsyncHttpxClient(transport=transport)
        async with AsyncOpenAI(base_url=server.v1, api_key="none", http_client=http) as client:
            answer: Any = await client.chat.completions.create(model="one", messages=USER, stream=stream)
            if stream:
                text = "".join([chunk.choices[0].delta.content or "" async for chunk in answer])
            else:
                text = answer.choices[0].message.content
            again = await client.chat.completions.create(model="one", messages=USER, stream=False)
        return transport.requests, text, again.choices[0].message.content

    found, runs, _ = serve(project(tmp_path), LOOKS, "It is noon.", "Still noon.", use=use)
    assert found == (3, "It is noon.", "Still noon.")
    assert len(runs) == 2, "the same words again are another run"


def test_requests_that_begin_no_run_are_errors_with_a_code_and_the_field(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="onne", messages=USER)
        with pytest.raises(openai.BadRequestError) as tools:
            await client.chat.completions.create(
                model="one", messages=USER, tools=[FUNCTION, OTHER], tool_choice="required"
            )
        with pytest.raises(openai.BadRequestError) as previous:
            await client.responses.create(model="one", input="a", previous_response_id="resp_1")
        with pytest.raises(openai.BadRequestError) as hot:
            await client.chat.completions.create(model="one", messages=USER, temperature=3)
        form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array"}}}
        with pytest.raises(openai.BadRequestError) as schema:
            await client.chat.completions.create(model="one", messages=USER, response_format=form)
        return [error.value for error in (unknown, tools, previous, hot, schema)]

    errors, runs, _ = serve(project(tmp_path), use=use)
    assert runs == []
    assert [(error.code, error.param) for error in errors] == [
        ("model_not_found", "model"), ("bad_request", "tool_choice"),
        ("previous_response_not_found", "previous_response_id"), ("bad_request", "temperature"),
        ("bad_request", "response_format"),
    ]  # fmt: skip
    assert all(error.response.headers["x-request-id"] for error in errors)
    assert "did you mean one" in errors[0].message


def test_a_function_that_must_be_called_is_answered_with_its_arguments(tmp_path: Path) -> None:
    """The caller's retry after the call, as Instructor and pydantic-ai send it, continues the conversation."""
    named: Any = {"type": "function", "function": {"name": "set_city"}}

    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        whole = await client.chat.completions.create(model="one", messages=USER, tools=[FUNCTION], tool_choice=named)
        message: Any = whole.choices[0].message
        result: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "too many people"}
        again = await client.chat.completions.create(
            model="one", messages=[*USER, message, result], tools=[FUNCTION], tool_choice="required"
        )
        strict: Any = {"type": "function", "function": {**FUNCTION["function"], "strict": True}}
        async with client.chat.completions.stream(
            model="one", messages=USER, tools=[strict], tool_choice=named
        ) as stream:
            streamed = (await stream.get_final_completion()).choices[0]
        return whole.choices[0], again.choices[0], streamed

    answers = ['{"city": "Rome", "people": 3}', '{"city": "Rome", "people": 2}', '{"city": "Oslo", "people": 1}']
    choices, runs, requests = serve(project(tmp_path), LOOKS, *answers, use=use)
    found = [(one.finish_reason, one.message.content or None, one.message.tool_calls[0].function) for one in choices]
    assert [(reason, content, called.name, called.arguments) for reason, content, called in found] == [
        ("tool_calls", None, "set_city", answer) for answer in answers
    ]
    assert len({one.message.tool_calls[0].id for one in choices}) == 3
    assert {run.status for run in runs} == {"completed"}
    retry = requests[2].messages
    assert [message.role for message in retry[-4:]] == ["user", "assistant", "tool", "user"]
    assert (retry[-3].tool_calls[0].tool, retry[-2].content) == ("set_city", "too many people")


def test_a_response_calls_the_function_that_must_be_called(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        whole = await client.responses.create(model="one", input="a", tools=[ITEM], tool_choice="required")
        call: Any = whole.output[0]
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "too many people"}
        async with client.responses.stream(
            model="one", input=[*USER, call, result], tools=[ITEM], tool_choice={"type": "function", "name": "set_city"}
        ) as stream:
            kinds = [event.type async for event in stream]
            return call, kinds, (await stream.get_final_response()).output[0]

    answers = ['{"city": "Rome", "people": 3}', '{"city": "Rome", "people": 2}']
    (whole, kinds, streamed), _, requests = serve(project(tmp_path), *answers, use=use)
    for call, answer in zip((whole, streamed), answers, strict=True):
        assert (call.type, call.name, call.arguments, call.status) == ("function_call", "set_city", answer, "completed")
    assert "response.output_text.delta" not in kinds
    assert kinds[-3:] == ["response.function_call_arguments.done", "response.output_item.done", "response.completed"]
    assert requests[1].messages[-2].content == "too many people"


def test_tools_that_the_model_may_call_are_ignored_and_said_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        chat = await client.chat.completions.with_raw_response.create(model="one", messages=USER, tools=[FUNCTION])
        stream = await client.chat.completions.with_raw_response.create(
            model="one", messages=USER, tools=[FUNCTION], tool_choice="auto", stream=True
        )
        pieces = [chunk async for chunk in stream.parse()]
        responses = await client.responses.with_raw_response.create(model="one", input="a", tools=[ITEM])
        none = await client.chat.completions.with_raw_response.create(
            model="one", messages=USER, tools=[FUNCTION], tool_choice="none"
        )
        text = chat.parse().choices[0].message.content
        return text, pieces[-1], [one.headers.get("x-agentsd-ignored") for one in (chat, stream, responses, none)]

    with caplog.at_level("INFO", logger="framework.server.openai_api"):
        (text, last, ignored), runs, _ = serve(project(tmp_path), LOOKS, *["It is noon."] * 4, use=use)
    assert (text, last.choices[0].finish_reason) == ("It is noon.", "stop")
    assert ignored == ["tools", "tools", "tools", None]
    lines = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
    assert len(lines) == 3
    assert all(line.endswith(": ignored tools of the client") for line in lines)
    assert len(runs) == 4


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_json_object_is_what_a_client_gets_that_asked_for_one(tmp_path: Path, api: str) -> None:
    async def ask(client: AsyncOpenAI) -> str | None:
        if api == "responses":
            return (await client.responses.create(model="one", input="a", text={"format": JSON_OBJECT})).output_text
        answer = await client.chat.completions.create(model="one", messages=USER, response_format=JSON_OBJECT)
        return answer.choices[0].message.content

    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        return [await ask(client) for _ in range(3)]

    fenced, retried = '```json\n{"a": 1}\n```', '{"time": "noon"}'
    texts, _, requests = serve(project(tmp_path), '{"any": [1]}', fenced, "It is noon.", retried, use=use)
    assert texts == ['{"any": [1]}', '{"a": 1}', '{"time": "noon"}']
    assert "as the arguments of Answer" in requests[-1].messages[-1].content


def test_a_json_object_is_of_the_agents_own_schema_if_it_has_one(tmp_path: Path) -> None:
    root = project(tmp_path, output_schema="{type: object, properties: {city: {type: string}}, required: [city]}")

    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        answer = await client.chat.completions.create(model="one", messages=USER, response_format=JSON_OBJECT)
        return answer.choices[0].message.content

    text, _, _ = serve(root, '{"a": 1}', '{"city": "Rome"}', use=use)
    assert text == '{"city": "Rome"}'


def test_models_are_listed_also_with_a_trailing_slash(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        return [(await client.get(path, cast_to=httpx2.Response)).json() for path in ("/models", "/models/")]

    (listed, slashed), _, _ = serve(project(tmp_path), use=use)
    assert slashed == listed


def test_limits_and_refusals_have_their_finish_reasons(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        stopped = await client.chat.completions.create(model="one", messages=USER)
        response = await client.responses.create(model="one", input="what time is it?")
        return stopped.choices[0], response

    root = project(tmp_path, runtime_policy="{max_steps: 1}")
    (choice, response), _, _ = serve(root, LOOKS, LOOKS, use=use)
    assert choice.finish_reason == "length"
    assert choice.message.content.startswith("[max_steps reached: 1 of 1")
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_a_pause_is_a_question_that_the_next_message_cannot_answer(tmp_path: Path) -> None:
    headers = {"X-Conversation-Id": "c1"}

    async def use(client: AsyncOpenAI, server: Serving) -> Any:
        async def say(text: str, *, stream: bool = False) -> str:
            messages: Any = [{"role": "user", "content": text}]
            if not stream:
                answer = await client.chat.completions.create(model="one", messages=messages, extra_headers=headers)
                assert answer.choices[0].finish_reason == "stop"
                return answer.choices[0].message.content or ""
            chunks = await client.chat.completions.create(
                model="one", messages=messages, extra_headers=headers, stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

        questions = [await say("what time is it?"), await say("yes, approve"), await say("yes!", stream=True)]
        ((run),) = await server.runs()
        assert run.status == "paused"
        (pending,) = await server.runtime.pending(run.run_id)
        await server.runtime.resume(run.run_id, {pending.id: Approve()})
        return questions, run.run_id, await say("and now?")

    root = project(tmp_path, skill_policy='{ask: ["clock.now"], allow: []}')
    (questions, run_id, last), runs, requests = serve(root, LOOKS, "It is noon.", "Still noon.", use=use)
    assert len({*questions}) == 1
    assert f"Run {run_id} waits for it: http://127.0.0.1:" in questions[0]
    assert "may it call clock.now?" in questions[0]
    assert last == "Still noon."
    assert len(runs) == 2
    said = [message.content for message in requests[-1].messages if message.role == "user"]
    assert said == ["what time is it?", "and now?"], "the messages in between are part of no run"


def test_a_conversation_of_the_server_needs_only_the_last_message(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        for text in ("hello", "what time is it?"):
            messages: Any = [{"role": "user", "content": "ignored"}, {"role": "assistant", "content": "ignored"}]
            await client.chat.completions.create(
                model="one", messages=[*messages, {"role": "user", "content": text}],
                extra_headers={"X-Conversation-Id": "c1"},
            )  # fmt: skip

    _, runs, requests = serve(project(tmp_path), "yes?", "noon", use=use)
    assert {run.conversation_id for run in runs} == {"c1"}
    assert [message.content for message in requests[1].messages[1:]] == ["hello", "yes?", "what time is it?"]


def test_our_events_are_in_ordinary_chunks_only_if_requested(tmp_path: Path) -> None:
    headers = {"X-Agentsd-Events": "1"}

    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        stream = await client.chat.completions.create(model="one", messages=USER, stream=True, extra_headers=headers)
        chunks = [chunk async for chunk in stream]
        whole = await client.chat.completions.create(model="one", messages=USER, extra_headers=headers)
        events = await client.responses.create(model="one", input="and now?", stream=True, extra_headers=headers)
        return chunks, whole, [event async for event in events]

    script: list[Turn] = [LOOKS, "It is noon.", LOOKS, "It is noon.", LOOKS, "It is noon."]
    (chunks, whole, responses), _, _ = serve(project(tmp_path), *script, use=use)
    names = ["route", "tool_call", "tool_call", "tool_result", "content", "done"]
    assert [chunk.agentsd["event"] for chunk in chunks if hasattr(chunk, "agentsd")] == names
    assert all(len(chunk.choices) == 1 for chunk in chunks)
    assert [event["event"] for event in whole.agentsd["events"]] == names
    own = [event for event in responses if hasattr(event, "agentsd")]
    assert [event.agentsd["event"] for event in own] == names
    assert {event.type for event in own} == {"response.in_progress"}


def test_images_in_the_data_reach_the_model_and_others_are_refused(tmp_path: Path) -> None:
    def asking(url: str) -> Any:
        image = {"type": "image_url", "image_url": {"url": url}}
        return [{"role": "user", "content": [{"type": "text", "text": "what is this?"}, image]}]

    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        data = f"data:image/png;base64,{b64encode(png()).decode()}"
        await client.chat.completions.create(model="one", messages=asking(data))
        with pytest.raises(openai.BadRequestError) as remote:
            await client.chat.completions.create(model="one", messages=asking("https://example.com/a.png"))
        return remote.value.param

    param, runs, requests = serve(project(tmp_path), "a dot", use=use)
    assert param == "messages.0.content.1.image_url"
    assert len(runs) == 1
    (image,) = requests[0].messages[-1].media
    assert (image.media_type, image.size) == ("image/png", len(png()))


def test_settings_and_metadata_reach_the_run(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, server: Serving) -> Any:
        await client.chat.completions.create(
            model="one", messages=USER, temperature=0.9, seed=7, stop=["END"], max_completion_tokens=50,
            metadata={"thread": "t1"}, frequency_penalty=1,
            extra_headers={"X-OpenWebUI-Chat-Id": "chat-1", "X-OpenWebUI-User-Id": "ann"},
        )  # fmt: skip
        (run,) = await server.runs()
        return (await server.runtime.store.load_run(run.run_id)).metadata

    root = project(tmp_path, model_settings="{temperature: 0, max_tokens: 100}")
    metadata, (run,), requests = serve(root, "noon", use=use)
    assert metadata == {"openai_metadata": {"thread": "t1"}, "openwebui_chat_id": "chat-1"}
    assert run.user == "ann"
    settings = requests[0].settings.model_dump(exclude_defaults=True)
    assert settings == {"temperature": 0, "max_tokens": 50, "seed": 7, "stop": ("END",)}


def test_a_client_that_leaves_a_stream_leaves_the_run_running(tmp_path: Path) -> None:
    async def use(client: AsyncOpenAI, server: Serving) -> Any:
        stream = await client.chat.completions.create(model="one", messages=USER, stream=True)
        await anext(aiter(stream))
        await stream.close()
        (run,) = await server.runs()
        return await server.runtime.result(run.run_id)

    result, _, _ = serve(project(tmp_path), LOOKS, "It is noon.", use=use)
    assert (result.status, result.output) == ("completed", "It is noon.")


def test_the_title_of_a_chat_is_asked_of_the_model_alone(tmp_path: Path) -> None:
    prompt = "### Task:\nGenerate a title.\n### Chat History:\n<chat_history>\nuser: hi\n</chat_history>"

    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        by_prompt = await client.chat.completions.create(model="one", messages=[{"role": "user", "content": prompt}])
        by_header = await client.chat.completions.create(
            model="auto", messages=USER, extra_headers={"X-OpenWebUI-Task": "title_generation"}
        )
        stream = await client.chat.completions.create(
            model="one", messages=[{"role": "user", "content": prompt}], stream=True
        )
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        return [answer.choices[0].message.content for answer in (by_prompt, by_header)] + [streamed]

    titles, runs, requests = serve(project(tmp_path), "A title", "Time", "Again", use=use)
    assert titles == ["A title", "Time", "Again"]
    assert runs == []
    assert [len(request.messages) for request in requests] == [1, 1, 1]
    assert not any(request.tools for request in requests)


def test_open_webui_gets_answers_with_its_default_settings(tmp_path: Path) -> None:
    """The bodies have the form of those that Open WebUI sends: a chat with its tools, and requests of its own."""
    bodies = json.loads(Path(__file__).with_name("open_webui.json").read_text("utf-8"))

    async def use(_: AsyncOpenAI, server: Serving) -> Any:
        async with httpx2.AsyncClient(base_url=server.v1) as http:
            return {
                name: await http.post("/chat/completions", json=bodies[name])
                for name in ("chat", "follow_ups", "title", "tags")
            }

    answers, runs, requests = serve(project(tmp_path), LOOKS, "It is noon.", "a", "b", "c", use=use)
    assert len(bodies["chat"]["tools"]) > 20
    assert answers["chat"].headers["x-agentsd-ignored"] == "tools"
    chunks = [json.loads(line[6:]) for line in answers["chat"].text.splitlines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "It is noon."
    tasks = [answers[name].json()["choices"][0]["message"]["content"] for name in ("follow_ups", "title", "tags")]
    assert tasks == ["a", "b", "c"]
    assert len(runs) == 1, "titles and the like are no runs"
    assert [tool.name for tool in requests[0].tools] == ["clock.now"]


def test_a_question_about_documents_is_no_background_task(tmp_path: Path) -> None:
    prompt = "### Task:\nRespond to the query.\n<context>a</context>\n<user_query>what time is it?</user_query>"

    async def use(client: AsyncOpenAI, _: Serving) -> Any:
        answer = await client.chat.completions.create(
            model="one", messages=[{"role": "user", "content": prompt}], extra_headers={"X-OpenWebUI-Task": "{{TASK}}"}
        )
        return answer.choices[0].message.content

    answer, runs, requests = serve(project(tmp_path), "noon", use=use)
    assert (answer, len(runs)) == ("noon", 1)
    assert requests[0].tools
