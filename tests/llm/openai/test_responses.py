"""The client of the Responses API; what it shares with the other clients is in the contract tests."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from openai.types import responses as oai
from openai.types.responses.response_error import ResponseError

from framework.llm.capabilities import Capabilities
from framework.llm.client import Delta, ModelReply, ModelRequest
from framework.llm.openai.client import OpenAIModel
from framework.llm.openai.responses import ResponsesModel, items_to_message, message_to_items
from framework.types.errors import ModelError, ModelRefused
from framework.types.messages import Message, Reasoning, ToolCall
from framework.types.spec import ModelSettings
from tests.support.formats import (
    OPENAI,
    RESPONSES,
    SIGNATURE,
    ScriptedReply,
    begun,
    response_events,
    response_items,
    says,
    whole_response,
)
from tests.support.openai_requests import BOTH_WAYS, KEY, SEARCH, USER, deltas, request
from tests.support.wire import Answer, WireServer, failed, raw, wire_server

READ = SEARCH.model_copy(update={"name": "docs.read"})
SYSTEM = Message(role="system", content="Be brief.")
SOURCE = "m@127.0.0.1"


def ask(
    answers: Sequence[Answer], asked: ModelRequest, provider: str = "openai", model: str = "m", **options: Any
) -> tuple[list[Delta], WireServer]:
    async def run() -> tuple[list[Delta], WireServer]:
        async with wire_server(answers) as server:
            client = ResponsesModel(provider, model, api_key=KEY, base_url=server.url, **options)
            return await deltas(client, asked), server

    return asyncio.run(run())


def sent(asked: ModelRequest, **options: Any) -> dict[str, Any]:
    """Return the body of a request."""
    body: dict[str, Any] = ask([says(RESPONSES, "ok")], asked, **options)[1].requests[0]
    return body


def reply(answer: Answer, *, stream: bool = False, **changes: Any) -> ModelReply:
    last = ask([answer], request(stream=stream, **changes))[0][-1].reply
    assert last is not None
    return last


def failure(answer: Answer, *, stream: bool = False) -> ModelError:
    with pytest.raises(ModelError) as caught:
        ask([answer], request(stream=stream))
    return caught.value


def responded(*items: Any, end: str = "stop", **changes: Any) -> Answer:
    """Return a response of these output items."""
    response = whole_response(list(items), end).model_copy(update=changes)
    return Answer(
        body=response.to_json(indent=None, warnings=False).encode(), streamed=tuple(response_events(response))
    )


def plain(text: str) -> dict[str, Any]:
    """Return the input item of an assistant's message without an id."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content}


def message(text: str, number: int = 1, **more: Any) -> oai.ResponseOutputMessage:
    part = oai.ResponseOutputText(type="output_text", text=text, annotations=[])
    return oai.ResponseOutputMessage(
        id=f"msg_{number}", type="message", role="assistant", status="completed", content=[part], **more
    )


# --- requests


def test_found_tools_follow_the_result_that_found_them() -> None:
    call = Message(role="assistant", tool_calls=(ToolCall(id="s1", tool=SEARCH.name, arguments={}),))
    found = Message(role="tool", content="found", tool_call_id="s1", status="success")
    begin = request(tools=(SEARCH,), found={})
    asked = replace(begin, messages=(USER, call, found), tools=(SEARCH, READ), found={"s1": [READ.name, "gone"]})
    late, early = Capabilities(late_tools=True), Capabilities()

    first, second = sent(begin, capabilities=late), sent(asked, capabilities=late)
    assert second["tools"] == first["tools"]
    kinds = [item.get("type") for item in second["input"]]
    assert kinds == [None, "function_call", "function_call_output", "additional_tools"]
    assert second["input"][2]["output"] == "found"
    (added,) = second["input"][3]["tools"]
    assert added["name"] == "docs__read"

    unknown = sent(asked, capabilities=early)
    assert [tool["name"] for tool in unknown["tools"]] == [SEARCH.wire_name, "docs__read"]
    assert len(unknown["input"]) == 3


def test_found_tools_follow_all_results_of_their_turn() -> None:
    """Nothing shows that the API accepts an item between the outputs of one turn."""
    turn = tuple(ToolCall(id=name, tool=SEARCH.name, arguments={}) for name in ("s1", "s2"))
    results = [Message(role="tool", content="found", tool_call_id=call.id, status="success") for call in turn]
    later = Message(role="assistant", tool_calls=(turn[0].model_copy(update={"id": "s3"}),))
    last = results[0].model_copy(update={"tool_call_id": "s3"})
    messages = (USER, Message(role="assistant", tool_calls=turn), *results, later, last)
    asked = replace(request(), messages=messages, tools=(SEARCH, READ), found={"s1": [READ.name]})
    items = sent(asked, capabilities=Capabilities(late_tools=True))["input"]
    outputs = ["function_call_output"] * 2
    assert [item.get("type") for item in items[3:]] == [*outputs, "additional_tools", "function_call", outputs[0]]


def test_a_tool_that_left_the_request_is_not_in_its_conversation() -> None:
    """The encoded messages of a run are kept, and must not keep definitions."""
    call = Message(role="assistant", tool_calls=(ToolCall(id="s1", tool=SEARCH.name, arguments={}),))
    found = Message(role="tool", content="found", tool_call_id="s1", status="success")
    asked = replace(request(), messages=(USER, call, found), tools=(SEARCH, READ), found={"s1": [READ.name]})

    async def run() -> list[str]:
        async with wire_server([says(RESPONSES, "ok")] * 2) as server:
            client = ResponsesModel(
                "openai", "m", api_key=KEY, base_url=server.url, capabilities=Capabilities(late_tools=True)
            )
            await deltas(client, asked)
            await deltas(client, replace(asked, tools=(SEARCH,)))
            return [json.dumps(body) for body in server.requests]

    with_it, without = asyncio.run(run())
    assert "docs__read" in with_it
    assert "docs__read" not in without


def test_conversation_tools_and_settings_reach_the_server() -> None:
    earlier = Message(role="assistant", tool_calls=(ToolCall(id="c", tool="docs.search", arguments={"q": "ü"}),))
    result = Message(role="tool", content="found", tool_call_id="c")
    settings = ModelSettings(temperature=0.5, top_p=0.9, max_tokens=50, tool_choice="docs.search", reasoning="high")

    body = sent(request(messages=(SYSTEM, USER, earlier, result), tools=(SEARCH, READ), settings=settings))

    def function(name: str) -> dict[str, Any]:
        return {
            "type": "function",
            "name": name,
            "description": "Search.",
            "parameters": SEARCH.parameters,
            "strict": False,
        }

    assert body == {
        "model": "m",
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "high"},
        "input": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi"},
            {"type": "function_call", "call_id": "c", "name": "docs__search", "arguments": '{"q": "ü"}'},
            {"type": "function_call_output", "call_id": "c", "output": "found"},
        ],
        "tools": [function("docs__search"), function("docs__read")],
        "tool_choice": {"type": "function", "name": "docs__search"},
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 50,
    }


def test_a_model_that_does_not_think_is_sent_nothing_about_reasoning() -> None:
    body = sent(request(settings=ModelSettings(reasoning="low")), capabilities=Capabilities(thinking="none"))

    assert not {"include", "reasoning"} & body.keys()


def test_the_strictest_text_format_is_sent() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}

    def text_format(wanted: dict[str, Any] | None, **can: bool) -> Any:
        asked = request(tools=(), json=wanted)
        return sent(asked, capabilities=Capabilities(**can)).get("text", {}).get("format")

    strict = {"type": "json_schema", "name": "answer", "schema": schema, "strict": False}
    assert text_format(schema, json_schema=True, json_object=True) == strict
    assert text_format(schema, json_object=True) == {"type": "json_object"}
    assert text_format({}, json_schema=True, json_object=True) == {"type": "json_object"}
    assert text_format(schema) is None
    assert text_format(None, json_schema=True) is None
    with_tools = sent(request(json=schema), capabilities=Capabilities(json_schema=True))
    assert "text" not in with_tools, "most servers accept a format or tools"


def test_messages_are_encoded_once_for_each_api() -> None:
    call = Message(role="assistant", tool_calls=(ToolCall(id="c", tool="docs.search"),))
    result = Message(role="tool", content="x", tool_call_id="c")

    async def run() -> list[Any]:
        first = request(messages=(SYSTEM, USER))
        second = request(messages=(*first.messages, call, result), scratch=first.scratch)
        async with wire_server(lambda body: says(RESPONSES if "input" in body else OPENAI, "ok")) as server:
            for client, asked in ((ResponsesModel, first), (ResponsesModel, second), (OpenAIModel, second)):
                await deltas(client("openai", "m", api_key=KEY, base_url=server.url), asked)
            return [body.get("input") or body["messages"] for body in server.requests]

    one, two, chat = asyncio.run(run())
    assert two[:2] == one == chat[:2]
    assert [item["type"] for item in two[2:]] == ["function_call", "function_call_output"]
    assert [message["role"] for message in chat[2:]] == ["assistant", "tool"]


# --- replies


@BOTH_WAYS
def test_an_answer_contains_text_calls_and_reasoning(stream: bool) -> None:
    answer = says(RESPONSES, "wait", calls=(("docs__search", {"q": 1}),), thought="hm", usage=(12, 7, 4))

    received = reply(answer, stream=stream)

    assert received.message.content == "wait"
    assert received.message.tool_calls == (ToolCall(id="call_1", tool="docs.search", arguments={"q": 1}),)
    assert (received.finish_reason, received.response_id, received.model) == ("tool_calls", "resp_1", "wire-model")
    counts = received.usage
    assert (counts.prompt_tokens, counts.completion_tokens, counts.cached_tokens) == (12, 7, 4)
    item = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": SIGNATURE,
    }
    outline = [
        item,
        {"type": "message", "chars": 4, "id": "msg_1"},
        {"type": "function_call", "call_id": "call_1", "id": "fc_1"},
    ]
    data = {"source": SOURCE, "outline": outline}
    assert received.message.reasoning == Reasoning(text="hm", provider="openai", data=data)


def test_texts_of_several_messages_are_paragraphs() -> None:
    answer = responded(message("Well."), message("It is 4 2.", 2))

    received = ask([answer], request(stream=True))[0]

    last = received[-1].reply
    assert last
    assert last.message.content == "Well.\n\nIt is 4 2."
    assert "".join(delta.text for delta in received) == last.message.content
    assert reply(answer).message == last.message


def test_commentary_is_thinking_and_no_part_of_the_answer() -> None:
    answer = responded(message("Let me look.", phase="commentary"), message("It is 4 2.", 2, phase="final_answer"))

    received = ask([answer], request(stream=True))[0]

    last = received[-1].reply
    assert last
    assert last.message.content == "It is 4 2."
    assert last.message.reasoning
    assert last.message.reasoning.text == "Let me look."
    assert "".join(delta.text for delta in received) == last.message.content
    assert "".join(delta.reasoning for delta in received) == last.message.reasoning.text
    assert reply(answer).message == last.message
    body = sent(request(messages=(USER, last.message, USER)))
    assert [(item.get("phase"), item["content"][0]["text"]) for item in body["input"][1:3]] == [
        ("commentary", "Let me look."),
        ("final_answer", "It is 4 2."),
    ]


@pytest.mark.parametrize("kept", ["item events", "item events, all numbered 0", "response"])
def test_items_may_arrive_only_in_their_events_or_only_in_the_response(kept: str) -> None:
    answer = says(RESPONSES, "wait a bit", calls=(("docs__search", {"q": 1}),))
    if kept == "response":
        events = tuple(event for event in answer.streamed if "response.completed" in event)
    else:
        *first, last = answer.streamed
        head, _, data = last.partition("\ndata: ")
        response = {**json.loads(data)["response"], "output": []}
        events = (*first, f"{head}\ndata: {json.dumps({'type': 'response.completed', 'response': response})}")

    if "0" in kept:
        events = tuple(re.sub(r'"output_index": ?\d+', '"output_index": 0', event) for event in events)

    received = reply(Answer(streamed=events), stream=True)

    assert received.message.content == "wait a bit"
    assert [call.tool for call in received.message.tool_calls] == ["docs.search"]


def test_a_text_without_deltas_is_shown_with_its_item() -> None:
    events = (event for event in says(RESPONSES, "one two").streamed if ".delta" not in event)

    received, _ = ask([Answer(streamed=tuple(events))], request(stream=True))

    assert [delta.text for delta in received if delta.text] == ["one two"]


@pytest.mark.parametrize("without", [".delta", "output_item.added"])
def test_commentary_is_thinking_however_it_is_announced(without: str) -> None:
    items = message("Let me look.", phase="commentary"), message("It is 4 2.", 2, phase="final_answer")
    events = (event for event in responded(*items).streamed if without not in event)

    last = ask([Answer(streamed=tuple(events))], request(stream=True))[0][-1].reply

    assert last
    assert last.message.reasoning
    assert (last.message.content, last.message.reasoning.text) == ("It is 4 2.", "Let me look.")


def test_an_answer_that_begins_within_another_one_is_not_merged_with_it() -> None:
    first, second = responded(message("one")).streamed, responded(message("two"), id="resp_other").streamed
    shown = next(place for place, event in enumerate(first) if ".delta" in event) + 1

    error = failure(Answer(streamed=(*first[:shown], *second)), stream=True)

    assert "a second answer began within the first one" in error.message
    assert error.retryable
    assert reply(Answer(streamed=(*first[:1], *second)), stream=True).message.content == "two"


def test_commentary_alone_is_the_answer() -> None:
    assert reply(responded(message("Done.", phase="commentary"))).message.content == "Done."


def test_unknown_events_and_items_are_ignored() -> None:
    answer = says(RESPONSES, "one two")
    odd = ['{"type": "keepalive"}', '{"type": "response.web_search_call.searching"}', '{"type": ["x"]}', '{"a": 1}']
    search = {"type": "response.output_item.done", "output_index": 9, "item": {"type": "web_search_call", "id": "w"}}
    events = (odd[0], *answer.streamed[:4], *odd, json.dumps(search), *answer.streamed[4:])

    assert reply(Answer(streamed=events), stream=True).message == Message(role="assistant", content="one two")


@BOTH_WAYS
def test_a_refusal_is_one_error_with_its_explanation(stream: bool) -> None:
    part = oai.ResponseOutputRefusal(type="refusal", refusal="I will not")
    refused = message("x").model_copy(update={"content": [part]})

    error = failure(responded(refused), stream=stream)

    assert isinstance(error, ModelRefused)
    assert error.message == "openai/m: refused: I will not"


@BOTH_WAYS
@pytest.mark.parametrize(
    ("code", "retryable", "refused"),
    [
        ("server_error", True, False),
        ("rate_limit_exceeded", True, False),
        ("invalid_prompt", False, False),
        ("bio_policy", False, True),
    ],
)
def test_a_failed_response_is_one_error_with_its_usage(code: Any, retryable: bool, refused: bool, stream: bool) -> None:
    error = failure(responded(end="failed", error=ResponseError(code=code, message="broken")), stream=stream)

    assert error.message.endswith(": broken")
    assert (error.retryable, isinstance(error, ModelRefused)) == (retryable, refused)
    assert error.usage
    assert error.usage.total_tokens == 15


@pytest.mark.parametrize("status", ["cancelled", "in_progress", "queued"])
def test_a_response_that_is_not_complete_is_one_error(status: str) -> None:
    error = failure(responded(message("half"), end=status))

    assert f"unexpected finish_reason: {status}" in error.message
    assert error.retryable


def test_an_incomplete_response_without_a_reason_executes_nothing() -> None:
    items = response_items(ScriptedReply(calls=(("docs__search", {}),)))

    assert "cut by max_tokens" in failure(responded(*items, end="incomplete")).message


def test_an_error_inside_an_error_event_is_reported() -> None:
    event = json.dumps({"type": "error", "error": {"message": "too much", "code": "invalid_prompt"}})

    error = failure(begun(RESPONSES, event), stream=True)

    assert "the provider reported an error: too much" in error.message
    assert not error.retryable


@BOTH_WAYS
def test_a_custom_tool_call_is_marked_invalid(stream: bool) -> None:
    call = oai.ResponseCustomToolCall(type="custom_tool_call", call_id="c", name="sql", input="drop", id="ct_1")
    streamed = [{"type": "response.output_item.done", "output_index": 0, "item": call.to_dict()}]
    whole = whole_response([call])
    end = {"type": "response.completed", "response": whole.to_dict(warnings=False)}
    events = tuple(json.dumps(event) for event in (*streamed, end))

    (called,) = reply(
        Answer(streamed=events) if stream else raw(200, whole.to_json(warnings=False).encode()), stream=stream
    ).message.tool_calls

    assert called.tool == "sql"
    assert called.invalid


# --- reasoning in later requests


def thought(provider: str = "openai", model: str = "m") -> Message:
    """Return a reply with encrypted reasoning, a text and a call, by a model."""
    asked = request()
    answer = says(RESPONSES, "wait", calls=(("docs__search", {}),), thought="hm")
    last = ask([answer], asked, provider, model)[0][-1].reply
    assert last
    return last.message


RESULT = Message(role="tool", content="x", tool_call_id="call_1")


def test_reasoning_is_sent_back_unchanged_with_the_ids_of_its_items() -> None:
    _, reasoning, text, call, result = sent(request(messages=(USER, thought(), RESULT)))["input"]

    assert reasoning == {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": SIGNATURE,
    }
    assert text == {
        "type": "message",
        "role": "assistant",
        "id": "msg_1",
        "status": "completed",
        "content": [{"type": "output_text", "text": "wait", "annotations": []}],
    }
    assert (call["id"], call["call_id"], result["call_id"]) == ("fc_1", "call_1", "call_1")


@pytest.mark.parametrize(
    ("provider", "model"), [("openai", "other"), ("qwen", "m")], ids=["another model", "another provider"]
)
def test_reasoning_of_another_model_is_not_sent(provider: str, model: str) -> None:
    body = sent(request(messages=(USER, thought(provider, model), RESULT)))

    call = {"type": "function_call", "call_id": "call_1", "name": "docs__search", "arguments": "{}"}
    assert body["input"][1:3] == [plain("wait"), call]
    assert SIGNATURE not in json.dumps(body)


def test_reasoning_of_another_server_is_not_sent() -> None:
    message = thought()
    assert message.reasoning
    assert message.reasoning.data
    moved = {**message.reasoning.data, "source": "m@example.org"}
    reasoning = message.reasoning.model_copy(update={"data": moved})

    assert SIGNATURE not in json.dumps(
        sent(request(messages=(USER, message.model_copy(update={"reasoning": reasoning}), RESULT)))
    )


@pytest.mark.parametrize(
    "data",
    [{"field": "reasoning_content"}, {"source": SOURCE, "outline": "x"}, {"source": SOURCE, "outline": [None, 7]}],
)
def test_data_in_another_form_is_not_sent(data: dict[str, Any]) -> None:
    old = Message(role="assistant", content="a", reasoning=Reasoning(text="hm", provider="openai", data=data))

    assert sent(request(messages=(USER, old, USER)))["input"][1] == plain("a")


def test_chat_completions_leave_out_encrypted_reasoning() -> None:
    async def run() -> str:
        async with wire_server(lambda _: failed(500, "x")) as server:
            chat = OpenAIModel("openai", "m", api_key=KEY, base_url=server.url)
            with pytest.raises(ModelError):
                await deltas(chat, request(messages=(USER, thoughtful, RESULT)))
            return json.dumps(server.requests[0])

    thoughtful = thought()
    assert SIGNATURE not in asyncio.run(run())


def items(sent_message: Message) -> list[dict[str, Any]]:
    return message_to_items(sent_message, {}, provider="openai", source=SOURCE)


def kinds(sent_message: Message) -> list[str]:
    return [str(item.get("type", item.get("role"))) for item in items(sent_message)]


def test_changed_texts_and_calls_keep_the_reasoning_that_still_leads_to_something() -> None:
    message = thought()
    another = ToolCall(id="new", tool="docs.read")

    assert kinds(message) == ["reasoning", "message", "function_call"]
    assert items(message.model_copy(update={"content": "changed"}))[1]["content"][0]["text"] == "changed"
    assert kinds(message.model_copy(update={"content": ""})) == ["reasoning", "function_call"]
    assert kinds(message.model_copy(update={"tool_calls": ()})) == ["reasoning", "message"]
    replaced = items(message.model_copy(update={"tool_calls": (another,)}))
    assert [item["type"] for item in replaced] == ["reasoning", "message", "function_call"]
    assert "id" not in replaced[-1], "an id belongs to its call"
    assert kinds(message.model_copy(update={"content": "", "tool_calls": ()})) == ["message"], "nothing follows"


def test_reasoning_that_cannot_be_sent_back_is_kept_as_text() -> None:
    unsaved = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
    said = {"type": "message", "content": [{"type": "output_text", "text": "a"}]}

    received = items_to_message([unsaved, said], {}, provider="openai", source=SOURCE)

    assert received.reasoning == Reasoning(text="hm", provider="openai")
    assert items(received) == [plain("a")], "the server keeps nothing under that id"


def test_reasoning_as_text_of_a_local_server_is_sent_back() -> None:
    local = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    said = {"type": "message", "content": [{"type": "output_text", "text": "a"}]}

    received = items_to_message([local, said], {}, provider="openai", source=SOURCE)

    assert received.reasoning
    assert received.reasoning.text == "hm"
    assert items(received)[0] == local


# --- errors that name the API to use


TOOLS_NEED_RESPONSES = (
    "Function tools with reasoning_effort are not supported for gpt-5.6-terra in /v1/chat/completions. "
    "To use function tools, use /v1/responses or set reasoning_effort to 'none'."
)
ONLY_RESPONSES = "This model is only supported in v1/responses and not in v1/chat/completions."


def chat_failure(answer: Answer) -> ModelError:
    async def run() -> None:
        async with wire_server([answer]) as server:
            await deltas(OpenAIModel("openai", "m", api_key=KEY, base_url=server.url), request())

    with pytest.raises(ModelError) as caught:
        asyncio.run(run())
    return caught.value


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        (
            failed(400, TOOLS_NEED_RESPONSES),
            "set `api: responses` at its alias in agentsd.yaml, or `reasoning: none` in model_settings: Function tools",
        ),
        (
            failed(404, ONLY_RESPONSES),
            "needs the Responses API: set `api: responses` at its alias in agentsd.yaml: This",
        ),
        (
            failed(404, ONLY_RESPONSES, "model_not_found"),
            "needs the Responses API: set `api: responses` at its alias in agentsd.yaml: This",
        ),
    ],
)
def test_chat_completions_that_need_the_responses_api_say_so(answer: Answer, advice: str) -> None:
    error = chat_failure(answer)

    assert advice in error.message
    assert "protocol: json" not in error.message
    assert (error.retryable, error.unavailable) == (False, True)


def test_a_server_without_the_responses_api_is_advised_to_use_chat() -> None:
    error = failure(failed(404, "Not Found"))

    assert (
        "no Responses API there (then set `api: chat` at its alias), or base_url is wrong: Not Found" in error.message
    )
    assert error.unavailable


def test_a_proxy_that_sends_responses_as_chat_is_not_advised_to_use_responses() -> None:
    assert "set `api: responses`" not in failure(failed(400, TOOLS_NEED_RESPONSES)).message
