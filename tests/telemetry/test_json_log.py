"""Log records as JSON, from runs and from real servers."""

from __future__ import annotations

import asyncio
import json
import logging
import warnings
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from framework import Runtime, tool
from framework.telemetry.spans import JsonFormatter
from framework.testing import ScriptedModel, calls
from tests.support.commands import agentsd_process
from tests.support.projects import agent, write
from tests.support.served import Served, served

ONE = {"agents.d/one.yaml": agent("one", model="offline")}
SECRET = "sk-abcdefghijklmnop"
log = logging.getLogger("tests.json_log")


@pytest.fixture
def written() -> Iterator[StringIO]:
    """What the logger of this file writes, as JSON: no records from threads of other tests."""
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    log.addHandler(handler)
    yield stream
    log.removeHandler(handler)


def records(text: str) -> list[dict[str, Any]]:
    """The objects in a text, one a line."""
    return [json.loads(line) for line in text.splitlines()]


def test_a_record_is_one_line(written: StringIO) -> None:
    log.warning("a\nb %s", "\u2028 ü", extra={"agentsd": {"steps": 2, "agent": "one"}})
    (line,) = written.getvalue().removesuffix("\n").split("\n")
    found = json.loads(line)
    assert found.pop("time").endswith("+00:00")
    assert found == {
        "level": "warning", "logger": "tests.json_log", "message": "a\nb \u2028 ü", "steps": 2, "agent": "one",
    }  # fmt: skip


def test_secrets_are_masked_and_the_message_of_an_exception_is_left_out(written: StringIO) -> None:
    try:
        json.loads("what the user wrote")
    except ValueError:
        log.exception("failed with %s", SECRET, extra={"agentsd": {"url": f"https://x?token={SECRET}"}})
    (found,) = records(written.getvalue())
    assert (found["message"], found["url"]) == ("failed with ***", "https://x?token=***")
    assert found["exception"].startswith("JSONDecodeError\n")
    assert __file__ in found["exception"]
    assert "line 1 column 1" not in written.getvalue()
    assert SECRET not in written.getvalue()


def test_records_of_a_run_have_its_ids_also_from_threads_and_sub_agents(tmp_path: Path, written: StringIO) -> None:
    @tool(risk="low")
    def speak(n: str) -> str:
        """Log in a thread."""
        log.error("in a thread")
        return n

    @tool(risk="low")
    async def whisper(n: str) -> str:
        """Log in the event loop."""
        log.error("in the loop")
        return n

    files = {"agents.d/one.yaml": agent("one", sub_agents="[two]"), "agents.d/two.yaml": agent("two")}
    turns = (
        calls(("whisper", {"n": "1"}), ("agent.two", {"message": "go"})),
        calls(("speak", {"n": "1"}), prefix="s"),
        "inner",
        "ok",
    )

    async def main() -> list[str]:
        options: dict[str, Any] = {"tools": [speak, whisper], "store": f"sqlite:///{tmp_path}/state.db"}
        async with Runtime.open(
            write(tmp_path, files), models={"scripted": ScriptedModel(*turns)}, watch=False, **options
        ) as runtime:
            result = await runtime.run("go", agent="one")
            log.error("after the run")
            assert result.trace_id
            return [result.run_id, result.trace_id]

    ids = asyncio.run(main())
    found = {
        record["message"]: [record.get("run_id"), record.get("trace_id")] for record in records(written.getvalue())
    }
    assert found["in the loop"] == found["in a thread"] == ids
    assert found["after the run"] == [None, None]


# --- of a server


def output(server: Served) -> list[dict[str, Any]]:
    """All lines of a server, after it has stopped."""
    assert server.stop() == 0
    return records("\n".join([server.line, *server.output]))


@pytest.mark.parametrize("configured", ["option", "variable", "file"])
def test_every_line_of_a_server_is_json(tmp_path: Path, configured: str) -> None:
    write(tmp_path, {**ONE, "agentsd.yaml": "log: json\n"} if configured == "file" else ONE)
    environment = {"AGENTSD_LOG": "json"} if configured == "variable" else {}
    with served(tmp_path, *(["--log", "json"] if configured == "option" else []), environment=environment) as server:
        server.get("/agent/agents")
        server.get("/health")
        server.request("GET", "/agent/agents", headers={"origin": "https://example.com"})
        server.request("POST", f"/agent/{SECRET}?q={SECRET}")
        server.request("GET", f"/agent/conversations/a%2F{SECRET}")
        found = output(server)
    assert {"time", "level", "logger", "message"} <= set.intersection(*(set(record) for record in found))
    requests = [record for record in found if record["logger"] == "agentsd.requests"]
    fields = [{key: record.get(key) for key in ("method", "route", "status", "error", "key")} for record in requests]
    conversation = "/agent/conversations/{conversation_id}"
    assert fields == [
        {"method": "GET", "route": "/agent/agents", "status": 200, "error": None, "key": "local"},
        {"method": "GET", "route": "/agent/agents", "status": 403, "error": "access_denied", "key": None},
        {"method": "POST", "route": "unknown", "status": 404, "error": None, "key": None},
        {"method": "GET", "route": conversation, "status": 404, "error": "conversation_not_found", "key": "local"},
    ]
    assert all(isinstance(record["ms"], int) for record in requests)
    assert SECRET not in str(found)


def test_requests_are_not_logged_as_text(tmp_path: Path) -> None:
    with served(write(tmp_path, ONE)) as server:
        server.get("/agent/agents")
        assert server.stop() == 0
    assert not any("agent/agents" in line for line in server.output)


def test_an_error_that_ends_the_command_is_a_record(tmp_path: Path) -> None:
    write(tmp_path, ONE)
    done = agentsd_process("serve", "--log", "json", "--host", "0.0.0.0", cwd=tmp_path)
    (found,) = records(done.stderr)
    assert (done.returncode, done.stdout, found["level"], found["error"]) == (78, "", "error", "config_invalid")
    assert "set server.api_keys" in found["message"]
    done = agentsd_process("serve", "--log", "json", cwd=tmp_path, AGENTSD_SERVER__PORT="x")
    assert (done.returncode, records(done.stderr)[0]["error"]) == (78, "config_invalid")


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "message"),
    [
        (["--log", "xml"], {}, 2, "'xml' is not one of 'text', 'json'"),
        ([], {"AGENTSD_LOG": "JSON"}, 78, "AGENTSD_LOG: must be 'text' or 'json'"),
    ],
)
def test_an_unknown_format_is_reported(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], code: int, message: str
) -> None:
    done = agentsd_process("serve", *arguments, cwd=write(tmp_path, ONE), **environment)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr


def test_warnings_are_records_while_the_log_is_json(tmp_path: Path) -> None:
    plugin = "import warnings\n\nasync def setup(context):\n    warnings.warn('mind the gap')\n"
    tool_text = "\nfrom framework import tool\n\n@tool\ndef hi() -> str:\n    '''Say it.'''\n    return 'hi'\n"
    write(tmp_path, {**ONE, "plugins/say.py": plugin + tool_text})
    with served(tmp_path, "--log", "json") as server:
        found = output(server)
    assert any(record["logger"] == "py.warnings" and "mind the gap" in record["message"] for record in found)
    assert warnings.showwarning.__module__ == "warnings", "not in this process"
