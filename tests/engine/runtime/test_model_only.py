"""`ask_model` asks the model of an agent alone: its instructions and tools stay out, its limits and budgets apply."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from framework import AgentNotFound, RequestError, RunResult, Runtime, tool
from framework.store.types import RunQuery
from framework.testing import JsonStore, ScriptedModel
from tests.support.projects import agent, write

STRICT = {
    "instructions": "Speak like a pirate.",
    "skill_policy": '{allow: ["*"]}',
    "inputs": "{order: {required: true}}",
    "examples": "[{user: a, assistant: b}]",
    "output_schema": "{type: object, properties: {x: {type: string}}, required: [x]}",
    "executor": "plan",
    "model_settings": "{tool_choice: required, temperature: 0}",
    "budgets": "[team]",
}
PLUGIN = """
from framework import Refused, hook

@hook
async def guard(context, message):
    if "secret" in message:
        raise Refused("not that")
"""


@tool(risk="low")
async def look() -> str:
    """Look."""
    raise AssertionError("no tool is called")


def ask(root: Path, message: str, *script: Any, **options: Any) -> tuple[RunResult, ScriptedModel, int]:
    """Ask the model once; return the result, the model, and how many tokens of the budget are used."""
    model = ScriptedModel(*script)

    async def main() -> tuple[RunResult, int]:
        store = JsonStore()
        async with Runtime.open(root, tools=[look], models={"scripted": model}, store=store, watch=False) as runtime:
            assert runtime.catalog.current.errors == (), runtime.catalog.current.errors
            result = await runtime.ask_model(message, **options)
            assert list(await store.runs(RunQuery())) == []
            return result, sum(status.tokens for status in await runtime.budgets())

    result, tokens = asyncio.run(main())
    return result, model, tokens


def project(root: Path, **keys: str) -> Path:
    budgets = "budgets: {team: {per: day, max_total_tokens: 100000}}\n"
    return write(root, {"agents.d/one.yaml": agent("one", **{**STRICT, **keys}), "agentsd.yaml": budgets})


def test_the_request_contains_the_message_and_nothing_of_the_file_except_settings(tmp_path: Path) -> None:
    result, model, tokens = ask(project(tmp_path), "Write a title.", "A title")
    assert (result.status, result.output, result.data) == ("completed", "A title", None)
    (request,) = model.requests
    assert [(message.role, message.content) for message in request.messages] == [("user", "Write a title.")]
    assert (request.tools, request.settings.tool_choice, request.settings.temperature) == ((), None, 0)
    assert tokens == result.usage.total_tokens > 0


def test_hooks_of_the_agent_apply(tmp_path: Path) -> None:
    root = write(project(tmp_path, hooks="{before_run: [guards.guard]}"), {"plugins/guards.py": PLUGIN})
    result, model, _ = ask(root, "Tell me a secret.", "A title")
    assert (result.status, result.finish_reason, result.output) == ("stopped", "refused", "not that")
    assert model.requests == []


def test_an_unknown_agent_and_an_empty_message_are_errors(tmp_path: Path) -> None:
    with pytest.raises(AgentNotFound, match="no agent named 'onne'; did you mean one"):
        ask(project(tmp_path), "Write a title.", agent="onne")
    with pytest.raises(RequestError, match="the message is empty"):
        ask(project(tmp_path), " ")
