"""Clients in Python, unchanged, against one server: each in its default mode, with tools, typed answers and retries.

They are in an environment of their own, which has the versions that they require.
"""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn, calls
from framework.types.errors import ModelError
from framework.types.messages import Message
from tests.support.paths import ROOT
from tests.support.projects import agent, write
from tests.support.serving import now, serving

CLIENTS = ROOT / ".venv/clients"
PYTHON = CLIENTS / "bin/python"
INSTALLED = (CLIENTS / ".installed").exists()
pytestmark = [
    pytest.mark.skipif(not INSTALLED, reason="no Python clients: `make test` installs them with pip"),
    pytest.mark.timeout(300),  # they import about 3,000 modules
]
PATIENCE = 240

LITELLM = """
import json, os, sys
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm
from pydantic import BaseModel

class City(BaseModel):
    city: str

URL = sys.argv[1]
TOOL = {"type": "function", "function": {"name": "City", "parameters": City.model_json_schema()}}

def ask(text, **options):
    message = [{"role": "user", "content": text}]
    return litellm.completion(
        model="openai/one", api_base=URL, api_key="none", messages=message, max_retries=0, **options
    )

found = {}
answer = ask("what time is it?")
found["whole"] = [answer.choices[0].message.content, answer.choices[0].finish_reason]
found["streamed"] = "".join(chunk.choices[0].delta.content or "" for chunk in ask("what time is it?", stream=True))
found["tools"] = ask("what time is it?", tools=[TOOL]).choices[0].message.content

def round_trip(stream):
    messages = [{"role": "user", "content": "use yours"}]
    def send():
        answer = litellm.completion(model="openai/two", api_base=URL, api_key="none", max_retries=0,
                                    messages=messages, tools=[TOOL], stream=stream)
        return litellm.stream_chunk_builder(list(answer)) if stream else answer
    called = send().choices[0].message
    messages.append(called.model_dump())
    messages.extend({"role": "tool", "tool_call_id": call.id, "content": "shown"} for call in called.tool_calls)
    return [called.tool_calls[0].function.arguments, send().choices[0].message.content]

found["round trip"] = [round_trip(False), round_trip(True)]
found["typed"] = ask("which city?", response_format=City).choices[0].message.content
forced = ask("which city?", tools=[TOOL], tool_choice={"type": "function", "function": {"name": "City"}})
found["forced"] = [forced.choices[0].message.tool_calls[0].function.arguments, forced.choices[0].finish_reason]
try:
    ask("fail")
except Exception as error:
    found["failure"] = [type(error).__name__, "the provider is down" in str(error)]
responses = litellm.responses(model="openai/one", input="what time is it?", api_base=URL, api_key="none")
found["responses"] = responses.output[-1].content[0].text
print(json.dumps(found))
"""

LLM = """
import json, os, sys, tempfile
from importlib.metadata import version
from pathlib import Path

os.environ |= {"LLM_USER_PATH": tempfile.mkdtemp(), "OPENAI_API_KEY": "none"}
from click.testing import CliRunner
from llm.cli import cli

model = {"model_id": "one", "model_name": "one", "api_base": sys.argv[1]}
model |= {"supports_schema": True, "supports_tools": True}
two = {**model, "model_id": "two", "model_name": "two"}
Path(os.environ["LLM_USER_PATH"], "extra-openai-models.yaml").write_text(json.dumps([model, two]))
city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

def run(*arguments, model="one"):
    return CliRunner().invoke(cli, ["prompt", "-m", model, *arguments])

failed = run("fail")
print(json.dumps({
    "streamed": run("what time is it?").stdout.strip(),
    "continued": run("-c", "--no-stream", "what time is it?").stdout.strip(),
    "typed": run("--schema", json.dumps(city), "which city?").stdout.strip(),
    "tools": run("-T", "llm_time", "what time is it?").stdout.strip(),
    "round trip": [
        run("-T", "llm_version", *options, "use yours", model="two").stdout.strip().replace(version("llm"), "VERSION")
        for options in ([], ["--no-stream"])
    ],
    "failure": [failed.exit_code, "the provider is down" in failed.output],
}))
"""

PYDANTIC_AI = """
import json, sys
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, NativeOutput, PromptedOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

class City(BaseModel):
    city: str

found = {}
for api, kind in {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}.items():
    model = kind("one", provider=OpenAIProvider(base_url=sys.argv[1], api_key="none"))
    texts = Agent(model)
    first = texts.run_sync("what time is it?")
    streamed = texts.run_stream_sync("what time is it?")
    agent = Agent(model, output_type=City)
    checked = Agent(model, output_type=City)

    @checked.output_validator
    def second(city: City) -> City:
        if city.city == "Rome":
            raise ModelRetry("another one")
        return city

    helped = Agent(model)

    @helped.tool_plain
    def local() -> str:
        "A tool of the client."
        return "never"

    second_model = kind("two", provider=OpenAIProvider(base_url=sys.argv[1], api_key="none"))
    both = Agent(second_model, output_type=City)
    own = Agent(second_model)

    @both.tool_plain
    @own.tool_plain
    def shown() -> str:
        "A tool of the client."
        return "shown"

    try:
        texts.run_sync("fail")
    except ModelHTTPError as error:
        failure = [error.status_code, "the provider is down" in str(error)]
    typed = agent.run_sync("which city?")
    found[api] = {
        "whole": first.output,
        "streamed": "".join(streamed.stream_text(delta=True)),
        "continued": texts.run_sync("what time is it?", message_history=first.all_messages()).output,
        "typed": typed.output.city,
        "after a call": texts.run_sync("what time is it?", message_history=typed.all_messages()).output,
        "retried": checked.run_sync("which city?").output.city,
        "native": Agent(model, output_type=NativeOutput(City)).run_sync("which city?").output.city,
        "prompted": Agent(model, output_type=PromptedOutput(City)).run_sync("which city?").output.city,
        "tools": helped.run_sync("what time is it?").output,
        "round trip": own.run_sync("use yours").output,
        "streamed trip": "".join(own.run_stream_sync("use yours").stream_text(delta=True)),
        "typed trip": both.run_sync("use yours, then which city?").output.city,
        "failure": failure,
    }
print(json.dumps(found))
"""

INSTRUCTOR = """
import json, sys
import instructor
from instructor import Mode
from openai import OpenAI
from pydantic import BaseModel, field_validator

class City(BaseModel):
    city: str

class Checked(BaseModel):
    city: str

    @field_validator("city")
    @classmethod
    def is_another(cls, city):
        if city == "Rome":
            raise ValueError("another one")
        return city

found = {}
for mode in (None, Mode.JSON, Mode.MD_JSON, Mode.JSON_SCHEMA, Mode.RESPONSES_TOOLS):
    client = instructor.from_openai(OpenAI(base_url=sys.argv[1], api_key="none"), **({"mode": mode} if mode else {}))
    question = {"model": sys.argv[2], "messages": [{"role": "user", "content": "which city?"}]}
    create = client.chat.completions.create
    cities = [create(response_model=kind, max_retries=2, **question) for kind in (City, Checked)]
    found[mode.name if mode else "default"] = [city.city for city in cities]
print(json.dumps(found))
"""

LANGCHAIN = """
import json, sys
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import UnprocessableEntityError
from pydantic import BaseModel

class City(BaseModel):
    city: str

@tool
def local() -> str:
    "A tool of the client."
    return "never"

@tool
def shown() -> str:
    "A tool of the client."
    return "shown"

found = {}
for api in ("chat", "responses"):
    chat = ChatOpenAI(model="one", base_url=sys.argv[1], api_key="none", use_responses_api=api == "responses")
    answer = chat.invoke([("system", "Be brief."), ("user", "what time is it?")])
    chunks = list(chat.stream("what time is it?"))
    try:
        failure = chat.invoke("fail").text
    except UnprocessableEntityError as error:
        failure = error.code
    helped = create_agent(chat, [local])
    typed = create_agent(chat, [], response_format=ToolStrategy(City))
    both = ChatOpenAI(model="two", base_url=sys.argv[1], api_key="none", use_responses_api=api == "responses")
    own = create_agent(both, [shown])
    typed_own = create_agent(both, [shown], response_format=ToolStrategy(City))
    trip = {"messages": [("user", "use yours")]}
    typed_trip = {"messages": [("user", "use yours, then which city?")]}
    streamed = [step for step in own.stream(trip, stream_mode="messages") if step[0].type == "AIMessageChunk"]
    question = {"messages": [("user", "which city?")]}
    found[api] = {
        "whole": answer.text,
        "finish": answer.response_metadata.get("finish_reason") or answer.response_metadata.get("status"),
        "tokens": answer.usage_metadata["total_tokens"],
        "calls": answer.tool_calls + [call for chunk in chunks for call in chunk.tool_call_chunks],
        "streamed": "".join(chunk.text for chunk in chunks),
        "data": chat.with_structured_output(City).invoke("which city?").model_dump(),
        "function": chat.with_structured_output(City, method="function_calling").invoke("which city?").model_dump(),
        "json": chat.with_structured_output(City, method="json_mode").invoke("which city?").model_dump(),
        "agent": helped.invoke({"messages": [("user", "what time is it?")]})["messages"][-1].text,
        "typed agent": typed.invoke(question)["structured_response"].city,
        "round trip": [message.text for message in own.invoke(trip)["messages"]][-2:],
        "streamed trip": "".join(chunk.text for chunk, _ in streamed),
        "typed trip": typed_own.invoke(typed_trip)["structured_response"].city,
        "failure": failure,
    }
print(json.dumps(found))
"""

PROGRAMS = {
    "litellm": LITELLM,
    "llm": LLM,
    "pydantic-ai": PYDANTIC_AI,
    "instructor": INSTRUCTOR,
    "instructor two": INSTRUCTOR,
    "langchain": LANGCHAIN,
}
"""Each prints one JSON object with what the client returned; the arguments are the base URL and a model."""
FORKS = """
import gc, json, os, sys, traceback
gc.disable()  # a fifth of the time of the imports
import instructor, openai.resources.chat, openai.resources.responses

folder, url, programs = sys.argv[1:]
children = []
for name, program in json.loads(programs).items():
    if child := os.fork():
        children.append(child)
        continue
    code = 1
    try:
        with open(f"{folder}/{name}", "w") as sys.stdout:
            sys.argv = [name, url, "two" if name.endswith("two") else "one"]
            exec(compile(program, name, "exec"), {"__name__": "__main__"})
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""
"""Runs each program in a fork of a process that has imported what most of them need; its output is a file."""


def script(request: ModelRequest) -> Turn:
    last = request.messages[-1]
    if trip := _round_trip(request, last):
        return trip
    if last.content == "fail":
        return ModelError("the provider is down")
    if any("another one" in message.content for message in request.messages):
        return '{"city": "Oslo"}'
    if last.content.startswith("which city?"):
        return '{"city": "Rome"}'
    return calls(("clock.now", {})) if last.role == "user" else "It is noon."


def _round_trip(request: ModelRequest, last: Message) -> Turn | None:
    """Call the client's tool if the user says so, then say what it returned, or call the tool for the answer."""
    own = {tool.wire_name: tool for tool in request.tools if tool.name.startswith("client.")}
    final = next((name for name, tool in own.items() if name == "final_result" or name == "City"), None)
    if not own or not any(message.content.startswith("use yours") for message in request.messages):
        return None
    if last.role == "tool" and "which city" in request.messages[-3].content and final:
        return calls((final, {"city": "Rome"}))
    if last.role == "tool":
        return f"It is {last.content}."
    name = next(name for name in own if name != final or len(own) == 1)
    return calls((name, {"city": "Rome"} if own[name].parameters.get("required") else {}))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What the clients returned, by client. They run at the same time."""
    one = agent("one", skill_policy='{allow: ["clock.*"]}')
    two = agent("two", skill_policy='{allow: ["clock.*", "client.*"]}')
    root = write(tmp_path_factory.mktemp("clients"), {"agents.d/one.yaml": one, "agents.d/two.yaml": two})

    async def main() -> Mapping[str, Any]:
        models = {"scripted": ScriptedModel(script=script)}
        async with serving(root, models=models, tools=[now]) as server, asyncio.timeout(PATIENCE):
            arguments = ("-c", FORKS, root, server.v1, json.dumps(PROGRAMS))
            clients = await asyncio.create_subprocess_exec(PYTHON, *arguments, stdout=PIPE, stderr=STDOUT)
            output, _ = await clients.communicate()
            assert clients.returncode == 0, output.decode()
            return {"runs": await server.runs()}

    recorded = asyncio.run(main())
    printed = {name: Path(root, name).read_text("utf-8").splitlines()[-1] for name in PROGRAMS}
    return {**recorded, **{name: json.loads(line) for name, line in printed.items()}}


def test_litellm(found: Mapping[str, Any]) -> None:
    assert found["litellm"] == {
        "whole": ["It is noon.", "stop"],
        "streamed": "It is noon.",
        "tools": "It is noon.",
        "round trip": [['{"city": "Rome"}', "It is shown."]] * 2,
        "typed": '{"city": "Rome"}',
        "forced": ['{"city": "Rome"}', "tool_calls"],
        "failure": ["BadRequestError", True],
        "responses": "It is noon.",
    }


def test_llm(found: Mapping[str, Any]) -> None:
    assert found["llm"] == {
        "streamed": "It is noon.",
        "continued": "It is noon.",
        "typed": '{"city": "Rome"}',
        "tools": "It is noon.",
        "round trip": ["It is VERSION."] * 2,
        "failure": [1, True],
    }


def test_pydantic_ai(found: Mapping[str, Any]) -> None:
    """Its default for typed answers is a tool that must be called; a rejected call is sent back with the reason."""
    text, city = "It is noon.", "Rome"
    same = {"whole": text, "streamed": text, "continued": text, "tools": text, "after a call": text,
            "typed": city, "native": city, "prompted": city, "retried": "Oslo", "failure": [422, True],
            "round trip": "It is shown.", "streamed trip": "It is shown.", "typed trip": city}  # fmt: skip
    assert found["pydantic-ai"] == {"chat": same, "responses": same}


def test_instructor(found: Mapping[str, Any]) -> None:
    """A validator rejects the first city, so that the call is sent back with the reason."""
    modes = ("default", "JSON", "MD_JSON", "JSON_SCHEMA", "RESPONSES_TOOLS")
    assert found["instructor"] == {mode: ["Rome", "Oslo"] for mode in modes}
    assert found["instructor two"] == found["instructor"], "where the client's tools are allowed, too"


def test_langchain(found: Mapping[str, Any]) -> None:
    text, city = "It is noon.", {"city": "Rome"}
    same = {"whole": text, "tokens": 20, "calls": [], "streamed": text, "agent": text, "failure": "model_error",
            "data": city, "function": city, "json": city, "typed agent": "Rome",
            "round trip": ["shown", "It is shown."], "streamed trip": "It is shown.", "typed trip": "Rome"}  # fmt: skip
    chat, responses = {**same, "finish": "stop"}, {**same, "finish": "completed"}
    assert found["langchain"] == {"chat": chat, "responses": responses}


def test_a_run_that_failed_is_not_executed_again(found: Mapping[str, Any]) -> None:
    failures = {"litellm": 1, "llm": 1, "pydantic-ai": 2, "langchain": 2}
    assert [run.status for run in found["runs"]].count("failed") == sum(failures.values())
