"""The cost that a provider reports is the cost of a call; a cost that nobody knows is None, and never 0."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import RunResult, Runtime
from framework.llm.capabilities import Capabilities, Prices, known_capabilities, with_cost
from framework.llm.openai_format import read_usage
from framework.store.types import RunInfo, RunQuery
from framework.testing import ScriptedModel
from framework.types.messages import ModelUse, Usage
from tests.support.cases import cases
from tests.support.formats import ANTHROPIC, OPENAI, RESPONSES, Format, each_format, says
from tests.support.projects import agent, write
from tests.support.wire import Answer, wire_server

PRICES = Prices(input=1.0, output=2.0)
PRICED = Capabilities(prices=PRICES)
REPORTED: Mapping[str, tuple[dict[str, Any], float | None]] = {
    "openrouter": ({"cost": 0.25, "is_byok": False}, 0.25),
    "openrouter, free": ({"cost": 0}, 0.0),
    "openrouter, own key": ({"cost": 0.05, "is_byok": True, "cost_details": {"upstream_inference_cost": 1}}, 1.05),
    "openrouter, own key, unknown": ({"cost": 0.05, "is_byok": True}, None),
    "xai": ({"cost_in_usd_ticks": 37_756_000}, 0.0037756),
    "litellm": ({"cost": "0.0021"}, 0.0021),
    "deepinfra": ({"estimated_cost": 0.003}, 0.003),
    "perplexity": ({"cost": {"input_tokens_cost": 0.1, "total_cost": 0.3}}, 0.3),
    "none": ({}, None),
    "negative": ({"cost": -1}, None),
    "a word": ({"cost": "much"}, None),
    "not finite": ({"cost": "Infinity"}, None),
    "not a number": ({"cost": "nan"}, None),
    "true": ({"cost": True}, None),
    "a list": ({"cost": [1]}, None),
}


@pytest.mark.parametrize(("counts", "cost"), REPORTED.values(), ids=REPORTED)
def test_a_reported_cost_wins_over_the_prices(counts: dict[str, Any], cost: float | None) -> None:
    reported = {"prompt_tokens": 10, "completion_tokens": 5, **counts}
    usage = read_usage(reported, prompt="prompt_tokens", completion="completion_tokens")
    assert with_cost(usage, Capabilities()).cost_usd == (None if cost is None else pytest.approx(cost))
    assert with_cost(usage, PRICED).cost_usd == pytest.approx(20e-6 if cost is None else cost)
    assert with_cost(with_cost(usage, PRICED), Capabilities()) == with_cost(usage, PRICED)


COSTS = st.lists(st.none() | st.sampled_from([0.0, 0.25, 1.5]), max_size=6)


@cases(100)
@given(costs=COSTS, place=st.integers(0, 6))
def test_a_sum_of_costs_is_unknown_if_none_of_them_is_known(costs: list[float | None], place: int) -> None:
    usages = [Usage(cost_usd=cost) for cost in costs]
    total = sum(usages, Usage())
    known = sum(cost for cost in costs if cost)
    assert total.cost_usd == (None if not known and None in costs else known)
    assert total == sum(usages[:place], Usage()) + sum(usages[place:], Usage()), "in any order"
    use = ModelUse()
    for usage in usages:
        use = use.plus(usage)
    assert use.unpriced_calls == costs.count(None)


@pytest.mark.parametrize(
    ("name", "base_url", "prices"),
    [
        ("openrouter/openai/gpt-5.4-mini", None, known_capabilities("openai/gpt-5.4-mini").prices),
        ("openrouter/anthropic/claude-haiku-4.5", None, known_capabilities("anthropic/claude-haiku-4-5").prices),
        ("openrouter/google/gemini-2.5-flash", None, known_capabilities("gemini/gemini-2.5-flash").prices),
        (
            "openai/openai/gpt-5.4-mini",
            "https://openrouter.ai/api/v1",
            known_capabilities("openai/gpt-5.4-mini").prices,
        ),
        ("openrouter/qwen/qwen3-8b:free", None, Prices(input=0, output=0)),
        ("openai/qwen/qwen3-8b:free", "https://openrouter.ai/api/v1", Prices(input=0, output=0)),
        ("openrouter/openai/gpt-5.4-mini:online", None, None),
        ("openrouter/qwen/qwen3-8b", None, None),
        ("openai/openai/gpt-5.4-mini", "https://gateway.example.com/v1", None),
    ],
)
def test_openrouter_s_prices_are_those_of_the_makers(name: str, base_url: str | None, prices: Prices | None) -> None:
    assert known_capabilities(name, base_url).prices == prices
    assert known_capabilities(name, base_url).context_window is None, "a gateway may limit it"


# --- runs


def run(root: Path, form: Format, answer: Answer, *, stream: bool = False, **options: Any) -> tuple[RunResult, RunInfo]:
    """Return the result of a run with this answer, and its entry in the list."""

    async def main() -> tuple[RunResult, RunInfo]:
        async with wire_server([answer]) as server:
            write(root, {"agents.d/one.yaml": agent("one", **options.pop("keys", {}))})
            models = {"scripted": form.model(server.url, **options)}
            async with Runtime.open(root, models=models, watch=False) as runtime:
                if stream:
                    async with runtime.stream("go") as events:
                        [_ async for _ in events]
                        result = await events.result()
                else:
                    result = await runtime.run("go")
                (info,) = await runtime.store.runs(RunQuery(limit=1))
                return result, info

    return asyncio.run(main())


def with_usage(answer: Answer, **fields: Any) -> Answer:
    """Return an answer whose usage has more fields, in its body and in the last chunk of its stream."""

    def added(text: str) -> str:
        prefix, brace, rest = text.partition("{")
        try:
            data = json.loads(brace + rest)
        except ValueError:
            return text
        for place in (data, data.get("response") or {}, data.get("message") or {}):
            if isinstance(place.get("usage"), dict):
                place["usage"] |= fields
        return prefix + json.dumps(data)

    body = added(answer.body.decode()).encode()
    return replace(answer, body=body, streamed=tuple(map(added, answer.streamed)))


@each_format
@pytest.mark.parametrize("stream", [False, True])
def test_a_run_without_a_price_has_no_cost(form: Format, stream: bool, tmp_path: Path) -> None:
    result, info = run(tmp_path, form, says(form, "done"), stream=stream)
    assert (result.output, result.usage.cost_usd, info.cost_usd) == ("done", None, None)
    dumped = json.loads(result.model_dump_json(exclude_none=True))
    assert dumped["usage"]["cost_usd"] is None, "unknown, which is not left out"


@pytest.mark.parametrize("form", [OPENAI, RESPONSES, ANTHROPIC], ids=lambda form: form.id)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("capabilities", [None, PRICED])
def test_a_run_costs_what_the_provider_reports(
    form: Format, stream: bool, capabilities: Capabilities | None, tmp_path: Path
) -> None:
    answer = with_usage(says(form, "done"), cost=0.25)
    result, info = run(tmp_path, form, answer, stream=stream, capabilities=capabilities)
    assert (result.usage.cost_usd, info.cost_usd) == (0.25, 0.25)


def test_litellm_s_header_is_the_cost_of_an_unstreamed_answer(tmp_path: Path) -> None:
    answer = replace(says(OPENAI, "done"), headers=(("x-litellm-response-cost", "0.0042"),))
    assert run(tmp_path, OPENAI, answer)[0].usage.cost_usd == 0.0042


def test_a_free_answer_costs_nothing(tmp_path: Path) -> None:
    result, info = run(tmp_path, OPENAI, with_usage(says(OPENAI, "done"), cost=0))
    assert (result.usage.cost_usd, info.cost_usd) == (0.0, 0.0)


def test_a_stand_in_costs_nothing(tmp_path: Path) -> None:
    async def main() -> RunResult:
        write(tmp_path, {"agents.d/one.yaml": agent("one")})
        async with Runtime.open(tmp_path, models={"scripted": ScriptedModel("done")}, watch=False) as runtime:
            return await runtime.run("go")

    assert asyncio.run(main()).usage.cost_usd == 0.0


def test_an_answer_without_counts_but_with_a_cost_is_not_estimated(tmp_path: Path) -> None:
    answer = with_usage(says(OPENAI, "done"), cost=0.25, prompt_tokens=0, completion_tokens=0, total_tokens=0)
    usage = run(tmp_path, OPENAI, answer, capabilities=PRICED)[0].usage
    assert usage.cost_usd == 0.25
    assert usage.total_tokens > 0


def test_a_limit_of_the_cost_counts_what_the_provider_reports(tmp_path: Path) -> None:
    keys = {"runtime_policy": "{max_cost_usd: 0.3, cost: unknown_ok}"}
    result, _ = run(tmp_path, OPENAI, with_usage(says(OPENAI, "done"), cost=0.25), keys=keys)
    assert [warning.code for warning in result.warnings] == ["max_cost_usd"]
    result, _ = run(tmp_path / "unknown", OPENAI, says(OPENAI, "done"), keys=keys)
    assert [warning.code for warning in result.warnings] == ["cost_unknown"]
