"""A reply without text and tool calls is retried, then the fallback is called, then the run fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import RunResult, Runtime, tool
from framework.llm.answer_text import require_content
from framework.llm.client import ModelInfo, ModelReply
from framework.testing import ScriptedModel, Turn, calls
from framework.types.errors import ModelError
from framework.types.events import Warned
from framework.types.messages import Message, Reasoning, ToolCall, Usage
from tests.support.cases import cases
from tests.support.formats import OPENAI, Format, each_format, each_way, says
from tests.support.plans import draft, step
from tests.support.projects import agent, write
from tests.support.wire import Answer, WireServer, wire_server
from tests.support.wire import says as openai_says

FAST = "model_calls: {backoff: 1ms, max_backoff: 1ms, max_retries: 2}\n"
EMPTY = ["", " ", "\n\t\n", "\u200b\ufeff", "\x00", "<think>it is five</think>\n", "<think>it is five"]
THOUGHTS = Message(role="assistant", reasoning=Reasoning(text="it is five", provider="scripted"))


@tool(risk="low")
async def work(n: int) -> str:
    """Do something."""
    return f"did {n}"


def project(root: Path, **keys: str) -> Path:
    return write(root, {"agents.d/one.yaml": agent("one", **keys), "agentsd.yaml": FAST})


def run(root: Path, *turns: Turn, fallback: ScriptedModel | None = None, **options: Any) -> tuple[RunResult, int]:
    """Return the result, and the number of requests to the first model."""

    async def main() -> tuple[RunResult, int]:
        model = ScriptedModel(*turns)
        models = {"scripted": model, "other": fallback or ScriptedModel()}
        async with Runtime.open(root, models=models, tools=[work], watch=False) as runtime:
            return await runtime.run("go", agent="one", **options), len(model.requests)

    return asyncio.run(main())


@pytest.mark.parametrize("empty", [*EMPTY, THOUGHTS], ids=repr)
def test_an_empty_answer_after_tool_calls_is_retried_and_the_work_continues(tmp_path: Path, empty: Turn) -> None:
    turns = (calls(("work", {"n": 1})), empty, calls(("work", {"n": 2})), empty, "done")
    result, requests = run(project(tmp_path), *turns)
    assert (result.status, result.output) == ("completed", "done")
    assert [call.result for call in result.tool_calls] == ["did 1", "did 2"]
    assert (result.steps, requests) == (3, 5), "a retry is no step"
    assert result.usage.total_tokens == 50, "what an empty answer costs is counted"


def test_each_retry_of_an_empty_answer_has_another_seed(tmp_path: Path) -> None:
    async def main() -> list[int | None]:
        model = ScriptedModel("", "", "done")
        root = project(tmp_path, model_settings="{seed: 7}")
        async with Runtime.open(root, models={"scripted": model}, watch=False) as runtime:
            assert (await runtime.run("go", agent="one")).output == "done"
        return [request.settings.seed for request in model.requests]

    assert asyncio.run(main()) == [7, 6, 5]


@pytest.mark.parametrize("empty", [*EMPTY, THOUGHTS], ids=repr)
def test_after_the_retries_the_fallback_answers(tmp_path: Path, empty: Turn) -> None:
    other = ScriptedModel("from the fallback")
    result, requests = run(project(tmp_path, fallback_models="[other]"), *[empty] * 3, fallback=other)
    assert (result.output, requests) == ("from the fallback", 3)


@pytest.mark.parametrize("empty", [*EMPTY, THOUGHTS], ids=repr)
def test_without_a_fallback_the_run_fails_with_a_model_error(tmp_path: Path, empty: Turn) -> None:
    result, _ = run(project(tmp_path), calls(("work", {"n": 1})), *[empty] * 3)
    assert (result.status, result.finish_reason) == ("failed", "model_error")
    assert result.error is not None
    thoughts = "only thoughts (10 characters), which may lack their end tag, " if "five" in str(empty) else ""
    assert result.error.message == f"scripted: the answer is empty: {thoughts}no text and no tool calls (3 attempts)"
    assert result.error.retryable


def test_a_stream_warns_that_the_empty_answer_is_void(tmp_path: Path) -> None:
    async def main() -> list[Warned]:
        model = ScriptedModel("\n", "done")
        opened = Runtime.open(project(tmp_path), models={"scripted": model}, watch=False)
        async with opened as runtime, runtime.stream("go") as stream:
            return [event async for event in stream if isinstance(event, Warned)]

    (warned,) = asyncio.run(main())
    assert (warned.code, warned.message_id) == ("model_retry", "msg.1")


def test_a_sub_agent_a_plan_step_and_a_plan_summary_never_end_empty(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/helper.yaml": agent("helper")})
    project(tmp_path, sub_agents="[helper]")
    asked = calls(("agent.helper", {"message": "look"}))
    result, _ = run(tmp_path, asked, "", "I looked", " ", "done")
    assert ([call.result for call in result.tool_calls], result.output) == (["I looked"], "done")

    plan = draft(step("a", tool=None, parameters={}))
    result, _ = run(project(tmp_path, executor="plan"), plan, "", "thought", "", "summed up")
    assert (result.status, result.output) == ("completed", "summed up")


def test_an_empty_summary_is_retried(tmp_path: Path) -> None:
    conversation = "{compress_at_tokens: 200}"

    async def main() -> list[str]:
        def script(request: Any) -> str:
            compacts = "conversation" in request.messages[-1].content.lower() and len(request.messages) > 2
            seen.append("summary" if compacts and request.messages[-1].content != "go" else "answer")
            return "" if seen == ["answer", "summary"] else "word " * 200

        seen: list[str] = []
        root = project(tmp_path, conversation=conversation)
        async with Runtime.open(root, models={"scripted": ScriptedModel(script=script)}, watch=False) as runtime:
            await runtime.run("go " * 200, conversation="c")
            result = await runtime.run("go", conversation="c")
            assert result.status == "completed"
        return seen

    assert asyncio.run(main()) == ["answer", "summary", "summary", "answer"]


@each_format
@each_way
@pytest.mark.parametrize("thought", ["", "let me see"])
@pytest.mark.parametrize("text", ["", "\n"])
def test_every_provider_s_empty_answer_is_retried(
    form: Format, stream: bool, text: str, thought: str, tmp_path: Path
) -> None:
    answers = [says(form, text, thought=thought), says(form, "hello")]
    result, server = served(form, answers, tmp_path, stream=stream)
    assert (result.status, result.output, len(server.requests)) == ("completed", "hello", 2)


@each_way
@pytest.mark.parametrize("text", ["", "\n"])
def test_the_json_protocol_s_empty_answer_is_retried(stream: bool, text: str, tmp_path: Path) -> None:
    final = '{"type": "final", "answer": "hello"}'
    answers = [*[openai_says(text)] * 2, openai_says(final)]
    result, server = served(OPENAI, answers, tmp_path, stream=stream, protocol="json")
    assert (result.status, result.output, len(server.requests)) == ("completed", "hello", 3)


def served(
    form: Format, answers: list[Answer], root: Path, *, stream: bool, **keys: str
) -> tuple[RunResult, WireServer]:
    async def main() -> tuple[RunResult, WireServer]:
        async with wire_server(answers) as server:
            model = form.model(server.url)
            async with Runtime.open(project(root, **keys), models={"scripted": model}, watch=False) as runtime:
                if not stream:
                    return await runtime.run("go"), server
                async with runtime.stream("go") as events:
                    async for _ in events:
                        pass
                    return await events.result(), server

    return asyncio.run(main())


INFO = ModelInfo("scripted", "m")
INVISIBLE = st.text(st.characters(categories=["Zs", "Zl", "Zp", "Cc", "Cf"]))


@cases(100)
@given(text=INVISIBLE, thought=st.none() | INVISIBLE, before=st.text(max_size=3), called=st.booleans())
def test_only_visible_text_or_a_call_is_an_answer(text: str, thought: str | None, before: str, called: bool) -> None:
    content = text if thought is None else f"{text}<think>{before.replace('<', '')}</think>{thought}"
    tool_calls = (ToolCall(id="c", tool="t"),) if called else ()
    message = Message(role="assistant", content=content, tool_calls=tool_calls)
    reply = ModelReply(message, "stop", Usage())
    if called or (thought is not None and text.strip()):
        require_content(reply, INFO)
        return
    with pytest.raises(ModelError) as caught:
        require_content(reply, INFO)
    assert caught.value.retryable
    require_content(ModelReply(message.model_copy(update={"content": content + "x"}), "stop", Usage()), INFO)


def test_an_answer_cut_before_its_first_word_is_not_retried_and_names_the_setting() -> None:
    with pytest.raises(ModelError, match="raise model_settings") as caught:
        require_content(ModelReply(THOUGHTS, "length", Usage()), INFO)
    assert not caught.value.retryable
