"""The ReAct loop through the runtime: messages, results in call order, events, thinking, streaming, cancelling."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from framework import Runtime, ToolContext, events, tool
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn, calls
from framework.types.events import wire
from framework.types.messages import Message, ToolCall
from tests.support.projects import agent, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path, {"agents.d/one.yaml": agent("one")})


def test_messages_are_system_history_user_and_results_with_their_ids(root: Path) -> None:
    async def main() -> None:
        model = ScriptedModel(calls(("echo", {"text": "hi"})), "said")
        async with Runtime.open(root, models={"scripted": model}, watch=False) as runtime:
            history = [Message(role="user", content="before"), Message(role="assistant", content="yes")]
            result = await runtime.run("now", history=history)
        first, second = model.requests
        assert [m.role for m in first.messages] == ["system", "user", "assistant", "user"]
        assert first.messages[0].content.startswith("You are one.\n\n")
        assert [m.role for m in second.messages[4:]] == ["assistant", "tool"]
        assert second.messages[5].tool_call_id == second.messages[4].tool_calls[0].id
        assert [m.role for m in result.messages] == ["user", "assistant", "user", "assistant", "tool", "assistant"]
        assert result.output == "said"
        assert result.usage.total_tokens == 20
        assert result.steps == 2
        assert result.tool_stats["echo"].count == 1

    asyncio.run(main())


def test_a_results_messages_are_the_next_calls_history(root: Path) -> None:
    async def main() -> None:
        model = ScriptedModel("one", "two")
        async with Runtime.open(root, models={"scripted": model}, watch=False) as runtime:
            first = await runtime.run("a")
            second = await runtime.run("b", history=[m.model_dump() for m in first.messages])
        assert [m.content for m in second.messages] == ["a", "one", "b", "two"]

    asyncio.run(main())


def test_parallel_results_are_in_the_order_of_the_calls(root: Path) -> None:
    async def main() -> None:
        finished: list[str] = []
        second_done = asyncio.Event()

        @tool(risk="low")
        async def slow(n: str) -> str:
            """End after the other call."""
            await second_done.wait()
            finished.append(n)
            return n

        @tool(risk="low")
        async def quick(n: str) -> str:
            """Ends first."""
            finished.append(n)
            second_done.set()
            return n

        model = ScriptedModel(calls(("slow", {"n": "1"}), ("quick", {"n": "2"})), "ok")
        async with Runtime.open(root, tools=[slow, quick], models={"scripted": model}, watch=False) as runtime:
            result = await runtime.run("go")
        assert finished == ["2", "1"]
        assert [m.content for m in result.messages if m.role == "tool"] == ["1", "2"]

    asyncio.run(main())


def test_max_parallel_tools_1_is_serial(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one", runtime_policy="{max_parallel_tools: 1}")})

    async def main() -> None:
        log: list[str] = []

        @tool(risk="low")
        async def work(n: str) -> str:
            """Works."""
            log.append(f"+{n}")
            await asyncio.sleep(0)
            log.append(f"-{n}")
            return n

        model = ScriptedModel(calls(("work", {"n": "1"}), ("work", {"n": "2"})), "ok")
        async with Runtime.open(root, tools=[work], models={"scripted": model}, watch=False) as runtime:
            await runtime.run("go")
        assert log == ["+1", "-1", "+2", "-2"]

    asyncio.run(main())


def test_call_ids_that_a_provider_repeats_are_made_unique(root: Path) -> None:
    async def main() -> None:
        def script(request: ModelRequest) -> Turn:
            answers = sum(m.role == "assistant" for m in request.messages)
            return (ToolCall(id="call_0", tool="echo", arguments={"text": str(answers)}),) if answers < 3 else "ok"

        async with Runtime.open(root, models={"scripted": ScriptedModel(script=script)}, watch=False) as runtime:
            result = await runtime.run("go")
        assert len({call.id for call in result.tool_calls}) == 3
        assert [call.result for call in result.tool_calls] == ["0", "1", "2"]

    asyncio.run(main())


def test_the_events_of_a_run_are_numbered_and_end_with_one_done(root: Path) -> None:
    async def main() -> None:
        model = ScriptedModel(calls(("echo", {"text": "hi"})), "all done now")
        async with Runtime.open(root, models={"scripted": model}, watch=False) as runtime:
            async with runtime.stream("go") as stream:
                seen = [wire(event) async for event in stream]
            result = await stream.result()
        names = [event["event"] for event in seen]
        assert names == ["route", "tool_call", "tool_call", "tool_result", "content", "content", "content", "done"]
        assert [event["status"] for event in seen if event["event"] == "tool_call"] == ["pending", "running"]
        numbers = [event["seq"] for event in seen if event["seq"]]
        assert numbers == [1, 2, 3, 4, 6], "5 is the whole answer, which has been received in deltas"
        assert {event["run_id"] for event in seen} == {result.run_id}
        assert {event["generation"] for event in seen} == {1}
        assert "".join(event["text"] for event in seen if event["event"] == "content") == "all done now"

    asyncio.run(main())


def test_text_before_tool_calls_is_thinking(root: Path) -> None:
    async def main() -> None:
        message = Message(role="assistant", content="let me see", tool_calls=calls(("echo", {"text": "x"})))
        models = {"scripted": ScriptedModel(message, "ok")}
        async with Runtime.open(root, models=models, watch=False) as runtime, runtime.stream("go") as stream:
            seen = [event async for event in stream]
        thoughts = [(event.text, event.reasoning_chars) for event in seen if isinstance(event, events.Thought)]
        assert thoughts == [("let me see", 0)]

    asyncio.run(main())


def test_leaving_the_stream_early_cancels_the_run(root: Path) -> None:
    async def main() -> None:
        cancelled = asyncio.Event()

        @tool(risk="low")
        async def forever() -> str:
            """Wait forever."""
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            return ""

        model = ScriptedModel(calls(("forever", {})))
        async with Runtime.open(root, tools=[forever], models={"scripted": model}, watch=False) as runtime:
            async with runtime.stream("go") as stream:
                async for event in stream:
                    if isinstance(event, events.ToolStarted):
                        break
            assert cancelled.is_set()
            assert (await stream.result()).status == "cancelled"
            assert [task for task in asyncio.all_tasks() if task.get_name() == stream.run_id] == []

    asyncio.run(main())


def test_cancelling_from_outside_ends_the_run_gracefully(root: Path) -> None:
    async def main() -> None:
        @tool(risk="low")
        async def forever() -> str:
            """Wait forever."""
            await asyncio.Event().wait()
            return ""

        model = ScriptedModel(calls(("forever", {})))
        async with Runtime.open(root, tools=[forever], models={"scripted": model}, watch=False) as runtime:
            async with runtime.stream("go") as stream:
                seen = []
                async for event in stream:
                    seen.append(event)
                    if isinstance(event, events.ToolStarted):
                        await runtime.cancel(stream.run_id)
            result = await stream.result()
        assert result.status == "cancelled"
        assert result.finish_reason == "cancelled"
        assert isinstance(seen[-1], events.RunFinished)

    asyncio.run(main())


def test_a_tool_can_read_its_run_and_report_progress(root: Path) -> None:
    async def main() -> None:
        seen: list[ToolContext] = []

        @tool(risk="low")
        async def load(context: ToolContext) -> str:
            """Loads."""
            seen.append(context)
            assert context.progress is not None
            await context.progress(0.5, "half")
            return f"{context.user} {context.deps} {context.metadata['k']}"

        model = ScriptedModel(calls(("load", {})), "ok")
        async with Runtime.open(root, tools=[load], models={"scripted": model}, deps="D", watch=False) as runtime:
            async with runtime.stream("go", user="u1", metadata={"k": 1}) as stream:
                progress_events = [e for e in [event async for event in stream] if isinstance(e, events.ToolStarted)]
            result = await stream.result()
        assert result.tool_calls[0].result == "u1 D 1"
        assert [(e.progress, e.message) for e in progress_events] == [(None, None), (0.5, "half")]
        assert seen[0].idempotency_key == f"{result.run_id}:c1"
        assert "context" not in model.requests[0].tools[-1].parameters["properties"]

    asyncio.run(main())


def test_a_sync_tool_does_not_block_the_event_loop(root: Path) -> None:
    async def main() -> None:
        loop_thread = asyncio.get_running_loop()

        @tool(risk="low")
        def blocking() -> str:
            """Blocks its thread, not the loop."""
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop_thread).result(30)
            return "done"

        model = ScriptedModel(calls(("blocking", {})), "ok")
        async with Runtime.open(root, tools=[blocking], models={"scripted": model}, watch=False) as runtime:
            result = await runtime.run("go")
        assert result.tool_calls[0].status == "success"

    asyncio.run(main())


def test_a_conversation_remembers_and_keeps_its_agent(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "agents.d/one.yaml": agent("one", routing="{keywords: [first]}"),
            "agents.d/two.yaml": agent("two", routing="{keywords: [second]}"),
        },
    )

    async def main() -> None:
        model = ScriptedModel("a", "b")
        async with Runtime.open(root, models={"scripted": model}, watch=False) as runtime:
            first = await runtime.run("the second please", conversation="c")
            second = await runtime.run("the first please", conversation="c")
        assert (first.agent, second.agent) == ("two", "two")
        assert [m.content for m in model.requests[1].messages[1:]] == ["the second please", "a", "the first please"]

    asyncio.run(main())


def test_a_tool_can_be_called_without_a_model_under_the_agents_policy(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline", skill_policy="{allow: [echo]}")})

    async def main() -> None:
        async with Runtime.open(root, watch=False) as runtime:
            assert (await runtime.call_tool("one", "echo", {"text": "x"})).output == "x"
            denied = await runtime.call_tool("one", "calculator", {"expression": "1"})
            assert denied.status == "denied"

    asyncio.run(main())
