"""A cost limit that cannot be computed is an error, at load or before the first model call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from framework import RunResult, Runtime, tool
from framework.config.overlay import SettingsSource
from framework.config.schema import ProjectNames, settings_schema
from framework.config.settings import Settings
from framework.engine.runtime.project import Project
from framework.llm.capabilities import Capabilities, Prices, known_capabilities, with_cost
from framework.llm.client import Delta, ModelInfo, ModelReply, ModelRequest
from framework.testing import ScriptedModel, calls
from framework.types.errors import ConfigError
from framework.types.messages import Message, Usage
from framework.types.spec import Limits
from tests.support.cases import cases
from tests.support.commands import agentsd
from tests.support.projects import agent, write
from tests.support.wire import calls as wire_calls
from tests.support.wire import says, wire_server

LIMIT = "{max_cost_usd: 0.01}"
UNPRICED = "openai/gpt-9-unheard-of"
LOCAL = "models: {{local: {{model: openai/m, base_url: '{url}', capabilities: {{{can}}}}}}}\n"


@tool(risk="low")
async def work(n: int) -> str:
    """Do something."""
    return f"did {n}"


def problems(root: Path, settings: str = "", **keys: str) -> list[tuple[str, str, str]]:
    """Place, message and hint of each error of a project whose agent has a cost limit."""
    one = agent("one", **{"model": "offline", "runtime_policy": LIMIT, **keys})
    write(root, {"agents.d/one.yaml": one, "agentsd.yaml": settings or "version: 1\n"})

    async def main() -> list[tuple[str, str, str]]:
        project = await Project.read(root)
        try:
            return [(one.place, one.message, one.hint or "") for one in project.catalog.problems]
        finally:
            await project.catalog.close()

    return asyncio.run(main())


# --- at load


@pytest.mark.parametrize(
    ("keys", "settings", "who"),
    [
        ({"model": UNPRICED}, "", "model"),
        ({"fallback_models": f"[offline, {UNPRICED}]"}, "", "fallback_models.1"),
        ({"plan": f"{{model: {UNPRICED}}}"}, "", "plan.model"),
        ({"conversation": f"{{compress_model: {UNPRICED}}}"}, "", "conversation.compress_model"),
        ({}, f"routing: {{model: {UNPRICED}}}\n", "routing.model"),
        ({"model": "null"}, f"model: {UNPRICED}\n", "the default model of agentsd.yaml"),
        ({"sub_agents": "[helper]"}, "", "helper: model"),
    ],
)
def test_every_model_that_a_run_can_call_needs_a_price(
    tmp_path: Path, keys: dict[str, str], settings: str, who: str
) -> None:
    write(tmp_path, {"agents.d/helper.yaml": agent("helper", model=UNPRICED)})
    ((place, message, hint),) = problems(tmp_path, settings, **keys)
    line = (tmp_path / "agents.d/one.yaml").read_text("utf-8").splitlines().index(f"runtime_policy: {LIMIT}") + 1
    assert place.startswith(f"agents.d/one.yaml:{line}:")
    assert message == f"max_cost_usd cannot be enforced: the price of {UNPRICED} is unknown ({who})"
    assert hint == (
        f"add to `models` in agentsd.yaml: `{UNPRICED}: {{model: {UNPRICED}, capabilities: {{prices: {{input: N,"
        " output: N}}}`, in US dollars per million tokens, or `prices: free`;"
        " or set limits.prices: unknown_ok, and its calls count as 0"
    )


@pytest.mark.parametrize("prices", ["prices: {input: 1, output: 2}", "prices: free"])
def test_a_price_or_the_word_free_lifts_the_error(tmp_path: Path, prices: str) -> None:
    without = LOCAL.format(url="http://127.0.0.1:1/v1", can="tools: true")
    ((_, message, hint),) = problems(tmp_path, without, model="local")
    assert "the price of local is unknown" in message
    assert "capabilities.prices of models.local in agentsd.yaml" in hint
    assert not problems(tmp_path, LOCAL.format(url="http://127.0.0.1:1/v1", can=prices), model="local")


def test_known_models_the_offline_model_and_agents_without_the_limit_are_no_error(tmp_path: Path) -> None:
    assert not problems(tmp_path, model="openai/gpt-4o-mini")
    assert not problems(tmp_path, model="offline")
    assert not problems(tmp_path, model=UNPRICED, runtime_policy="{max_steps: 3}")


def test_the_hint_is_right_and_check_shows_the_error(tmp_path: Path) -> None:
    problems(tmp_path, model=UNPRICED)
    checked = agentsd("check", cwd=tmp_path)
    assert checked.returncode != 0
    assert "max_cost_usd cannot be enforced" in checked.stdout + checked.stderr
    with_cost = f"models: {{{UNPRICED}: {{model: {UNPRICED}, capabilities: {{prices: free}}}}}}\n"
    write(tmp_path, {"agentsd.yaml": with_cost})
    assert agentsd("check", cwd=tmp_path).returncode == 0


def test_free_is_part_of_the_settings_schema() -> None:
    prices = settings_schema(ProjectNames())["$defs"]["Capabilities"]["properties"]["prices"]
    assert '"const": "free"' in json.dumps(prices)
    settings = Settings.parse(SettingsSource(b"models: {m: {model: openai/m, capabilities: {prices: free}}}"))
    capabilities = settings.models["m"].capabilities
    assert capabilities is not None
    assert capabilities.prices == Prices(input=0, output=0)
    for wrong in (b"cheap", b"{input: .inf, output: 1}", b"{input: .nan, output: 1}"):
        with pytest.raises(Exception, match=r"prices|input"):
            Settings.parse(SettingsSource(b"models: {m: {model: openai/m, capabilities: {prices: " + wrong + b"}}}"))


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        ("{input: -1, output: 1}", "not a price: write a number of US dollars per million tokens, 0 or more"),
        ("{input: 1, output: -0.5}", "not a price"),
        ("{input: 1, output: 1, cached: cheap}", "not a price"),
        ("{input: true, output: 1}", "not a price"),
        ("{input: [1], output: 1}", "not a price"),
        ("{input: null, output: 1}", "not a price"),
        ("{input: 'nan', output: 1}", "not a price"),
        ("{input: 'inf', output: 1}", "not a price"),
        ("{input: .nan, output: 1}", "a number must be finite"),
        ("{input: .inf, output: 1}", "a number must be finite"),
        ("{input: 1, output: 2, currency: EUR}", "prices are in US dollars per million tokens: convert them"),
        ("{input: 1, output: 2, currency: USD}", "remove `currency`"),
        ("{input: 1, ouput: 2}", "did you mean 'output'?"),
        ("{input: 1}", "the key 'output' is missing"),
        ("cheap", "not prices: write `free`, or in US dollars per million tokens: {input: 1.25,"),
        ("5", "not prices"),
        ("[1, 2]", "not prices"),
    ],
)
def test_an_invalid_price_is_an_error_at_its_line(tmp_path: Path, prices: str, message: str) -> None:
    (tmp_path / "agentsd.yaml").write_text(LOCAL.format(url="http://127.0.0.1:1/v1", can=f"prices: {prices}"), "utf-8")
    with pytest.raises(ConfigError) as caught:
        Settings.load(tmp_path)
    assert "agentsd.yaml:1:" in str(caught.value)
    assert message in str(caught.value)


def test_prices_may_be_zero_and_override_known_ones(tmp_path: Path) -> None:
    def prices(text: str) -> Prices | None:
        (tmp_path / "agentsd.yaml").write_text(f"models: {{m: {{model: openai/gpt-4o, capabilities: {text}}}}}\n")
        capabilities = Settings.load(tmp_path).models["m"].capabilities or Capabilities()
        return capabilities.over(known_capabilities("openai/gpt-4o")).prices

    assert prices("{prices: {input: 0, output: 0.0}}") == prices("{prices: free}") == Prices(input=0, output=0)
    assert prices("{prices: {input: '3', output: 9}}") == Prices(input=3, output=9), (
        "the known cached price is not kept"
    )
    assert prices("{tools: true}") == known_capabilities("openai/gpt-4o").prices


def test_prices_left_at_zero_are_a_warning_and_free_is_not(tmp_path: Path) -> None:
    zero = "models:\n  m:\n    model: openai/m\n    capabilities:\n      prices: {input: 0, output: 0}\n"
    ((place, message, hint),) = problems(tmp_path, zero, model="m")
    assert place == "agentsd.yaml:5:7"
    assert message == "the prices of m are 0, so max_cost_usd never limits its calls"
    assert hint == "if the model costs nothing, write `prices: free`"
    assert not problems(tmp_path, zero.replace("{input: 0, output: 0}", "free"), model="m")
    assert not problems(tmp_path, zero.replace("output: 0", "output: 0.1"), model="m")


# --- unknown prices that are accepted

LENIENT = "{max_cost_usd: 0.01, cost: unknown_ok}"


def test_accepted_unknown_prices_are_warnings_that_name_every_model(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/helper.yaml": agent("helper", model=UNPRICED)})
    keys = {"model": "local", "fallback_models": "[offline, openai/gpt-99, local]", "sub_agents": "[helper]"}
    found = problems(tmp_path, LOCAL.format(url="http://127.0.0.1:1/v1", can=""), **keys, runtime_policy=LENIENT)
    line = (tmp_path / "agents.d/one.yaml").read_text("utf-8").splitlines().index(f"runtime_policy: {LENIENT}") + 1
    column = f"runtime_policy: {LENIENT}".index("cost: ") + 1
    assert {place for place, _, _ in found} == {f"agents.d/one.yaml:{line}:{column}"}
    assert sorted(message for _, message, _ in found) == [
        "max_cost_usd counts calls of local as 0: its price is unknown (model)",
        "max_cost_usd counts calls of openai/gpt-9-unheard-of as 0: its price is unknown (helper: model)",
        "max_cost_usd counts calls of openai/gpt-99 as 0: its price is unknown (fallback_models.1)",
    ]
    checked = agentsd("check", cwd=tmp_path)
    assert (checked.returncode, "(3 warnings)" in checked.stdout) == (0, True), checked.stdout
    assert not problems(tmp_path, model="openai/gpt-4o", runtime_policy=LENIENT)


@pytest.mark.parametrize("limits", [{}, {"max_cost_usd": 0.5}])
def test_calls_of_an_accepted_unknown_price_count_as_zero_with_one_warning(
    tmp_path: Path, limits: dict[str, Any]
) -> None:
    async def main() -> RunResult:
        script = [wire_calls(("work", {"n": 1})), wire_calls(("agent.two", {"message": "look"})), *3 * [says("ok")]]
        async with wire_server(script) as server:
            policy = "{cost: unknown_ok}" if limits else LENIENT
            files = {
                "agentsd.yaml": LOCAL.format(url=server.url, can="tools: true"),
                "agents.d/one.yaml": agent("one", model="local", sub_agents="[two]", runtime_policy=policy),
                "agents.d/two.yaml": agent("two", model="local"),
            }
            async with Runtime.open(write(tmp_path, files), tools=[work], watch=False) as runtime:
                return await runtime.run("go", agent="one", limits=limits)

    result = asyncio.run(main())
    assert (result.output, result.steps, result.usage.cost_usd) == ("ok", 4, None)
    (warning,) = result.warnings
    assert warning.code == "cost_unknown"
    place = "limits.max_cost_usd of the request" if limits else "agents.d/one.yaml:"
    assert warning.message.startswith(f"calls of local count as 0 towards max_cost_usd ({place}")
    assert warning.message.endswith("or `free`")


def test_a_limit_without_the_opt_out_needs_prices_in_agents_that_have_it(tmp_path: Path) -> None:
    async def main() -> tuple[RunResult, int]:
        async with wire_server([says("ok")]) as server:
            files = {
                "agentsd.yaml": LOCAL.format(url=server.url, can="tools: true"),
                "agents.d/one.yaml": agent("one", sub_agents="[two]"),
                "agents.d/two.yaml": agent("two", model="local", runtime_policy="{cost: unknown_ok}"),
            }
            models = {"scripted": ScriptedModel(calls(("agent.two", {"message": "look"})), "done")}
            async with Runtime.open(write(tmp_path, files), models=models, watch=False) as runtime:
                return await runtime.run("go", agent="one", limits={"max_cost_usd": 0.5}), len(server.requests)

    result, request_count = asyncio.run(main())
    assert request_count == 0
    assert "the price of local is unknown" in str(result.tool_calls[0].result)


def test_a_run_in_progress_needs_prices_once_the_live_file_does(tmp_path: Path) -> None:
    async def main() -> RunResult:
        async with wire_server([wire_calls(("edit", {})), says("ok")]) as server:
            files = {"agentsd.yaml": LOCAL.format(url=server.url, can="tools: true")}
            one = agent("one", model="local", runtime_policy="{cost: unknown_ok}")
            write(tmp_path, {**files, "agents.d/one.yaml": one})

            @tool(risk="low")
            async def edit() -> str:
                """Remove the opt-out."""
                write(tmp_path, {"agents.d/one.yaml": agent("one", model="local")})
                await runtime.reload()
                return "edited"

            async with Runtime.open(tmp_path, tools=[edit], watch=False) as runtime:
                return await runtime.run("go", limits={"max_cost_usd": 0.5})

    result = asyncio.run(main())
    assert (result.finish_reason, result.steps) == ("config_invalid", 2)


def test_a_router_needs_a_price_whatever_the_first_agent_accepts(tmp_path: Path) -> None:
    async def main() -> tuple[str, int]:
        async with wire_server([says("hello")]) as server:
            files = {
                "agentsd.yaml": LOCAL.format(url=server.url, can="tools: true") + "routing: {model: local}\n",
                "agents.d/a.yaml": agent("a", runtime_policy="{cost: unknown_ok}"),
                "agents.d/assistant.yaml": agent("assistant"),
            }
            models = {"scripted": ScriptedModel("done")}
            async with Runtime.open(write(tmp_path, files), models=models, watch=False) as runtime:
                return (await runtime.run("go", limits={"max_cost_usd": 0.5})).agent, len(server.requests)

    assert asyncio.run(main()) == ("assistant", 0)


# --- at run time


async def one_run(root: Path, **options: Any) -> RunResult:
    async with Runtime.open(root, watch=False) as runtime:
        return await runtime.run("go", agent="one", **options)


@pytest.mark.parametrize(
    ("can", "requests", "reason"),
    [("tools: true", 0, "config_invalid"), ("prices: free", 1, "final"), ("prices: {input: 1, output: 1}", 1, "final")],
)
def test_a_caller_s_cost_limit_fails_before_the_first_call(
    tmp_path: Path, can: str, requests: int, reason: str
) -> None:
    async def main() -> tuple[RunResult, int]:
        async with wire_server([says("hello")]) as server:
            files = {"agentsd.yaml": LOCAL.format(url=server.url, can=can)}
            write(tmp_path, {**files, "agents.d/one.yaml": agent("one", model="local")})
            return await one_run(tmp_path, limits={"max_cost_usd": 0.5}), len(server.requests)

    result, request_count = asyncio.run(main())
    assert (request_count, result.finish_reason) == (requests, reason)
    if not requests:
        assert result.error is not None
        assert result.error.message == (
            "max_cost_usd (limits.max_cost_usd of the request) cannot be enforced: the price of local is unknown;"
            " set capabilities.prices of models.local in agentsd.yaml: {input: N, output: N}, in US dollars per million"
            " tokens, or `free`; or set limits.prices: unknown_ok, and its calls count as 0"
        )


def test_a_cost_limit_applies_to_a_chosen_model_a_sub_agent_and_a_fallback(tmp_path: Path) -> None:
    async def main() -> tuple[list[RunResult], int]:
        async with wire_server([says("hello")]) as server:
            files = {
                "agentsd.yaml": LOCAL.format(url=server.url, can="tools: true"),
                "agents.d/one.yaml": agent("one", sub_agents="[two]"),
                "agents.d/two.yaml": agent("two", model="local"),
                "agents.d/three.yaml": agent("three", fallback_models="[local]"),
            }
            models = {"scripted": ScriptedModel(calls(("agent.two", {"message": "look"})), "done")}
            limits = {"max_cost_usd": 0.5}
            async with Runtime.open(write(tmp_path, files), models=models, watch=False) as runtime:
                results = [
                    await runtime.run("go", agent="one", limits=limits),
                    await runtime.run("go", agent="one", limits=limits, model="local"),
                    await runtime.run("go", agent="three", limits=limits),
                ]
            return results, len(server.requests)

    (sub, chosen, fallback), request_count = asyncio.run(main())
    assert request_count == 0
    assert "the price of local is unknown" in str(sub.tool_calls[0].result)
    assert (chosen.finish_reason, fallback.finish_reason) == ("config_invalid", "config_invalid")


def test_a_router_without_a_price_is_not_called_under_a_callers_cost_limit(tmp_path: Path) -> None:
    async def main() -> tuple[RunResult, int]:
        async with wire_server([says("hello")]) as server:
            files = {
                "agentsd.yaml": LOCAL.format(url=server.url, can="tools: true") + "routing: {model: local}\n",
                "agents.d/assistant.yaml": agent("assistant"),
                "agents.d/two.yaml": agent("two"),
            }
            models = {"scripted": ScriptedModel("done")}
            async with Runtime.open(write(tmp_path, files), models=models, watch=False) as runtime:
                return await runtime.run("go", limits={"max_cost_usd": 0.5}), len(server.requests)

    result, request_count = asyncio.run(main())
    assert (result.agent, result.output, request_count) == ("assistant", "done", 0)


class Own:
    """A program's own client, with any usage report."""

    def __init__(self, usage: Usage, capabilities: Capabilities = Capabilities()) -> None:  # noqa: B008 - frozen
        self.info = ModelInfo(provider="own", model="", capabilities=capabilities)
        self._usage = usage

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        tool_calls = calls(("list_dir", {"path": f"d{len(request.messages)}"}))
        yield Delta(reply=ModelReply(Message(role="assistant", tool_calls=tool_calls), "tool_calls", self._usage))

    async def close(self) -> None:
        """Do nothing."""


def test_a_programs_own_client_declares_its_prices(tmp_path: Path) -> None:
    async def main(client: Own) -> str:
        async with Runtime.open(tmp_path, models={"own": client}, watch=False) as runtime:
            return (await runtime.run("go")).finish_reason

    write(tmp_path, {"agents.d/one.yaml": agent("one", model="own", runtime_policy="{max_cost_usd: 1}")})
    free = Capabilities(prices=Prices(input=0, output=0))
    assert asyncio.run(main(Own(Usage(cost_usd=0.6)))) == "config_invalid"
    assert asyncio.run(main(Own(Usage(cost_usd=0.6), free))) == "max_cost_usd"


@pytest.mark.parametrize(
    ("usage", "limit", "place"),
    [
        (Usage(cost_usd=0.1), "max_total_tokens: 800, max_cost_usd: 99", "max_total_tokens"),
        (Usage(prompt_tokens=600_000, total_tokens=600_000), "max_cost_usd: 1, max_total_tokens: null", "max_cost_usd"),
        (Usage(), "max_cost_usd: 0.001", "max_cost_usd"),
    ],
    ids=["tokens", "cost", "both"],
)
def test_usage_that_a_client_does_not_report_is_estimated(tmp_path: Path, usage: Usage, limit: str, place: str) -> None:
    async def main() -> str:
        client = Own(usage, Capabilities(prices=Prices(input=1, output=1)))
        async with Runtime.open(tmp_path, models={"own": client}, watch=False) as runtime:
            return (await runtime.run("word " * 300)).finish_reason

    policy = f"{{{limit}, max_steps: 20, max_corrections: 20}}"
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="own", runtime_policy=policy)})
    assert asyncio.run(main()) == place


# --- what is counted


@cases(100)
@given(
    prompt=st.integers(0, 10**6),
    completion=st.integers(0, 10**6),
    total=st.integers(0, 3 * 10**6),
    price=st.floats(0.001, 100),
)
def test_every_reported_part_counts_in_tokens_and_cost(prompt: int, completion: int, total: int, price: float) -> None:
    usage = Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=total)
    counted = with_cost(usage, Capabilities(prices=Prices(input=price, output=price)))
    assert counted.total_tokens == max(total, prompt + completion)
    assert counted.cost_usd == pytest.approx(price * counted.total_tokens / 1_000_000)


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1.0])
def test_an_invalid_cost_is_rejected(cost: float) -> None:
    with pytest.raises(ValidationError):
        Usage(cost_usd=cost)
    with pytest.raises(ValidationError):
        Limits(max_cost_usd=cost)


def test_an_unstreamed_call_that_times_out_counts_the_sent_tokens(tmp_path: Path) -> None:
    class Stuck(Own):
        async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
            await asyncio.Event().wait()
            yield Delta()

    async def main() -> RunResult:
        policy = "{model_timeout: 10ms, max_total_tokens: 4000}"
        files = {
            "agents.d/one.yaml": agent("one", model="own", runtime_policy=policy),
            "agentsd.yaml": "model_calls: {max_retries: 20, backoff: 1ms, max_backoff: 1ms, cooldown_after: 99}\n",
        }
        async with Runtime.open(write(tmp_path, files), models={"own": Stuck(Usage())}, watch=False) as runtime:
            return await runtime.run("word " * 1000)

    assert asyncio.run(main()).finish_reason == "max_total_tokens"
