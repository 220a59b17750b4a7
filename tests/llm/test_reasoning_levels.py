"""Each level of `model_settings.reasoning` in the parameters of each kind of model."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import pytest

from framework.llm.capabilities import LEVELS, THINKING_TOKENS, Capabilities, Thinking
from framework.llm.client import ModelRequest
from framework.types.messages import Message
from framework.types.spec import ModelSettings, ReasoningLevel
from tests.support.formats import ANTHROPIC, GEMINI, OPENAI, RESPONSES, Format, says
from tests.support.wire import wire_server


def sent(form: Format, level: ReasoningLevel | None, **can: Any) -> dict[str, Any]:
    """Return the body of a request with this level."""

    async def run() -> dict[str, Any]:
        async with wire_server([says(form, "ok")]) as server:
            model = form.model(server.url, capabilities=Capabilities(**can))
            settings = ModelSettings(reasoning=level)
            async for _ in model.stream(ModelRequest((Message(role="user", content="hi"),), settings=settings)):
                pass
            await model.close()
            return server.requests[0]

    return asyncio.run(run())


def parameters(form: Format, thinking: Thinking, level: ReasoningLevel | None, **can: Any) -> Any:
    """Return the part of a request that is about thinking."""
    body = sent(form, level, thinking=thinking, **can)
    keys = {"reasoning_effort", "enable_thinking", "thinking", "reasoning", "output_config"}
    found = {key: body[key] for key in keys & body.keys()}
    return (
        body["generationConfig"].get("thinkingConfig", {}) if form is GEMINI and "generationConfig" in body else found
    )


CLAUDE = {"type": "adaptive", "display": "summarized"}
EXPECTED: list[tuple[Format, Thinking, dict[ReasoningLevel, Any]]] = [
    (OPENAI, "reasoning_effort", {level: {"reasoning_effort": level} for level in LEVELS}),
    (RESPONSES, "reasoning_effort", {level: {"reasoning": {"effort": level}} for level in LEVELS}),
    (OPENAI, "enable_thinking", {level: {"enable_thinking": level not in ("none", "minimal")} for level in LEVELS}),
    (
        OPENAI,
        "thinking_type",
        {level: {"thinking": {"type": "disabled" if level in ("none", "minimal") else "enabled"}} for level in LEVELS},
    ),
    (
        ANTHROPIC,
        "adaptive_thinking",
        {
            "none": {"thinking": {"type": "disabled"}},
            "minimal": {"thinking": CLAUDE, "output_config": {"effort": "low"}},
            **{
                level: {"thinking": CLAUDE, "output_config": {"effort": level}}
                for level in LEVELS
                if level not in ("none", "minimal")
            },
        },
    ),
    (
        ANTHROPIC,
        "thinking_budget",
        {
            "none": {},
            **{
                level: {"thinking": {"type": "enabled", "budget_tokens": tokens}}
                for level, tokens in THINKING_TOKENS.items()
                if tokens
            },
        },
    ),
    (
        GEMINI,
        "thinking_budget",
        {
            level: {"include_thoughts": tokens > 0, "thinking_budget": tokens}
            for level, tokens in THINKING_TOKENS.items()
        },
    ),
    (
        GEMINI,
        "thinking_level",
        {
            "none": {"include_thoughts": False, "thinking_level": "MINIMAL"},
            **{
                level: {"include_thoughts": True, "thinking_level": level.upper()}
                for level in LEVELS
                if level != "none"
            },
        },
    ),
]


@pytest.mark.parametrize(
    ("form", "thinking", "expected"), EXPECTED, ids=[f"{form.id}-{thinking}" for form, thinking, _ in EXPECTED]
)
def test_each_level_is_sent_in_the_models_own_parameter(
    form: Format, thinking: Thinking, expected: dict[ReasoningLevel, Any]
) -> None:
    assert {level: parameters(form, thinking, level) for level in LEVELS} == expected
    assert parameters(form, thinking, None) == {}
    assert parameters(form, "none", "high") == {}


def test_every_level_has_a_budget() -> None:
    assert tuple(THINKING_TOKENS) == LEVELS == get_args(ReasoningLevel)


@pytest.mark.parametrize(
    ("levels", "requested", "closest"),
    [
        (("low", "medium", "high"), "none", "low"),
        (("low", "medium", "high"), "xhigh", "high"),
        (("none", "high"), "minimal", "none"),
        (("low", "high"), "medium", "low"),
        (("low", "high"), "high", "high"),
        (None, "xhigh", "xhigh"),
        (("low",), None, None),
    ],
)
def test_a_fallback_without_the_level_is_sent_the_closest(
    levels: tuple[ReasoningLevel, ...] | None, requested: ReasoningLevel | None, closest: str | None
) -> None:
    assert Capabilities(reasoning_levels=levels).reasoning_level(requested) == closest


def test_every_client_sends_the_closest_level() -> None:
    can: dict[str, Any] = {"reasoning_levels": ("low",)}

    assert parameters(OPENAI, "reasoning_effort", "xhigh", **can) == {"reasoning_effort": "low"}
    assert parameters(RESPONSES, "reasoning_effort", "xhigh", **can) == {"reasoning": {"effort": "low"}}
    assert parameters(ANTHROPIC, "adaptive_thinking", "xhigh", **can)["output_config"] == {"effort": "low"}
    assert parameters(GEMINI, "thinking_level", "xhigh", **can)["thinking_level"] == "LOW"
