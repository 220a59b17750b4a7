"""`agentsd runs`: commands for stored runs, in real processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
import yaml

from framework import Runtime
from framework.cli.location import locate, open_project_store
from framework.testing import ScriptedModel, Turn, calls
from framework.types.state import Rating
from tests.support.clocks import wrong_by
from tests.support.commands import agentsd, read_until, terminal
from tests.support.paths import SUPPORT
from tests.support.projects import agent, write
from tests.support.stored_runs import (
    STORE,
    approval_project,
    list_runs,
    start_paused_run,
    start_slow_run,
    store_queued_run,
)


def begin(root: Path, *turns: Turn) -> str:
    """Store a run of a scripted model by a program; return its id."""

    async def main() -> str:
        models = {"scripted": ScriptedModel(*turns)}
        async with Runtime.open(root, models=models, store=STORE, watch=False) as runtime:
            return (await runtime.run("go")).run_id

    return asyncio.run(main())


# --- queued runs


def test_a_queued_run_is_listed_shown_and_cancelled(tmp_path: Path) -> None:
    run_id = store_queued_run(tmp_path)
    listed = agentsd("runs", "list", "--status", "queued", cwd=tmp_path).stdout.split()
    assert (listed[:3], listed[-3:]) == ([run_id, "queued", "one"], ["c#?", "hi", "there"])
    shown = agentsd("runs", "show", "last", cwd=tmp_path).stdout
    assert shown == f"{run_id}  queued\n  agent one  conversation c\n  waits for capacity\nyou: hi there\n"
    refused = agentsd("runs", "replay", "last", cwd=tmp_path)
    assert refused.stderr == f"error: run {run_id} is queued: it has not started\n"
    refused = agentsd("runs", "resume", "last", cwd=tmp_path)
    assert refused.stderr == f"error: run {run_id} waits in the queue and has not started: it starts by itself\n"
    assert agentsd("runs", "cancel", "last", cwd=tmp_path).stdout == f"{run_id} is cancelled\n"
    assert [run["status"] for run in list_runs(tmp_path)] == ["cancelled"]
    assert agentsd("run", "--conversation", "c", "hello", cwd=tmp_path).returncode == 0


# --- paused runs


def test_a_run_whose_process_was_killed_while_it_waited_is_approved_in_another_and_finishes(tmp_path: Path) -> None:
    approval_project(tmp_path)
    with terminal("run", "echo hello", cwd=tmp_path) as (process, master):
        read_until(master, "say what to change")
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
    (waiting,) = list_runs(tmp_path, "--status", "paused")
    shown = agentsd("runs", "show", waiting["run_id"], cwd=tmp_path).stdout
    assert "waits for approval: call_1  echo" in shown
    assert f"decide: agentsd runs decide {waiting['run_id']} --approve call_1" in shown
    done = agentsd("runs", "decide", waiting["run_id"], "--approve", "call_1", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert "✓ echo" in done.stderr
    decided = agentsd("runs", "show", "last", cwd=tmp_path).stdout
    assert re.search(r"^decided: call_1, [-0-9]+ [:0-9]+ UTC: approved$", decided, re.MULTILINE)
    (made,) = json.loads(agentsd("runs", "show", "last", "--json", cwd=tmp_path).stdout)["decisions"]
    assert (made["confirmation_id"], made["decision"], made["by"]) == ("call_1", {"type": "approve"}, None)
    assert [run["status"] for run in list_runs(tmp_path)] == ["completed"]


def test_in_a_pipe_a_run_prints_how_to_decide(tmp_path: Path) -> None:
    done = agentsd("run", "echo hello", cwd=approval_project(tmp_path))
    run_id = list_runs(tmp_path)[0]["run_id"]
    assert done.stderr.splitlines()[-2:] == [
        "waits for approval: echo (call_1): be careful",
        f"decide: agentsd runs decide {run_id} --approve call_1 "
        "(or --reject call_1; without either, on a terminal, you are asked)",
    ]
    assert agentsd("runs", "decide", "last", "--approve-all", cwd=tmp_path).stdout == "hello\n"


@pytest.mark.parametrize(
    ("options", "output"),
    [
        (["--reject", "call_1", "--reason", "not today"], "not today"),
        (["--edit", 'call_1={"text": "edited"}'], "edited"),
        (["--respond", "call_1=by hand"], "by hand"),
    ],
)
def test_a_call_is_rejected_edited_or_answered(tmp_path: Path, options: list[str], output: str) -> None:
    run_id = start_paused_run(approval_project(tmp_path))
    done = agentsd("runs", "decide", run_id, *options, "--json", cwd=tmp_path)
    result = json.loads(done.stdout)
    assert (done.returncode, done.stderr, result["status"]) == (0, "", "completed")
    assert output in result["output"]
    conversations = agentsd("conversations", "list", "--json", cwd=tmp_path)
    assert json.loads(conversations.stdout) == [], "a single run is not a conversation"


def test_at_a_terminal_decide_asks_for_each_decision(tmp_path: Path) -> None:
    run_id = start_paused_run(approval_project(tmp_path))
    with terminal("runs", "decide", run_id, cwd=tmp_path) as (process, master):
        assert "may it call echo?" in read_until(master, "say what to change")
        os.write(master, b"a\n")
        read_until(master, "hello")
        assert process.wait(30) == 0


def test_the_form_of_a_server_is_filled_in_by_options_and_at_a_terminal(tmp_path: Path) -> None:
    command = json.dumps([sys.executable, str(SUPPORT / "mcp_booking.py"), str(tmp_path / "log"), "older"])
    server = f"version: 1\nmcp_servers: {{air: {{command: {command}, elicitation: ask}}}}\n"
    clerk = agent("clerk", model="offline")
    write(
        tmp_path, {"plugins/air.yaml": server, "agents.d/clerk.yaml": clerk, "agentsd.yaml": f"store: {{url: {STORE}}}"}
    )
    asked = agentsd("run", "book the flight 'LX1'", cwd=tmp_path)
    assert asked.returncode == 3
    assert "agentsd runs decide" in asked.stderr
    assert "--value 'seat=…'" in asked.stderr
    refused = agentsd("runs", "decide", "last", "--value", "seet=window", cwd=tmp_path)
    assert "the form has no field 'seet'; did you mean seat?" in refused.stderr
    paused = agentsd("runs", "decide", "last", "--value", "seat=window", "--value", "bags=2", cwd=tmp_path)
    assert paused.returncode == 3
    assert "meal on LX1?" in paused.stderr
    with terminal("runs", "decide", "last", cwd=tmp_path) as (process, master):
        assert "vegan (yes or no; required)" in read_until(master, "[r]eject")
        os.write(master, b"f\nperhaps\n")
        assert "vegan: expected yes or no, got 'perhaps'" in read_until(master, "'perhaps'")
        os.write(master, b"no\n")
        assert process.wait(30) == 0
    assert (tmp_path / "log").read_text("utf-8") == 'LX1 [{"bags": 2, "seat": "window"}, {"vegan": false}]\n'


WRONG_DECISIONS = {
    "nothing is decided": (
        [],
        "nothing is decided: use --approve ID, --approve-all or --reject ID; open: call_1 (echo)",
    ),
    "an unknown id": (["--approve", "call_9"], "no pending decision call_9; pending: call_1"),
    "twice": (["--approve", "call_1", "--reject", "call_1"], "call_1 is decided twice on one command line"),
    "a reason for nothing": (["--approve", "call_1", "--reason", "x"], "--reason belongs to --reject ID"),
    "no JSON": (["--edit", "call_1={text"], "the arguments are not JSON"),
    "no object": (["--edit", "call_1=[1]"], "the arguments are not a JSON object"),
    "no id": (["--respond", "hello"], "write --respond ID=TEXT"),
    "another user's run": (["--approve", "call_1", "--by", "bob"], "there is no run"),
}


@pytest.mark.parametrize("case", WRONG_DECISIONS)
def test_a_wrong_decision_is_refused_and_the_run_still_waits(tmp_path: Path, case: str) -> None:
    options, message = WRONG_DECISIONS[case]
    run_id = start_paused_run(approval_project(tmp_path))
    done = agentsd("runs", "decide", run_id, *options, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert [run["status"] for run in list_runs(tmp_path)] == ["paused"]


def test_late_and_repeated_decisions_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    approval_project(tmp_path, runtime_policy="{confirm: {expires: 30m}}")
    run_id = start_paused_run(tmp_path)
    with monkeypatch.context() as an_hour_later:
        an_hour_later.setattr("framework.store.database.StoreClock", lambda: wrong_by(3600))
        assert list_runs(tmp_path)[0]["status"] == "paused", "listing a run does not resume it"
        late = agentsd("runs", "decide", run_id, "--approve-all", cwd=tmp_path)
    assert late.returncode == 2
    assert "call_1 expired at" in late.stderr
    approval_project(tmp_path)
    run_id = start_paused_run(tmp_path, "echo again")
    assert agentsd("runs", "decide", run_id, "--approve-all", cwd=tmp_path).returncode == 0
    again = agentsd("runs", "decide", run_id, "--approve", "call_1", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (
        2,
        f"error: run {run_id} is completed: no decision is pending\n",
    )


def test_an_unknown_run_is_an_error_with_the_latest_ones(tmp_path: Path) -> None:
    approval_project(tmp_path)
    for command in (["show"], ["decide"], ["resume"], ["cancel"], ["replay"], ["export"]):
        none = agentsd("runs", *command, "run_zzz", cwd=tmp_path)
        assert (none.returncode, none.stderr) == (2, "error: there is no run 'run_zzz'; no runs are stored\n")
    run_id = start_paused_run(tmp_path)
    some = agentsd("runs", "show", "run_zzz", "--json", cwd=tmp_path)
    error = json.loads(some.stdout)["error"]
    assert (some.returncode, error["code"]) == (2, "run_not_found")
    assert f"the latest: {run_id} (one, " in error["message"]
    assert agentsd("runs", "show", run_id[:10], cwd=tmp_path).stdout.startswith(run_id)
    start_paused_run(tmp_path)
    assert "runs begin with 'run_'" in agentsd("runs", "show", "run_", cwd=tmp_path).stderr


# --- runs that were interrupted, or are in progress elsewhere


def test_a_run_that_was_killed_in_a_call_is_listed_and_resumed(tmp_path: Path) -> None:
    with start_slow_run(tmp_path) as process:
        assert [run["status"] for run in list_runs(tmp_path)] == ["running"]
        busy = agentsd("runs", "resume", "last", cwd=tmp_path)
        assert busy.returncode == 2
        assert "is already in progress in another process" in busy.stderr
        process.kill()
        process.wait()
    (left,) = list_runs(tmp_path, "--status", "orphaned")
    assert 'slow.wait name="flag" (in progress)' in agentsd("runs", "show", left["run_id"], cwd=tmp_path).stdout
    write(tmp_path, {"flag": ""})
    done = agentsd("runs", "resume", left["run_id"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "it came\n"), done.stderr


def test_a_run_is_cancelled_from_another_process(tmp_path: Path) -> None:
    with start_slow_run(tmp_path) as process:
        done = agentsd("runs", "cancel", "last", cwd=tmp_path)
        assert done.returncode == 0
        assert "was asked to cancel it" in done.stdout
        assert process.wait(20) == 130
    again = agentsd("runs", "cancel", "last", cwd=tmp_path)
    assert (again.returncode, again.stdout.endswith("had already ended: cancelled\n")) == (1, True)


def test_a_paused_run_is_cancelled(tmp_path: Path) -> None:
    run_id = start_paused_run(approval_project(tmp_path))
    done = agentsd("runs", "cancel", run_id, "--json", cwd=tmp_path)
    assert json.loads(done.stdout) == {"run_id": run_id, "status": "cancelled", "was": "paused"}


# --- lists


def test_lists_are_filtered_and_tidy_in_a_pipe(tmp_path: Path) -> None:
    approval_project(tmp_path)
    assert agentsd("runs", "list", cwd=tmp_path).stdout == "no runs are stored\n"
    first = start_paused_run(tmp_path)
    agentsd("runs", "decide", first, "--approve-all", cwd=tmp_path)
    second = start_paused_run(tmp_path, "echo 'a\nb'")
    assert [run["run_id"] for run in list_runs(tmp_path)] == [second, first]
    assert [run["run_id"] for run in list_runs(tmp_path, "--limit", "1")] == [second]
    assert [run["run_id"] for run in list_runs(tmp_path, "--status", "completed", "--agent", "one")] == [first]
    assert list_runs(tmp_path, "--agent", "two") == []
    lines = agentsd("runs", "list", cwd=tmp_path).stdout.splitlines()
    assert [line.split()[:3] for line in lines] == [[second, "paused", "one"], [first, "completed", "one"]]
    assert lines[0].endswith("echo 'a b'")


def test_on_a_terminal_lists_fit_its_width(tmp_path: Path) -> None:
    start_paused_run(approval_project(tmp_path), "echo " + "long " * 60)
    with terminal("runs", "list", cwd=tmp_path) as (process, master):
        shown = read_until(master, "…")
        assert process.wait(30) == 0
    assert "status" in shown
    assert "paused" in shown
    written = [click.unstyle(line) for line in shown.splitlines()]
    assert max(map(len, written)) == 120


def test_prune_deletes_old_runs_and_prints_the_numbers(tmp_path: Path) -> None:
    approval_project(tmp_path)
    run_id = start_paused_run(tmp_path)
    assert agentsd("runs", "decide", run_id, "--approve-all", cwd=tmp_path).returncode == 0
    waits = start_paused_run(tmp_path, "echo more")
    assert agentsd("runs", "prune", cwd=tmp_path).stdout == "0 runs and 0 conversations deleted\n"
    dry = agentsd("runs", "prune", "--older-than", "1ms", "--dry-run", cwd=tmp_path)
    assert dry.stdout == "1 run and 0 conversations would be deleted\n"
    done = agentsd("runs", "prune", "--older-than", "1ms", "--json", cwd=tmp_path)
    assert json.loads(done.stdout) == {
        "runs": 1,
        "conversations": 0,
        "files": 0,
        "versions": 0,
        "freed_bytes": 0,
        "dry_run": False,
    }
    assert [run["run_id"] for run in list_runs(tmp_path)] == [waits]
    wrong = agentsd("runs", "prune", "--older-than", "soon", cwd=tmp_path)
    assert (wrong.returncode, "invalid duration" in wrong.stderr) == (2, True)


# --- conversations


def test_a_chat_continues_in_another_process_and_shows_earlier_turns(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")})
    first = agentsd("chat", "--conversation", "c1", cwd=tmp_path, stdin="echo hello\n")
    assert (first.returncode, first.stdout) == (0, "hello\n")
    assert "continue it: agentsd chat --conversation c1" in first.stderr
    second = agentsd("chat", "--conversation", "c1", cwd=tmp_path, stdin="echo again\n")
    assert "you: echo hello" in second.stderr
    assert "answered last in this conversation" in second.stderr
    shown = agentsd("conversations", "show", "c1", cwd=tmp_path).stdout
    assert shown.count("generation 1, run_") == 2, "each turn names its agent"
    data = json.loads(agentsd("conversations", "show", "c1", "--json", cwd=tmp_path).stdout)
    assert [turn["generation"] for turn in data["turns"]] == [1, 1]
    assert [message["content"] for message in data["messages"] if message["role"] == "user"] == [
        "echo hello",
        "echo again",
    ]


def test_a_chat_in_a_pipe_prints_the_pending_decision_of_its_conversation(tmp_path: Path) -> None:
    approval_project(tmp_path)
    agentsd("chat", "-c", "c1", cwd=tmp_path, stdin="echo hello\n")
    again = agentsd("chat", "-c", "c1", cwd=tmp_path, stdin="echo more\n")
    run_id = list_runs(tmp_path)[0]["run_id"]
    assert f"its last run waits for a decision: agentsd runs decide {run_id} --approve ID" in again.stderr
    assert (
        f"conversation 'c1' is busy: run {run_id} waits for a decision on echo: agentsd runs decide {run_id}"
        in again.stderr
    )


@pytest.mark.parametrize("form", ["messages", "openai", "anthropic", "gemini"])
def test_a_conversation_is_exported_and_imported_in_every_format(tmp_path: Path, form: str) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")})
    agentsd("chat", "-c", "c1", cwd=tmp_path, stdin="calculate 6 * 7\necho hello\n")
    out = agentsd("conversations", "export", "c1", "-f", form, "-o", "c1.json", cwd=tmp_path)
    assert out.returncode == 0
    assert agentsd("conversations", "export", "c1", "-o", "c1.json", cwd=tmp_path).returncode == 2, (
        "an existing file is not overwritten"
    )
    come = agentsd("conversations", "import", "c1.json", "-f", form, "-a", "one", "-c", "c2", cwd=tmp_path)
    assert (come.returncode, come.stdout) == (0, "c2\n"), come.stderr
    again = agentsd("conversations", "export", "c2", "-f", form, cwd=tmp_path)
    assert again.stdout == (tmp_path / "c1.json").read_text()
    assert agentsd("chat", "-c", "c2", cwd=tmp_path, stdin="echo and on\n").stdout == "and on\n"
    gone = agentsd("conversations", "delete", "c2", "--json", cwd=tmp_path)
    assert json.loads(gone.stdout) == {"conversation": "c2", "runs": 2}
    none = agentsd("conversations", "show", "c2", cwd=tmp_path)
    assert (none.returncode, none.stderr) == (2, "error: there is no conversation 'c2'; there are: c1\n")


BROKEN = {
    "missing": (None, "x.json cannot be read: No such file or directory"),
    "no JSON": ("[{", "x.json is not JSON"),
    "no messages": ('{"a": 1}', "x.json is not in the format 'messages': expected a list of messages"),
    "a call without an answer": (
        '[{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "1", "tool": "echo"}]}]',
        "x.json: call '1' of echo has no answer up to message 2",
    ),
    "nothing of a user": ('[{"role": "assistant", "content": "x"}]', "a conversation must begin with a user message"),
    "a message of 10 MB": (
        json.dumps([{"role": "user", "content": "x" * 10_000_000}]),
        "x.json: message 1 has 10000000 characters; the maximum is 1000000",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_no_part_of_a_broken_file_is_imported(tmp_path: Path, case: str) -> None:
    text, message = BROKEN[case]
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")})
    if text is not None:
        (tmp_path / "x.json").write_text(text)
    done = agentsd("conversations", "import", "x.json", "-a", "one", "-c", "c1", cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert json.loads(agentsd("conversations", "list", "--json", cwd=tmp_path).stdout) == []


# --- replay and export


def test_a_replay_without_edits_shows_no_differences(tmp_path: Path) -> None:
    approval_project(tmp_path)
    run_id = start_paused_run(tmp_path, "echo hello and echo 'two words'")
    for _ in range(2):
        agentsd("runs", "decide", run_id, "--approve-all", cwd=tmp_path)
    done = agentsd("runs", "replay", run_id, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{run_id}: nothing differs\n"), done.stdout


def test_a_replay_shows_what_an_edit_would_change(tmp_path: Path) -> None:
    approval_project(tmp_path, skill_policy="{allow: [echo, calculator]}", model="scripted")
    run_id = begin(tmp_path, calls(("echo", {"text": "secret"})), "it is secret")
    denying = '{deny: [{tool: echo, when: {text: "sec*"}}], allow: [echo]}'
    approval_project(tmp_path, skill_policy=denying, instructions="You are kind.")
    done = agentsd("runs", "replay", run_id, cwd=tmp_path)
    assert done.returncode == 1
    assert "tools offered to one\n  - calculator\n" in done.stdout
    assert "  -You are one.\n  +You are kind.\n" in done.stdout
    assert (
        'call c1 echo {"text": "secret"}\n  - success\n  + denied: the policy forbids this call: deny echo'
        in done.stdout
    )
    data = json.loads(agentsd("runs", "replay", run_id, "--json", cwd=tmp_path).stdout)
    assert [one["what"] for one in data["differences"]] == ["offered", "prompt", "call"]


def test_a_run_of_a_removed_agent_can_still_be_shown(tmp_path: Path) -> None:
    run_id = start_paused_run(approval_project(tmp_path))
    (tmp_path / "agents.d/one.yaml").rename(tmp_path / "agents.d/two.yaml")
    write(tmp_path, {"agents.d/two.yaml": agent("two", model="offline")})
    assert agentsd("runs", "show", run_id, cwd=tmp_path).returncode == 0
    replayed = agentsd("runs", "replay", run_id, cwd=tmp_path)
    assert (replayed.returncode, replayed.stderr) == (2, "error: no agent named 'one'; there are: two\n")
    done = agentsd("runs", "decide", run_id, "--approve-all", cwd=tmp_path)
    assert done.returncode == 0
    assert "agents.d/one.yaml no longer defines the agent 'one'" in done.stdout, "its calls are denied"


def test_a_run_is_exported_as_a_case_that_passes(tmp_path: Path) -> None:
    approval_project(tmp_path)
    run_id = start_paused_run(tmp_path, "echo hello and echo 'two words'")
    for options in (["--approve-all"], ["--reject", "call_2", "--reason", "no"]):
        agentsd("runs", "decide", run_id, *options, cwd=tmp_path)
    out = agentsd("runs", "export", run_id, "--as-test", "-o", "agents.d/one.test.yaml", cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    tested = agentsd("test", cwd=tmp_path)
    assert (tested.returncode, tested.stdout.splitlines()[-1]) == (0, "1 passed, 0 failed"), tested.stdout
    approval_project(tmp_path, skill_policy="{deny: [echo], allow: [calculator]}")
    assert agentsd("test", cwd=tmp_path).returncode == 1, "the case reports what an edit breaks"


def test_a_rating_is_listed_shown_and_exported(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline", skill_policy="{allow: [echo]}")})
    for message in ("echo one", "echo two"):
        assert agentsd("run", message, cwd=tmp_path).returncode == 0
    run_id = json.loads(agentsd("runs", "list", "--json", cwd=tmp_path).stdout)[0]["run_id"]

    async def rate() -> None:
        async with open_project_store(locate(str(tmp_path))) as store:
            await store.rate(run_id, Rating(value="down", comment="too\nshort", by="ann", at=datetime.now(UTC)))

    asyncio.run(rate())
    listed = json.loads(agentsd("runs", "list", "--rated", "down", "--json", cwd=tmp_path).stdout)
    assert [(one["run_id"], one["rating"]["comment"]) for one in listed] == [(run_id, "too\nshort")]
    assert "no such runs" in agentsd("runs", "list", "--rated", "up", cwd=tmp_path).stdout
    assert "rated down by ann: too" in agentsd("runs", "show", run_id, cwd=tmp_path).stdout
    assert json.loads(agentsd("runs", "show", run_id, "--json", cwd=tmp_path).stdout)["rating"]["by"] == "ann"
    body = json.loads(agentsd("runs", "export", run_id, "--with-rating", cwd=tmp_path).stdout)
    assert (body["rating"]["value"], body["messages"][0]["content"]) == ("down", "echo two")
    case = agentsd("runs", "export", run_id, "--as-test", cwd=tmp_path).stdout
    assert yaml.safe_load(case)["cases"][0]["note"] == "rated down: too\nshort"


def test_a_run_that_failed_before_its_first_answer_is_not_exported_as_a_case(tmp_path: Path) -> None:
    broken = agent("one", model="broken", runtime_policy="{timeout: 5s}")
    settings = "models: {broken: {model: openai/m, base_url: 'http://127.0.0.1:9/v1'}}\nmodel_calls: {max_retries: 0}\n"
    write(tmp_path, {"agents.d/one.yaml": broken, "agentsd.yaml": settings})
    assert agentsd("run", "hi", cwd=tmp_path).returncode == 1
    refused = agentsd("runs", "export", "last", "--as-test", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "it failed before a model replied" in refused.stderr


def test_a_pruned_turn_keeps_its_messages_and_cannot_be_replayed(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline", skill_policy="{allow: [echo]}")})
    agentsd("chat", "-c", "c1", cwd=tmp_path, stdin="echo one\n")
    assert agentsd("runs", "prune", "--older-than", "1ms", cwd=tmp_path).stdout.startswith("1 run ")
    for command in (["replay", "last"], ["export", "last", "--as-test"]):
        refused = agentsd("runs", *command, cwd=tmp_path)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "are left: its calls were pruned" in refused.stderr
    (first, *_) = json.loads(agentsd("runs", "export", "last", cwd=tmp_path).stdout)
    assert first["content"] == "echo one"


def test_export_writes_the_messages_of_a_run_and_of_earlier_turns(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")})
    agentsd("chat", "-c", "c1", cwd=tmp_path, stdin="echo one\necho two\n")
    data = json.loads(agentsd("runs", "export", "last", "--format", "openai", cwd=tmp_path).stdout)
    assert [message["content"] for message in data if message["role"] == "user"] == ["echo one", "echo two"]


def test_show_in_a_pipe_has_no_colours(tmp_path: Path) -> None:
    shown = agentsd("runs", "show", start_paused_run(approval_project(tmp_path)), cwd=tmp_path).stdout
    assert "\x1b" not in shown
