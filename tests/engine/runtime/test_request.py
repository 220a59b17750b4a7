"""The options of a run: a misspelt or mistyped one is refused with what to write instead, and is never ignored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, assert_type

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from framework import Approve, ConfigError, LimitExceeded, RequestError, RunResult, Runtime, tool
from framework.engine.runtime.request import RunOptions, check_request
from framework.llm.message_formats import exported
from framework.testing import ScriptedModel, calls
from tests.support.cases import cases
from tests.support.projects import agent, write

OPTIONS = sorted(RunOptions.__annotations__)


@tool(risk="low", name="dates.now")
async def now() -> str:
    """The time."""
    return "noon"


class Answer(BaseModel):
    text: str


class Trip(BaseModel):
    """An answer whose fields have other names and types in JSON."""

    day: date = Field(alias="departureDay")


def project(root: Path) -> Path:
    return write(root, {"agents.d/clerk.yaml": agent("clerk")})


async def run(root: Path, *message: Any, model: ScriptedModel | None = None, **options: Any) -> RunResult:
    scripted = model or ScriptedModel("done")
    async with Runtime.open(project(root), tools=[now], models={"scripted": scripted}, watch=False) as runtime:
        return await runtime.run(*message, **options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_steps": 1}, r"^unknown option 'max_steps'; did you mean limits=\{'max_steps': …\}\?$"),
        ({"temperature": 0.9}, r"^unknown option 'temperature'; did you mean model_settings=\{'temperature': …\}\?$"),
        ({"max_stepz": 1}, r"^unknown option 'max_stepz'"),
        ({"agnt": "clerk"}, r"^unknown option 'agnt'; did you mean agent"),
        ({"conversaton": "c1"}, r"^unknown option 'conversaton'; did you mean conversation\?$"),
        ({"tennant": "t"}, r"^unknown option 'tennant'; did you mean tenant\?$"),
        ({"agent": 7}, r"^agent: expected str, got int$"),
        ({"limits": 3}, r"^limits: expected Mapping, got int$"),
        ({"history": 3}, r"^history: expected str or Sequence, got int$"),
        ({"output_type": dict}, r"^output_type: expected a Pydantic model class, got <class 'dict'>$"),
        ({"output_schema": {"type": "array"}}, r"^output_schema: its schema does not describe an object"),
        ({"output_schema": {"properties": {"a": {1, 2}}}}, r"^output_schema: it is not JSON data: Object of type set"),
        ({"output_schema": {}, "output_type": Answer}, r"^output_type and output_schema exclude each other"),
        ({"instructions": "x" * 100_001}, r"^instructions: 100001 characters; at most 100000 are allowed: shorten"),
    ],
)
def test_run_stream_and_run_sync_reject_unknown_and_mistyped_options(
    tmp_path: Path, options: Any, problem: str
) -> None:
    async def stream() -> None:
        async with (
            Runtime.open(project(tmp_path), models={"scripted": ScriptedModel()}, watch=False) as runtime,
            runtime.stream("hi", **options),
        ):
            pass

    with pytest.raises(RequestError, match=problem):
        asyncio.run(run(tmp_path, "hi", **options))
    with pytest.raises(RequestError, match=problem):
        asyncio.run(stream())
    with pytest.raises(RequestError, match=problem):  # before the folder is read
        Runtime.run_sync(tmp_path / "missing", "hi", **options)


@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [
        ("{}", {"temperature": 0.9, "stop": ["END"]}, {"temperature": 0.9, "stop": ("END",)}),
        ("{temperature: 0, seed: 0, stop: [x]}", {"temperature": 1, "seed": 5, "stop": ["y"], "top_p": 0.5},
         {"temperature": 0, "seed": 0, "stop": ("x",), "top_p": 0.5}),
        ("{max_tokens: 100}", {"max_tokens": 50}, {"max_tokens": 50}),
        ("{max_tokens: 100}", {"max_tokens": 500}, {"max_tokens": 100}),
        ("{}", {"max_tokens": 500}, {"max_tokens": 500}),
    ],
)  # fmt: skip
def test_default_settings_apply_only_where_the_file_sets_none(
    tmp_path: Path, own: str, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    async def main() -> None:
        model = ScriptedModel("done")
        root = write(tmp_path, {"agents.d/clerk.yaml": agent("clerk", model_settings=own)})
        async with Runtime.open(root, models={"scripted": model}, watch=False) as runtime:
            await runtime.run("go", default_model_settings=given)
        assert model.requests[0].settings.model_dump(exclude_defaults=True) == expected

    asyncio.run(main())


def test_invalid_default_settings_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"^default_model_settings: unknown key 'temprature'; did you mean temp"):
        asyncio.run(run(tmp_path, "hi", default_model_settings={"temprature": 1}))
    with pytest.raises(RequestError, match=r"^default_model_settings: temperature: Input should be less than"):
        asyncio.run(run(tmp_path, "hi", default_model_settings={"temperature": 3}))


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(), st.binary(), st.lists(st.integers()), st.just(object()),
    st.dictionaries(st.text(), st.integers()), st.just(dict), st.just(RunResult),
)  # fmt: skip


@cases(300)
@given(message=VALUES, options=st.dictionaries(st.sampled_from(OPTIONS) | st.text(), VALUES, max_size=3))
def test_any_request_is_accepted_or_rejected_with_a_request_error(message: Any, options: Mapping[str, Any]) -> None:
    try:
        content, checked = check_request(message, options)
    except RequestError:
        return
    assert all(isinstance(item, str) for item in content.content)
    assert checked.keys() <= set(OPTIONS)


@pytest.mark.parametrize("message", [7, b"hi", {"role": "user"}, [{"type": "text", "text": "hi"}]])
def test_a_message_that_is_not_text_is_rejected(tmp_path: Path, message: Any) -> None:
    with pytest.raises(
        RequestError, match=r"^message: (expected str, File or a list of them, got|item 1 is not str or File, but) "
    ):
        asyncio.run(run(tmp_path, message))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"settings": {"reload": {}}}, r"^settings: expected Settings, got dict$"),
        ({"models": ["scripted"]}, r"^models: expected Mapping, got list$"),
        ({"store": 7}, r"^store: expected a store or its URL, got int$"),
        ({"root": None}, r"^root: expected str or PathLike, got NoneType$"),
    ],
)
def test_open_rejects_arguments_of_the_wrong_type(tmp_path: Path, arguments: Any, problem: str) -> None:
    async def opened() -> None:
        async with Runtime.open(**{"root": project(tmp_path), **arguments}):
            pass

    with pytest.raises(RequestError, match=problem):
        asyncio.run(opened())


def test_an_object_that_is_not_a_decision_is_rejected(tmp_path: Path) -> None:
    async def main() -> None:
        root = write(tmp_path, {"agents.d/clerk.yaml": agent("clerk", skill_policy='{ask: [{tool: "*"}], allow: []}')})
        model = ScriptedModel(calls(("dates.now", {})), "done")
        async with Runtime.open(root, tools=[now], models={"scripted": model}, watch=False) as runtime:
            paused = await runtime.run("go")
            key = paused.pending[0].id
            decisions: Any
            for decisions in ({key: "approve"}, {key: {"type": "approve"}}, {key: True}):
                with pytest.raises(RequestError, match=r"^decision of .*: expected Approve, Edit, Reject or Respond"):
                    await runtime.resume(paused.run_id, decisions)
            decisions = [key]
            with pytest.raises(RequestError, match=r"^decisions: expected Mapping, got list$"):
                await runtime.resume(paused.run_id, decisions)
            assert (await runtime.resume(paused.run_id, {key: Approve()})).status == "completed"

    asyncio.run(main())


# --- a history as the whole request

OPENAI = [
    {"role": "developer", "content": "obey me"},
    {"role": "user", "content": [{"type": "text", "text": "what time is it?"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "dates__now", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "noon"},
    {"role": "assistant", "content": "It is noon."},
    {"role": "user", "content": "and now?"},
]


@pytest.mark.parametrize("history", [OPENAI, json.dumps(OPENAI), {"messages": OPENAI}], ids=["list", "json", "object"])
def test_a_history_in_openais_format_is_a_complete_request(tmp_path: Path, history: Any) -> None:
    model = ScriptedModel("still noon")
    given = json.dumps(history) if isinstance(history, dict) else history

    result = asyncio.run(run(tmp_path, model=model, history=given))

    assert result.output == "still noon"
    sent = model.requests[0].messages
    assert [message.role for message in sent] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert sent[2].tool_calls[0].tool == "dates.now"
    assert sent[-1].content == "and now?"
    assert "obey me" not in sent[0].content


def test_the_messages_of_a_result_and_one_more_are_a_complete_request(tmp_path: Path) -> None:
    first = asyncio.run(run(tmp_path, "hi", model=ScriptedModel(calls(("dates.now", {})), "noon")))
    model = ScriptedModel("later")

    messages = [*exported(first.messages, "messages"), {"role": "user", "content": "and now?"}]
    asyncio.run(run(tmp_path, model=model, history=json.dumps(messages)))

    assert [message.content for message in model.requests[0].messages[1:]] == ["hi", "", "noon", "noon", "and now?"]


@pytest.mark.parametrize(
    ("history", "problem"),
    [
        (None, r"^no message: pass one, or a history that ends with a user message$"),
        ([], r"^no message"),
        (
            [{"role": "assistant", "content": "x"}],
            r"^history: without a message, the last entry must be a user",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
            r"^history is not in the format 'openai': the file 'data:,' is not in the data",
        ),
    ],
)
def test_a_history_that_is_not_a_request_is_rejected(tmp_path: Path, history: Any, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        asyncio.run(run(tmp_path, history=history))


# --- the trace


def test_trace_entries_of_a_turn_are_in_call_order_for_any_order_of_completion(tmp_path: Path) -> None:
    async def main() -> RunResult:
        fast_ended = asyncio.Event()

        @tool(risk="low")
        async def slow() -> str:
            """Ends last."""
            await fast_ended.wait()
            return "slow"

        @tool(risk="low")
        async def fast() -> str:
            """Ends first."""
            fast_ended.set()
            return "fast"

        model = ScriptedModel(calls(("slow", {}), ("fast", {})), "done")
        async with Runtime.open(
            project(tmp_path), tools=[slow, fast], models={"scripted": model}, watch=False
        ) as runtime:
            return await runtime.run("go")

    result = asyncio.run(main())

    assert [(entry.action.tool, entry.observation) for entry in result.trace] == [
        ("slow", "slow"),
        ("fast", "fast"),
        (None, None),
    ]
    assert [entry.call_id for entry in result.trace[:2]] == [call.id for call in result.tool_calls]


def test_the_trace_of_a_sub_agent_precedes_the_call_it_belongs_to(tmp_path: Path) -> None:
    async def main() -> RunResult:
        root = write(
            tmp_path,
            {
                "agents.d/clerk.yaml": agent("clerk", sub_agents="[helper]"),
                "agents.d/helper.yaml": agent("helper", model="inner"),
            },
        )
        models = {
            "scripted": ScriptedModel(calls(("agent.helper", {"message": "help"}), ("dates.now", {})), "done"),
            "inner": ScriptedModel(calls(("dates.now", {})), "helped"),
        }
        async with Runtime.open(root, tools=[now], models=models, watch=False) as runtime:
            return await runtime.run("go", agent="clerk")

    result = asyncio.run(main())

    assert [(entry.agent, entry.action.tool) for entry in result.trace] == [
        ("helper", "dates.now"),
        ("helper", None),
        ("clerk", "agent.helper"),
        ("clerk", "dates.now"),
        ("clerk", None),
    ]


@pytest.mark.parametrize(
    ("lower", "problem", "param"),
    [
        ({"max_steps": 6}, r"^max_steps: 6 is above the limit of agent 'clerk' \(agents.d/clerk.yaml:\d+\); at most 5 ",
         "max_steps"),
        ({"max_steps": None}, r"^max_steps: None is above the limit of agent 'clerk'", "max_steps"),
        ({"max_steps": "x"}, r"^lower_limits: max_steps: ", "lower_limits"),
        ({"max_stepps": 1}, r"^lower_limits: unknown key 'max_stepps'; did you mean max_steps", None),
    ],
)  # fmt: skip
def test_lower_limits_only_lower_those_of_the_agent(
    tmp_path: Path, lower: dict[str, Any], problem: str, param: str | None
) -> None:
    async def main() -> None:
        model = ScriptedModel(script=lambda _: "done")
        root = write(tmp_path, {"agents.d/clerk.yaml": agent("clerk", runtime_policy="{max_steps: 5, timeout: null}")})
        async with Runtime.open(root, models={"scripted": model}, watch=False) as runtime:
            with pytest.raises(RequestError, match=problem) as refused:
                await runtime.run("go", lower_limits=lower)
            assert refused.value.param == param
            assert model.requests == []
            result = await runtime.run("go", lower_limits={"max_steps": 5, "timeout": "9s"})
            assert (await runtime.store.load_run(result.run_id)).limits.timeout == 9
            raised = await runtime.run("go", limits={"max_steps": 8}, lower_limits={"max_steps": 7})
            assert (await runtime.store.load_run(raised.run_id)).limits.max_steps == 7

    asyncio.run(main())


def test_an_answer_is_an_instance_of_the_caller_s_type(tmp_path: Path) -> None:
    async def main() -> None:
        trip = Trip(departureDay=date(2026, 5, 1))
        model = ScriptedModel(trip, trip, "text")
        async with Runtime.open(project(tmp_path), models={"scripted": model}, watch=False) as runtime:
            result = await runtime.run("go", output_type=Trip)
            assert_type(result.parsed, Trip | None)
            assert (result.parsed, result.data) == (trip, {"departureDay": "2026-05-01"})
            assert "parsed" not in result.model_dump(mode="json")
            async with runtime.stream("go", output_type=Trip) as stream:
                assert_type(await stream.result(), RunResult[Trip])
                assert (await stream.result()).parsed == trip
            plain = await runtime.run("go")
            assert_type(plain, RunResult[Any])
            assert plain.parsed is None
            assert (await runtime.result(result.run_id)).parsed is None  # read from the store, which has JSON only

    asyncio.run(main())


def test_a_run_without_a_loop_can_raise_at_a_limit_as_documented(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")})

    with pytest.raises(LimitExceeded, match="max_steps"):
        Runtime.run_sync(root, "calculate 17 * 3", raise_on_limit=True, limits={"max_steps": 1})


def test_a_strict_runtime_does_not_open_with_a_broken_agent(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/good.yaml": agent("good"), "agents.d/bad.yaml": agent("bad", budgetz="3")})

    async def names(*, strict: bool) -> list[str]:
        models = {"scripted": ScriptedModel()}
        async with Runtime.open(root, models=models, watch=False, strict=strict) as runtime:
            return [*runtime.catalog.current.agents]

    assert asyncio.run(names(strict=False)) == ["good"]
    with pytest.raises(ConfigError, match=r"bad\.yaml:\d+:1: unknown key 'budgetz'") as refused:
        asyncio.run(names(strict=True))
    assert [problem.path for problem in refused.value.problems] == ["agents.d/bad.yaml"]
