"""Failing model calls: retries, fallbacks, their cost, and the events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from framework import ModelError, RunResult, Runtime, events, tool
from framework.config.agents.diff import diff_agent
from framework.config.settings import ModelCallSettings
from framework.config.yaml.parse import parse_agent
from framework.engine.model_call.retry import backoff_seconds
from framework.evals.runner import sandboxed
from framework.llm.anthropic import MessageAssembler
from framework.llm.client import Delta, ModelClient, ModelInfo, ModelReply, ModelRequest
from framework.llm.gemini import ResponseAssembler
from framework.testing import ScriptedModel, calls
from framework.types.events import Event, Warned
from framework.types.messages import Message, Usage
from framework.types.spec import AgentSpec
from tests.support.cases import cases
from tests.support.clocks import skip
from tests.support.plans import draft, step
from tests.support.projects import agent, write
from tests.support.wire import Answer, Answers, WireServer, failed, kept_alive, says, stalled, wire_server

FAST = "backoff: 1ms, max_backoff: 1ms"


def project(root: Path, rules: str = FAST, **keys: str) -> Path:
    return write(root, {"agents.d/one.yaml": agent("one", **keys), "agentsd.yaml": f"model_calls: {{{rules}}}\n"})


def down(text: str = "down", **kind: Any) -> ModelError:
    return ModelError(text, **{"retryable": True, **kind})


@tool(risk="low")
async def work(n: int) -> str:
    """Do something."""
    return f"did {n}"


async def stream_run(root: Path, **models: ModelClient) -> tuple[list[Event], RunResult]:
    """Stream one run; return its events and its result."""
    async with Runtime.open(root, models=models, tools=[work], watch=False) as runtime, runtime.stream("go") as stream:
        received = [event async for event in stream]
        return received, await stream.result()


async def run_all(root: Path, count: int, **models: ModelClient) -> list[RunResult]:
    """Run several messages one after the other in one runtime."""
    async with Runtime.open(root, models=models, tools=[work], watch=False) as runtime:
        return [await runtime.run("go") for _ in range(count)]


def run(root: Path, **models: ModelClient) -> RunResult:
    return asyncio.run(run_all(root, 1, **models))[0]


def warnings(received: list[Event]) -> list[tuple[str, str]]:
    return [(event.code, event.message) for event in received if isinstance(event, Warned)]


def why(result: RunResult) -> str:
    assert result.status == "failed"
    assert result.error is not None
    return result.error.message


# --- retries


def test_transient_errors_are_retried_and_the_turn_counts_as_one_step(
    tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    model = ScriptedModel(down("busy"), calls(("work", {"n": 1})), down(), down(), down(), "done")
    received, result = asyncio.run(stream_run(project(tmp_path), scripted=model))

    assert (result.output, result.steps, len(model.requests)) == ("done", 2, 6)
    assert [call.result for call in result.tool_calls] == ["did 1"]
    assert [text for code, text in warnings(received) if code == "model_retry"] == [
        "busy; retrying in 0.0s",
        *["down; retrying in 0.0s"] * 3,
    ]
    chats = [span for span in spans.get_finished_spans() if span.name == "chat scripted"]
    assert [(span.attributes or {})["agentsd.model.attempts"] for span in chats] == [2, 4], "one span a turn"
    attempts = [span for span in spans.get_finished_spans() if span.name.startswith("chat.attempt")]
    assert [(span.attributes or {})["agentsd.model.attempt"] for span in attempts] == [1, 2, 1, 2, 3, 4]
    assert [(span.attributes or {}).get("error.type") for span in attempts[:2]] == ["model_error", None]


def test_after_the_last_attempt_the_error_has_the_models_last_message(tmp_path: Path) -> None:
    model = ScriptedModel(script=lambda _: down("still down"))
    result = run(project(tmp_path, FAST + ", max_retries: 2"), scripted=model)

    assert why(result) == "still down (3 attempts)"
    assert result.error is not None
    assert result.error.retryable
    assert len(model.requests) == 3


@pytest.mark.parametrize("fallback", ["[]", "[other]"])
def test_a_rejected_request_is_neither_retried_nor_sent_to_a_fallback(tmp_path: Path, fallback: str) -> None:
    model, other = ScriptedModel(ModelError("refused: flagged")), ScriptedModel()
    assert why(run(project(tmp_path, fallback_models=fallback), scripted=model, other=other)) == "refused: flagged"
    assert (len(model.requests), len(other.requests)) == (1, 0)


@given(
    retries=st.integers(0, 30),
    retry_after=st.none() | st.floats(0, 1e6),
    backoff=st.floats(0.001, 10),
    most=st.floats(0.1, 60),
)
@cases(100)
def test_the_backoff_is_random_but_never_shorter_than_retry_after(
    retries: int, retry_after: float | None, backoff: float, most: float
) -> None:
    rules = ModelCallSettings(backoff=backoff, max_backoff=most)
    wait = backoff_seconds(down(retry_after=retry_after), retries, rules)
    least = retry_after or 0.0
    assert least <= wait <= least + min(most, backoff * 2**retries)


def test_a_retry_after_of_an_hour_is_not_waited_for(tmp_path: Path) -> None:
    patient = project(tmp_path / "a", fallback_models="[other]")
    hurried = project(tmp_path / "b", runtime_policy="{model_timeout: null, timeout: 20s}")

    model, other = ScriptedModel(down(retry_after=3600)), ScriptedModel("instead")
    assert run(patient, scripted=model, other=other).output == "instead"
    assert why(run(hurried, scripted=ScriptedModel(down("busy", retry_after=21)))) == "busy"

    unhurried = project(tmp_path / "c", runtime_policy="{model_timeout: 10s, timeout: null}")
    assert why(run(unhurried, scripted=ScriptedModel(down("busy", retry_after=11), "late"))) == "busy"


def test_a_short_retry_after_is_waited_for(tmp_path: Path) -> None:
    received, result = asyncio.run(stream_run(project(tmp_path), scripted=ScriptedModel(down(retry_after=0.1), "done")))
    assert result.output == "done"
    assert warnings(received) == [("model_retry", "down; retrying in 0.1s")]


# --- fallbacks


def test_fallbacks_are_called_in_order_each_with_its_own_attempts(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    root = project(tmp_path, FAST + ", max_retries: 1", fallback_models="[second, third]")
    models = {
        "scripted": ScriptedModel(down("1 down"), down("1 down")),
        "second": ScriptedModel(down("2 down"), down("2 down")),
        "third": ScriptedModel(down("3 down"), "done"),
    }
    received, result = asyncio.run(stream_run(root, **models))

    assert (result.output, result.steps) == ("done", 1)
    assert warnings(received) == [
        ("model_retry", "1 down; retrying in 0.0s"),
        ("model_fallback", "1 down; falling back to second"),
        ("model_retry", "2 down; retrying in 0.0s"),
        ("model_fallback", "2 down; falling back to third"),
        ("model_retry", "3 down; retrying in 0.0s"),
    ]
    named = [(span.name.rpartition(" ")[0], span.attributes or {}) for span in spans.get_finished_spans()]
    attempts = [attributes for name, attributes in named if name == "chat.attempt"]
    assert [attempt["agentsd.model.attempt"] for attempt in attempts] == [1, 2, 3, 4, 5, 6]
    assert [attempt.get("agentsd.model.fallback") for attempt in attempts] == [None, None, True, True, True, True]
    (chat,) = [attributes for name, attributes in named if name == "chat"]
    assert (chat["agentsd.model.attempts"], chat["agentsd.model.fallback"]) == (6, True)


def test_an_unavailable_model_is_not_called_twice(tmp_path: Path) -> None:
    model, other = ScriptedModel(ModelError("no quota", unavailable=True)), ScriptedModel("done")
    result = run(project(tmp_path, fallback_models="[other]"), scripted=model, other=other)
    assert (result.output, len(model.requests)) == ("done", 1)


LOCAL = "{{model: openai/m, api_key: k, base_url: '{url}'}}"
GONE = [failed(404, "no model m", "model_not_found"), failed(404, "not found"), failed(401, "bad key")]


@pytest.mark.parametrize("answer", [*GONE, failed(402, "pay")], ids=["model", "path", "key", "quota"])
def test_a_model_that_cannot_answer_is_called_once_a_run(tmp_path: Path, answer: Answer) -> None:
    async def main() -> None:
        async with wire_server(lambda _: answer) as server:
            settings = f"models: {{local: {LOCAL.format(url=server.url)}}}\n"
            one = agent("one", model="local", fallback_models="[other]", runtime_policy="{max_steps: 20}")
            write(tmp_path, {"agentsd.yaml": settings, "agents.d/one.yaml": one})
            other = ScriptedModel(*(calls(("work", {"n": n})) for n in range(9)), "done", "again")
            async with Runtime.open(tmp_path, models={"other": other}, tools=[work], watch=False) as runtime:
                first = await runtime.run("go")
                assert (first.output, first.steps, len(server.requests)) == ("done", 10, 1)
                (warning,) = first.warnings
                assert warning.code == "model_fallback"
                assert warning.message.endswith("; falling back to other for the rest of the run")

                second = await runtime.run("go")
                assert (second.output, len(server.requests)) == ("again", 2), "other runs call the model"

    asyncio.run(main())


def test_a_model_that_cannot_answer_is_called_once_by_a_run_and_its_sub_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with wire_server(lambda _: GONE[0]) as server:
            keys = {"model": "local", "fallback_models": "[other]"}
            files = {
                "agentsd.yaml": f"models: {{local: {LOCAL.format(url=server.url)}}}\n",
                "agents.d/one.yaml": agent("one", **keys, sub_agents="[two, three]"),
                "agents.d/two.yaml": agent("two", **keys),
                "agents.d/three.yaml": agent("three", model="local"),
            }
            asked = [calls((f"agent.{name}", {"message": "look"})) for name in ("two", "three")]
            other = ScriptedModel(asked[0], "found", asked[1], "done")
            async with Runtime.open(write(tmp_path, files), models={"other": other}, watch=False) as runtime:
                result = await runtime.run("go", agent="one")
            assert (result.output, [call.status for call in result.tool_calls]) == ("done", ["success", "error"])
            assert len(server.requests) == 2, "one by the agent and one by three, which has no fallback"

    asyncio.run(main())


def test_a_temporary_failure_does_not_rule_a_model_out(tmp_path: Path) -> None:
    root = project(tmp_path, FAST + ", max_retries: 0", fallback_models="[other]")
    model = ScriptedModel(down(), calls(("work", {"n": 2})), "done")
    result = run(root, scripted=model, other=ScriptedModel(calls(("work", {"n": 1}))))
    assert (result.output, len(model.requests)) == ("done", 3)


def test_when_every_model_fails_the_error_contains_each_message(tmp_path: Path) -> None:
    gone = ModelError("1 has no quota", unavailable=True)
    root = project(tmp_path, fallback_models="[other]")
    result = run(root, scripted=ScriptedModel(gone), other=ScriptedModel(script=lambda _: down("2 is down")))
    assert why(result) == "1 has no quota; 2 is down (5 attempts)"


def test_a_fallback_without_a_key_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    root = project(tmp_path, FAST + ", max_retries: 0", fallback_models="[openai/gpt-5.4-mini, other]")
    received, result = asyncio.run(stream_run(root, scripted=ScriptedModel(down()), other=ScriptedModel("done")))
    assert result.output == "done"
    assert "set OPENAI_API_KEY" in warnings(received)[1][1]
    assert warnings(received)[1][1].endswith("; falling back to other for the rest of the run")


class Untyped(ScriptedModel):
    """A model without structured output."""

    info = ModelInfo(provider="untyped", model="1")


def test_a_fallback_without_structured_output_is_skipped(tmp_path: Path) -> None:
    root = project(tmp_path, FAST + ", max_retries: 0", executor="plan", fallback_models="[untyped, other]")
    plan = draft({**step("a"), "parameters": {"n": 1}})
    models = {"scripted": ScriptedModel(down(), "sum"), "untyped": Untyped(), "other": ScriptedModel(plan)}
    received, result = asyncio.run(stream_run(root, **models))
    assert result.output == "sum", result.error
    assert any("untyped does not support the structured output" in text for _, text in warnings(received))


def test_an_unknown_fallback_is_a_problem_at_its_line_and_reordering_is_neutral(tmp_path: Path) -> None:
    root = project(tmp_path, fallback_models="[offline, opnai/gpt-5.4-mini]")

    async def problems() -> list[str]:
        async with Runtime.open(root, models={"scripted": ScriptedModel()}, watch=False) as runtime:
            return [f"{problem.place}: {problem.message}" for problem in runtime.catalog.problems]

    (problem,) = asyncio.run(problems())
    assert problem.startswith("agents.d/one.yaml:7:28: unknown model 'opnai/gpt-5.4-mini'; did you mean openai")
    assert [change.effect for change in diff_agent(spec("[a, b]"), spec("[b, a]"))] == ["neutral"]


def spec(fallbacks: str) -> AgentSpec:
    return parse_agent("a.yaml", agent("one", fallback_models=fallbacks).encode())[0]


def test_a_case_calls_only_its_own_model(tmp_path: Path) -> None:
    root = project(tmp_path, fallback_models="[offline]")

    async def main() -> tuple[str, ...]:
        async with Runtime.open(root, models={"scripted": ScriptedModel()}, watch=False) as runtime:
            return sandboxed(runtime.catalog.current, "one", "scripted", {}).agents["one"].spec.fallback_models

    assert asyncio.run(main()) == ()


# --- cost


def test_failed_attempts_count_towards_the_budget_and_can_stop_the_run(tmp_path: Path) -> None:
    costly = down()
    costly.usage = Usage(prompt_tokens=30, completion_tokens=10, total_tokens=40)
    root = project(tmp_path, runtime_policy="{max_total_tokens: 70}")

    paid = run(root, scripted=ScriptedModel(costly, "done", tokens=10))
    stopped = run(root, scripted=ScriptedModel(script=lambda _: costly))

    assert (paid.output, paid.usage.total_tokens) == ("done", 50)
    assert (stopped.finish_reason, stopped.usage.total_tokens, stopped.steps) == ("max_total_tokens", 80, 1)


class Halting:
    """A model that sends a few words and fails, a number of times; then it answers."""

    info = ModelInfo(provider="halting", model="1")

    def __init__(self, failures: int, error: ModelError | None = None) -> None:
        self.left = failures
        self.error = error

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        words = ("half ", "an ") if self.left else ("the ", "whole")
        for word in words:
            yield Delta(text=word)
        if self.left:
            self.left -= 1
            if self.error:
                raise self.error
            return  # cut off
        reply = Message(role="assistant", content="".join(words))
        yield Delta(reply=ModelReply(reply, "stop", Usage(prompt_tokens=5, completion_tokens=5, total_tokens=10)))

    async def close(self) -> None:
        """Do nothing."""


def test_the_usage_of_an_interrupted_answer_is_estimated(tmp_path: Path) -> None:
    result = run(project(tmp_path), scripted=Halting(1))
    whole = run(project(tmp_path), scripted=Halting(0))
    assert result.output == whole.output == "the whole"
    assert whole.usage.total_tokens == 10
    assert result.usage.completion_tokens == 7, "two tokens of text were lost"
    assert result.usage.prompt_tokens > 10


# --- events of a streamed answer


@pytest.mark.parametrize("error", [None, down()], ids=["cut", "error"])
def test_text_of_a_failed_attempt_is_void_and_the_next_attempt_is_another_message(
    tmp_path: Path, error: ModelError | None
) -> None:
    received, result = asyncio.run(stream_run(project(tmp_path), scripted=Halting(1, error)))

    shown: dict[str, str] = {}
    for event in received:
        if isinstance(event, events.ContentReceived):
            shown[event.message_id] = shown.get(event.message_id, "") + event.text
        elif isinstance(event, Warned) and event.message_id:
            del shown[event.message_id]
    done = received[-1]
    assert isinstance(done, events.RunFinished)
    assert shown == {done.message_id: "the whole"}
    assert done.message_id == "msg.1-2"
    assert result.output == "the whole"


@pytest.mark.parametrize("error", [None, down()], ids=["cut", "error"])
def test_an_answer_that_has_begun_is_begun_again_only_once(tmp_path: Path, error: ModelError | None) -> None:
    model = Halting(5, error)
    result = run(project(tmp_path, "max_retries: 4, backoff: 1ms"), scripted=model)
    assert (result.status, 5 - model.left) == ("failed", 2)
    assert why(result).endswith("(2 attempts)")


def test_a_fallback_answers_after_an_answer_was_begun_twice(tmp_path: Path) -> None:
    model, fallback = Halting(5), Halting(0)
    root = project(tmp_path, "max_retries: 4, backoff: 1ms", fallback_models="[other]")
    result = run(root, scripted=model, other=fallback)
    assert (result.output, 5 - model.left) == ("the whole", 2)


# --- deadlines and connections


async def streamed(root: Path, url: str, use: Callable[[list[Event], RunResult], None], **keys: str) -> None:
    alias = f"models: {{local: {{model: openai/test, base_url: '{url}', api_key: k}}}}\n"
    text = agent("one", model="local", **keys)
    write(root, {"agents.d/one.yaml": text, "agentsd.yaml": alias + f"model_calls: {{{FAST}, max_retries: 20}}\n"})
    use(*await stream_run(root))


def first(answer: Answer) -> Callable[[dict[str, Any]], Answer]:
    """Return an answer to the first request, and "at last" to all later ones: a slow machine may need several."""
    given = iter([answer])
    return lambda _: next(given, says("at last"))


def wire(answers: Answers, root: Path, use: Callable[[list[Event], RunResult], None], **keys: str) -> WireServer:
    async def main() -> WireServer:
        async with wire_server(answers) as server:
            await streamed(root, server.url, use, **keys)
            await asyncio.wait_for(server.disconnected.wait(), 20)
            return server

    return asyncio.run(main())


def test_keep_alive_comments_do_not_begin_an_answer(tmp_path: Path) -> None:
    late = "openai/test did not start to answer within 0.3s (limits.first_token_timeout, agents.d/one.yaml:7)"

    def check(received: list[Event], result: RunResult) -> None:
        assert result.output == "at last", result.error
        assert {text.partition(";")[0] for _, text in warnings(received)} == {late}

    policy = "{first_token_timeout: 300ms, timeout: null}"
    server = wire(first(kept_alive()), tmp_path, check, runtime_policy=policy)
    assert len(server.requests) >= 2


def test_an_answer_that_stalls_times_out_and_its_connection_is_closed(tmp_path: Path) -> None:
    def check(received: list[Event], result: RunResult) -> None:
        assert result.output == "at last", result.error
        late = "openai/test did not continue its answer within 1s (limits.model_timeout, agents.d/one.yaml:7)"
        assert late in {text.partition(";")[0] for _, text in warnings(received)}

    policy = "{first_token_timeout: 20s, model_timeout: 1s}"
    wire(first(stalled()), tmp_path, check, runtime_policy=policy)


class Slow:
    """Answers after 0.1 s in one piece; with `signs`, an empty piece comes before."""

    info = ModelInfo(provider="slow", model="1")

    def __init__(self, *, signs: bool = False) -> None:
        self.signs = signs

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        if self.signs:
            yield Delta()
        await asyncio.sleep(0.1)  # longer than the timeout of the tests
        yield Delta(reply=ModelReply(Message(role="assistant", content="done"), "stop", Usage()))

    async def close(self) -> None:
        """Do nothing."""


class Talking:
    """Answers word by word; with `stalls`, it hangs for long after the last word.

    Between two words, it waits for `pause` seconds, and the clock of the event loop skips `skipped` ones.
    """

    info = ModelInfo(provider="talking", model="1")

    def __init__(self, words: int, pause: float = 0.0, *, skipped: float = 0.0, stalls: bool = False) -> None:
        self.words, self.pause, self.skipped, self.stalls = words, pause, skipped, stalls
        self.calls = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        self.calls += 1
        for _ in range(self.words):
            skip(self.skipped)
            await asyncio.sleep(self.pause)
            yield Delta(text="words ")
        if self.stalls:
            skip(60)
            await asyncio.Event().wait()
        yield Delta(reply=ModelReply(Message(role="assistant", content="done"), "stop", Usage()))

    async def close(self) -> None:
        """Do nothing."""


def test_a_streamed_answer_may_exceed_model_timeout_while_pieces_arrive(tmp_path: Path) -> None:
    root = project(tmp_path, "max_retries: 0", runtime_policy="{model_timeout: 20s, timeout: null}")
    assert asyncio.run(stream_run(root, scripted=Talking(40, skipped=2)))[1].output == "done"
    unstreamed = "talking/1 did not answer within 20s (limits.model_timeout, agents.d/one.yaml:7)"
    assert why(run(root, scripted=Talking(40, skipped=2))) == unstreamed


@pytest.mark.parametrize(("words", "expected_calls"), [(10, 2), (300, 1)])
def test_a_timeout_after_much_of_an_answer_is_not_retried(tmp_path: Path, words: int, expected_calls: int) -> None:
    root = project(tmp_path, "max_retries: 2, backoff: 1ms", runtime_policy="{model_timeout: 20s, timeout: null}")
    model = Talking(words, stalls=True)
    message = why(asyncio.run(stream_run(root, scripted=model))[1])
    assert model.calls == expected_calls
    assert "did not continue its answer within 20s (limits.model_timeout, agents.d/one.yaml:7)" in message
    assert ("not retried after 1800 characters" in message) == (expected_calls == 1)


@pytest.mark.parametrize("streams", [True, False])
def test_model_total_timeout_ends_an_answer_that_is_still_arriving(tmp_path: Path, streams: bool) -> None:
    root = project(tmp_path, "max_retries: 0", runtime_policy="{model_timeout: 20s, model_total_timeout: 200ms}")
    model = Talking(2000, 0.02)
    result = asyncio.run(stream_run(root, scripted=model))[1] if streams else run(root, scripted=model)
    message = "did not finish its answer within 0.2s (limits.model_total_timeout, agents.d/one.yaml:7)"
    assert message in why(result)


def test_first_token_timeout_applies_only_to_streamed_answers(tmp_path: Path) -> None:
    root = project(tmp_path, "max_retries: 0", runtime_policy="{first_token_timeout: 20ms}")
    assert run(root, scripted=Slow()).output == "done", "not streamed: there are no pieces"
    late = "slow/1 did not start to answer within 0.02s (limits.first_token_timeout, agents.d/one.yaml:7)"
    assert why(asyncio.run(stream_run(root, scripted=Slow()))[1]) == late
    assert asyncio.run(stream_run(root, scripted=Slow(signs=True)))[1].output == "done", "any piece will do"


class Held(Slow):
    """Keeps references to its streams, so that only the caller can close them."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[AsyncIterator[Delta]] = []
        self.closed = 0

    def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        self.held.append(self._answer(request))
        return self.held[-1]

    async def _answer(self, request: ModelRequest) -> AsyncIterator[Delta]:
        try:
            async for delta in super().stream(request):
                yield delta
        finally:
            self.closed += 1


def test_the_stream_is_closed_once_the_answer_is_complete(tmp_path: Path) -> None:
    model = Held()

    async def main() -> int:
        (result,) = await run_all(project(tmp_path), 1, scripted=model)
        assert result.output == "done"
        return model.closed  # the end of the loop would close it, too

    assert asyncio.run(main()) == 1


def test_pieces_of_a_tool_call_extend_the_timeout_with_claude_and_gemini_too() -> None:
    begun = {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "name": "work"}}
    piece = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{"}}
    blocks = MessageAssembler()
    assert [blocks.add_event(event) for event in ({"type": "ping"}, begun, piece)] == [None, Delta(), Delta()]

    call = SimpleNamespace(function_call=SimpleNamespace(name="work"), thought_signature=None)
    candidate = SimpleNamespace(content=SimpleNamespace(parts=[call]), finish_reason=None)
    head = {"model_version": "g", "response_id": "r", "usage_metadata": None, "prompt_feedback": None}
    parts = ResponseAssembler({})
    assert parts.add_response(SimpleNamespace(candidates=[], **head)) is None
    assert parts.add_response(SimpleNamespace(candidates=[candidate], **head)) == Delta()


@pytest.mark.parametrize("listening", [False, True], ids=["whole", "streamed"])
def test_a_cancelled_run_closes_its_connection(tmp_path: Path, listening: bool) -> None:
    begun = asyncio.Event()

    def stall(_: dict[str, Any]) -> Answer:
        begun.set()
        return stalled()

    async def go(runtime: Runtime) -> RunResult:
        if not listening:
            return await runtime.run("go")
        async with runtime.stream("go") as stream:
            return await stream.result()

    async def main() -> None:
        async with wire_server(stall) as server:
            alias = f"models: {{local: {{model: openai/test, base_url: '{server.url}', api_key: k}}}}\n"
            write(tmp_path, {"agents.d/one.yaml": agent("one", model="local"), "agentsd.yaml": alias})
            async with Runtime.open(tmp_path, watch=False) as runtime:
                task = asyncio.create_task(go(runtime))
                await asyncio.wait_for(begun.wait(), 20)
                assert not server.disconnected.is_set()
                task.cancel()
                await asyncio.wait_for(server.disconnected.wait(), 20)
                await asyncio.wait([task])

    asyncio.run(main())


# --- circuit breaker


REST = FAST + ", max_retries: 0, cooldown_after: 2, cooldown: 30s"


def test_calls_skip_a_model_in_cooldown_and_go_to_the_fallback(tmp_path: Path) -> None:
    model, other = ScriptedModel(script=lambda _: down()), ScriptedModel(script=lambda _: "instead")
    root = project(tmp_path, REST, fallback_models="[other]")
    results = asyncio.run(run_all(root, 5, scripted=model, other=other))
    assert [result.output for result in results] == ["instead"] * 5
    assert (len(model.requests), len(other.requests)) == (2, 5)


def test_a_model_whose_circuit_opens_is_not_retried_if_there_is_a_fallback(tmp_path: Path) -> None:
    root = project(tmp_path, FAST + ", max_retries: 9, cooldown_after: 2, cooldown: 30s", fallback_models="[other]")
    received, result = asyncio.run(
        stream_run(root, scripted=ScriptedModel(down(), down()), other=ScriptedModel("instead"))
    )
    assert result.output == "instead"
    assert [text for _, text in warnings(received)] == ["down; retrying in 0.0s", "down; falling back to other"]


def test_without_a_fallback_a_run_fails_immediately_if_the_cooldown_exceeds_its_time(tmp_path: Path) -> None:
    model = ScriptedModel(script=lambda _: down("overloaded"))
    root = project(tmp_path, REST, runtime_policy="{timeout: 10s}")
    *_, last = asyncio.run(run_all(root, 3, scripted=model))
    assert len(model.requests) == 2
    assert "scripted is in cooldown for" in why(last)
    assert "2 failures in a row, most recently: overloaded" in why(last)
    assert "exceeds the run's remaining time: retry later, or set fallback_models" in why(last)


def test_without_a_fallback_a_run_with_enough_time_waits_for_the_probe(
    tmp_path: Path,
) -> None:
    model = ScriptedModel(down(), down(), "back again", "and on")
    root = project(tmp_path, FAST + ", max_retries: 0, cooldown_after: 2, cooldown: 50ms")
    results = asyncio.run(run_all(root, 4, scripted=model))
    assert [result.output for result in results] == ["", "", "back again", "and on"]


def test_rejected_requests_do_not_open_the_circuit(tmp_path: Path) -> None:
    model = ScriptedModel(*[ModelError("refused")] * 3, "fine")
    assert asyncio.run(run_all(project(tmp_path, REST), 4, scripted=model))[-1].output == "fine"


BAD_CALL = failed(400, "Failed to call a function. Please adjust your prompt.", "tool_use_failed")


async def corrected(root: Path, answers: Answers, **keys: str) -> tuple[WireServer, list[Event], RunResult]:
    """Stream a run on a server with these answers."""
    found: list[tuple[list[Event], RunResult]] = []
    async with wire_server(answers) as server:
        await streamed(root, server.url, lambda *outcome: found.append(outcome), **keys)
    return server, *found[0]


def test_a_function_call_that_the_provider_cannot_read_is_corrected(tmp_path: Path) -> None:
    server, received, result = asyncio.run(corrected(tmp_path, [BAD_CALL, says("ok")]))
    assert result.output == "ok", result.error
    assert [code for code, _ in warnings(received)] == ["model_retry"]
    assert all("could not be read" not in message.content for message in result.messages), "it is never stored"
    before, after = (request["messages"] for request in server.requests)
    assert "could not be read" not in str(before)
    assert "the function call in your last answer could not be read: Failed to call" in after[-1]["content"]


def test_a_fallback_answers_if_a_models_function_calls_stay_unreadable(tmp_path: Path) -> None:
    _, received, result = asyncio.run(corrected(tmp_path, lambda _: BAD_CALL, fallback_models="[offline]"))
    assert result.status == "completed", result.error
    assert [code for code, _ in warnings(received)] == ["model_retry"] * 20 + ["model_fallback"]


def test_rate_limits_on_the_wire_are_waited_for_as_requested(tmp_path: Path) -> None:
    async def main() -> None:
        answers = [failed(429, "slow down", retry_after="0.1"), failed(503, "later", retry_after_ms="100"), says("ok")]
        async with wire_server(answers) as server:
            await streamed(tmp_path, server.url, check)

    def check(received: list[Event], result: RunResult) -> None:
        assert result.output == "ok", result.error
        assert [text.rpartition("; ")[2] for _, text in warnings(received)] == ["retrying in 0.1s"] * 2

    asyncio.run(main())
