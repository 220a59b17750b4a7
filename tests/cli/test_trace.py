"""Traces on the command line, without any backend."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.commands import agentsd, agentsd_process
from tests.support.otlp_sink import sink
from tests.support.projects import agent, write
from tests.support.stored_runs import approval_project, start_paused_run


def test_a_run_is_shown_with_its_waterfall(tmp_path: Path) -> None:
    run_id = start_paused_run(approval_project(tmp_path))
    agentsd("runs", "decide", run_id, "--approve-all", cwd=tmp_path)
    shown = agentsd("runs", "show", "last", cwd=tmp_path).stdout
    lines = [line.split("█")[0].split("▒")[0].rstrip() for line in shown.splitlines()]
    start = lines.index("invoke_workflow one")
    before = [
        "invoke_workflow one",
        "  agent.route",
        "  invoke_agent one",
        "    agent.step 1",
        "      chat offline",
        "      execute_tool echo",
    ]
    assert lines[start : start + 6] == before
    assert lines[start + 6].endswith(" later")
    assert lines[start + 7 : start + 11] == [before[0], before[2], before[3], before[5]]
    assert "waiting_confirmation" in shown
    assert "tokens" in shown


def test_a_trace_as_json_is_whole(tmp_path: Path) -> None:
    agentsd("run", "echo hello", cwd=write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")}))
    run = json.loads(agentsd("runs", "show", "last", "--json", cwd=tmp_path).stdout)
    assert run["status"] == "completed"
    names = [span["name"] for span in run["spans"]]
    assert names[0] == "invoke_workflow one"
    assert {span["trace_id"] for span in run["spans"]} == {run["trace_id"]}
    exported = json.loads(agentsd("runs", "show", "last", "--otlp-json", cwd=tmp_path).stdout)
    sent = exported["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert [span["name"] for span in sent] == names
    assert all(span["kind"] in (1, 3) for span in sent)


def test_traces_of_resumed_runs_are_sent(tmp_path: Path) -> None:
    run_id = start_paused_run(approval_project(tmp_path))
    with sink() as collector:
        write(tmp_path, {"agentsd.yaml": f"telemetry: {{otlp_endpoint: '{collector.url}'}}\n"})
        # In a process of its own, as a provider of traces can be set only once, and other tests need theirs.
        assert agentsd_process("runs", "decide", run_id, "--approve-all", cwd=tmp_path).returncode == 0
    (root,) = [span for span in collector.spans if span.name == "invoke_workflow one"]
    assert {link.attributes[0].value.string_value for link in root.links} == {"resume"}


def test_a_trace_that_is_not_stored_is_missed_with_the_reason(tmp_path: Path) -> None:
    files = {"agentsd.yaml": "telemetry: {store_traces: false}\n", "agents.d/one.yaml": agent("one", model="offline")}
    done = agentsd("run", "--trace", "echo hello", cwd=write(tmp_path, files))
    assert done.stderr.endswith("no trace is stored, because telemetry.store_traces is false in agentsd.yaml\n")
    run = json.loads(agentsd("runs", "show", "last", "--json", cwd=tmp_path).stdout)
    assert (run["status"], run["spans"]) == ("completed", [])
