"""Schemathesis sends requests that follow from the OpenAPI document of a server: valid, invalid, and in sequences.

It is in an environment of its own.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from framework.cli.init import copy_starter
from tests.support.cases import FACTOR
from tests.support.commands import ENVIRONMENT
from tests.support.paths import ROOT
from tests.support.projects import write
from tests.support.served import served

PROGRAM = ROOT / ".venv/schemathesis/bin/schemathesis"
INSTALLED = (ROOT / ".venv/schemathesis/.installed").exists()
pytestmark = pytest.mark.skipif(not INSTALLED, reason="no schemathesis: `make test` installs it with pip")
EXAMPLES = 5 * FACTOR
"""Generated requests of each route."""
ACCEPTED = "positive_data_acceptance"
"""The check that is left out: the document cannot say which agents, runs and conversations exist."""
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


def test_every_response_is_as_the_document_describes(tmp_path: Path) -> None:
    """No 5xx, no status, header, content type or body that the document does not describe, in any order of requests."""
    project = tmp_path / "project"
    project.mkdir()
    copy_starter(project)
    write(project, {"agentsd.yaml": 'store: {url: "memory:"}\n'})
    write(tmp_path, {"schemathesis.toml": CONFIG})
    with served(project) as server:
        options = ["--checks", "all", "--exclude-checks", ACCEPTED, "--continue-on-failure", "--no-color"]
        url = f"{server.url}/agent/openapi.json"
        done = subprocess.run(
            [
                PROGRAM,
                "run",
                url,
                *options,
                "--phases",
                PHASES,
                "--max-examples",
                str(EXAMPLES),
                "--generation-database",
                "none",
            ],
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert server.get("/ready")["ready"]
        assert server.stop() == 0
    assert not [line for line in server.output if "Traceback" in line or " failed: " in line]
