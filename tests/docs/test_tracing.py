"""docs/tracing.md names just the spans, attributes, events and metrics that real runs emit."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from framework import Approve, ModelError, Respond, Runtime, tool
from framework.evals.runner import CaseRunner
from framework.evals.suite import Judgement, read_suite
from framework.llm.client import Delta, ModelInfo, ModelRequest
from framework.testing import ScriptedModel, Turn, calls
from framework.tools.tool import HostedOutput
from framework.types.messages import Usage
from framework.types.tool_servers import McpServer
from tests.support.cases import each
from tests.support.mcp_worlds import opened, over_http, raw
from tests.support.paths import ROOT, SUPPORT
from tests.support.plans import draft, step
from tests.support.projects import agent, write
from tests.support.routing import routing_reply

PAGE = (ROOT / "docs/tracing.md").read_text("utf-8")
NAMED = ("agent.step", "chat.attempt", "plan.step", "invoke_workflow", "invoke_agent", "execute_tool", "chat", "plan")
"""Spans whose name has a variable part."""
EVERY = "every span of a run"
OF_OTHERS = ("MCP ", "GET", "POST", "fetch")
"""Spans of the MCP SDK, of skills and of plugins."""
ELSEWHERE = {"gen_ai.prompt.name", "rpc.response.status_code"}
"""Attributes of MCP requests that these runs do not make: prompts, and errors of the protocol."""
CUT = "half an"
SETTINGS = """
telemetry: {content: full}
model_calls: {backoff: 0.001}
routing: {model: scripted}
"""


class Complete(ScriptedModel):
    """Reports everything that a provider can report; the answer `CUT` is cut by the output limit."""

    @property
    def info(self) -> ModelInfo:
        return replace(super().info, server_address="127.0.0.1", server_port=8080)

    async def stream(self, request: ModelRequest) -> Any:
        async for delta in super().stream(request):
            yield Delta(text=" ")
            usage = Usage(prompt_tokens=9, completion_tokens=2, total_tokens=11, cached_tokens=3, cache_write_tokens=2)
            reply = delta.reply and replace(
                delta.reply, usage=usage.model_copy(update={"cost_usd": 0.5}), response_id="r1"
            )
            if reply and reply.message.content == CUT:
                reply = replace(reply, finish_reason="length")
            yield replace(delta, reply=reply)


@tool(risk="low", idempotent=True, retries=1)
async def work(n: str) -> str:
    """Works."""
    if n == "fail":
        raise ValueError(n)
    return n * 4000 if n.startswith("x") else n


@tool(risk="low")
async def count(n: int) -> Any:
    """Counts, as the host of a skill would."""
    return HostedOutput(str(n), {"trace_id": "t1", "meta": {"cached": True}})


@tool(risk="high")
async def erase(n: str) -> str:
    """Erases."""
    return n


def section(heading: str) -> str:
    return PAGE.split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]


def ticked(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def table(text: str, head: str) -> list[list[str]]:
    """Return the rows of the table with this head."""
    rows = []
    for line in text.split(f"| {head} |", 1)[1].splitlines()[2:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def documented_spans() -> dict[str, set[str]]:
    return {
        name: {one for one in ticked(row[1]) if "." in one or "_" in one}
        for row in table(section("## Attributes"), "span")
        for name in (ticked(row[0]) or {EVERY})
    }


def general(name: str) -> str:
    """Return the name without its variable part."""
    return next((fixed for fixed in NAMED if name == fixed or name.startswith(f"{fixed} ")), name)


async def play(root: Path, *turns: Turn, messages: tuple[str, ...] = ("go",), **keys: str) -> None:
    """Run one conversation with a listener and approve its questions; then break a file."""
    files = {"agents.d/one.yaml": agent("one", **keys), "agents.d/two.yaml": agent("two")}
    write(root, {**files, "agentsd.yaml": SETTINGS, "prompts/one.j2": "Be good.\n"})
    models = {"scripted": Complete(*turns), "second": Complete("from the fallback")}
    async with Runtime.open(root, tools=[work, count, erase], models=models, watch=False) as runtime:
        for message in messages:
            chosen = None if message == "route me" else "one"
            async with runtime.stream(message, agent=chosen, conversation="c1", user="me") as stream:
                async for _ in stream:
                    pass
            result = await stream.result()
            if result.pending:
                skip = Respond(text="skip")
                answers = {question.id: skip if question.kind == "step" else Approve() for question in result.pending}
                await runtime.resume(result.run_id, answers, user="me")
        write(root, {"agents.d/one.yaml": agent("one", examples="[]"), "agents.d/two.yaml": "name: [\n"})
        await runtime.reload()


async def everything(root: Path) -> None:
    """Execute runs of every kind."""
    settings = "{temperature: 0.1, top_p: 0.9, max_tokens: 900, seed: 7}"
    down = ModelError("down", retryable=True)
    many = calls(*[("work", {"n": f"x{n}"}) for n in range(9)], ("work", {"n": "fail"}), ("nothing", {}))
    await play(root / "a", down, many, "ok", model_settings=settings, instructions="{template: one.j2}")
    await play(root / "b", ModelError("gone", unavailable=True), fallback_models="[second]")
    await play(root / "c", ModelError("no"))
    await play(root / "l", CUT)
    policy = "{allow: ['*'], deny: [work], ask: [count]}"
    await play(root / "d", calls(("work", {"n": "1"}), ("count", {"n": "5"})), "ok", skill_policy=policy)
    await play(root / "e", calls(("agent.two", {"message": "go"})), "inner", "ok", sub_agents="[two]")
    plan = draft(step("a"), {"id": "b", "description": "think", "depends_on": ["a"]})
    await play(root / "f", plan, "thought", "end", executor="plan", plan="{approval: always}")
    again = draft(step("a", parameters={"n": "fail"})), draft(step("c")), "end"
    await play(root / "g", *again, executor="plan")
    await play(root / "k", again[0], "end", executor="plan", plan="{on_failure: ask}")
    routed = {"routing": "{keywords: [route]}", "conversation": "{compress_at_tokens: 60}"}
    await play(root / "h", "word " * 200, "the summary", "ok", messages=("route me", "continue"), **routed)
    await play(root / "j", routing_reply("one"), "ok", messages=("route me",))
    await evaluated(root / "m")
    await servers(root)


async def evaluated(root: Path) -> None:
    """Run a test case with a judge."""
    cases = "cases: [{name: a, message: x, expect: {judge: {rubric: r, model: critic}}}]\n"
    write(root, {"agents.d/one.yaml": agent("one"), "agents.d/one.test.yaml": cases})
    write(root, {"agentsd.yaml": "telemetry: {content: full}\n"})
    critic = Complete(Judgement(reason="because", verdict="pass"))
    models = {"scripted": Complete()}
    async with Runtime.open(root, models=models, watch=False) as runtime:
        bench = CaseRunner(partial(Runtime.over, root, None), models={"critic": critic})
        [placed] = read_suite(runtime.catalog.current).cases
        assert (await bench.attempt(placed, runtime.catalog.current)).passed


async def servers(root: Path) -> None:
    """Connect to MCP servers: one that a run calls, and some that are unavailable."""
    configuration = write(root / "i", {"config.json": "{}\n"}) / "config.json"
    command = f'["{sys.executable}", "{SUPPORT / "mcp_raw.py"}", "{configuration}"]'
    source = {"plugins/servers.yaml": f"version: 1\nmcp_servers:\n  raw: {{command: {command}}}\n"}
    write(root / "i", source)
    await play(root / "i", calls(("mcp.raw.echo", {"n": 1}), ("mcp.raw.fail", {})), "ok")
    async with over_http() as (_, port), opened(McpServer(url=f"http://127.0.0.1:{port}/mcp")) as world:
        await world.call("add", a=1, b=2)
    async with opened(McpServer(url="http://127.0.0.1:9/mcp")):
        pass
    async with opened(raw(root, {"unlisted": True})):
        pass


def attributes_of(spans: Iterable[ReadableSpan]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for span in spans:
        if not span.name.startswith(OF_OTHERS):
            found[general(span.name)] |= {*(span.attributes or {})}
    return found


Emitted = tuple[tuple[ReadableSpan, ...], dict[str, tuple[str, set[str]]]]


@pytest.fixture
def emitted(tmp_path: Path, spans: InMemorySpanExporter, reader: InMemoryMetricReader) -> Emitted:
    """Emitted spans, and metrics with their unit and attributes."""
    asyncio.run(everything(tmp_path))
    data = reader.get_metrics_data()
    assert data
    found: dict[str, tuple[str, set[str]]] = {}
    for metric in (m for resource in data.resource_metrics for scope in resource.scope_metrics for m in scope.metrics):
        found[metric.name] = metric.unit or "", {key for p in metric.data.data_points for key in p.attributes or {}}
    return spans.get_finished_spans(), found


def names_are_those_that_runs_emit(emitted: Emitted) -> None:
    finished, metrics = emitted
    documented, found = documented_spans(), attributes_of(finished)
    general_ones = documented.pop(EVERY)
    undocumented = {name: own - general_ones - documented.get(name, set()) for name, own in found.items()}
    assert not any(undocumented.values()), undocumented
    assert documented.keys() == found.keys()
    missing = {name: own - found[name] for name, own in documented.items()}
    missing["mcp.list_tools"] -= {"server.address", "server.port"}  # the server of these runs is a process
    assert not any(missing.values()), missing
    assert not general_ones - set().union(*found.values())
    rows = {row[0].strip("`"): (row[1], ticked(row[2])) for row in table(section("## Metrics"), "metric")}
    metrics["mcp.client.session.duration"][1].add("error.type")  # no session of these runs breaks
    assert {name: (unit, own - ELSEWHERE) for name, (unit, own) in rows.items()} == metrics


def tree_is_the_one_that_runs_emit(emitted: Emitted) -> None:
    finished, _ = emitted
    by_id = {span.context.span_id: general(span.name) for span in finished}
    ours = [span for span in finished if not span.name.startswith(OF_OTHERS)]
    below = {(by_id.get(span.parent.span_id, "") if span.parent else "", general(span.name)) for span in ours}
    drawn, path = set(), [""]
    for line in section("## Spans").split("```")[1].strip().splitlines():
        name = line.lstrip("│├└─ ")
        depth = (len(line) - len(name)) // 2
        path = [*path[: depth + 1], general(name)]
        drawn.add((path[-2], path[-1]))
    in_prose = {("execute_tool", "invoke_agent")}
    below -= {("invoke_agent", "chat")}  # a sub-run's plan would have one
    assert below - in_prose == drawn


def events_and_links_are_those_that_runs_emit(emitted: Emitted) -> None:
    finished, _ = emitted
    rows = table(section("## Attributes"), "event")
    documented = {row[0].strip("`"): (ticked(row[1]), ticked(row[2])) for row in rows}
    found: dict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for span in finished:
        for event in span.events if not span.name.startswith(OF_OTHERS) else ():
            on, own = found[event.name]
            on.add(general(span.name))
            own.update(event.attributes or {})
    assert found == documented


@each(
    "check", [names_are_those_that_runs_emit, tree_is_the_one_that_runs_emit, events_and_links_are_those_that_runs_emit]
)
def test_the_page_says_what_runs_emit(emitted: Emitted, check: Callable[[Emitted], None]) -> None:
    check(emitted)
