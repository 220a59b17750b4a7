"""Complete runs over real HTTP: agent files on a model server, with function calls, streaming and a typed plan."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from framework import RunResult, Runtime, events
from tests.support.formats import OPENAI, Format, each_format
from tests.support.formats import says as said
from tests.support.projects import agent, write
from tests.support.wire import Answer, calls, failed, piece, says, wire_server
from tests.support.wire import events as wire_events


def project(root: Path, url: str, *, form: Format = OPENAI, more: str = "", **keys: str) -> Path:
    alias = form.alias(url, more)
    files = {"agents.d/one.yaml": agent("one", model="local", **keys), "agentsd.yaml": f"models: {{local: {alias}}}\n"}
    return write(root, files)


async def run_once(root: Path) -> RunResult:
    async with Runtime.open(root, watch=False) as runtime:
        return await runtime.run("go")


def test_a_react_run_on_a_model_server(tmp_path: Path) -> None:
    async def main() -> None:
        async with wire_server([calls(("calculator", {"expression": "6 * 7"})), says("It is 42.")]) as server:
            root = project(tmp_path, server.url, model_settings="{temperature: 0.5}")
            async with Runtime.open(root, watch=False) as runtime:
                result = await runtime.run("what is 6 times 7?")
        assert result.output == "It is 42."
        first, second = server.requests
        assert first["temperature"] == 0.5
        assert first["tool_choice"] == "auto"
        assert [message["role"] for message in first["messages"]] == ["system", "user"]
        assert first["messages"][0]["content"].startswith("You are one.")
        assert {tool["function"]["name"] for tool in first["tools"]} >= {"calculator", "read_file"}
        assert first["stream"], "from a local server, the response is streamed although nobody listens"
        assert second["messages"][-1]["content"] == "42"
        assert second["messages"][-1]["tool_call_id"] == second["messages"][-2]["tool_calls"][0]["id"]

    asyncio.run(main())


def test_the_response_is_streamed_for_a_stream(tmp_path: Path) -> None:
    async def main() -> None:
        async with wire_server([calls(("echo", {"text": "x"})), says("one two three")]) as server:
            root = project(tmp_path, server.url)
            async with Runtime.open(root, watch=False) as runtime, runtime.stream("go") as stream:
                texts = [event.text async for event in stream if isinstance(event, events.ContentReceived)]
            result = await stream.result()
        assert all(request["stream"] for request in server.requests)
        assert "".join(texts) == result.output == "one two three"
        assert result.usage.total_tokens == 30, "what the server counted, for it was asked to"

    asyncio.run(main())


def test_a_stream_without_finish_reason_is_paid_once_and_reported_once(tmp_path: Path) -> None:
    async def main() -> None:
        call = piece(tool_calls=[{"index": 0, "function": {"name": "echo", "arguments": '{"text": "x"}'}}])
        async with wire_server([wire_events(call), wire_events(piece(content="done"))]) as server:
            result = await run_once(project(tmp_path, server.url))
        assert (result.output, len(server.requests)) == ("done", 2)
        assert [warning.code for warning in result.warnings] == ["no_finish_reason"]
        assert "/test ended its stream without a finish_reason" in result.warnings[0].message

    asyncio.run(main())


def test_an_agents_examples_are_between_instructions_and_conversation_in_every_protocol(
    tmp_path: Path,
) -> None:
    async def main(protocol: str, answer: str) -> list[dict[str, str]]:
        async with wire_server([says(answer)]) as server:
            examples = "[{user: ping, assistant: pong}]"
            root = project(tmp_path, server.url, protocol=protocol, examples=examples)
            assert (await run_once(root)).output == "done"
        messages: list[dict[str, str]] = server.requests[0]["messages"]
        return messages

    native = asyncio.run(main("native", "done"))
    assert [(m["role"], m["content"]) for m in native[1:]] == [("user", "ping"), ("assistant", "pong"), ("user", "go")]
    text = asyncio.run(main("json", '{"type":"final","answer":"done"}'))
    assert [m["role"] for m in text] == ["system", "user", "assistant", "user"]
    assert json.loads(text[2]["content"]) == {"type": "final", "answer": "pong"}


def test_a_plan_through_instructor_counts_its_retries(tmp_path: Path) -> None:
    plan = {
        "goal": "calculate",
        "steps": [
            {"id": "a", "description": "add", "tool": "calculator", "parameters": {"expression": "1 + 1"}},
            {"id": "b", "description": "say", "tool": "echo", "parameters": {"text": "hi"}, "depends_on": ["a"]},
        ],
    }
    broken = {"goal": "calculate", "steps": [{"id": "a", "depends_on": ["nowhere"]}]}

    async def main() -> None:
        answers = [calls(("PlanDraft", broken)), calls(("PlanDraft", plan)), says("2, and hi.")]
        async with wire_server(answers) as server:
            root = project(tmp_path, server.url, executor="plan")
            async with Runtime.open(root, watch=False) as runtime:
                result = await runtime.run("add one and one, then say hi")
        assert result.status == "completed", result.error
        assert result.output == "2, and hi."
        assert [call.result for call in result.tool_calls] == [2, "hi"]
        assert result.steps == 3, "the re-ask is a model call like any other"
        assert "Field required" in json.dumps(server.requests[1]["messages"])
        assert "Make a plan for the last request" in json.dumps(server.requests[0]["messages"])

    asyncio.run(main())


def test_a_provider_that_fails_ends_the_run_with_a_typed_error_and_no_key(tmp_path: Path) -> None:
    async def main() -> None:
        async with wire_server([failed(401, "bad key sk-test-1234567890")]) as server:
            root = project(tmp_path, server.url)
            result = await run_once(root)
        assert result.status == "failed"
        assert result.error is not None
        assert result.error.code == "model_error"
        assert "\n" not in result.error.message
        assert "sk-test" not in result.model_dump_json()

    asyncio.run(main())


def test_a_refusal_stops_the_run_and_is_not_retried(tmp_path: Path) -> None:
    async def main() -> None:
        for refusal in (says("", extra={"refusal": "I will not"}), says("x", finish="content_filter")):
            async with wire_server([refusal]) as server:
                result = await run_once(project(tmp_path, server.url))
            assert (result.status, result.finish_reason) == ("stopped", "refused")
            assert result.error is not None
            assert (result.error.code, result.error.retryable) == ("refused", False)
            assert len(server.requests) == 1

    asyncio.run(main())


def test_a_typed_answer_through_instructor_is_sent_as_tool_arguments(tmp_path: Path) -> None:
    schema = "{type: object, properties: {city: {type: string}, people: {type: integer}}, required: [city, people]}"
    whole = {"city": "Rome", "people": 3}

    async def main() -> None:
        answers = [
            says("Rome has three."),
            calls(("Answer", {"city": "Rome", "people": "3"})),
            calls(("Answer", whole)),
        ]
        async with wire_server(answers) as server:
            result = await run_once(project(tmp_path, server.url, output_schema=schema))
        assert (result.output, result.data, result.steps) == ("Rome has three.", whole, 3)
        asked = server.requests[1]
        assert [tool["function"]["name"] for tool in asked["tools"]] == ["Answer"]
        assert asked["tools"][0]["function"]["parameters"]["required"] == ["city", "people"]
        assert "people" in json.dumps(server.requests[2]["messages"][-1]), "the re-ask says what was wrong"

    asyncio.run(main())


@each_format
def test_a_run_in_every_format_reports_its_cost(tmp_path: Path, form: Format) -> None:
    async def main() -> None:
        asked = said(form, calls=(("calculator", {"expression": "6 * 7"}),), thought="let me see")
        async with wire_server([asked, said(form, "It is 42.")]) as server:
            prices = ", capabilities: {prices: {input: 100, output: 1000}}"
            root = project(tmp_path, server.url, form=form, more=prices)
            async with Runtime.open(root, watch=False) as runtime, runtime.stream("what is 6 times 7?") as stream:
                texts = [event.text async for event in stream if isinstance(event, events.ContentReceived)]
            result = await stream.result()
        assert result.status == "completed", result.error
        assert "".join(texts) == result.output == "It is 42."
        assert '42"' in json.dumps(server.requests[1])
        assert form.returned(server.requests[1])
        assert result.usage.total_tokens == 30
        assert round(result.usage.cost_usd or 0, 6) == 2 * (10 * 100 + 5 * 1000) / 1_000_000

    asyncio.run(main())


@each_format
def test_a_typed_plan_in_every_format(tmp_path: Path, form: Format) -> None:
    plan = {
        "goal": "calculate",
        "steps": [{"id": "a", "description": "add", "tool": "calculator", "parameters": {"expression": "1 + 1"}}],
    }
    broken = {"goal": "calculate", "steps": [{"id": "a", "depends_on": ["nowhere"]}]}

    async def main() -> None:
        answers = [said(form, calls=(("PlanDraft", given),)) for given in (broken, plan)]
        async with wire_server([*answers, said(form, "It is 2.")]) as server:
            root = project(tmp_path, server.url, form=form, executor="plan")
            result = await run_once(root)
        assert result.status == "completed", result.error
        assert result.output == "It is 2."
        assert "Field required" in json.dumps(server.requests[1])

    asyncio.run(main())


@each_format
@pytest.mark.parametrize("listening", [False, True], ids=["whole", "streamed"])
def test_a_budget_advances_if_the_server_reports_no_tokens(tmp_path: Path, form: Format, listening: bool) -> None:
    """Some servers report no usage, mostly in streams: without an estimate a run on them would never end."""
    answer = said(form, calls=(("echo", {"text": "x" * 4000}),))
    counts = ("usage", "usageMetadata")
    body = {key: value for key, value in json.loads(answer.body).items() if key not in counts}
    pieces = tuple(_without(piece, counts) for piece in answer.streamed)
    prices = ", capabilities: {prices: {input: 1000, output: 1000}}"

    async def main() -> None:
        async with wire_server(lambda _: Answer(body=json.dumps(body).encode(), streamed=pieces)) as server:
            policy = "{max_total_tokens: 6000, max_repeated_calls: null}"
            root = project(tmp_path, server.url, form=form, more=prices, runtime_policy=policy)
            async with Runtime.open(root, watch=False) as runtime:
                if listening:
                    async with runtime.stream("go") as stream:
                        async for _ in stream:
                            pass
                    result = await stream.result()
                else:
                    result = await runtime.run("go")
        assert (result.status, result.finish_reason) == ("stopped", "max_total_tokens"), result.error
        assert result.usage.total_tokens == result.usage.prompt_tokens + result.usage.completion_tokens > 2000
        assert result.usage.cost_usd == pytest.approx(result.usage.total_tokens / 1000)

    asyncio.run(main())


def _without(piece: str, names: tuple[str, ...]) -> str:
    """Return an event without its token counts, at any position."""
    before, mark, data = piece.rpartition("\ndata: ")
    event = {key: value for key, value in json.loads(data).items() if key not in names}
    for whole in ("message", "response"):
        if isinstance(event.get(whole), dict):
            event[whole] = {key: value for key, value in event[whole].items() if key not in names}
    return before + mark + json.dumps(event)


def test_a_run_stops_when_its_money_is_spent(tmp_path: Path) -> None:
    async def main() -> None:
        endless = [calls(("echo", {"text": str(number)})) for number in range(9)]
        async with wire_server(endless) as server:
            prices = ", capabilities: {prices: {input: 100, output: 1000}}"
            root = project(tmp_path, server.url, more=prices, runtime_policy="{max_cost_usd: 0.01}")
            result = await run_once(root)
        assert (result.status, result.finish_reason) == ("stopped", "max_cost_usd")
        assert len(server.requests) == 2

    asyncio.run(main())


def test_an_unknown_model_name_is_one_line_that_names_the_aliases(tmp_path: Path) -> None:
    async def main() -> None:
        async with Runtime.open(project(tmp_path, "http://127.0.0.1:1/v1"), watch=False) as runtime:
            models = runtime.settings.model_copy(update={"model": "locla"})
        files = {
            "agents.d/one.yaml": agent("one", model="offline", fallback_models="[]").replace("model: offline\n", "")
        }
        async with Runtime.open(write(tmp_path, files), settings=models, watch=False) as runtime:
            result = await runtime.run("go")
        assert result.error is not None
        assert result.error.message == (
            "there is no model 'locla': write PROVIDER/MODEL, or an alias; did you mean local?"
        )

    asyncio.run(main())


@pytest.mark.parametrize(("more", "streamed"), [("", True), (", stream: true", True), (", stream: false", False)])
@each_format
def test_an_alias_decides_whether_responses_are_streamed(
    form: Format, more: str, streamed: bool, tmp_path: Path
) -> None:
    async def main() -> None:
        async with wire_server([said(form, "one two"), said(form, "one two")]) as server:
            async with Runtime.open(project(tmp_path, server.url, form=form, more=more), watch=False) as runtime:
                unheard = await runtime.run("go")
                async with runtime.stream("go") as stream:
                    texts = [event.text async for event in stream if isinstance(event, events.ContentReceived)]
                heard = await stream.result()
            for body, path in zip(server.requests, server.paths, strict=True):
                assert bool(body.get("stream") or path.endswith(":streamGenerateContent")) is streamed
        assert "".join(texts) == heard.output == unheard.output == "one two"
        assert heard.usage.total_tokens == unheard.usage.total_tokens == 15

    asyncio.run(main())


def test_a_server_that_rejects_the_option_for_usage_is_called_without_it(tmp_path: Path) -> None:
    def reply(body: dict[str, object]) -> Answer:
        return failed(422, "unknown field stream_options") if "stream_options" in body else says("done")

    async def main() -> None:
        async with (
            wire_server(reply) as server,
            Runtime.open(project(tmp_path, server.url), watch=False) as runtime,
        ):
            results = [await runtime.run("go") for _ in range(2)]
        assert [(result.output, len(result.warnings)) for result in results] == [("done", 0), ("done", 0)]
        assert ["stream_options" in body for body in server.requests] == [True, False, False], "it is remembered"

    asyncio.run(main())


def test_first_token_timeout_applies_to_a_run_that_nobody_listens_to(tmp_path: Path) -> None:
    async def main() -> None:
        async with wire_server([wire_events(piece(), ending="comments"), says("at last")]) as server:
            policy = "{first_token_timeout: 2s, model_timeout: 50s}"
            result = await run_once(project(tmp_path, server.url, runtime_policy=policy))
        assert result.output == "at last", result.error
        assert "did not start to answer within 2s (limits.first_token_timeout" in result.warnings[0].message

    asyncio.run(main())


def test_model_timeout_limits_each_pause_of_a_run_that_nobody_listens_to(tmp_path: Path) -> None:
    async def main() -> None:
        async with wire_server([wire_events(piece(content="so"), ending="stall"), says("at last")]) as server:
            policy = "{first_token_timeout: 50s, model_timeout: 2s}"
            result = await run_once(project(tmp_path, server.url, runtime_policy=policy))
            await server.disconnected.wait()
        assert result.output == "at last", result.error
        assert "did not continue its answer within 2s (limits.model_timeout" in result.warnings[0].message

    asyncio.run(main())
