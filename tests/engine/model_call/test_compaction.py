"""Long conversations: the part that is sent to the model, and the facts that every summary keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import ModelError, RunResult, Runtime, events, tool
from framework.config.templates.prompts import Prompts
from framework.engine.model_call.compaction import events_of, extend_summary, facts_of, summarized_count
from framework.engine.model_call.turn import last_messages
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn
from framework.types.messages import Message, Summary, ToolCall, transcript_errors
from tests.support.cases import cases
from tests.support.compaction import MESSAGES, is_compression, script
from tests.support.projects import agent, write
from tests.support.wire import Answer, WireServer, failed, says, wire_server
from tests.support.wire import calls as wire_calls

FACTS = st.sampled_from(["1234", "2026-01-05", "src/app.py", "ann@example.com", "80.50", "order_id", "订单 77 号"])
WORDS = st.sampled_from(["please", "refund", "the", "看看", "now"])
SAID = st.lists(FACTS | WORDS, min_size=1, max_size=6).map(" ".join)
STATUSES = st.sampled_from(["success", "error", "denied", "cancelled"])
DECISIONS = st.sampled_from([None, None, "approve", "reject: too much", 'edit: {"amount": 5}'])


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    messages: list[Message] = []
    for _ in range(draw(st.integers(1, 8))):
        messages.append(Message(role="user", content=draw(SAID)))
        for _ in range(draw(st.integers(0, 3))):
            wanted = [ToolCall(id=f"c{n}", tool=draw(WORDS)) for n in range(draw(st.integers(1, 2)))]
            messages.append(Message(role="assistant", tool_calls=tuple(wanted)))
            messages.extend(
                Message(
                    role="tool",
                    tool_call_id=call.id,
                    content=draw(SAID),
                    status=draw(STATUSES),
                    decision=draw(DECISIONS),
                )
                for call in wanted
            )
        messages.append(Message(role="assistant", content=draw(SAID)))
    return messages


@cases(100)
@given(messages=conversations(), window=st.integers(1, 40))
def test_a_window_begins_with_the_user_and_keeps_calls_with_their_results(messages: list[Message], window: int) -> None:
    seen = last_messages(messages, window)
    assert len(seen) <= window
    assert not [*transcript_errors(seen)]
    assert not seen or seen[0].role == "user"
    assert seen[1:] == messages[len(messages) - len(seen) + 1 :]
    if len(messages) <= window:
        assert seen == messages


def test_a_turn_longer_than_the_window_keeps_its_request() -> None:
    call = ToolCall(id="c", tool="echo")
    rounds = [Message(role="assistant", tool_calls=(call,)), Message(role="tool", tool_call_id="c", content="a")] * 30
    seen = last_messages([Message(role="user", content="go"), *rounds], 6)
    assert [message.role for message in seen] == ["user", "assistant", "tool", "assistant", "tool"]


@cases(30)
@given(rounds=st.lists(st.tuples(conversations(), SAID | st.just("")), min_size=1, max_size=4), keep=st.integers(0, 30))
def test_facts_failures_denials_and_decisions_survive_any_summary(
    rounds: list[tuple[list[Message], str]], keep: int
) -> None:
    """After any number of summaries, even if the model writes none."""
    summary: Summary | None = None
    history: list[Message] = []
    for messages, text in rounds:
        history += messages
        gone = summarized_count(history, keep, lambda message: 1 + len(message.content) // 20)
        summary = extend_summary(summary, history[:gone], text)
        history = history[gone:]
        assert not [*transcript_errors(history)]
        assert not history or history[0].role == "user"
    assert summary is not None
    whole = [message for messages, _ in rounds for message in messages]
    assert [*whole[summary.upto :]] == history
    prompt = Prompts({}).render("earlier.j2", "en", {"summary": summary.model_dump()})
    prompt += "\n".join(message.content for message in history)
    for fact in facts_of(whole):
        assert fact in prompt
    for event in events_of(whole):
        assert event in prompt or event in {*events_of(history)}


def test_facts_of_a_previous_summary_are_kept() -> None:
    first = extend_summary(None, [Message(role="user", content="refund order 1234")], "They want a refund for 1234.")
    assert first.facts == ()
    second = extend_summary(first, [Message(role="user", content="hurry")], "They are in a hurry.")
    assert (second.facts, second.upto) == (("1234",), 2)


def test_pasted_text_is_not_searched_for_facts() -> None:
    log = "\n".join(f"2026-01-05 12:00:{n:02} error {n}" for n in range(60)) * 10
    found = [*facts_of([Message(role="user", content=f"why order 1234? {log}")])]
    assert "1234" in found
    assert len("".join(found)) < 2000


# --- runs


@tool(risk="low")
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def talk(root: Path, script: Any, *messages: str, **keys: str) -> tuple[ScriptedModel, Any, list[list[events.Event]]]:
    """Run one conversation; return the model, the stored conversation and the events of each run."""
    policy = '{deny: [{tool: pay, when: {amount: "> 50"}}], allow: ["*"]}'
    given = {"conversation": "{compress_at_tokens: 300}", "skill_policy": policy, **keys}
    write(root, {"agents.d/a.yaml": agent("a", **given)})
    model = ScriptedModel(script=script)

    async def main() -> tuple[ScriptedModel, Any, list[list[events.Event]]]:
        streams = []
        async with Runtime.open(root, tools=[pay], models={"scripted": model}, watch=False) as runtime:
            assert runtime.catalog.problems == (), runtime.catalog.problems
            for message in messages:
                async with runtime.stream(message, conversation="c") as stream:
                    streams.append([event async for event in stream])
                result = await stream.result()
                assert result.status == "completed", result
            return model, await runtime.store.conversation("c"), streams

    return asyncio.run(main())


def test_above_the_threshold_a_summary_replaces_the_beginning(tmp_path: Path) -> None:
    model, conversation, streams = talk(tmp_path, script, *MESSAGES)
    last = [message.content for message in model.requests[-1].messages]
    assert "THE SUMMARY" in last[1]
    assert 'pay {"amount": 80}: denied' in last[1]
    assert "Also mentioned: 80, 1234" in last[1]
    assert "pay 80 for order 1234" not in last
    assert last[-1] == "and now?"
    assert [m.content for m in conversation.messages if m.role == "user"] == list(MESSAGES), "all stay in the store"
    assert conversation.summary.upto == len(conversation.messages) - 2 - len(last[2:-1]), "all before this turn"
    codes = [[e.code for e in run if isinstance(e, events.Warned)] for run in streams]
    assert codes[0] == []
    assert ["compressed"] in codes


def test_the_summary_is_a_model_call_charged_to_the_run(tmp_path: Path) -> None:
    model, _, streams = talk(tmp_path, script, *MESSAGES)
    finished = [run[-1] for run in streams]
    used = [event.tokens_used for event in finished if isinstance(event, events.RunFinished)]
    asked = sum(map(is_compression, model.requests))
    assert asked >= 1
    assert sum(used) == 10 * len(model.requests), "10 tokens a call, summaries included"


def test_a_summary_is_stored_across_runs(tmp_path: Path) -> None:
    model, _, _ = talk(tmp_path, script, *MESSAGES, "one", "two")
    ones = [request for request in model.requests if request.messages[-1].content in ("one", "two")]
    assert all("THE SUMMARY" in request.messages[1].content for request in ones)
    again = [request for request in model.requests if is_compression(request)][1:]
    assert all("THE SUMMARY" in request.messages[1].content for request in again), "the summary is summarized too"


def test_a_failed_summary_is_a_warning_and_the_run_continues(tmp_path: Path) -> None:
    def broken(request: ModelRequest) -> Turn:
        return ModelError("no") if is_compression(request) else script(request)

    _, conversation, streams = talk(tmp_path, broken, *MESSAGES)
    warned = [event for run in streams for event in run if isinstance(event, events.Warned)]
    assert {event.code for event in warned} == {"compression"}
    assert "the conversation could not be summarized: no" in warned[0].message
    assert conversation.summary is None


SHORT = "{compress_at_tokens: 300, compress_model: short}"


async def converse(root: Path, models: dict[str, ScriptedModel], **options: Any) -> list[RunResult]:
    """Run the turns of one conversation of the agent in `root`."""
    async with Runtime.open(root, tools=[pay], models=models, watch=False) as runtime:
        assert runtime.catalog.problems == (), runtime.catalog.problems
        return [await runtime.run(message, conversation="c", **options) for message in MESSAGES]


def test_a_model_of_its_own_writes_the_summary_and_is_charged_to_the_run(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/a.yaml": agent("a", conversation=SHORT, skill_policy="{allow: [pay]}")})
    models = {"scripted": ScriptedModel(script=script), "short": ScriptedModel(script=script)}

    results = asyncio.run(converse(tmp_path, models))

    assert models["short"].requests
    assert all(map(is_compression, models["short"].requests))
    assert not any(map(is_compression, models["scripted"].requests))
    assert "THE SUMMARY" in models["scripted"].requests[-1].messages[1].content
    requests = sum(len(model.requests) for model in models.values())
    assert sum(result.usage.total_tokens for result in results) == 10 * requests
    assert sum(result.steps for result in results) == requests


def test_a_run_on_a_chosen_model_also_summarizes_with_it(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/a.yaml": agent("a", conversation=SHORT, skill_policy="{allow: [pay]}")})
    models = {name: ScriptedModel(script=script) for name in ("scripted", "short", "chosen")}

    asyncio.run(converse(tmp_path, models, model="chosen"))

    assert any(map(is_compression, models["chosen"].requests))
    assert not models["short"].requests


@pytest.mark.parametrize("failure", [ModelError("no"), "no key"], ids=["model_error", "no_key"])
def test_without_the_model_for_summaries_the_run_continues(
    tmp_path: Path, failure: ModelError | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    settings = SHORT if isinstance(failure, ModelError) else SHORT.replace("short}", "openai/gpt-5.4-nano}")
    write(tmp_path, {"agents.d/a.yaml": agent("a", conversation=settings, skill_policy="{allow: [pay]}")})
    models = {"scripted": ScriptedModel(script=script), "short": ScriptedModel(script=lambda _: failure)}

    results = asyncio.run(converse(tmp_path, models))

    assert {result.status for result in results} == {"completed"}
    warned = [warning for result in results for warning in result.warnings]
    assert {warning.code for warning in warned} == {"compression"}
    expected = "no" if isinstance(failure, ModelError) else "openai/gpt-5.4-nano needs an API key: set OPENAI_API_KEY"
    assert warned[0].message.startswith(f"the conversation could not be summarized: {expected}")


def test_a_history_that_the_caller_gives_is_summarized_like_a_stored_conversation(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/a.yaml": agent("a", conversation=SHORT, skill_policy="{allow: []}")})
    models = {"scripted": ScriptedModel(script=script), "short": ScriptedModel(script=script)}

    async def main() -> None:
        async with Runtime.open(tmp_path, models=models, watch=False) as runtime:
            given = [
                Message(role=role, content=f"{text} {number} " + "word " * 100)
                for number in range(20)
                for role, text in (("user", "question"), ("assistant", "answer"))
            ]
            result = await runtime.run("and now?", agent="a", history=given)
            assert result.status == "completed"
            assert [warning.code for warning in result.warnings] == ["compressed"]
            assert any(map(is_compression, models["short"].requests))
            assert "THE SUMMARY" in result.messages[0].content, "so that it can be passed to the next run"
            assert len(result.messages) < len(given)
            models["scripted"].requests.clear()
            again = await runtime.run("and then?", agent="a", history=result.messages)
            assert again.status == "completed"
            assert "THE SUMMARY" in str(models["scripted"].requests[-1].messages)

    asyncio.run(main())


def test_an_unknown_model_for_summaries_is_an_error_at_its_line(tmp_path: Path) -> None:
    async def problems() -> list[str]:
        async with Runtime.open(tmp_path, watch=False) as runtime:
            return [f"{problem.line}: {problem.message}" for problem in runtime.catalog.problems]

    text = agent("a", model="offline", conversation="{compress_model: opnai/gpt-5}")
    write(tmp_path, {"agents.d/a.yaml": text})
    line = next(number for number, row in enumerate(text.splitlines(), 1) if "compress_model" in row)
    assert asyncio.run(problems()) == [f"{line}: unknown model 'opnai/gpt-5'; did you mean openai?"]


@pytest.mark.parametrize("keys", [{"conversation": "{compress_at_tokens: null}"}, {"runtime_policy": "{max_steps: 1}"}])
def test_no_summary_is_written_when_compaction_is_not_possible(tmp_path: Path, keys: dict[str, str]) -> None:
    said = ("word " * 100, "word " * 100, "word " * 100, "and now?")
    model, _, _ = talk(tmp_path, script, *said, **keys)
    assert not any(map(is_compression, model.requests))


def test_a_plan_is_compacted_before_planning(tmp_path: Path) -> None:
    from framework.types.plan import PlanDraft, StepDraft

    def planned(request: ModelRequest) -> Turn:
        if request.output is PlanDraft:
            return PlanDraft(
                goal="g", steps=(StepDraft(id="s", description="d", tool="echo", parameters={"text": "x"}),)
            )
        return script(request)

    model, _, _ = talk(tmp_path, planned, *MESSAGES[1:], executor="plan")
    plan_requests = [request for request in model.requests if request.output is PlanDraft]
    assert "THE SUMMARY" in plan_requests[-1].messages[1].content


def test_the_offline_model_summarizes_by_listing_the_requests(tmp_path: Path) -> None:
    keys = {"model": "offline", "conversation": "{compress_at_tokens: 60}"}
    for locale in ("en", "zh"):
        write(tmp_path, {"agentsd.yaml": f"locale: {locale}\n"})
        said = ("echo 'the first'", "echo 'the second'", "echo 'the third one'", "echo 'the fourth one'", "echo 'end'")
        _, conversation, streams = talk(tmp_path, script, *said, **keys)
        assert conversation.summary is not None
        assert "the first" in conversation.summary.text
        finished = streams[-1][-1]
        assert isinstance(finished, events.RunFinished)
        assert finished.output == "end"


def test_a_conversation_longer_than_the_window_warns_with_advice(tmp_path: Path) -> None:
    def plain(request: ModelRequest) -> Turn:
        return f"seen {len(request.messages)}"

    _, _, streams = talk(tmp_path, plain, *("hi",) * 4, conversation="{window: 4}")
    warned = [[e.message for e in run if isinstance(e, events.Warned)] for run in streams]
    assert warned[:3] == [[], [], []]
    assert warned[3] == [
        "the model sees only the last 4 of 6 messages; "
        "start a new conversation, or raise conversation.window (agents.d/a.yaml:7)"
    ]


# --- a server that rejects a conversation as too long


def small_server(limit: int, words: str, *, summaries: bool = True) -> Callable[[dict[str, Any]], Answer]:
    """Return the answers of a server that accepts this many characters, and rejects more with these words."""

    def answer(body: dict[str, Any]) -> Answer:
        texts = [str(message["content"]) for message in body["messages"]]
        if sum(map(len, texts)) > limit:
            return failed(400, words)
        if "is too long to keep" in texts[-1]:
            return says("THE SUMMARY") if summaries else failed(400, "no summaries")
        return says("word " * 500)

    return answer


def talk_to(
    root: Path, answer: Callable[[dict[str, Any]], Answer], *messages: str, window: int | None = None, **options: Any
) -> tuple[list[RunResult], WireServer]:
    """Run the turns of one conversation on a server with these answers."""

    async def main() -> tuple[list[RunResult], WireServer]:
        async with wire_server(answer) as server:
            known = f", capabilities: {{context_window: {window}}}" if window else ""
            alias = f"models: {{local: {{model: openai/test, base_url: '{server.url}', api_key: k{known}}}}}\n"
            keys = {"model": "local", "skill_policy": "{allow: [dump]}", **options}
            write(root, {"agents.d/a.yaml": agent("a", **keys), "agentsd.yaml": alias})
            async with Runtime.open(root, tools=[dump], watch=False) as runtime:
                return [await runtime.run(message, conversation="c") for message in messages], server

    return asyncio.run(main())


@tool(risk="low")
async def dump(size: int) -> str:
    """Return a long text."""
    return "x" * size


STATED = "This model's maximum context length is 2048 tokens. However, your messages resulted in 2600 tokens."
TURNS = ["tell me more " * 40] * 7


@pytest.mark.parametrize("words", [STATED, "Input is too long for requested model."])
@pytest.mark.parametrize("window", [None, 100_000])
@pytest.mark.parametrize("summaries", [True, False])
def test_a_conversation_that_its_server_finds_too_long_is_shortened_and_goes_on(
    tmp_path: Path, words: str, window: int | None, summaries: bool
) -> None:
    answer = small_server(9000, words, summaries=summaries)
    results, server = talk_to(tmp_path, answer, *TURNS, window=window)

    assert [result.status for result in results] == ["completed"] * 7, [result.error for result in results]
    rejected = [body for body in server.requests if sum(len(str(m["content"])) for m in body["messages"]) > 9000]
    assert len(rejected) == 1, "the size is remembered as the server's window"
    warned = {warning.code for result in results for warning in result.warnings}
    assert warned == ({"compressed"} if summaries else {"compressed", "compression"}) | ({"context"} & warned)


def test_a_message_that_no_server_takes_ends_as_context_full_and_the_conversation_goes_on(tmp_path: Path) -> None:
    results, _ = talk_to(tmp_path, small_server(9000, STATED), "hello", "long " * 4000, "and now?", "more")

    assert [(result.status, result.finish_reason) for result in results] == [
        ("completed", "final"),
        ("stopped", "context_full"),
        ("completed", "final"),
        ("completed", "final"),
    ]
    (full,) = [warning.message for warning in results[1].warnings if warning.code == "context_full"]
    assert "maximum context length is 2048" in full or "does not fit into the context window of openai/test" in full


def test_results_that_its_server_finds_too_long_are_cut_in_the_request_only(tmp_path: Path) -> None:
    accepts = small_server(9000, STATED)

    def answer(body: dict[str, Any]) -> Answer:
        reply = accepts(body)
        is_first = not any(message["role"] == "tool" for message in body["messages"])
        return wire_calls(("dump", {"size": 20_000})) if is_first and reply.status == 200 else reply

    policy = "{max_observation_chars: 30000}"
    (result,), server = talk_to(tmp_path, answer, "go", runtime_policy=policy)

    assert result.status == "completed", result.error
    assert "more characters do not fit into the context window]" in server.requests[-1]["messages"][-1]["content"]
    assert [len(message.content) for message in result.messages if message.role == "tool"] == [20_000]
