"""A typed answer costs one call if the server enforces a schema; the prompt always contains the schema."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from framework import RunResult, Runtime, events, tool
from framework.config.yaml.parse import ParseError, parse_agent
from framework.llm.anthropic import ANSWER_TOOL, AnthropicModel
from framework.llm.capabilities import Capabilities, known_capabilities
from framework.llm.client import ModelClient
from framework.llm.gemini import GeminiModel
from framework.llm.openai.client import OpenAIModel
from framework.testing import JsonStore
from framework.types.events import Event
from tests.support.formats import ANTHROPIC, GEMINI, KEY, OPENAI, Format, each_way, says
from tests.support.projects import agent, write
from tests.support.wire import Answer, WireServer, wire_server

SCHEMA = "{type: object, properties: {city: {type: string}, days: {type: integer}}, required: [city, days]}"
TRIP = {"city": "Oslo", "days": 3}
TEXT = json.dumps(TRIP)
ANSWER = ANSWER_TOOL.replace(".", "__")
JUST_JSON = "Your final answer is one JSON object"


class Trip(BaseModel):
    city: str
    days: int


@tool(risk="low")
async def look(place: str) -> str:
    """Look something up."""
    return f"{place} is fine"


def openai(url: str) -> OpenAIModel:
    return OpenAIModel("openai", "gpt-4o", api_key=KEY, base_url=url)


def older(url: str) -> OpenAIModel:
    return OpenAIModel("openai", "gpt-3.5-turbo", api_key=KEY, base_url=url)


def local(url: str) -> OpenAIModel:
    return OpenAIModel("openai", "m", api_key="", base_url=url, capabilities=Capabilities(json_schema=True))


def unknown(url: str) -> OpenAIModel:
    return OpenAIModel("openai", "m", api_key="", base_url=url)


def claude(url: str) -> AnthropicModel:
    return AnthropicModel("claude-sonnet-5", api_key=KEY, base_url=url)


def gemini(url: str) -> GeminiModel:
    return GeminiModel("gemini-2.5-flash", api_key=KEY, base_url=url)


CLIENTS = {
    "openai": (openai, OPENAI),
    "older": (older, OPENAI),
    "local": (local, OPENAI),
    "unknown": (unknown, OPENAI),
    "claude": (claude, ANTHROPIC),
    "gemini": (gemini, GEMINI),
}


async def run(
    root: Path, client: Any, answers: list[Answer], *, stream: bool = False, output: Any = None, **keys: str
) -> tuple[RunResult, WireServer, list[Event]]:
    async with wire_server(answers) as server:
        model: ModelClient = client(server.url)
        write(root, {"agents.d/one.yaml": agent("one", **keys)})
        models = {"scripted": model}
        async with Runtime.open(root, models=models, tools=[look], store=JsonStore(), watch=False) as runtime:
            if not stream:
                return await runtime.run("go", output_type=output), server, []
            async with runtime.stream("go", output_type=output) as listened:
                seen = [event async for event in listened]
                return await listened.result(), server, seen


def asked(root: Path, client: Any, *answers: Answer, **options: Any) -> tuple[RunResult, WireServer, list[Event]]:
    return asyncio.run(run(root, client, list(answers), **options))


def system(body: dict[str, Any]) -> str:
    return json.dumps([body.get("system"), body.get("systemInstruction"), body.get("messages", [None])[0]])


NO_TOOLS = {"skill_policy": "{allow: []}", "output_schema": SCHEMA}
TOOLS = {"skill_policy": "{allow: [look]}", "output_schema": SCHEMA}


@pytest.mark.parametrize("tools", ["[]", "[look]"])
@pytest.mark.parametrize("output", [Trip, None], ids=["output_type", "output_schema"])
@pytest.mark.parametrize("name", ["openai", "older", "local", "unknown", "claude", "gemini"])
def test_a_valid_first_answer_costs_one_request_that_contains_the_schema(
    tmp_path: Path, name: str, output: type[Trip] | None, tools: str
) -> None:
    client, form = CLIENTS[name]
    answer = says(form, calls=((ANSWER, TRIP),)) if form is ANTHROPIC else says(form, TEXT)
    keys = {"skill_policy": f"{{allow: {tools}}}"} | ({} if output else {"output_schema": SCHEMA})
    result, server, _ = asked(tmp_path, client, answer, output=output, **keys)

    assert (result.data, len(server.requests)) == (TRIP, 1)
    sent = json.dumps(server.requests[0]).replace("\\", "")
    assert re.search(r'"required": ?\["city", ?"days"\]', sent)


@each_way
@pytest.mark.parametrize("keys", [NO_TOOLS, TOOLS], ids=["no tools", "tools"])
def test_openai_enforces_the_schema_in_one_request(tmp_path: Path, keys: dict[str, str], stream: bool) -> None:
    result, server, _ = asked(tmp_path, openai, says(OPENAI, TEXT), stream=stream, **keys)
    assert (result.data, result.output, len(server.requests)) == (TRIP, TEXT, 1)
    form = server.requests[0]["response_format"]
    assert (form["type"], form["json_schema"]["schema"]["required"]) == ("json_schema", ["city", "days"])
    assert JUST_JSON not in system(server.requests[0]), "the provider enforces it already"


def test_a_caller_s_type_is_sent_as_well_and_tool_turns_come_first(tmp_path: Path) -> None:
    look_up = says(OPENAI, calls=(("look", {"place": "Oslo"}),))
    result, server, _ = asked(tmp_path, openai, look_up, says(OPENAI, TEXT), output=Trip)
    assert (result.data, len(server.requests)) == (TRIP, 2)
    forms = [body["response_format"]["json_schema"]["schema"]["title"] for body in server.requests]
    assert forms == ["Trip", "Trip"]


@each_way
def test_gemini_enforces_the_schema_without_tools(tmp_path: Path, stream: bool) -> None:
    result, server, _ = asked(tmp_path, gemini, says(GEMINI, TEXT), stream=stream, **NO_TOOLS)
    assert (result.data, len(server.requests)) == (TRIP, 1)
    config = server.requests[0]["generationConfig"]
    assert config["responseMimeType"] == "application/json"
    assert config["responseJsonSchema"]["required"] == ["city", "days"]


def test_gemini_and_local_servers_with_tools_get_the_schema_in_the_prompt(tmp_path: Path) -> None:
    for client, form in ((gemini, GEMINI), (local, OPENAI)):
        result, server, _ = asked(tmp_path, client, says(form, TEXT), **TOOLS)
        assert (result.data, len(server.requests)) == (TRIP, 1)
        (body,) = server.requests
        assert "responseJsonSchema" not in body.get("generationConfig", {})
        assert "response_format" not in body
        assert JUST_JSON in system(body)
        assert '\\"required\\":[\\"city\\",\\"days\\"]' in system(body)


def test_a_local_server_with_the_capability_enforces_the_schema(tmp_path: Path) -> None:
    _, server, _ = asked(tmp_path, local, says(OPENAI, TEXT), **NO_TOOLS)
    assert server.requests[0]["response_format"]["type"] == "json_schema"


@each_way
def test_claude_answers_with_a_forced_tool_call(tmp_path: Path, stream: bool) -> None:
    answer = says(ANTHROPIC, calls=((ANSWER, TRIP),))
    result, server, seen = asked(tmp_path, claude, answer, stream=stream, **NO_TOOLS)
    assert (result.status, result.data, len(server.requests)) == ("completed", TRIP, 1)
    assert json.loads(result.output) == TRIP
    assert not result.tool_calls
    body = server.requests[0]
    assert [one["name"] for one in body["tools"]] == [ANSWER]
    assert body["tool_choice"]["type"] == "tool"
    assert JUST_JSON not in system(body)
    if stream:
        shown = "".join(event.text for event in seen if isinstance(event, events.ContentReceived))
        assert json.loads(shown) == TRIP


@each_way
def test_claude_chooses_between_its_tools_and_the_answer(tmp_path: Path, stream: bool) -> None:
    both = says(ANTHROPIC, calls=(("look", {"place": "Oslo"}), (ANSWER, {"city": "too", "days": 0})))
    last = says(ANTHROPIC, thought="it is fine", calls=((ANSWER, TRIP),))
    result, server, _ = asked(tmp_path, claude, both, last, stream=stream, **TOOLS)
    assert (result.data, len(server.requests)) == (TRIP, 2)
    assert [made.tool for made in result.tool_calls] == ["look"], "an answer next to a call came too early"
    assert [body["tool_choice"]["type"] for body in server.requests] == ["auto", "auto"]
    assert [[one["name"] for one in body["tools"]] for body in server.requests] == [["look", ANSWER]] * 2
    assert ANSWER not in json.dumps(server.requests[1]["messages"])


@pytest.mark.parametrize(
    ("client", "form"), [(openai, OPENAI), (claude, ANTHROPIC), (gemini, GEMINI), (unknown, OPENAI)]
)
def test_an_answer_in_text_is_retried_once(tmp_path: Path, client: Any, form: Format) -> None:
    answers = (says(form, "Three days in Oslo."), says(form, calls=(("Answer", TRIP),)))
    result, server, _ = asked(tmp_path, client, *answers, **NO_TOOLS)
    assert (result.data, result.output, len(server.requests)) == (TRIP, "Three days in Oslo.", 2)


@pytest.mark.parametrize(("client", "form"), [(openai, OPENAI), (claude, ANTHROPIC), (gemini, GEMINI)])
def test_response_format_text_leaves_the_first_answer_free(tmp_path: Path, client: Any, form: Format) -> None:
    answers = (says(form, "Three days in Oslo."), says(form, calls=(("Answer", TRIP),)))
    keys = {**NO_TOOLS, "model_settings": "{response_format: text}"}
    result, server, _ = asked(tmp_path, client, *answers, **keys)
    assert result.data == TRIP
    first = json.dumps(server.requests[0])
    assert not any(word in first for word in ("response_format", "responseMimeType", ANSWER, JUST_JSON))


@pytest.mark.parametrize("client", [openai, older])
def test_response_format_json_is_any_object(tmp_path: Path, client: Any) -> None:
    keys = {"skill_policy": "{allow: []}", "model_settings": "{response_format: json}"}
    result, server, _ = asked(tmp_path, client, says(OPENAI, '{"a": 1}'), **keys)
    assert (result.output, result.data) == ('{"a": 1}', {"a": 1})
    assert server.requests[0]["response_format"] == {"type": "json_object"}
    assert JUST_JSON in system(server.requests[0]), "OpenAI refuses JSON mode where no message names JSON"


@pytest.mark.parametrize("text", ["a text", "[1]", '{"a": 1, "a": 2}', "{"])
def test_an_answer_that_is_no_json_object_is_not_requested_again(tmp_path: Path, text: str) -> None:
    keys = {"skill_policy": "{allow: []}", "model_settings": "{response_format: json}"}
    result, server, _ = asked(tmp_path, openai, says(OPENAI, text), **keys)
    assert (result.status, result.output, result.data, len(server.requests)) == ("completed", text, None, 1)


def test_an_unknown_value_is_rejected_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="response_format"):
        parse_agent("a.yaml", agent("a", model_settings="{response_format: xml}").encode())


def test_models_without_json_schema_get_it_in_the_prompt(tmp_path: Path) -> None:
    assert known_capabilities("openai/gpt-3.5-turbo").json_schema is False
    _, server, _ = asked(tmp_path, older, says(OPENAI, TEXT), **NO_TOOLS)
    assert server.requests[0]["response_format"] == {"type": "json_object"}
    assert JUST_JSON in system(server.requests[0])
