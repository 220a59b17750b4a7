"""`agentsd runs tail`: follows runs of other processes, and neither begins nor ends them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from subprocess import PIPE

from tests.support.commands import ENVIRONMENT, agentsd
from tests.support.forks import Fork
from tests.support.projects import agent, write
from tests.support.stored_runs import approval_project, list_runs, start_paused_run, start_slow_run, store_queued_run


def tail(root: Path, *arguments: str) -> Fork:
    return Fork(["runs", "tail", *arguments], cwd=root, env=ENVIRONMENT, stdout=PIPE, stderr=PIPE, text=True)


def read_until(process: Fork, text: str) -> None:
    assert process.stderr
    while text not in (line := process.stderr.readline()):
        assert line, "the process ended early"


def test_the_run_of_another_process_is_followed_to_its_end(tmp_path: Path) -> None:
    with start_slow_run(tmp_path) as process, tail(tmp_path) as follower:
        read_until(follower, "→ slow.wait")
        write(tmp_path, {"flag": ""})
        read_until(follower, "✓ slow.wait")
        assert follower.wait(30) == 0
        assert follower.stdout
        assert follower.stdout.read() == "it came\n"
        assert process.wait(30) == 0


def test_leaving_does_not_end_the_run(tmp_path: Path) -> None:
    with start_slow_run(tmp_path) as process, tail(tmp_path) as follower:
        read_until(follower, "→ slow.wait")
        follower.send_signal(signal.SIGINT)
        assert follower.wait(30) == 130
        assert list_runs(tmp_path)[0]["status"] == "running"
        write(tmp_path, {"flag": ""})
        assert process.wait(30) == 0


def test_a_queued_run_is_followed_but_not_begun(tmp_path: Path) -> None:
    run_id = store_queued_run(tmp_path)
    with tail(tmp_path, run_id, "--events") as follower:
        read_until(follower, f"{run_id}  queued")
        assert list_runs(tmp_path)[0]["status"] == "queued"
        assert agentsd("runs", "cancel", run_id, cwd=tmp_path).returncode == 0
        assert follower.wait(30) == 130


def test_a_run_that_has_ended_or_waits_is_shown_at_once(tmp_path: Path) -> None:
    run_id = start_paused_run(approval_project(tmp_path))
    done = agentsd("runs", "tail", run_id, cwd=tmp_path)
    assert done.returncode == 3
    assert "waits for approval: echo" in done.stderr
    agentsd("runs", "decide", run_id, "--approve-all", cwd=tmp_path)
    done = agentsd("runs", "tail", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "hello\n")
    lines = agentsd("runs", "tail", "--events", cwd=tmp_path).stdout.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [*range(1, len(lines) + 1)]


def test_an_unknown_run_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")})
    done = agentsd("runs", "tail", "run_x", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no run 'run_x'; no runs are stored" in done.stderr
