"""Templates and the shipped guidance receive the message, history and limits of the run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import Runtime
from framework.config.templates.prompts import Prompts, RunVariables
from framework.testing import ScriptedModel, Turn
from framework.types.http import HttpLimits
from framework.types.spec import RuntimePolicy
from framework.types.text import estimate_tokens
from tests.support.cases import cases
from tests.support.commands import agentsd
from tests.support.plans import Workshop, draft, step
from tests.support.projects import agent, write

TEMPLATE = """\
Asked: {{ message }}
{% for turn in history %}{{ turn.role }}: {{ turn.content }}
{% endfor %}"""


def systems(root: Path, messages: list[str], *turns: Turn, conversation: str | None = "c") -> list[str]:
    """Return the system messages of the first request of each run, one run for each message."""

    async def main() -> list[str]:
        model = ScriptedModel(*(turns or ["answer"] * len(messages)))
        async with Runtime.open(root, models={"scripted": model}, tools=Workshop().tools(), watch=False) as runtime:
            assert not runtime.catalog.current.errors, runtime.catalog.current.errors
            for message in messages:
                await runtime.run(message, conversation=conversation)
        return [request.messages[0].content for request in model.requests]

    return asyncio.run(main())


def project(root: Path, prompts: dict[str, str], instructions: str = "{template: own.j2}", **keys: str) -> Path:
    files = {f"prompts/{name}": text for name, text in prompts.items()}
    return write(root, {"agents.d/one.yaml": agent("one", instructions=instructions, **keys), **files})


def test_instructions_may_use_the_message_and_the_history(tmp_path: Path) -> None:
    root = project(tmp_path, {"own.j2": TEMPLATE})
    first, second = systems(root, ["good morning", "and now?"])
    assert first.startswith("Asked: good morning\n\n")
    assert second.startswith("Asked: and now?\nuser: good morning\nassistant: answer\n")


@cases(25)
@given(
    text=st.text(min_size=1, max_size=60).filter(str.strip) | st.sampled_from(["{{ 7 * 7 }}", "{% raw %}", "{# x #}"])
)
def test_user_text_is_inserted_and_never_rendered(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    root = project(
        tmp_path_factory.mktemp("p"), {"own.j2": "<{{ message }}|{{ history | map(attribute='content') | join }}>"}
    )
    first, second = systems(root, [text, text])
    assert first.startswith(f"<{text}|>")
    assert second.startswith(f"<{text}|{text}answer>")


def test_a_guidance_that_uses_the_message_is_rendered_for_each_run(tmp_path: Path) -> None:
    root = project(tmp_path, {"react.j2": "Now: {{ message }}, after {{ history | length }}."}, "Hello.")
    assert systems(root, ["one", "two"]) == ["Hello.\n\nNow: one, after 0.", "Hello.\n\nNow: two, after 2."]


def test_a_prompt_that_does_not_use_them_is_the_same_in_every_run(tmp_path: Path) -> None:
    root = project(tmp_path, {"own.j2": "You are {{ agent.name }}."})
    assert len(set(systems(root, ["one", "two", "three"]))) == 1


def test_the_templates_of_plans_may_use_them_too(tmp_path: Path) -> None:
    prompts = {"summary.j2": "Sum up for: {{ message }} {{ history | length }}", "plan.j2": "Plan: {{ message }}"}
    root = project(tmp_path, prompts, "Hello.", executor="plan")

    async def main() -> list[str]:
        model = ScriptedModel(draft(step("a")), "done")
        async with Runtime.open(root, models={"scripted": model}, tools=Workshop().tools(), watch=False) as runtime:
            await runtime.run("go")
        return [request.messages[-1].content for request in model.requests]

    assert asyncio.run(main()) == ["Plan: go", "Sum up for: go 0"]


def test_an_input_overrides_a_variable_of_its_name(tmp_path: Path) -> None:
    root = project(tmp_path, {"own.j2": "{{ history }}"}, inputs="{history: {type: string, default: mine}}")
    assert systems(root, ["theirs"])[0].startswith("mine\n")


def test_a_template_that_fails_in_a_new_conversation_is_a_problem_of_the_file(tmp_path: Path) -> None:
    root = project(tmp_path, {"own.j2": "{{ history[0].content }}"}, model="offline")
    done = agentsd("check", cwd=root)
    assert done.returncode != 0
    assert "own.j2" in done.stdout + done.stderr
    assert "in a new conversation" in done.stdout + done.stderr


# --- the shipped guidance


def test_guidance_lists_http_limits_only_with_the_http_tool(tmp_path: Path) -> None:
    write(
        tmp_path, {"agentsd.yaml": "tools: {http: {domains: [api.example.com], methods: [GET, POST], timeout: 5s}}\n"}
    )
    policy = '{allow: ["*"]}'
    root = project(tmp_path, {}, "Hello.", skill_policy=policy, runtime_policy="{risk_level: high}")
    (system,) = systems(root, ["hi"])
    assert "http_request: only GET, POST on api.example.com, 5 s each." in system
    project(tmp_path, {}, "Hello.", skill_policy=policy, runtime_policy="{risk_level: high}", model="offline")
    assert "on api.example.com" in agentsd("explain", "one", cwd=root).stdout
    (system,) = systems(project(tmp_path, {}, "Hello.", skill_policy="{allow: [echo]}"), ["hi"])
    assert "http" not in system


def test_guidance_lists_the_time_limit_and_the_result_length(tmp_path: Path) -> None:
    limits = "{timeout: 90s, max_observation_chars: 700}"
    (system,) = systems(project(tmp_path, {}, "Hello.", runtime_policy=limits), ["hi"])
    assert "tool calls, 90 s." in system
    assert "Results are cut after 700 characters." in system


def test_the_language_of_the_guidance_is_that_of_the_run(tmp_path: Path) -> None:
    write(tmp_path, {"agentsd.yaml": "locale: zh\ntools: {http: {domains: [api.example.com]}}\n"})
    (system,) = systems(project(tmp_path, {}, "Hello.", runtime_policy="{risk_level: high, timeout: 90s}"), ["hi"])
    assert "http_request：只能用 GET 访问 api.example.com" in system
    assert "90 秒" in system


def test_an_agent_without_tools_gets_no_guidance(tmp_path: Path) -> None:
    assert systems(project(tmp_path, {}, "Hello.", skill_policy="{allow: []}"), ["hi"]) == ["Hello."]


def test_the_shipped_guidance_is_short() -> None:
    limits, tools = RuntimePolicy().model_dump(), [{"name": f"t{n}", "description": "d"} for n in range(30)]
    run = RunVariables(http=HttpLimits(domains=("example.com",))).data()
    for locale in ("en", "zh"):
        text = Prompts({}).render("react.j2", locale, {**run, "http": None, "tools": tools, "limits": limits})
        with_http = Prompts({}).render("react.j2", locale, {**run, "tools": tools, "limits": limits})
        assert (estimate_tokens(text) < 60, estimate_tokens(with_http) < 75) == (True, True), text


@pytest.mark.parametrize("http", [None, HttpLimits(domains=("example.com",))])
@pytest.mark.parametrize("locale", ["en", "zh"])
def test_a_bound_that_does_not_apply_is_not_mentioned(locale: str, http: HttpLimits | None) -> None:
    unlimited = RuntimePolicy.model_validate({"max_steps": None, "max_tool_calls": None, "timeout": None}).model_dump()
    tools = [{"name": "t", "description": "d"}]
    run = RunVariables(http=http, parallel_calls=False).data()
    text = Prompts({}).render("react.j2", locale, {**run, "tools": tools, "limits": unlimited})
    assert "None" not in text
    assert ("Limits" in text, "限制" in text, "one turn" in text, "同一轮" in text) == (False,) * 4
    assert text == text.strip()
    assert ("example.com" in text) == (http is not None)
