"""A text answer that the output limit cuts: kept with a warning, continued, or the end of the run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import LimitExceeded, RunResult, Runtime, tool
from framework.engine.model_call.turn import MAX_CONTINUATIONS
from framework.llm.client import ModelReply, ModelRequest
from framework.replay import replay
from framework.testing import Crash, JsonStore, ScriptedModel, Turn, calls
from framework.types.errors import AgentsdError, ModelError
from framework.types.events import ContentReceived, Event, RunFinished, Warned
from framework.types.messages import Message
from tests.support.cases import cases
from tests.support.commands import agentsd, agentsd_process
from tests.support.formats import OPENAI, Format, each_format, each_way, says
from tests.support.plans import draft, model_step
from tests.support.projects import agent, write
from tests.support.wire import Answer, WireServer, cut_stream, failed, wire_server
from tests.support.wire import calls as wire_calls
from tests.support.wire import says as openai_says

FAST = "model_calls: {backoff: 1ms, max_backoff: 1ms, max_retries: 2}\n"
SCHEMA = "{type: object, properties: {n: {type: integer}}, required: [n]}"


@tool(risk="low")
async def look(n: int = 0) -> str:
    """Look."""
    return f"saw {n}"


class Cut(ScriptedModel):
    """A scripted model: a text that ends with `…` is cut there, and the sign is not part of it."""

    async def stream(self, request: ModelRequest) -> Any:
        async for delta in super().stream(request):
            reply = delta.reply
            if reply is None:
                yield delta if not delta.text.endswith("…") else type(delta)(text=delta.text[:-1])
            elif reply.message.content.endswith("…"):
                message = reply.message.model_copy(update={"content": reply.message.content[:-1]})
                yield type(delta)(reply=ModelReply(message, "length", reply.usage, "scripted"))
            else:
                yield delta


def project(root: Path, **keys: str) -> Path:
    return write(root, {"agents.d/one.yaml": agent("one", **keys), "agentsd.yaml": FAST})


def texts(received: list[Event]) -> dict[str, str]:
    """Return the text that a listener has of each message, without the messages that a warning voided."""
    shown: dict[str, str] = {}
    for event in received:
        if isinstance(event, ContentReceived):
            shown[event.message_id] = shown.get(event.message_id, "") + event.text
        elif isinstance(event, Warned) and event.message_id:
            shown.pop(event.message_id, None)
    return shown


async def watch(runtime: Runtime, stream: bool = True, **options: Any) -> tuple[RunResult, list[Event]]:
    if not stream:
        return await runtime.run("go", **options), []
    async with runtime.stream("go", **options) as events:
        received = [event async for event in events]
        return await events.result(), received


def on_wire(
    root: Path, form: Format, *answers: Answer, stream: bool = True, check: Callable[[WireServer], object] = id
) -> tuple[RunResult, list[Event]]:
    async def main() -> tuple[RunResult, list[Event]]:
        async with wire_server(answers) as server:
            models = {"scripted": form.model(server.url)}
            async with Runtime.open(root, models=models, tools=[look], watch=False) as runtime:
                seen = await watch(runtime, stream)
            check(server)
            return seen

    return asyncio.run(main())


def scripted(root: Path, *turns: Turn, **options: Any) -> tuple[RunResult, ScriptedModel, list[Event]]:
    model = Cut(*turns)

    async def main() -> tuple[RunResult, list[Event]]:
        async with Runtime.open(root, models={"scripted": model}, tools=[look], watch=False) as runtime:
            return await watch(runtime, **options)

    result, received = asyncio.run(main())
    return result, model, received


# --- continue


@each_format
@each_way
def test_a_cut_answer_is_continued_and_joined(form: Format, stream: bool, tmp_path: Path) -> None:
    def ends_with_the_text_so_far(server: WireServer) -> None:
        assert len(server.requests) == 3
        sent = json.dumps(server.requests[2], ensure_ascii=False)
        assert "One, two" in sent
        assert "Your answer was cut" in sent

    root = project(tmp_path, on_truncation="continue", model_settings="{max_tokens: 5}")
    answers = [says(form, "One,", end="length"), says(form, " two", end="length"), says(form, " and three.")]
    result, received = on_wire(root, form, *answers, stream=stream, check=ends_with_the_text_so_far)
    assert (result.status, result.finish_reason, result.output) == ("completed", "final", "One, two and three.")
    assert (result.truncated, result.warnings, result.steps) == (False, (), 3)
    assert [message.content for message in result.messages] == ["go", "One, two and three."]
    assert [entry.thought for entry in result.trace] == ["One, two and three."]
    if stream:
        (done,) = (event for event in received if isinstance(event, RunFinished))
        assert texts(received) == {done.message_id: "One, two and three."}


@cases(15)
@given(
    parts=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="…<[◁"), min_size=1), min_size=1, max_size=4)
)
def test_any_parts_are_joined_exactly(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    numbered = [f"{number}{part}" for number, part in enumerate(parts)]
    turns = [f"{part}…" for part in numbered[:-1]] + numbered[-1:]
    result, _, received = scripted(project(tmp_path_factory.mktemp("p"), on_truncation="continue"), *turns)
    assert (result.output, result.truncated) == ("".join(numbered), False)
    assert [*texts(received).values()] == [result.output]


def test_the_prefix_of_a_continuation_is_the_request_before_it(tmp_path: Path) -> None:
    _, model, _ = scripted(project(tmp_path, on_truncation="continue"), "One…", " two…", " three")
    first, second, third = model.requests
    assert second.messages[: len(first.messages)] == third.messages[: len(first.messages)] == first.messages
    assert [message.role for message in third.messages[len(first.messages) :]] == ["assistant", "user"]
    assert third.messages[-2].content == "One two"
    assert third.tools == first.tools


def test_the_number_of_continuations_is_bounded_and_the_rest_is_reported(tmp_path: Path) -> None:
    turns = [f"part {number}…" for number in range(20)]
    result, model, _ = scripted(project(tmp_path, on_truncation="continue"), *turns)
    assert len(model.requests) == result.steps == 1 + MAX_CONTINUATIONS
    assert (result.status, result.finish_reason, result.truncated) == ("completed", "final", True)
    assert result.output == "".join(f"part {number}" for number in range(1 + MAX_CONTINUATIONS))
    assert [warning.code for warning in result.warnings if warning.code == "truncated"] == ["truncated"]
    assert f"still incomplete after {MAX_CONTINUATIONS} continuations" in result.warnings[-1].message


@pytest.mark.parametrize("part", ["One", "ne", " …", "\n…", "One…"])
def test_a_continuation_without_progress_is_the_last(tmp_path: Path, part: str) -> None:
    result, model, _ = scripted(project(tmp_path, on_truncation="continue"), "One…", part, "never asked for")
    assert len(model.requests) == 2
    assert (result.output, result.truncated) == ("One" + part.rstrip("…"), part.endswith("…"))


@each_format
def test_an_empty_continuation_means_that_nothing_was_left(form: Format, tmp_path: Path) -> None:
    answers = [says(form, "All of it.", end="length"), says(form, "")]
    result, _ = on_wire(project(tmp_path, on_truncation="continue"), form, *answers)
    assert (result.status, result.output, result.truncated) == ("completed", "All of it.", False)


def test_a_continuation_may_call_tools(tmp_path: Path) -> None:
    call = Message(role="assistant", content=" first.", tool_calls=calls(("look", {"n": 3})))
    result, _, received = scripted(project(tmp_path, on_truncation="continue"), "I look…", call, "saw it")
    assert (result.output, result.truncated, result.steps) == ("saw it", False, 3)
    assert [call.result for call in result.tool_calls] == ["saw 3"]
    assert [message.content for message in result.messages] == ["go", "I look first.", "saw 3", "saw it"]
    assert sorted(texts(received).values()) == ["I look first.", "saw it"]


@each_way
def test_a_cut_tool_call_in_a_continuation_is_never_executed(tmp_path: Path, stream: bool) -> None:
    answers = [openai_says("I look", finish="length"), wire_calls(("look", '{"n": 1'), finish="length")]
    root = project(tmp_path, on_truncation="continue")
    result, _ = on_wire(root, OPENAI, *answers, stream=stream)
    assert (result.status, result.finish_reason, result.tool_calls) == ("failed", "model_error", ())
    assert (result.output, result.truncated) == ("I look", True)
    assert "a tool call was cut by max_tokens" in (result.error.message if result.error else "")


def test_a_retried_continuation_voids_its_text_and_repeats_the_beginning(tmp_path: Path) -> None:
    answers = [openai_says("One,", finish="length"), cut_stream(), openai_says(" two.")]
    result, received = on_wire(project(tmp_path, on_truncation="continue"), OPENAI, *answers)
    (done,) = (event for event in received if isinstance(event, RunFinished))
    assert result.output == "One, two."
    assert texts(received) == {done.message_id: "One, two."}
    assert [warning.code for warning in result.warnings] == ["model_retry"]


@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"max_steps": 1}, "max_steps"), ({"max_total_tokens": 10}, "max_total_tokens")],
)
def test_a_limit_ends_the_continuation_with_the_text_so_far(
    tmp_path: Path, limits: dict[str, int], reason: str
) -> None:
    root = project(tmp_path, on_truncation="continue")
    result, _, _ = scripted(root, "One…", "two", limits=limits)
    assert (result.status, result.finish_reason, result.output, result.truncated) == ("stopped", reason, "One", True)
    assert [message.content for message in result.messages] == ["go", "One"]


@pytest.mark.parametrize("second", ["two", ModelError("too long")], ids=["limit", "error"])
def test_the_text_so_far_is_one_numbered_event(tmp_path: Path, second: Turn) -> None:
    store = JsonStore()
    limits = {"max_steps": 1 if second == "two" else 2}

    async def main() -> None:
        options: dict[str, Any] = {"models": {"scripted": Cut("One…", second)}, "store": store, "watch": False}
        async with Runtime.open(project(tmp_path, on_truncation="continue"), **options) as runtime:
            result, received = await watch(runtime, limits=limits)
            stored = [event for event in await store.events(result.run_id) if event["event"] == "content"]
        assert [event["text"] for event in stored] == ["One"]
        assert texts(received) == {stored[0]["message_id"]: "One"}, "once"

    asyncio.run(main())


def test_a_failed_continuation_fails_the_run_with_the_text_so_far(tmp_path: Path) -> None:
    answers = [openai_says("One", finish="length"), failed(400, "too long")]
    result, _ = on_wire(project(tmp_path, on_truncation="continue"), OPENAI, *answers)
    assert (result.status, result.finish_reason, result.output) == ("failed", "model_error", "One")


def test_a_run_that_is_suspended_in_a_continuation_repeats_the_turn(tmp_path: Path) -> None:
    root, store = project(tmp_path, on_truncation="continue"), JsonStore()

    async def main() -> RunResult:
        began = asyncio.Event()

        class Hanging(Cut):
            async def stream(self, request: ModelRequest) -> Any:
                if len(self.requests) == 1:
                    began.set()
                    await asyncio.Event().wait()
                async for delta in super().stream(request):
                    yield delta

        runtime = Runtime.open(root, models={"scripted": Hanging("One…")}, store=store, watch=False)
        async with runtime as opened:
            task = asyncio.create_task(opened.run("go"))
            await began.wait()
            (info,) = await store.runs()
        with pytest.raises(BaseException, match="suspended"):
            await task
        models = {"scripted": Cut("One…", " two")}
        async with Runtime.open(root, models=models, store=store, watch=False) as opened:
            return await opened.resume(info.run_id, {})

    result = asyncio.run(main())
    assert (result.output, [message.content for message in result.messages]) == ("One two", ["go", "One two"])


def test_json_is_not_continued_but_requested_again_as_a_whole(tmp_path: Path) -> None:
    def sends_no_part_back(server: WireServer) -> None:
        assert not any("Your answer was cut" in json.dumps(body) for body in server.requests)

    root = project(tmp_path, on_truncation="continue", output_schema=SCHEMA)
    answers = [openai_says('{"n": ', finish="length"), wire_calls(("Answer", {"n": 3}))]
    result, _ = on_wire(root, OPENAI, *answers, check=sends_no_part_back)
    assert (result.status, result.data, len(result.warnings)) == ("completed", {"n": 3}, 1)


def test_a_cut_answer_in_the_json_protocol_is_an_error_whatever_the_agent_says(tmp_path: Path) -> None:
    for mode in ("continue", "warn", "stop"):
        answer = openai_says('{"type":"final","answer":"One', finish="length")
        root = project(tmp_path, on_truncation=mode, protocol="json")
        result, _ = on_wire(root, OPENAI, answer)
        assert (result.finish_reason, result.output) == ("model_error", "")
        assert "raise model_settings.max_tokens" in (result.error.message if result.error else "")


# --- stop and warn


@each_format
@each_way
def test_stop_ends_the_run_with_the_cut_text(form: Format, stream: bool, tmp_path: Path) -> None:
    root = project(tmp_path, on_truncation="stop", model_settings="{max_tokens: 7}")
    result, received = on_wire(root, form, says(form, "half an", end="length"), stream=stream)
    assert (result.status, result.finish_reason, result.output) == ("stopped", "length", "half an")
    assert (result.truncated, [warning.code for warning in result.warnings]) == (True, ["truncated"])
    assert result.stopped_by is not None
    assert (result.stopped_by.limit, result.stopped_by.allowed) == ("length", 7)
    assert result.stopped_by.place.startswith("agents.d/one.yaml:")
    if stream:
        (done,) = (event for event in received if isinstance(event, RunFinished))
        assert (done.status, done.finish_reason, done.truncated) == ("stopped", "length", True)


def test_stop_prevents_the_second_request_for_data(tmp_path: Path) -> None:
    root = project(tmp_path, on_truncation="stop", output_schema=SCHEMA)
    result, model, _ = scripted(root, '{"n": …')
    assert (result.finish_reason, result.data, len(model.requests)) == ("length", None, 1)


def test_stop_raises_for_a_caller_that_wants_it(tmp_path: Path) -> None:
    async def main() -> None:
        models = {"scripted": Cut("half…")}
        async with Runtime.open(project(tmp_path, on_truncation="stop"), models=models, watch=False) as runtime:
            await runtime.run("go", raise_on_limit=True)

    with pytest.raises(LimitExceeded, match=r"length reached: \d+ of \d+ \(set at agents.d/one.yaml"):
        asyncio.run(main())


def test_a_run_that_crashed_after_its_cut_answer_still_stops(tmp_path: Path) -> None:
    root = project(tmp_path, on_truncation="stop")

    async def main(writes: int) -> str:
        store = JsonStore()
        async with Runtime.open(root, models={"scripted": Cut("half…")}, store=store, watch=False) as runtime:
            store.crash_after(writes)
            try:
                await runtime.run("go")
            except (Crash, AgentsdError):
                store.crash_after(None)
            else:
                return "length"
        (info,) = await store.runs() or (None,)
        if info is None:
            return "length"
        async with Runtime.open(root, models={"scripted": Cut("half…")}, store=store, watch=False) as runtime:
            return (await runtime.resume(info.run_id, {})).finish_reason

    assert {asyncio.run(main(writes)) for writes in range(1, 4)} == {"length"}


# --- sub-agents and plan steps


@pytest.mark.parametrize(
    ("mode", "seen"),
    [
        ("warn", "half\n(This answer was cut at the output limit: its end is missing.)"),
        ("continue", "half and whole"),
        ("stop", "stopped by length; partial output: half"),
    ],
)
def test_a_sub_agents_own_setting_applies_and_its_caller_is_told(tmp_path: Path, mode: str, seen: str) -> None:
    write(tmp_path, {"agents.d/helper.yaml": agent("helper", on_truncation=mode)})
    root = project(tmp_path, sub_agents="[helper]", on_truncation="stop")
    turns: list[Turn] = [
        calls(("agent.helper", {"message": "look"})),
        "half…",
        *[" and whole"] * (mode == "continue"),
        "done",
    ]
    result, _, _ = scripted(root, *turns, agent="one")
    assert (result.status, result.output, result.truncated) == ("completed", "done", False)
    (call,) = (call for call in result.tool_calls if call.tool == "agent.helper")
    assert seen in str(call.result)
    expected = [] if mode == "continue" else [("truncated", ("c1",))]
    assert [(warning.code, warning.path) for warning in result.warnings] == expected


def test_a_plan_step_keeps_its_cut_result_or_fails_with_stop(tmp_path: Path) -> None:
    plan = draft(model_step("a"), model_step("b", "a"))
    outcomes = {}
    for mode in ("warn", "stop"):
        root = project(tmp_path / mode, on_truncation=mode, executor="plan", plan="{on_failure: skip}")
        turns: list[Turn] = [plan, "half…", *["b done"] * (mode == "warn"), "sum"]
        result, _, _ = scripted(root, *turns)
        assert result.plan is not None
        outcomes[mode] = [(step.status, step.result) for step in result.plan.steps]
        assert (result.output, result.truncated) == ("sum", False)
    note = "(This answer was cut at the output limit: its end is missing.)"
    assert outcomes["warn"] == [("done", f"half\n{note}"), ("done", "b done")]
    assert outcomes["stop"][0] == ("failed", "stopped by length; partial output: half")
    assert outcomes["stop"][1][0] == "skipped"


def test_the_answer_of_a_plan_is_continued(tmp_path: Path) -> None:
    root = project(tmp_path, on_truncation="continue", executor="plan")
    result, _, _ = scripted(root, draft(model_step("a")), "did a", "All…", " done")
    assert (result.status, result.output, result.truncated) == ("completed", "All done", False)


# --- surfaces


def test_the_command_line_reports_it_after_the_answer_and_by_exit_code(tmp_path: Path) -> None:
    async def main(mode: str) -> tuple[int, str, str, dict[str, Any], list[dict[str, Any]]]:
        async with wire_server([openai_says("half an", finish="length")] * 3) as server:
            yaml = f"models: {{m: {{model: openai/m, base_url: '{server.url}'}}}}\n"
            file = agent("one", model="m", on_truncation=mode)
            write(tmp_path, {"agentsd.yaml": yaml, "agents.d/one.yaml": file})
            plain = await asyncio.to_thread(agentsd_process, "run", "go", cwd=tmp_path)
            whole = await asyncio.to_thread(agentsd_process, "run", "--json", "go", cwd=tmp_path)
            lines = await asyncio.to_thread(agentsd_process, "run", "--events", "go", cwd=tmp_path)
        events = [json.loads(line) for line in lines.stdout.splitlines()]
        return plain.returncode, plain.stdout, plain.stderr, json.loads(whole.stdout), events

    code, output, errors, result, events = asyncio.run(main("warn"))
    assert (code, output) == (0, "half an\n")
    assert errors.splitlines()[-1] == "incomplete: the output limit cut this answer"
    assert (result["truncated"], result["finish_reason"], events[-1]["truncated"]) == (True, "final", True)
    code, output, errors, result, events = asyncio.run(main("stop"))
    assert (code, output) == (1, "half an\n")
    assert errors.splitlines()[-1] == "stopped because the output limit cut this answer (on_truncation: stop)"
    assert (result["truncated"], result["finish_reason"], events[-1]["finish_reason"]) == (True, "length", "length")


@pytest.mark.parametrize("mode", ["warn", "continue", "stop"])
def test_the_run_and_its_agent_have_the_finish_reason_in_the_trace_if_the_answer_is_cut(
    tmp_path: Path, mode: str
) -> None:
    root = project(tmp_path, on_truncation=mode)

    async def main() -> dict[str, Any]:
        store, models = f"sqlite:///{tmp_path}/runs.db", {"scripted": Cut("half…", " more")}
        async with Runtime.open(root, models=models, store=store, watch=False) as runtime:
            result = await runtime.run("go")
            spans = await runtime.store.spans(result.run_id)
        return {span.name: span.attributes.get("gen_ai.response.finish_reasons") for span in spans}

    found = asyncio.run(main())
    cut = [list(found[name] or ()) for name in ("invoke_workflow one", "invoke_agent one")]
    assert cut == [[] if mode == "continue" else ["length"]] * 2


@pytest.mark.parametrize("mode", ["warn", "continue", "stop"])
def test_a_replay_of_a_cut_answer_has_no_differences(tmp_path: Path, mode: str) -> None:
    root, store = project(tmp_path, on_truncation=mode), JsonStore()
    turns: list[Turn] = ["half…", *[f" part {n}…" for n in range(MAX_CONTINUATIONS * (mode == "continue"))]]

    async def main() -> object:
        async with Runtime.open(root, models={"scripted": Cut(*turns)}, store=store, watch=False) as runtime:
            result = await runtime.run("go")
            assert result.truncated
            record = await store.load_run(result.run_id)
            return await replay(root, await store.stored_run(record), runtime.catalog.current)

    assert asyncio.run(main()) == ()


def test_an_unknown_value_is_reported_with_the_choices(tmp_path: Path) -> None:
    done = agentsd("check", cwd=project(tmp_path, on_truncation="ignore", model="offline"))
    assert done.returncode != 0
    assert "'continue', 'warn' or 'stop'" in done.stdout + done.stderr
