"""A request that exceeds the context window or the remaining tokens is not sent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from framework import RunResult, Runtime, events
from tests.support.projects import agent, write
from tests.support.wire import Answer, WireServer, calls, says, wire_server


def run(
    root: Path, answers: list[Answer], *, window: int | None = None, message: str = "go", history: Any = (), **keys: str
) -> tuple[RunResult, WireServer, list[events.Warned]]:
    async def main() -> tuple[RunResult, WireServer, list[events.Warned]]:
        async with wire_server(answers) as server:
            capable = f", capabilities: {{context_window: {window}}}" if window else ""
            alias = f"{{model: openai/test, base_url: '{server.url}', api_key: k{capable}}}"
            files = {
                "agents.d/a.yaml": agent("a", model="local", skill_policy="{allow: [echo]}", **keys),
                "agentsd.yaml": f"models: {{local: {alias}}}\n",
            }
            async with Runtime.open(write(root, files), watch=False) as runtime:
                assert runtime.catalog.problems == (), runtime.catalog.problems
                async with runtime.stream(message, history=history) as stream:
                    warned = [event async for event in stream if isinstance(event, events.Warned)]
                return await stream.result(), server, warned

    return asyncio.run(main())


def test_a_message_that_does_not_fit_into_the_window_is_not_sent(tmp_path: Path) -> None:
    result, server, warned = run(tmp_path, [says("never")], window=2000, message="word " * 3000)
    assert (result.status, result.finish_reason) == ("stopped", "context_full")
    assert [event.code for event in warned] == ["context_full"]
    assert "lower runtime_policy.max_observation_chars (default)" in warned[0].message
    assert server.requests == []
    assert result.stopped_by is not None
    assert result.stopped_by.place == "the context window of openai/test"
    assert result.stopped_by.used > result.stopped_by.allowed == 1900


def test_max_tokens_of_the_answer_counts_towards_the_window(tmp_path: Path) -> None:
    result, server, _ = run(tmp_path, [says("never")], window=2000, model_settings="{max_tokens: 1900}")
    assert (result.finish_reason, server.requests) == ("context_full", [])


def test_a_filling_window_warns_once_and_the_model_is_asked_to_finish(tmp_path: Path) -> None:
    long = "word " * 800
    answers = [calls(("echo", {"text": long})), calls(("echo", {"text": "more"})), says("done")]
    result, server, warned = run(tmp_path, answers, window=1250, runtime_policy="{max_observation_chars: 9000}")
    assert result.output == "done"
    assert [event.code for event in warned] == ["context"]
    assert "Finish now" not in str(server.requests[0]["messages"])
    assert "Finish now" in server.requests[-1]["messages"][-1]["content"]
    assert all("Finish now" not in message.content for message in result.messages), "it is never stored"


def test_a_call_that_needs_more_tokens_than_remain_is_not_sent(tmp_path: Path) -> None:
    answers = [calls(("echo", {"text": "word " * 400})), says("never")]
    policy = "{max_total_tokens: 500, max_observation_chars: 9000}"
    result, server, _ = run(tmp_path, answers, runtime_policy=policy)
    assert (result.status, result.finish_reason, len(server.requests)) == ("stopped", "max_total_tokens", 1)
    assert result.stopped_by is not None
    assert result.stopped_by.place.startswith("agents.d/a.yaml:")


def test_the_providers_token_count_replaces_the_estimate(tmp_path: Path) -> None:
    """The wire server reports 10 tokens for every request, so that only later messages are estimated."""
    answers: list[Any] = [calls(("echo", {"text": str(n)})) for n in range(6)]
    result, server, _ = run(tmp_path, [*answers, says("done")], runtime_policy="{max_total_tokens: 1000}")
    assert result.output == "done", result.stopped_by
    assert len(server.requests) == 7


def test_in_a_conversation_that_is_too_long_the_advice_is_to_begin_a_new_one(tmp_path: Path) -> None:
    history = [{"role": "user", "content": "word " * 3000}, {"role": "assistant", "content": "yes"}]
    result, server, warned = run(tmp_path, [says("never")], window=2000, history=history)
    assert (result.finish_reason, server.requests) == ("context_full", [])
    assert warned[-1].message.endswith(": begin a new conversation")
