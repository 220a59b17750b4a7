"""Settings that a model does not support: errors at load, and for overrides at the first call."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from framework import RunResult, Runtime
from framework.types.problem import Problem
from tests.support.formats import OPENAI, RESPONSES, Format, says
from tests.support.projects import agent, write
from tests.support.wire import wire_server

HERE = "base_url: 'http://127.0.0.1:9', api_key: k"
ALIASES = f"""\
models:
  claude: {{model: anthropic/claude-x, {HERE}}}
  fable: {{model: anthropic/claude-fable-5, {HERE}}}
  own: {{model: openai/x, {HERE}, capabilities: {{reasoning_levels: [low, high]}}}}
  seek: {{model: openai/x, base_url: 'https://api.deepseek.com', api_key: k}}
  responses: {{model: openai/x, {HERE}, api: responses}}
  chat: {{model: openai/gpt-5.6-terra, {HERE}, api: chat}}
"""


def problems(root: Path, model: str | None, settings: str, more: str = "", **keys: str) -> list[Problem]:
    """Return the problems of a project with one agent."""
    text = agent("one", model=model or "x", model_settings=settings, **keys)
    files = {"agents.d/one.yaml": text if model else text.replace("model: x\n", ""), "agentsd.yaml": ALIASES + more}

    async def load() -> list[Problem]:
        async with Runtime.open(write(root, files), watch=False) as runtime:
            return list(runtime.catalog.problems)

    return asyncio.run(load())


@pytest.mark.parametrize(
    ("model", "settings", "message", "hint"),
    [
        (
            "openai/gpt-5.1",
            "{reasoning: xhigh}",
            "openai/gpt-5.1 does not support reasoning: xhigh",
            "use one of its levels: none, low, medium, high",
        ),
        (
            "fable",
            "{reasoning: none}",
            "anthropic/claude-fable-5 does not support reasoning: none",
            "use one of its levels: low, medium, high, xhigh",
        ),
        (
            "own",
            "{reasoning: medium}",
            "openai/x does not support reasoning: medium",
            "use one of its levels: low, high",
        ),
        ("anthropic/claude-x", "{seed: 3}", "anthropic does not support seed", "remove it from model_settings"),
        ("claude", "{seed: 3}", "anthropic does not support seed", "remove it from model_settings"),
        ("openai/gpt-4o", "{min_p: 0}", "openai/gpt-4o does not support min_p", "remove it from model_settings"),
        ("seek", "{verbosity: low}", "openai/x does not support verbosity", "remove it from model_settings"),
        (
            "responses",
            "{presence_penalty: 1}",
            "the Responses API of openai/x does not support presence_penalty",
            "remove it from model_settings, or set `api: chat` at an alias of the model in agentsd.yaml",
        ),
        (
            "openai/gpt-5.6-terra",
            "{stop: [END]}",
            "the Responses API of openai/gpt-5.6-terra does not support stop",
            "remove it from model_settings, or set `api: chat` at an alias of the model in agentsd.yaml",
        ),
        (
            "responses",
            "{seed: 0}",
            "the Responses API of openai/x does not support seed",
            "remove it from model_settings, or set `api: chat` at an alias of the model in agentsd.yaml",
        ),
    ],
)
def test_an_unsupported_setting_is_an_error_at_its_line(
    tmp_path: Path, model: str, settings: str, message: str, hint: str
) -> None:
    (problem,) = problems(tmp_path, model, settings)

    assert (problem.path, problem.line, problem.message) == ("agents.d/one.yaml", 7, message)
    assert (problem.severity, problem.hint) == ("error", hint)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("openai/gpt-5.1", "{reasoning: none}"),
        ("openai/gpt-x", "{reasoning: xhigh, seed: 3, stop: [END]}"),
        ("chat", "{seed: 3, stop: [END]}"),
        ("fable", "{reasoning: xhigh}"),
        ("qwen/qwen-plus", "{reasoning: xhigh}"),
        ("offline", "{reasoning: none}"),
    ],
)
def test_supported_settings_and_those_of_unknown_models_are_accepted(tmp_path: Path, model: str, settings: str) -> None:
    assert problems(tmp_path, model, settings) == []


def test_the_models_of_defaults_plans_and_summaries_are_checked_and_fallbacks_are_not(tmp_path: Path) -> None:
    (default,) = problems(tmp_path, None, "{reasoning: medium}", "model: own\n")
    (planner,) = problems(tmp_path, "chat", "{reasoning: medium}", plan="{model: own}")
    (writer,) = problems(tmp_path, "chat", "{reasoning: medium}", conversation="{compress_model: own}")

    assert default.message == "openai/x does not support reasoning: medium (the default model of agentsd.yaml)"
    assert planner.message == "openai/x does not support reasoning: medium (plan.model)"
    assert writer.message == "openai/x does not support reasoning: medium (conversation.compress_model)"
    assert problems(tmp_path, "chat", "{reasoning: medium}", fallback_models="[own]") == []


def test_an_unknown_level_is_an_error_that_lists_all_levels(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "openai/gpt-x", "{reasoning: max}")

    assert problem.line == 7
    assert "'none', 'minimal', 'low', 'medium', 'high' or 'xhigh'" in problem.message


def run_with(root: Path, form: Format, alias: str, **override: Any) -> tuple[RunResult, list[dict[str, Any]]]:
    """Return the result of a run with overridden settings, and the requests that it sent."""

    async def run() -> tuple[RunResult, list[dict[str, Any]]]:
        async with wire_server(lambda _: says(form, "ok")) as server:
            files = {
                "agents.d/one.yaml": agent("one", model="there"),
                "agentsd.yaml": f"models:\n  there: {form.alias(server.url, alias)}\n",
            }
            async with Runtime.open(write(root, files), watch=False) as runtime:
                return await runtime.run("hi", model_settings=override), server.requests

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("form", "override", "message"),
    [
        (
            OPENAI,
            {"reasoning": "xhigh"},
            "there: openai/test does not support reasoning: xhigh: use one of its levels: none, low",
        ),
        (
            RESPONSES,
            {"seed": 3},
            "there: the Responses API of openai/test does not support seed: remove it from model_settings, or set "
            "`api: chat` at an alias of the model in agentsd.yaml",
        ),
    ],
    ids=["level", "seed"],
)
def test_an_override_that_the_model_does_not_support_fails_before_the_first_call(
    tmp_path: Path, form: Format, override: dict[str, Any], message: str
) -> None:
    result, requests = run_with(tmp_path, form, ", capabilities: {reasoning_levels: [none, low]}", **override)

    assert result.error
    assert (result.status, result.error.code, result.error.message) == ("failed", "config_invalid", message)
    assert requests == []


def test_a_level_that_the_model_knows_is_sent(tmp_path: Path) -> None:
    for form in (OPENAI, RESPONSES):
        _, (request,) = run_with(tmp_path, form, ", capabilities: {reasoning_levels: [none, low]}", reasoning="none")
        assert request.get("reasoning_effort") or request["reasoning"]["effort"] == "none"
