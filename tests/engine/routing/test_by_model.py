"""Routing by a model and `executor: auto`: called only if nothing else decides, counted once, never fatal."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from framework import Approve, ModelError, RequestError, RunResult, Runtime
from framework.llm.client import ModelRequest
from framework.testing import JsonStore, ScriptedModel, Turn
from framework.types.events import Routed, Warned
from tests.conftest import tree
from tests.support.plans import Workshop, draft, step
from tests.support.projects import agent, write
from tests.support.routing import routing_reply
from tests.support.wire import calls, says, wire_server

ROUTER = "routing: {model: router, default_agent: chat}\n"


def shop(root: Path, settings: str = ROUTER, **keys: str) -> Path:
    examples = '{examples: ["Where is my parcel?"]}'
    return write(
        root,
        {
            "agents.d/billing.yaml": agent("billing", routing="{keywords: [invoice]}", description="Invoices."),
            "agents.d/returns.yaml": agent("returns", routing=examples, description="Parcels.", **keys),
            "agents.d/chat.yaml": agent("chat"),
            "agentsd.yaml": settings,
        },
    )


def run(
    root: Path, routed: list[Turn], answers: list[Turn], message: str = "my box is late", **options: Any
) -> tuple[RunResult, list[ModelRequest], list[Any]]:
    """Run a message; return the result, the requests to the router's model, and the events."""

    async def main() -> tuple[RunResult, list[ModelRequest], list[Any]]:
        router, worker = ScriptedModel(*routed, tokens=4), ScriptedModel(*answers, tokens=10)
        models = {"router": router, "scripted": worker}
        async with Runtime.open(root, tools=Workshop().tools(), models=models, watch=False) as runtime:
            async with runtime.stream(message, **options) as stream:
                received = [event async for event in stream]
            return await stream.result(), router.requests, received

    return asyncio.run(main())


def test_the_model_chooses_if_no_rule_matches(tmp_path: Path) -> None:
    result, requests, received = run(shop(tmp_path), [routing_reply("returns")], ["it comes"])
    assert (result.agent, result.output) == ("returns", "it comes")
    (route,) = [event for event in received if isinstance(event, Routed)]
    assert (route.agent, route.reason, route.confidence, route.seq) == ("returns", "it fits", 0.9, 1)
    (request,) = requests
    assert [message.role for message in request.messages] == ["system", "user"]
    assert '- returns: Parcels. For instance: "Where is my parcel?"' in request.messages[0].content
    assert request.messages[1].content == "my box is late"
    assert request.tools == ()
    assert result.usage.total_tokens == 14, "the question is part of what the run costs"
    assert result.steps == 1


@pytest.mark.parametrize(
    ("message", "options"),
    [("an invoice", {}), ("hello", {"agent": "returns"}), ("Where is my parcel?", {})],
    ids=["a rule", "the caller", "an example"],
)
def test_the_model_is_not_called_if_name_conversation_or_rule_decides(
    tmp_path: Path, message: str, options: dict[str, Any]
) -> None:
    _, requests, _ = run(shop(tmp_path), [], ["hello"], message, **options)
    assert requests == []


def test_a_conversation_stays_with_its_agent_without_another_call(tmp_path: Path) -> None:
    async def main() -> tuple[list[str], int]:
        router = ScriptedModel(routing_reply("returns"))
        models = {"router": router, "scripted": ScriptedModel("1", "2")}
        async with Runtime.open(shop(tmp_path), models=models, watch=False) as runtime:
            results = [await runtime.run("my box", conversation="c"), await runtime.run("and now?", conversation="c")]
        return [result.agent for result in results], len(router.requests)

    assert asyncio.run(main()) == (["returns", "returns"], 1)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ModelError("down"), "the model did not choose (down)"),
        (routing_reply("nobody"), "the model did not choose (it chose 'nobody', which is not an agent; there are"),
        ("I would ask returns.", "the model did not choose (the answer does not fit RouteChoice"),
        (routing_reply("returns", confidence=0.1), "the model was not sure of returns"),
    ],
    ids=["down", "unknown agent", "prose", "unsure"],
)
def test_if_the_model_chooses_no_agent_the_default_is_used(tmp_path: Path, answer: Turn, reason: str) -> None:
    result, _, received = run(shop(tmp_path), [answer], ["hello"])
    assert (result.agent, result.status) == ("chat", "completed")
    (route,) = [event for event in received if isinstance(event, Routed)]
    assert route.reason.startswith("routing.default_agent; ")
    assert reason in route.reason


def test_without_a_default_an_unsure_choice_counts_and_no_choice_is_an_error(tmp_path: Path) -> None:
    root = shop(tmp_path, "routing: {model: router}\n")
    result, _, _ = run(root, [routing_reply("returns", confidence=0.0)], ["hello"])
    assert result.agent == "returns"
    with pytest.raises(RequestError, match="name one of: billing, chat, returns"):
        run(root, [ModelError("down")], [])


def test_a_real_models_choice_comes_through_instructor(tmp_path: Path) -> None:
    async def main() -> RunResult:
        choice = {"agent": "returns", "executor": "react", "confidence": 0.8, "reason": "late"}
        answers = [says("returns, I think"), calls(("RouteChoice", choice)), says("it comes")]
        async with wire_server(answers) as server:
            settings = (
                f"routing: {{model: local}}\nmodels: {{local: {{model: openai/test, base_url: '{server.url}'}}}}\n"
            )
            root = shop(tmp_path, settings, model="local")
            async with Runtime.open(root, models={"scripted": ScriptedModel()}, watch=False) as runtime:
                return await runtime.run("my box is late")

    result = asyncio.run(main())
    assert (result.agent, result.output, result.steps) == ("returns", "it comes", 1)
    assert result.usage.total_tokens == 45, "the re-ask counts, too"


def test_an_invalid_choice_of_a_model_without_function_calls_is_retried(tmp_path: Path) -> None:
    async def main() -> tuple[RunResult, list[dict[str, Any]]]:
        choice = json.dumps({"agent": "returns", "confidence": 0.8, "reason": "late"})
        async with wire_server([says("returns, I think"), says(choice)]) as server:
            alias = f"{{model: openai/test, base_url: '{server.url}', capabilities: {{tools: false}}}}"
            root = shop(tmp_path, f"routing: {{model: local, default_agent: chat}}\nmodels: {{local: {alias}}}\n")
            async with Runtime.open(root, models={"scripted": ScriptedModel("it comes")}, watch=False) as runtime:
                return await runtime.run("my box is late"), server.requests

    result, requests = asyncio.run(main())
    assert (result.agent, result.output) == ("returns", "it comes")
    assert "does not begin with {" in requests[1]["messages"][-1]["content"]


def test_the_trace_contains_the_route_and_its_model_call(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    run(shop(tmp_path), [routing_reply("returns", reason="secret words")], ["it comes"])
    finished = [span for span in spans.get_finished_spans() if not span.name.startswith("config.")]
    assert tree(tuple(finished)).splitlines() == [
        "invoke_workflow returns",
        "  agent.route",
        "    chat scripted",
        "  invoke_agent returns",
        "    agent.step 1",
        "      chat scripted",
    ]
    (route,) = [span for span in finished if span.name == "agent.route"]
    attributes = route.attributes or {}
    assert attributes["agentsd.route.mode"] == "model"
    assert 0.9 in attributes.values(), "the confidence"
    assert not any("secret words" in span.to_json() for span in finished), "model output is content"
    counted = [(span.attributes or {}).get("gen_ai.usage.input_tokens") for span in finished]
    assert [count for count in counted if count is not None] == [2, 5], "each question once"


# --- executor: auto


def auto(root: Path, settings: str = "{}\n") -> Path:
    return write(root, {"agents.d/one.yaml": agent("one", executor="auto"), "agentsd.yaml": settings})


PLAN = draft(step("a"))


@pytest.mark.parametrize(
    ("executor", "answers", "steps"), [("react", ["hello"], 2), ("plan", [PLAN, "done"], 3)], ids=["react", "plan"]
)
def test_auto_chooses_the_executor_once(tmp_path: Path, executor: str, answers: list[Turn], steps: int) -> None:
    result, _, received = run(auto(tmp_path), [], [routing_reply("one", executor), *answers])
    assert result.status == "completed", result.error
    assert result.steps == steps
    assert (result.plan is not None) == (executor == "plan")
    routed = [(event.reason, event.executor) for event in received if isinstance(event, Routed)]
    assert routed == [("the only agent", None), (f"executor {executor}: it fits", executor)]


def test_the_router_chooses_agent_and_executor_in_one_call(tmp_path: Path) -> None:
    root = shop(tmp_path, executor="auto")
    result, requests, received = run(root, [routing_reply("returns", "plan")], [PLAN, "done"])
    assert len(requests) == 1
    assert result.plan is not None
    assert [event.executor for event in received if isinstance(event, Routed)] == ["plan"]


def test_an_executor_set_in_the_file_is_not_overruled(tmp_path: Path) -> None:
    result, _, received = run(shop(tmp_path), [routing_reply("returns", "plan")], ["it comes"])
    assert (result.plan, result.output) == (None, "it comes")
    assert [event.executor for event in received if isinstance(event, Routed)] == [None]


def test_auto_uses_react_if_the_choice_fails(tmp_path: Path) -> None:
    result, _, received = run(auto(tmp_path), [], [ModelError("no idea"), "hello"])
    assert result.output == "hello"
    assert [event.code for event in received if isinstance(event, Warned)] == ["routing"]


def test_auto_calls_the_routers_model_if_one_is_set(tmp_path: Path) -> None:
    result, requests, _ = run(
        auto(tmp_path, "routing: {model: router}\n"), [routing_reply("one", "plan")], [PLAN, "done"]
    )
    assert len(requests) == 1
    assert result.plan is not None


def test_the_choice_of_auto_survives_a_pause(tmp_path: Path) -> None:
    root = write(tmp_path, {"agents.d/one.yaml": agent("one", executor="auto", plan="{approval: always}")})

    async def main() -> RunResult:
        store, model = JsonStore(), ScriptedModel(routing_reply("one", "plan"), PLAN, "done")
        options: dict[str, Any] = {"models": {"scripted": model}, "store": store, "watch": False}
        async with Runtime.open(root, tools=Workshop().tools(), **options) as runtime:
            result = await runtime.run("go")
        async with Runtime.open(root, tools=Workshop().tools(), **options) as runtime:
            return await runtime.resume(result.run_id, {result.pending[0].id: Approve()})

    result = asyncio.run(main())
    assert (result.status, result.output, result.steps) == ("completed", "done", 3)


@pytest.mark.parametrize(
    ("message", "planned"), [("echo hello", False), ("echo one then calculate 2 + 3", True)], ids=["one", "two"]
)
def test_the_offline_model_routes_and_chooses_too(tmp_path: Path, message: str, planned: bool) -> None:
    files = {
        "agents.d/one.yaml": agent("one", model="offline", executor="auto", description="Calculates and echoes words."),
        "agents.d/two.yaml": agent("two", model="offline", description="Writes poems about the sea."),
        "agentsd.yaml": "routing: {model: offline}\n",
    }

    async def main() -> RunResult:
        async with Runtime.open(write(tmp_path, files), watch=False) as runtime:
            assert (await runtime.run("poems about the sea, please")).agent == "two"
            return await runtime.run(message)

    result = asyncio.run(main())
    assert (result.agent, result.plan is not None) == ("one", planned)


def test_a_routing_call_without_a_choice_counts_and_warns(tmp_path: Path) -> None:
    root = shop(tmp_path, ROUTER + "model_calls: {max_retries: 2, backoff: 1ms, max_backoff: 1ms}\n")
    result, requests, _ = run(root, ["", "", ""], ["hello"])
    assert (result.agent, result.output, len(requests)) == ("chat", "hello", 3)
    assert result.usage.total_tokens == 10 + 3 * 4
    codes = [warning.code for warning in result.warnings]
    assert codes == ["model_retry", "model_retry", "routing"]
    assert "the model did not choose" in result.warnings[-1].message
