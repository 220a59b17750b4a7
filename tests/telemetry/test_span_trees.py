"""Golden span trees of tool servers, denials, decisions, reloads and links."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from framework import Approve, Reject, RunResult, Runtime, tool
from framework.testing import ScriptedModel, calls
from tests.conftest import tree
from tests.support.paths import SUPPORT
from tests.support.projects import agent, write
from tests.support.site import answer, site


@tool(risk="low")
async def work(n: str) -> str:
    """Works."""
    return f"did {n}"


@tool(risk="high")
async def erase(n: str) -> str:
    """Erases."""
    return f"erased {n}"


def run(root: Path, model: ScriptedModel, **options: Any) -> RunResult:
    """Run once and answer its questions with `decision`."""
    decision = options.pop("decision", None)

    async def main() -> RunResult:
        async with Runtime.open(root, tools=[work, erase], models={"scripted": model}, watch=False) as runtime:
            result = await runtime.run("go", agent="one", **options)
            if decision:
                result = await runtime.resume(result.run_id, {question.id: decision for question in result.pending})
            return result

    return asyncio.run(main())


def of_runs(spans: InMemorySpanExporter) -> tuple[ReadableSpan, ...]:
    """Return the spans of runs only."""
    roots = ("config.", "mcp.")
    outside = {s.context.trace_id for s in spans.get_finished_spans() if s.name.startswith(roots)}
    return tuple(span for span in spans.get_finished_spans() if span.context.trace_id not in outside)


def named(spans: InMemorySpanExporter, name: str) -> list[dict[str, Any]]:
    """Return the attributes of all spans of a name, in the order of their start."""
    found = sorted(spans.get_finished_spans(), key=lambda span: span.start_time or 0)
    return [dict(span.attributes or {}) for span in found if span.name == name or span.name.startswith(f"{name} ")]


def test_a_call_of_an_mcp_server_and_of_a_skill(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    config_file = write(tmp_path, {"config.json": "{}\n"}) / "config.json"

    async def main() -> None:
        pages = {"/skills/echo/invoke": answer('{"success": true, "output": "hi"}', "content-type: application/json")}
        async with site(pages) as served:
            servers = f"""
                version: 1
                mcp_servers:
                  raw: {{command: ["{sys.executable}", "{SUPPORT / "mcp_raw.py"}", "{config_file}"]}}
                skill_hosts:
                  files: {{url: "{served.url}", skills: [{{id: echo, description: Says it.}}]}}
                """
            write(tmp_path, {"agents.d/one.yaml": agent("one"), "plugins/servers.yaml": servers})
            model = ScriptedModel(
                calls(("mcp.raw.echo", {"n": 1}), ("mcp.raw.fail", {}), ("skill.files.echo", {})), "ok"
            )
            async with Runtime.open(tmp_path, models={"scripted": model}, watch=False) as runtime:
                await runtime.run("go", agent="one")

    asyncio.run(main())
    lines = tree(of_runs(spans)).splitlines()
    assert lines[:5] == [
        "invoke_workflow one",
        "  agent.route",
        "  invoke_agent one",
        "    agent.step 1",
        "      chat scripted",
    ]
    assert sorted(lines[5:11:2]) == [
        "      execute_tool mcp.raw.echo",
        "      execute_tool mcp.raw.fail",
        "      execute_tool skill.files.echo",
    ]
    assert set(lines[6:11:2]) == {
        "        MCP send tools/call echo",
        "        MCP send tools/call fail",
        "        POST",
    }
    (failed,) = named(spans, "execute_tool mcp.raw.fail")
    about = ("error.type", "mcp.method.name", "agentsd.tool.server", "agentsd.tool.source")
    assert [failed[name] for name in about] == ["tool_error", "tools/call", "raw", "mcp"]
    (sent,) = named(spans, "POST")
    assert (sent["http.response.status_code"], sent["server.address"]) == (200, "127.0.0.1")
    assert str(sent["url.full"]).endswith("/skills/echo/invoke")
    kinds = {span.name: span.kind for span in spans.get_finished_spans()}
    assert kinds["POST"] is kinds["MCP send tools/call echo"] is SpanKind.CLIENT
    roots = {span.name for span in spans.get_finished_spans() if span.parent is None}
    assert roots == {"invoke_workflow one"}, "a start and connections that worked leave no trace"


def test_runs_link_to_the_trace_of_their_reload(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one"), "agents.d/two.yaml": agent("two")})

    async def main() -> None:
        model = ScriptedModel("ok", "ok")
        async with Runtime.open(tmp_path, models={"scripted": model}, watch=False) as runtime:
            await runtime.run("go", agent="one")
            write(tmp_path, {"agents.d/one.yaml": agent("one", examples="[]"), "agents.d/two.yaml": "name: [\n"})
            await runtime.reload()
            await runtime.run("go", agent="one")

    asyncio.run(main())
    finished = sorted(spans.get_finished_spans(), key=lambda span: span.start_time or 0)
    reloads = [span for span in finished if span.name == "config.reload"]
    runs = [span for span in finished if span.name == "invoke_workflow one"]
    assert [span.parent for span in (*reloads, *runs)] == [None] * 3
    (reload,) = reloads
    assert [[link.context.span_id for link in span.links] for span in runs] == [[], [reload.context.span_id]]
    assert [(span.attributes or {})["agentsd.config.generation"] for span in runs] == [1, 2]
    second = dict(reload.attributes or {})
    assert (second["agentsd.config.trigger"], second["agentsd.config.outcome"]) == ("api", "partial")
    assert (second["agentsd.config.previous_generation"], second["agentsd.config.generation"]) == (1, 2)
    (broken,) = reload.events
    assert dict(broken.attributes or {})["agentsd.config.path"] == "agents.d/two.yaml"
    assert tree((reload, *(s for s in finished if s.name == "config.build"))) == "config.reload\n  config.build"


def test_calls_that_were_not_executed_are_in_the_tree_with_a_reason(
    tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    policy = "{deny: [work], allow: [erase]}"
    write(tmp_path, {"agents.d/one.yaml": agent("one", skill_policy=policy, runtime_policy="{risk_level: high}")})
    model = ScriptedModel(calls(("work", {"n": "1"}), ("wrok", {"n": "1"}), ("erase", {"n": "1"})), "ok")
    run(tmp_path, model, decision=Reject(reason="no"))
    (denied,) = named(spans, "execute_tool work")
    assert (denied["error.type"], denied["agentsd.tool.outcome"]) == ("policy_denied", "denied")
    assert str(denied["agentsd.tool.rule"]) == "deny work"
    (unknown,) = named(spans, "execute_tool unknown")
    assert (unknown["error.type"], unknown["agentsd.tool.outcome"]) == ("invalid_call", "error")
    pending, rejected = named(spans, "execute_tool erase")
    assert [one["agentsd.tool.outcome"] for one in (pending, rejected)] == ["waiting", "rejected"]
    assert "error.type" not in {*pending, *rejected}, "a rejection is not a failure"
    failed = {span.name for span in spans.get_finished_spans() if span.status.status_code is StatusCode.ERROR}
    assert failed == {"execute_tool work", "execute_tool unknown"}


def test_the_parts_of_a_paused_run(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", runtime_policy="{risk_level: high}")})
    result = run(tmp_path, ScriptedModel(calls(("erase", {"n": "1"})), "ok", tokens=10), decision=Approve())
    assert tree(of_runs(spans)) == dedent("""\
        invoke_workflow one
          agent.route
          invoke_agent one
            agent.step 1
              chat scripted
              execute_tool erase
        invoke_workflow one
          invoke_agent one
            agent.step 1
              execute_tool erase
            agent.step 2
              chat scripted""")
    runs = [span for span in spans.get_finished_spans() if span.name == "invoke_workflow one"]
    assert all(span.status.status_code is StatusCode.UNSET for span in runs)
    kinds = [[dict(link.attributes or {})["agentsd.link.type"] for link in span.links] for span in runs]
    assert kinds == [[], ["resume"]]
    assert runs[1].links[0].context.span_id == runs[0].context.span_id
    every = [dict(span.attributes or {}) for span in of_runs(spans)]
    assert {one["session.id"] for one in every} == {one["agentsd.run.id"] for one in every} == {result.run_id}
    assert not [one for one in every if "gen_ai.conversation.id" in one]
    parts = [one["agentsd.usage.input_tokens"] for one in named(spans, "invoke_agent one")]
    assert sum(parts) == result.usage.prompt_tokens, "each part has its own usage"
    assert [one["agentsd.step.kind"] for one in named(spans, "agent.step") if "agentsd.step.kind" in one] == [
        "action",
        "final",
    ]


def test_agent_and_request_attributes_are_recorded(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    settings = "{temperature: 0.2, max_tokens: 50, seed: 7}"
    write(
        tmp_path,
        {
            "agents.d/one.yaml": agent("one", model_settings=settings, instructions="{template: one.j2}"),
            "prompts/one.j2": "Be good.\n",
        },
    )
    run(tmp_path, ScriptedModel("ok"))
    (chat,) = named(spans, "chat scripted")
    expected = {"temperature": 0.2, "max_tokens": 50, "seed": 7, "model": "scripted"}
    assert {name: chat[f"gen_ai.request.{name}"] for name in expected} == expected
    (one,) = named(spans, "invoke_agent one")
    assert (one["gen_ai.prompt.name"], one["agentsd.policy.risk"]) == ("one.j2", "medium")
    assert (one["agentsd.executor"], one["agentsd.protocol"]) == ("react", "auto")
    assert one["agentsd.budget.tokens.limit"] == 50_000
    assert len(str(one["agentsd.prompt.digest"])) == len(str(one["agentsd.agent.digest"])) == 16
    (route,) = named(spans, "agent.route")
    assert (route["agentsd.route.mode"], route["agentsd.route.candidates"]) == ("explicit", 1)
