"""Every limit stops or bounds a run: it returns what it has, and its finish reason is the limit's key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import LimitExceeded, RequestError, RunResult, Runtime, Tool, ToolContext, tool
from framework.engine.context.run_context import CLOCK_DRIFT
from framework.llm.capabilities import Capabilities, Prices
from framework.llm.client import Delta, ModelInfo, ModelReply, ModelRequest
from framework.testing import JsonStore, ScriptedModel, Turn, calls
from framework.types.events import Event, ToolFinished, Warned
from framework.types.messages import Message, ToolCall, Usage
from framework.types.report import LimitUse
from tests.support.cases import cases
from tests.support.projects import agent, write

FILE = "agents.d/worker.yaml"


@tool(risk="low")
async def work(n: int = 0) -> str:
    """Do something."""
    return f"did {n}"


@tool(risk="low")
async def stuck() -> str:
    """Wait forever."""
    await asyncio.Event().wait()
    return "never"


def project(root: Path, limits: str = "{}", **keys: str) -> Path:
    """One agent; its limits are on line 7 of its file."""
    return write(root, {FILE: agent("worker", runtime_policy=limits, **keys)})


def works(*numbers: int) -> Turn:
    return calls(*(("work", {"n": number}) for number in numbers))


def endless() -> ScriptedModel:
    """Requests another, different call in every turn."""
    return ScriptedModel(script=lambda request: works(len(request.messages)))


async def run(
    root: Path, *turns: Turn, model: Any = None, tools: Sequence[Tool] = (work, stuck), **options: Any
) -> RunResult:
    models = {"scripted": model or ScriptedModel(*turns)}
    async with Runtime.open(root, tools=tools, models=models, watch=False) as runtime:
        return await runtime.run("go", **{"agent": "worker", **options})


async def events(root: Path, *turns: Turn) -> list[Event]:
    models = {"scripted": ScriptedModel(*turns)}
    async with Runtime.open(root, tools=[work], models=models, watch=False) as runtime, runtime.stream("go") as stream:
        return [event async for event in stream]


def observations(model: ScriptedModel) -> list[str]:
    return [message.content for message in model.requests[-1].messages if message.role == "tool"]


# --- each limit


def test_max_steps_ends_a_run_before_the_turn_too_many(tmp_path: Path) -> None:
    model = endless()
    result = asyncio.run(run(project(tmp_path, "{max_steps: 3}"), model=model))

    assert (result.status, result.finish_reason, result.steps) == ("stopped", "max_steps", 3)
    assert len(model.requests) == 3
    assert [call.status for call in result.tool_calls] == ["success"] * 3, "the last turn's calls are still made"
    assert result.stopped_by == LimitUse(limit="max_steps", used=3, allowed=3, place=f"{FILE}:7")


def test_calls_beyond_max_tool_calls_are_rejected_and_the_model_can_still_answer(tmp_path: Path) -> None:
    model = ScriptedModel(works(1, 2, 3, 4), "enough")
    result = asyncio.run(run(project(tmp_path, "{max_tool_calls: 2}"), model=model))

    assert (result.status, result.output) == ("completed", "enough")
    assert [call.status for call in result.tool_calls] == ["success", "success", "error", "error"]
    assert observations(model)[:2] == ["did 1", "did 2"]
    assert all("not called: max_tool_calls is reached" in text for text in observations(model)[2:])


def test_a_turn_that_requests_calls_after_max_tool_calls_stops_the_run(tmp_path: Path) -> None:
    result = asyncio.run(run(project(tmp_path, "{max_tool_calls: 2}"), works(1, 2, 3), works(4), "never called"))

    assert (result.status, result.finish_reason) == ("stopped", "max_tool_calls")
    assert [call.result for call in result.tool_calls if call.status == "success"] == ["did 1", "did 2"]
    assert result.stopped_by == LimitUse(limit="max_tool_calls", used=2, allowed=2, place=f"{FILE}:7")


def test_the_answer_that_exceeds_max_total_tokens_counts_and_then_the_run_stops(tmp_path: Path) -> None:
    root = project(tmp_path, "{max_total_tokens: 15}")
    stopped = asyncio.run(run(root, works(1), works(2), "never called"))
    answered = asyncio.run(run(root, works(1), "in time"))

    assert (stopped.finish_reason, stopped.usage.total_tokens) == ("max_total_tokens", 20)
    assert [call.result for call in stopped.tool_calls] == ["did 1", "did 2"]
    assert (answered.status, answered.output) == ("completed", "in time")


class Priced:
    """A model that requests another call in every answer, at half a dollar each."""

    info = ModelInfo(provider="priced", model="", capabilities=Capabilities(prices=Prices(input=0, output=0)))

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        message = Message(role="assistant", tool_calls=works(len(request.messages)))
        yield Delta(reply=ModelReply(message, "tool_calls", Usage(cost_usd=0.5)))

    async def close(self) -> None:
        """Do nothing."""


def test_max_cost_usd_ends_a_run_once_it_is_spent(tmp_path: Path) -> None:
    result = asyncio.run(run(project(tmp_path, "{max_cost_usd: 1.2}"), model=Priced()))

    assert (result.finish_reason, result.steps, result.usage.cost_usd) == ("max_cost_usd", 3, 1.5)


def test_timeout_stops_a_run_during_a_tool_call_and_keeps_earlier_results(tmp_path: Path) -> None:
    root = project(tmp_path, "{timeout: 2s, tool_timeout: null}")
    both = calls(("work", {"n": 1}), ("stuck", {}))
    result = asyncio.run(run(root, both))

    assert (result.status, result.finish_reason) == ("stopped", "timeout")
    assert [(call.tool, call.result) for call in result.tool_calls] == [("work", "did 1")]
    assert result.stopped_by == LimitUse(limit="timeout", used=2, allowed=2, place=f"{FILE}:7")
    assert result.elapsed_ms >= 2000


class Silent:
    """A model that never answers."""

    info = ModelInfo(provider="silent", model="1")

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        await asyncio.Event().wait()
        yield Delta()

    async def close(self) -> None:
        """Do nothing."""


def test_model_timeout_fails_a_run_whose_model_does_not_answer(tmp_path: Path) -> None:
    root = write(project(tmp_path, "{model_timeout: 50ms}"), {"agentsd.yaml": "model_calls: {backoff: 1ms}\n"})
    result = asyncio.run(run(root, model=Silent()))

    assert (result.status, result.finish_reason) == ("failed", "model_error")
    assert result.error is not None
    assert result.error.message == (
        "silent/1 did not answer within 0.05s (limits.model_timeout, agents.d/worker.yaml:7) (4 attempts)"
    )
    assert result.error.retryable


def test_a_tool_timeout_is_reported_to_the_model_and_the_run_continues(tmp_path: Path) -> None:
    model = ScriptedModel(calls(("stuck", {}), ("work", {"n": 1})), "so be it")
    result = asyncio.run(run(project(tmp_path, "{tool_timeout: 50ms}"), model=model))

    assert result.output == "so be it"
    late, done = observations(model)
    assert "stuck" in late
    assert "timed out after 0.05s; whether it took effect is unknown" in late
    assert done == "did 1"


def test_a_timed_out_idempotent_tool_call_has_no_unknown_outcome(tmp_path: Path) -> None:
    @tool(risk="low", idempotent=True)
    async def looking() -> str:
        """Wait forever."""
        await asyncio.Event().wait()
        return ""

    model = ScriptedModel(calls(("looking", {})), "so be it")
    asyncio.run(run(project(tmp_path, "{tool_timeout: 50ms}"), model=model, tools=[looking]))

    assert "timed out after 0.05s" in observations(model)[0]
    assert "unknown" not in observations(model)[0]


@pytest.mark.parametrize(("own", "agents", "expected"), [(0.05, "10s", "0.05s"), (10.0, "50ms", "0.05s")])
def test_the_shorter_of_a_tools_and_the_agents_timeout_applies(
    tmp_path: Path, own: float, agents: str, expected: str
) -> None:
    @tool(risk="low", timeout=own)
    async def slow() -> str:
        """Never end."""
        await asyncio.Event().wait()
        return ""

    model = ScriptedModel(calls(("slow", {})), "done")
    asyncio.run(run(project(tmp_path, f"{{tool_timeout: {agents}}}"), model=model, tools=[slow]))

    assert f"timed out after {expected}" in observations(model)[0]


def test_a_timeout_error_raised_by_a_tool_is_a_failure_not_a_limit(tmp_path: Path) -> None:
    @tool(risk="low")
    async def remote() -> str:
        """Query a service."""
        raise TimeoutError("the server was silent")

    model = ScriptedModel(calls(("remote", {})), "done")
    result = asyncio.run(run(project(tmp_path), model=model, tools=[remote]))

    assert result.status == "completed"
    assert "TimeoutError: the server was silent" in observations(model)[0]


@pytest.mark.hostile(35)
def test_the_third_identical_call_warns_and_the_fourth_stops_the_run(tmp_path: Path) -> None:
    model = ScriptedModel(works(7), works(7), works(7), works(7), "never called")
    result = asyncio.run(run(project(tmp_path), model=model))

    assert (result.status, result.finish_reason, result.steps) == ("stopped", "max_repeated_calls", 4)
    assert [call.result for call in result.tool_calls] == ["did 7"] * 3
    assert [text.startswith("did 7\n(You made this exact call 3 times.") for text in observations(model)] == [
        False,
        False,
        True,
    ]


def test_a_repeated_call_warns_once_even_with_other_calls_in_between(tmp_path: Path) -> None:
    run_events = asyncio.run(events(project(tmp_path), works(7, 1), works(7), works(8), works(7), "done"))

    warnings = [event for event in run_events if isinstance(event, Warned)]
    assert [(event.code, event.message) for event in warnings] == [
        ("max_repeated_calls", "work was called 3 times with the same arguments")
    ]
    assert warnings[0].seq > [event.seq for event in run_events if isinstance(event, ToolFinished)][-1]


def test_consecutive_turns_with_invalid_calls_stop_the_run_after_max_corrections(tmp_path: Path) -> None:
    wrong = [calls(("wrok", {})), calls(("work", {"n": "many"})), calls(("work", {"m": 1}))]
    model = ScriptedModel(*wrong, "never called")
    result = asyncio.run(run(project(tmp_path, "{max_corrections: 2}"), model=model))

    assert (result.status, result.finish_reason, result.steps) == ("stopped", "max_corrections", 3)
    assert result.stopped_by == LimitUse(limit="max_corrections", used=3, allowed=2, place=f"{FILE}:7")


def test_a_valid_call_resets_the_count_of_invalid_ones(tmp_path: Path) -> None:
    turns = [calls(("wrok", {})), works(1), calls(("wrok", {"n": 2})), works(2), "done"]

    assert asyncio.run(run(project(tmp_path, "{max_corrections: 1}"), *turns)).output == "done"


def test_without_corrections_the_first_invalid_call_stops_the_run(tmp_path: Path) -> None:
    result = asyncio.run(run(project(tmp_path, "{max_corrections: 0}"), calls(("wrok", {})), "never called"))

    assert result.finish_reason == "max_corrections"


@pytest.mark.parametrize("width", [1, 3])
def test_at_most_max_parallel_tools_calls_run_concurrently(tmp_path: Path, width: int) -> None:
    under_way, most = 0, 0

    @tool(risk="low")
    async def count(n: int) -> str:
        """Count the calls in progress."""
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(5):
            await asyncio.sleep(0)
        under_way -= 1
        return str(n)

    turn = calls(*(("count", {"n": n}) for n in range(8)))
    root = project(tmp_path, f"{{max_parallel_tools: {width}}}")
    result = asyncio.run(run(root, turn, "done", tools=[count]))

    assert most == width
    assert [call.result for call in result.tool_calls] == [str(n) for n in range(8)]


# --- what the result of a limited run contains


def test_at_four_fifths_of_a_limit_there_is_one_warning(tmp_path: Path) -> None:
    root = project(tmp_path, "{max_steps: 5, max_tool_calls: 6, max_total_tokens: 1000}")
    run_events = asyncio.run(events(root, *(works(n) for n in range(4)), "done"))

    warnings = [(event.code, event.message) for event in run_events if isinstance(event, Warned)]
    assert warnings == [("max_steps", "4 of max_steps 5 used")]


def test_a_large_count_is_written_out(tmp_path: Path) -> None:
    model = ScriptedModel(works(1), "never called", tokens=1_234_567)
    root = project(tmp_path, "{max_total_tokens: 1234567}")

    with pytest.raises(LimitExceeded, match="max_total_tokens reached: 1234567 of 1234567"):
        asyncio.run(run(root, model=model, raise_on_limit=True))


def test_raise_on_limit_raises_with_the_result_limit_use_and_place(tmp_path: Path) -> None:
    root = project(tmp_path, "\n  max_tool_calls: 40\n  max_steps: 2")

    with pytest.raises(LimitExceeded) as caught:
        asyncio.run(run(root, model=endless(), raise_on_limit=True))

    error = caught.value
    assert str(error) == f"max_steps reached: 2 of 2 (set at {FILE}:9)"
    assert (error.limit, error.used, error.allowed, error.place) == ("max_steps", 2, 2, f"{FILE}:9")
    assert error.result is not None
    assert (error.result.status, len(error.result.tool_calls)) == ("stopped", 2)


@pytest.mark.parametrize(
    ("limits", "turns"),
    [
        ("{max_tool_calls: 1}", [works(1), works(2)]),
        ("{max_total_tokens: 1}", [works(1)]),
        ("{timeout: 100ms}", [calls(("stuck", {}))]),
        ("{max_repeated_calls: 1}", [works(1), works(1)]),
        ("{max_corrections: 0}", [calls(("wrok", {}))]),
    ],
)
def test_raise_on_limit_raises_for_every_limit(tmp_path: Path, limits: str, turns: list[Turn]) -> None:
    with pytest.raises(LimitExceeded) as caught:
        asyncio.run(run(project(tmp_path, limits), *turns, raise_on_limit=True))

    assert caught.value.limit == limits.strip("{").partition(":")[0]
    assert caught.value.place == f"{FILE}:7"
    assert caught.value.used >= caught.value.allowed


def test_raise_on_limit_does_not_raise_for_a_run_that_ends_otherwise(tmp_path: Path) -> None:
    assert asyncio.run(run(project(tmp_path), "hello", raise_on_limit=True)).output == "hello"


def test_the_limit_that_stopped_a_run_is_stored(tmp_path: Path) -> None:
    async def main() -> None:
        store = JsonStore()
        root = project(tmp_path, "{max_steps: 1}")
        models = {"scripted": endless()}
        async with Runtime.open(root, tools=[work], models=models, store=store, watch=False) as runtime:
            result = await runtime.run("go")
        assert (await store.load_run(result.run_id)).stopped_by == result.stopped_by
        assert result.stopped_by is not None

    asyncio.run(main())


def test_a_stopped_run_returns_the_models_last_text(tmp_path: Path) -> None:
    def turn(request: ModelRequest) -> Turn:
        number = len(request.messages)
        call = ToolCall(id=f"c{number}", tool="work", arguments={"n": number})
        return Message(role="assistant", content=f"thought {number}", tool_calls=(call,))

    model = ScriptedModel(script=turn)
    result = asyncio.run(run(project(tmp_path), model=model, limits={"max_steps": 2}))

    assert (result.status, result.output) == ("stopped", "thought 4")


@pytest.mark.parametrize(
    ("limits", "turns"),
    [
        ("{max_tool_calls: 1}", [works(1), works(2)]),
        ("{max_repeated_calls: 1}", [works(1), works(1)]),
        ("{timeout: 100ms, tool_timeout: null}", [calls(("stuck", {}))]),
    ],
)
def test_every_call_in_a_stopped_runs_messages_has_a_result(tmp_path: Path, limits: str, turns: list[Turn]) -> None:
    result = asyncio.run(run(project(tmp_path, limits), *turns))

    call_ids = [call.id for message in result.messages for call in message.tool_calls]
    assert call_ids == [message.tool_call_id for message in result.messages if message.role == "tool"]


# --- limits of one call


def test_a_caller_can_lower_a_limit_and_the_error_names_the_request(tmp_path: Path) -> None:
    root = project(tmp_path, "{max_steps: 8}")

    with pytest.raises(LimitExceeded) as caught:
        asyncio.run(run(root, model=endless(), limits={"max_steps": 2}, raise_on_limit=True))

    assert str(caught.value) == "max_steps reached: 2 of 2 (set at limits.max_steps of the request)"


def test_a_caller_may_raise_a_limit(tmp_path: Path) -> None:
    root = project(tmp_path, "{max_steps: 2}")

    assert asyncio.run(run(root, model=endless(), limits={"max_steps": 5})).steps == 5


def test_null_is_no_limit_in_the_file_and_in_the_call(tmp_path: Path) -> None:
    unlimited = "{max_steps: null, max_tool_calls: null, max_total_tokens: null, timeout: null}"
    turns = [*(works(n) for n in range(60)), "done"]
    in_file = asyncio.run(run(project(tmp_path, unlimited), model=ScriptedModel(*turns, tokens=5000)))
    names = ("max_steps", "max_tool_calls", "max_total_tokens", "timeout")
    in_call = asyncio.run(run(project(tmp_path), model=ScriptedModel(*turns, tokens=5000), limits=dict.fromkeys(names)))

    for result in (in_file, in_call):
        assert (result.status, result.steps, result.usage.total_tokens) == ("completed", 61, 305_000)


def test_null_repeats_and_timeouts_are_no_limits_either(tmp_path: Path) -> None:
    limits = "{max_repeated_calls: null, model_timeout: null, tool_timeout: null}"

    assert asyncio.run(run(project(tmp_path, limits), *[works(1)] * 8, "done")).output == "done"


def test_a_missing_limit_is_the_small_default(tmp_path: Path) -> None:
    result = asyncio.run(run(project(tmp_path), model=endless()))

    assert (result.finish_reason, result.steps) == ("max_steps", 10)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_stesp": 3}, "limits: unknown key 'max_stesp'; did you mean max_steps"),
        ({"risk_level": "critical"}, "limits: unknown key 'risk_level'"),
        ({"max_steps": 0}, "limits: max_steps: Input should be greater than 0"),
        ({"timeout": "soon"}, "limits: timeout: .*invalid duration"),
        ({"max_corrections": None}, "limits: max_corrections"),
    ],
)
def test_invalid_limits_are_rejected(tmp_path: Path, limits: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        asyncio.run(run(project(tmp_path), limits=limits))


# --- sub-agents


def family(root: Path, parent: str, child: str = "{}") -> Path:
    boss = agent("boss", runtime_policy=parent, sub_agents="[worker]", skill_policy="{allow: []}")
    project(root, child)
    return write(root, {"agents.d/boss.yaml": boss})


DELEGATE = calls(("agent.worker", {"message": "work"}))


@pytest.mark.parametrize(
    ("limits", "reason", "turns"),
    [
        ("{max_steps: 3}", "max_steps", [DELEGATE, works(1), works(2)]),
        ("{max_total_tokens: 25}", "max_total_tokens", [DELEGATE, works(1), works(2)]),
        ("{max_tool_calls: 2}", "max_tool_calls", [DELEGATE, works(1), works(2), DELEGATE]),
    ],
)
def test_a_sub_agent_spends_its_parents_budget(tmp_path: Path, limits: str, reason: str, turns: list[Turn]) -> None:
    result = asyncio.run(run(family(tmp_path, limits), *turns, agent="boss"))

    assert (result.status, result.finish_reason) == ("stopped", reason)
    assert result.stopped_by is not None
    assert result.stopped_by.place == "agents.d/boss.yaml:7"
    assert result.steps == 3 if reason != "max_tool_calls" else 4


def test_a_sub_agents_own_limit_ends_only_the_sub_agent(tmp_path: Path) -> None:
    model = ScriptedModel(DELEGATE, works(1), "the worker had to stop")
    result = asyncio.run(run(family(tmp_path, "{}", "{max_steps: 1}"), model=model, agent="boss"))

    assert (result.status, result.output) == ("completed", "the worker had to stop")
    assert "stopped by max_steps" in observations(model)[0]
    assert result.steps == 3


def test_a_parents_timeout_applies_to_its_sub_agent(tmp_path: Path) -> None:
    root = family(tmp_path, "{timeout: 200ms}", "{tool_timeout: null}")
    result = asyncio.run(run(root, DELEGATE, calls(("stuck", {})), agent="boss"))

    assert (result.status, result.finish_reason) == ("stopped", "timeout")
    assert result.stopped_by is not None
    assert result.stopped_by.place == "agents.d/boss.yaml:7"


# --- any limits at all


@cases(20)
@given(
    steps=st.integers(1, 8),
    allowed=st.integers(1, 12),
    tokens=st.integers(1, 120),
    turns=st.lists(st.integers(1, 5), max_size=10),
)
def test_no_limit_is_exceeded_for_any_model_behaviour(
    tmp_path_factory: pytest.TempPathFactory, steps: int, allowed: int, tokens: int, turns: list[int]
) -> None:
    made: list[int] = []

    @tool(risk="low")
    async def note(n: int) -> str:
        """Record a number."""
        made.append(n)
        return "noted"

    numbers = iter(range(100))
    script: list[Turn] = [calls(*(("note", {"n": next(numbers)}) for _ in range(width))) for width in turns]
    model = ScriptedModel(*script, "done")
    limits = {"max_steps": steps, "max_tool_calls": allowed, "max_total_tokens": tokens}
    root = project(tmp_path_factory.mktemp("limits"))
    result = asyncio.run(run(root, model=model, tools=[note], limits=limits))

    assert len(model.requests) == result.steps <= steps
    assert len(made) <= allowed
    assert result.usage.total_tokens < tokens + 10, "only the last answer may go past it"
    assert result.status == "completed" or result.finish_reason in limits
    assert len(made) == sum(call.status == "success" for call in result.tool_calls)
    if result.status == "completed":
        assert len(made) == min(sum(turns), allowed)


def test_active_time_is_stored_during_a_run_so_that_a_crash_loses_none(tmp_path: Path) -> None:
    store, stored = JsonStore(), []

    def work() -> None:
        began = perf_counter()
        while perf_counter() - began < 2 * CLOCK_DRIFT:
            pass  # a shorter time would not be counted

    @tool(risk="low")
    async def peek(n: int, context: ToolContext) -> str:
        """Read the stored state of the run."""
        stored.append((await store.load_run(context.run_id)).elapsed_ms)
        work()
        return f"looked {n}"

    def script(request: ModelRequest) -> Turn:
        work()
        looks = sum(message.role == "tool" for message in request.messages)
        return "done" if looks == 2 else calls(("peek", {"n": looks + 1}), prefix=f"c{looks}")

    async def main() -> RunResult:
        model = ScriptedModel(script=script)
        root, models = project(tmp_path, "{timeout: 60s}"), {"scripted": model}
        async with Runtime.open(root, models=models, tools=[peek], store=store, watch=False) as runtime:
            return await runtime.run("go")

    result = asyncio.run(main())
    assert result.output == "done"
    first, second = stored
    assert 0 < first < second < result.elapsed_ms
