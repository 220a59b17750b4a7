"""Schemathesis sends requests that follow from the OpenAPI document of a server: valid, invalid, and in sequences.

It is in an environment of its own.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from framework.cli.init import copy_starter
from tests.support.cases import FACTOR
from tests.support.commands import ENVIRONMENT
from tests.support.paths import ROOT
from tests.support.projects import write
from tests.support.served import Served, served

PROGRAM = ROOT / ".venv/schemathesis/bin/schemathesis"
INSTALLED = (ROOT / ".venv/schemathesis/.installed").exists()
pytestmark = pytest.mark.skipif(not INSTALLED, reason="no schemathesis: `make test` installs it with pip")
EXAMPLES = 2 if FACTOR == 1 else 5 * FACTOR
"""Generated requests of each route."""
ACCEPTED = "positive_data_acceptance"
"""The check of a run of its own, in which texts are ASCII: the document cannot describe all that is not printable."""
PHASES = "examples,fuzzing,stateful" + (",coverage" if FACTOR > 1 else "")
"""`coverage` sends hundreds of requests, whatever the number of examples."""
CONFIG = f"""
request-timeout = 20.0

[[operations]]
include-path = "/agent/events"
request-timeout = 1.0
enabled = {"true" if FACTOR > 1 else "false"}
"""
"""A stream without an end is read for one second, and only if there are many cases."""
REFUSALS = {
    **dict.fromkeys(
        (
            "/agent/agents",
            "/agent/agents/{name}/history",
            "/agent/approvals",
            "/agent/approvals/decided",
            "/agent/config/files",
            "/agent/config/history",
            "/agent/conversations",
            "/agent/memory",
            "/agent/runs/{run_id}/trace",
        ),
        ("400", "`cursor` is no entry of the list, or another one than its older name"),
    ),
    "/agent/runs": ("400", "the same; without a message, the last of `messages` is not the user's"),
    "/agent/runs/{run_id}/test-case": ("400", "the run failed before a model replied"),
    "/agent/runs/{run_id}/decisions": ("400", "the run waits for no such decision"),
    "/agent/runs/{run_id}/grant-preview": ("400", "the run waits for no such decision"),
    "/agent/conversations/{conversation_id}/fork": ("400", "a fork has exactly one of `before`, `after`, `messages`"),
    "/agent/usage": ("400", "the period ends before it begins or has too many steps; the time zone is unknown"),
    "/agent/agents/{name}/prompt": ("400", "the agent has no such input"),
    "/agent/chat": ('400, "5xx"', "without a message, the last of `messages` is not the user's; the run fails"),
    "/agui/{agent}": ("400", "the last of `messages` is not the user's; the fields of each role differ"),
    "/agent/config/check": ("400, 403", "the project has no file of this name that can be edited over HTTP"),
    "/agent/config/files/{path}": ("400, 428", "one of two headers is needed"),
}
"""Statuses of requests that fit the document, by route, and what a schema cannot say about them."""
ACCEPTING = f"""
request-timeout = 20.0
generation.codec = "ascii"
checks.{ACCEPTED}.expected-statuses = ["2xx", 404, 409, 412]

[[operations]]
include-path = "/agent/events"
enabled = false
""" + "".join(
    f"""
[[operations]]
include-path = "{path}"
checks.{ACCEPTED}.expected-statuses = ["2xx", 404, 409, 412, {statuses}]
"""
    for path, (statuses, _) in REFUSALS.items()
)
"""404, 409 and 412: the document cannot say which agents, runs and versions of files exist."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    project = tmp_path / "project"
    project.mkdir()
    copy_starter(project)
    write(project, {"agentsd.yaml": 'store: {url: "memory:"}\n'})
    with served(project) as server:
        yield server
        assert server.get("/ready")["ready"]
        assert server.stop() == 0
    assert not [line for line in server.output if "Traceback" in line or " failed: " in line]


def run_schemathesis(folder: Path, server: Served, config: str, *options: str) -> None:
    write(folder, {"schemathesis.toml": config})
    always = ["--continue-on-failure", "--no-color", "--max-examples", str(EXAMPLES), "--generation-database", "none"]
    done = subprocess.run(
        [PROGRAM, "run", f"{server.url}/agent/openapi.json", *always, *options],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_response_is_as_the_document_describes(tmp_path: Path, server: Served) -> None:
    """No 5xx, no status, header, content type or body that the document does not describe, in any order of requests."""
    options = ["--checks", "all", "--exclude-checks", ACCEPTED, "--phases", PHASES]
    run_schemathesis(tmp_path, server, CONFIG, *options)


def test_requests_that_fit_the_document_are_accepted(tmp_path: Path, server: Served) -> None:
    options = ["--checks", ACCEPTED, "--mode", "positive", "--phases", "examples,fuzzing"]
    run_schemathesis(tmp_path, server, ACCEPTING, *options)
