"""Schemas of tools' arguments as providers accept them: one schema that a provider refuses fails its whole request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from framework import ModelError, Runtime
from framework.llm.message_shape import blamed_tool, schema_changes, wire_schema
from framework.llm.openai.responses import tool_to_function
from framework.llm.openai_format import tool_to_chat
from framework.llm.providers import ApiFormat
from framework.testing import ScriptedModel, calls
from framework.types.messages import ToolDefinition, original_keys, wire_keys
from tests.support.cases import each
from tests.support.mcp_definitions import server_file, tool_definition
from tests.support.mcp_worlds import configure
from tests.support.peers.schemas import (
    ODD,
    refused_by_anthropic,
    refused_by_gemini,
    refused_by_mistral,
    refused_by_openai,
)
from tests.support.projects import agent, write

APIS: tuple[ApiFormat, ...] = ("openai", "anthropic", "gemini")
REFUSALS: Mapping[ApiFormat, Sequence[Callable[[Any], str]]] = {
    "openai": (refused_by_openai, refused_by_mistral),
    "anthropic": (refused_by_anthropic,),
    "gemini": (refused_by_gemini,),
}
_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


@each("api", APIS)
@each("schema", ODD.values(), ids=list(ODD))
def test_no_provider_refuses_an_odd_schema(schema: dict[str, Any], api: ApiFormat) -> None:
    sent = wire_schema(schema, api)
    assert [refused(sent) for refused in REFUSALS[api]] == [""] * len(REFUSALS[api])
    assert list(schema_changes(schema, sent)), "what was changed can be shown"
    assert wire_schema(sent, api) == sent


def test_every_client_sends_the_schema_in_its_providers_form() -> None:
    odd = ToolDefinition(name="t", description="d", parameters=ODD["keys"])
    assert tool_to_chat(odd)["function"]["parameters"] == wire_schema(ODD["keys"], "openai")
    assert tool_to_function(odd)["parameters"] == wire_schema(ODD["keys"], "openai")


def test_a_plain_schema_is_sent_as_it_is() -> None:
    plain = {"type": "object", "properties": {"a": {"type": "array", "items": {"enum": [1]}}}, "required": ["a"]}
    for api in APIS:
        assert wire_schema(plain, api) == plain
        assert not list(schema_changes(plain, wire_schema(plain, api)))


def test_renamed_arguments_get_their_names_back() -> None:
    names = {"$top": 1, "@top": 2, "_top": 3, "k" * 70: 4, "plain": 5}
    keys = wire_keys(names)
    assert list(keys.values()) != []
    assert set(keys.values()) == set(names)
    assert all(_KEY.fullmatch(key) for key in keys)
    assert original_keys({key: names[name] for key, name in keys.items()}, names) == names
    assert original_keys({"_filter": 1, "$filter": 2}, {"$filter": {}}) == {"_filter": 1, "$filter": 2}


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_call_with_a_providers_name_reaches_the_tool_with_its_own(tmp_path: Path, strict: str) -> None:
    configure(tmp_path, {"tools": [tool_definition("echo", ODD["keys"])]})
    policy = '{deny: [{tool: mcp.docs.echo, when: {"$filter": "secret"}}], allow: ["mcp.docs.echo"]}'
    files = {
        "agents.d/a.yaml": agent(
            "a", skill_policy=policy, runtime_policy=f"{{strict_arguments: {strict}}}", mcp_policy="{docs: {pin: warn}}"
        ),
        "plugins/docs.yaml": server_file(tmp_path),
    }
    model = ScriptedModel(
        calls(("mcp.docs.echo", {"_filter": "name", "page_size_": 2})),
        calls(("mcp.docs.echo", {"_filter": "secret"})),
        "done",
    )

    async def main() -> None:
        async with Runtime.open(write(tmp_path, files), models={"scripted": model}, watch=False) as runtime:
            result = await runtime.run("go")
        first, second = result.tool_calls
        assert (first.status, first.arguments) == ("success", {"$filter": "name", "page[size]": 2})
        assert second.status == "denied", "a rule about the argument sees it"
        assert result.warnings == ()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("tools.1.custom.input_schema.properties: Property keys should match pattern '^[a-z]$'", "mcp.docs.x"),
        (
            "Invalid schema for function 'mcp__docs__x': array schema missing items.",
            "mcp.docs.x",
        ),
        (
            "* GenerateContentRequest.tools[0].function_declarations[1].parameters: missing",
            "mcp.docs.x",
        ),
        ("Invalid type for 'tools[1].function.description': expected a string.", "mcp.docs.x"),
        ("Extra inputs are not permitted (body.tools.1.function.strict)", "mcp.docs.x"),
        ("the definition of mcp__docs__x is too deep", "mcp.docs.x"),
        ("'echo' is a reserved name", "echo"),
        ("there is an echo in the line", None),
        ("echo and 'echo' or mcp.docs.x: which?", None),
        ("Function call is missing a thought_signature in functionCall parts: `mcp__docs__x`, position 2", None),
        ("messages.3.content.0: mcp__docs__x was not called", None),
        ("tools.7.custom: no such tool", None),
        ("max_tokens is too large", None),
    ],
)
def test_the_tool_that_a_provider_rejects_is_found(message: str, name: str | None) -> None:
    tools = [ToolDefinition(name=one, description="", parameters={}) for one in ("echo", "mcp.docs.x")]
    found = blamed_tool(message, tools)
    assert (found.name if found else None) == name


PLUGIN = """from framework import tool


@tool(risk="low")
def look(name: str) -> str:
    \"\"\"Look at a name.\"\"\"
    return name
"""


@pytest.mark.parametrize(
    ("tool", "place"), [("look.look", "plugins/look.py:4"), ("mcp.docs.x", "plugins/docs.yaml:3"), ("echo", "")]
)
def test_an_error_about_a_tool_names_it_and_where_it_is_and_is_left_out(tmp_path: Path, tool: str, place: str) -> None:
    message = "m: the request was rejected (400): tools.0.custom.input_schema: JSON schema is invalid"
    model = ScriptedModel(ModelError(message).of_type("400"))
    configure(tmp_path, {"tools": [tool_definition("x")]})
    files = {
        "agents.d/a.yaml": agent("a", skill_policy=f"{{allow: [{tool}]}}"),
        "plugins/docs.yaml": server_file(tmp_path),
        "plugins/look.py": PLUGIN,
    }

    async def main() -> None:
        async with Runtime.open(write(tmp_path, files), models={"scripted": model}, watch=False) as runtime:
            result = await runtime.run("go")
        assert result.error is not None
        advice = "leave it out with tools.deny (agents.d/a.yaml:6)"
        named = re.escape(f"{tool} ({place}" if place else f"{tool} (")
        assert re.fullmatch(
            rf"{re.escape(message)}; this is about the tool {named}.*\): {re.escape(advice)}", result.error.message
        )

    asyncio.run(main())
