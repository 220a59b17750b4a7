"""Spans of model calls follow the OpenTelemetry GenAI conventions, checked against a real server's requests."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from framework import RunResult, Runtime, ToolError, tool
from framework.llm.client import served_model
from framework.llm.providers import PROVIDERS
from framework.telemetry import names
from framework.testing import ScriptedModel, calls
from framework.tools.tool import HostedOutput
from tests.conftest import tree
from tests.support.projects import agent, write
from tests.support.telemetry import metric_points
from tests.support.wire import Answer, failed, says, wire_server

WELL_KNOWN = {
    *("openai", "gcp.gen_ai", "gcp.vertex_ai", "gcp.gemini", "anthropic", "cohere", "azure.ai.inference"),
    *("azure.ai.openai", "ibm.watsonx.ai", "aws.bedrock", "perplexity", "x_ai", "deepseek", "groq", "mistral_ai"),
}
"""Values of `gen_ai.provider.name` in the conventions."""
UNLISTED = {"qwen", "openrouter", "ollama"}
"""Providers without a name in the conventions, which keep their agentsd name."""


def play(
    root: Path, answers: list[Answer], served: str = "mistral/test", *, content: str = "none", **keys: str
) -> tuple[RunResult, str]:
    """Run once against a server; return the result and the server's address."""

    async def main() -> tuple[RunResult, str]:
        async with wire_server(answers) as server:
            prices = "capabilities: {prices: {input: 1000000, output: 2000000}}"
            alias = f"{{model: {served}, base_url: '{server.url}', api_key: k, {prices}}}"
            down = f"{{model: {served}, base_url: 'http://127.0.0.1:9/v1', api_key: k}}"
            settings = f"models: {{local: {alias}, down: {down}}}\nmodel_calls: {{backoff: 0.001, max_retries: 2}}\n"
            settings += f"telemetry: {{content: {content}}}\n"
            write(root, {"agents.d/one.yaml": agent("one", **{"model": "local"} | keys), "agentsd.yaml": settings})
            async with Runtime.open(root, watch=False) as runtime:
                return await runtime.run("go", agent="one"), server.url

    return asyncio.run(main())


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    found = [span for span in spans.get_finished_spans() if span.name == name or span.name.startswith(f"{name} ")]
    return sorted(found, key=lambda span: span.start_time or 0)


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_model_call_names_its_provider_and_server(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    _, url = play(tmp_path, [says("hi")])
    (chat,) = named(spans, "chat test")
    server = urlsplit(url)
    assert about(chat)["gen_ai.provider.name"] == "mistral_ai"
    assert (about(chat)["server.address"], about(chat)["server.port"]) == (server.hostname, server.port)
    (work,) = named(spans, "invoke_agent one")
    assert about(work)["gen_ai.provider.name"] == "mistral_ai"


@pytest.mark.parametrize(
    ("url", "port"),
    [("https://api.mistral.ai/v1", 443), ("http://h/v1", 80), ("http://[::1]:8080/v1", 8080), (None, None)],
)
def test_an_address_always_has_a_port(url: str | None, port: int | None) -> None:
    info = served_model("openai", "x", url, None)
    assert (info.server_port, info.server_address is None) == (port, port is None)


def test_providers_have_the_names_of_the_conventions() -> None:
    ours = {names.PROVIDER_NAMES.get(provider.name, provider.name) for provider in PROVIDERS}
    assert ours - WELL_KNOWN == UNLISTED


def test_a_call_without_retries_is_one_span(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    play(tmp_path, [says("hi")])
    assert tree(tuple(named(spans, "agent.step") + named(spans, "chat"))) == "agent.step 1\n  chat test"


def test_a_retried_call_is_one_span_with_its_attempts(
    tmp_path: Path, spans: InMemorySpanExporter, reader: InMemoryMetricReader
) -> None:
    result, _ = play(tmp_path, [failed(500, "busy"), failed(503, "busy"), says("hi")])
    assert result.output == "hi"
    (chat,) = named(spans, "chat")
    attempts = named(spans, "chat.attempt")
    assert [span.name for span in attempts] == ["chat.attempt 1", "chat.attempt 2", "chat.attempt 3"]
    assert {span.parent.span_id for span in attempts if span.parent} == {chat.context.span_id}
    assert [span.status.status_code for span in (chat, *attempts)] == [
        StatusCode.UNSET,
        StatusCode.ERROR,
        StatusCode.ERROR,
        StatusCode.UNSET,
    ]
    assert {span.kind for span in (chat, *attempts)} == {SpanKind.CLIENT}
    assert about(chat)["agentsd.model.attempts"] == 3
    counted = [span for span in spans.get_finished_spans() if "gen_ai.usage.input_tokens" in about(span)]
    assert counted == [chat], "backends count tokens once"
    assert about(chat)["gen_ai.usage.input_tokens"] == result.usage.prompt_tokens
    for earlier, later in pairwise(attempts):
        assert (earlier.end_time or 0) <= (later.start_time or 0)
    model = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "mistral_ai", "gen_ai.request.model": "test"}
    found = metric_points(reader)
    assert found["gen_ai.client.operation.duration"] == [(model, 1)]
    assert [about(span).get("error.type") for span in attempts] == ["500", "503", None]
    failures = [({**model, "error.type": status}, 1) for status in ("500", "503")]
    assert sorted(found["agentsd.model.attempts"], key=str) == sorted([*failures, (model, 1)], key=str)


def test_a_failed_call_is_one_error(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    result, _ = play(tmp_path, [failed(400, "no")])
    assert result.status == "failed"
    (chat,) = named(spans, "chat")
    assert (about(chat)["error.type"], about(chat)["agentsd.model.attempts"]) == ("400", 1)
    assert not named(spans, "chat.attempt")


@pytest.mark.parametrize(
    ("answer", "model", "kind"),
    [
        (failed(401, "no"), "local", "401"),
        (failed(429, "slow down"), "local", "429"),
        (failed(500, "boom"), "local", "500"),
        (Answer(body=b"<html>", content_type="text/html"), "local", "empty_answer"),
        (says(""), "local", "empty_answer"),
        (Answer(events=("{}",), ending="stall"), "local", "timeout"),
        (says("unused"), "down", "ConnectError"),
    ],
    ids=["401", "429", "500", "web page", "empty", "timeout", "refused"],
)
def test_a_failed_call_has_its_status_or_class_and_its_message_only_as_content(
    tmp_path: Path, answer: Answer, model: str, kind: str, spans: InMemorySpanExporter
) -> None:
    limits = "{model_timeout: 0.2}"
    for content in ("none", "full"):
        spans.clear()
        keys = {"model": model, "runtime_policy": limits, "telemetry": f"{{content: {content}}}"}
        result, _ = play(tmp_path, [answer] * 3, content=content, **keys)
        assert result.error is not None
        (chat,) = named(spans, "chat")
        failures = [chat, *named(spans, "chat.attempt")]
        assert {about(span)["error.type"] for span in failures} == {kind}
        messages = {about(span).get("error.message") for span in failures}
        whole = result.error.message.removesuffix(" (3 attempts)")
        assert messages == ({None} if content == "none" else {whole})
        (step,) = named(spans, "agent.step")
        assert (step.status.status_code, about(step)["error.type"]) == (StatusCode.ERROR, kind)


def test_a_failed_tool_has_the_class_of_its_exception(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    @tool(risk="low")
    def read(how: str) -> str:
        """Read something."""
        if how == "chained":
            try:
                return Path("/nowhere").read_text("utf-8")
            except OSError as error:
                raise ToolError("cannot read it") from error
        raise ValueError("broken") if how == "broken" else ToolError("no")

    async def main(content: str) -> None:
        turn = calls(*(("read", {"how": how}) for how in ("chained", "broken", "told")), ("invented.tool", {}))
        settings = f"telemetry: {{content: {content}}}\n"
        write(tmp_path, {"agents.d/one.yaml": agent("one"), "agentsd.yaml": settings})
        models = {"scripted": ScriptedModel(turn, "done")}
        async with Runtime.open(tmp_path, tools=[read], models=models, watch=False) as runtime:
            await runtime.run("go")

    asyncio.run(main("none"))
    found = [about(span) for span in named(spans, "execute_tool read")]
    assert sorted(one["error.type"] for one in found) == ["FileNotFoundError", "ToolError", "ValueError"]
    asyncio.run(main("redacted"))
    unknown = [about(span).get("agentsd.tool.requested") for span in named(spans, "execute_tool unknown")]
    assert unknown == [None, "invented.tool"], "what a model writes is content"


def test_what_a_skill_host_says_of_a_call_is_in_the_result_and_the_span(
    tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    about = {"trace_id": "4bf92f35", "meta": {"cached": True}}

    @tool(risk="low")
    def look() -> Any:
        """Look."""
        return HostedOutput("seen", about)

    async def main(content: str) -> RunResult:
        settings = f"telemetry: {{content: {content}}}\n"
        write(tmp_path, {"agents.d/one.yaml": agent("one"), "agentsd.yaml": settings})
        models = {"scripted": ScriptedModel(calls(("look", {})), "done")}
        async with Runtime.open(tmp_path, tools=[look], models=models, watch=False) as runtime:
            return await runtime.run("go")

    for content, shown in (("none", None), ("full", json.dumps(about))):
        spans.clear()
        (call,) = asyncio.run(main(content)).tool_calls
        assert (call.result, call.host) == ("seen", about)
        (span,) = named(spans, "execute_tool look")
        assert (about_of := dict(span.attributes or {}))["agentsd.tool.host_trace_id"] == "4bf92f35"
        assert about_of.get("agentsd.tool.host") == shown


def test_a_call_that_a_fallback_answers_names_both_models(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    result, url = play(tmp_path, [says("hi")], model="down", fallback_models="[local]")
    assert result.output == "hi"
    (chat,) = named(spans, "chat")
    assert chat.status.status_code is StatusCode.UNSET
    assert about(chat)["agentsd.model.fallback"] is True
    assert about(chat)["server.port"] == urlsplit(url).port, "the provider that answered"
    attempts = named(spans, "chat.attempt")
    assert [about(span).get("agentsd.model.fallback") for span in attempts] == [None, None, None, True]
    assert [about(span)["server.port"] for span in attempts] == [9, 9, 9, urlsplit(url).port]


def test_cost_has_mlflows_format(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    result, _ = play(tmp_path, [says("hi")])
    (chat,) = named(spans, "chat")
    cost = result.usage.prompt_tokens + 2 * result.usage.completion_tokens
    assert result.usage.cost_usd == pytest.approx(cost)
    assert about(chat)["agentsd.model.cost_usd"] == pytest.approx(cost)
    assert json.loads(about(chat)["mlflow.llm.cost"])["total_cost"] == pytest.approx(cost)


def test_every_span_with_an_address_has_a_port(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    play(tmp_path, [failed(500, "busy"), says("hi")])
    with_address = [about(span) for span in spans.get_finished_spans() if "server.address" in about(span)]
    assert len(with_address) == 4, "invoke_agent, chat, and its two attempts"
    assert all(isinstance(attributes["server.port"], int) for attributes in with_address)
