"""Secrets are masked in output of runs, files and the command line; content is not logged."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from framework import Runtime, events, tool
from framework.cli.main import main as agentsd
from framework.telemetry.redact import MaskingFormatter, safe_traceback
from framework.testing import ScriptedModel
from framework.testing import calls as scripted_calls
from framework.types.events import wire as on_the_wire
from framework.types.redact import MASK, redact, redact_data
from framework.types.tool_servers import McpServer
from tests.support.cases import cases
from tests.support.projects import agent, write
from tests.support.wire import calls, failed, says, wire_server


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("key sk-abcdef1234567890.", "key ***."),
        ("sk_live_abcdefgh12", "***"),
        ("ghp_" + "a1" * 18 + " github_pat_" + "a_1" * 10, "*** ***"),
        ("AKIAABCDEFGHIJKLMNOP/ASIAABCDEFGHIJKLMNOP", "***/***"),
        ("eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.c2lnbmF0dXJl", "***"),
        ("https://me:hunter2@host/x https://tok123@host", "https://***@host/x https://***@host"),
        ("Authorization: Bearer abcdefgh", "Authorization: ***"),
        ("authorization: Basic dXNlcjpwYXNz", "authorization: ***"),
        ("then Bearer abcdefgh, please", "then Bearer ***, please"),
        ("OPENAI_API_KEY=abc123 accessToken: xyz", "OPENAI_API_KEY=*** accessToken: ***"),
        ('{"password": "with a space", "a": 1}', '{"password": "***", "a": 1}'),
        ("{'client_secret': 'abc', 'a': 1}", "{'client_secret': '***', 'a': 1}"),
        (r'"{\"api_key\": \"verysecret\"}"', r'"{\"api_key\": \"***\"}"'),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nafter", "***\nafter"),
        ("x-api-key: abc\nnext: line", "x-api-key: ***\nnext: line"),
    ],
)
def test_llm02_only_text_that_looks_like_a_secret_is_masked(text: str, masked: str) -> None:
    assert redact(text) == masked
    assert redact(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "needs an API key: set OPENAI_API_KEY, or use model: offline",
        "max_total_tokens reached: 50 of 40 (set at agents.d/x.yaml:3)",
        "max_tokens: 2000, tokens: 400",
        "'token' is undefined",
        "api_key: ${OPENAI_API_KEY}",
        "mailto:a@b.de, http://h/x@y",
        "the password is wrong; ask for another",
        "deny orders.delete_* (agents.d/a.yaml:7): not today",
    ],
)
def test_text_without_secrets_is_unchanged(text: str) -> None:
    assert redact(text) == text


def test_llm02_values_under_a_secrets_name_are_masked_at_any_depth_and_others_unchanged() -> None:
    data = {"apiKey": "a", "n": [{"db_password": "b", "to": "c"}], "max_tokens": 5, "token": 0, "author": "me"}
    masked = {"apiKey": MASK, "n": [{"db_password": MASK, "to": "c"}], "max_tokens": 5, "token": 0, "author": "me"}
    assert redact_data(data) == masked
    assert data["apiKey"] == "a"


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@cases(100)
@given(data=JSON, name=st.sampled_from(["token", "X-Api-Key", "dbPassword", "authorization", "client_secret"]))
def test_llm02_masking_keeps_the_shape_of_data_and_never_the_secret(data: Any, name: str) -> None:
    given_data = {"data": data, name: "canary-1", "text": f"{name}: canary-2", "deep": [{name: ["canary-3"]}]}
    masked = redact_data(given_data)
    assert "canary" not in json.dumps(masked)
    assert masked.keys() == given_data.keys()
    assert redact_data(masked) == masked


@cases(100)
@given(text=st.text(alphabet="sk-_:/@ \"'=abctokenBearyJ.*\\", max_size=60))
def test_masking_twice_equals_masking_once(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


def test_llm02_log_records_are_masked_and_tracebacks_name_the_line_without_the_message() -> None:
    formatter = MaskingFormatter("%(message)s")
    try:
        raise ValueError("token=canary")
    except ValueError as error:
        info, where = (type(error), error, error.__traceback__), safe_traceback(error)
    record = logging.LogRecord("x", logging.ERROR, "x.py", 1, "with %s", ("sk-canary1234567890",), info)
    text = formatter.format(record)
    assert "with ***" in text
    assert "ValueError: token=***" in text
    assert "canary" not in text
    assert where.startswith("ValueError\n")
    assert "test_redact.py" in where


# --- canaries

KEYS = {
    place: f"sk-canary-{place}-1234567890"
    for place in ("setting", "argument", "output", "exception", "plugin", "template", "hook", "provider", "header")
}
PLAIN = {place: f"plaincanary{place}" for place in ("argument", "output", "exception", "hook", "message", "answer")}

FILES = {
    "agents.d/one.yaml": agent("one", model="local", instructions="{template: one.j2}", hooks="{after_run: [h.check]}"),
    "agents.d/two.yaml": agent(
        "two", model="local", instructions="{template: two.j2}", inputs="{who: {type: string, default: name}}"
    ),
    "agents.d/three.yaml": agent("three", model="local", instructions="{template: bad.j2}"),
    "prompts/one.j2": "You are one.",
    "prompts/two.j2": "{{ {'name': 1}[who] }}",
    "prompts/bad.j2": f"{{# token: {KEYS['template']} #}}{{{{ {{'a': 1}}['{KEYS['template']}'] }}}}",
    "plugins/broken.py": f"KEY = '{KEYS['plugin']}'; raise RuntimeError('refused: {KEYS['plugin']}')\n",
    "plugins/out.yaml": """
        version: 1
        mcp_servers: {docs: {url: "http://127.0.0.1:9/mcp", headers: {authorization: "Bearer ${CANARY_HEADER}"}}}
        skill_hosts: {files: {url: "http://127.0.0.1:9", headers: {x-key: "${CANARY_HEADER}"}, discover: true}}
        """,
    "plugins/h.py": f"""
        from framework import hook
        @hook
        def check(context, output):
            raise ValueError("{KEYS["hook"]} " + "plain" + "canaryhook" + output)
        """,
}


def project(root: Path, url: str) -> Path:
    settings = f"models: {{local: {{model: openai/test, base_url: '{url}', api_key: '${{CANARY_KEY}}'}}}}\n"
    return write(root, FILES | {"agentsd.yaml": settings})


def leaked(text: str, canaries: dict[str, str]) -> list[str]:
    return [place for place, canary in canaries.items() if canary in text or canary[3:] in text]


@pytest.mark.hostile(10)
def test_llm02_spans_and_logs_contain_no_canary_and_no_output_contains_a_secret(
    tmp_path: Path, spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_KEY", KEYS["setting"])
    monkeypatch.setenv("CANARY_HEADER", KEYS["header"])
    caplog.set_level(logging.DEBUG, logger="framework")
    caplog.set_level(logging.DEBUG, logger="agentsd")

    @tool(risk="low")
    async def work(key: str, fails: bool) -> str:
        """Work."""
        if fails:
            raise RuntimeError(f"{KEYS['exception']} {PLAIN['exception']} {key}")
        return f"{KEYS['output']} {PLAIN['output']}"

    given_arguments = {"key": f"{KEYS['argument']} {PLAIN['argument']}"}
    answers = [
        calls(("work", {**given_arguments, "fails": True}), ("work", {**given_arguments, "fails": False})),
        says(PLAIN["answer"]),
        failed(500, f"no: {KEYS['provider']} {KEYS['setting']}"),
    ]
    output: list[dict[str, Any]] = []

    async def main() -> list[dict[str, Any]]:
        async with wire_server(answers) as server:
            root = project(tmp_path, server.url)
            async with Runtime.open(root, tools=[work], watch=False) as runtime:
                for agent_name, inputs in (("one", {}), ("two", {}), ("two", {"who": KEYS["argument"]})):
                    async with runtime.stream(PLAIN["message"], agent=agent_name, inputs=inputs) as stream:
                        output.extend([on_the_wire(event) async for event in stream])
                output.extend(problem.model_dump() for problem in runtime.catalog.current.problems)
            return server.requests

    requests = asyncio.run(main())
    everything = {**KEYS, **{f"plain {place}": canary for place, canary in PLAIN.items()}}
    assert leaked("\n".join(span.to_json() for span in spans.get_finished_spans()), everything) == []
    assert "h.py" in caplog.text
    assert leaked(caplog.text, everything) == []

    shown = [event for event in output if event.get("event") not in ("tool_result",)]
    assert leaked(json.dumps(shown), KEYS) == []
    errors = [event for event in output if event.get("event") == "tool_result" and event["status"] == "error"]
    assert len(errors) == 1
    assert leaked(json.dumps(errors), KEYS) == []
    assert PLAIN["exception"] in errors[0]["result"], "text without secrets is not masked"
    assert sum(event.get("event") == "error" for event in output) == 2
    assert {problem["path"] for problem in output if "severity" in problem} >= {
        "plugins/broken.py",
        "plugins/out.yaml",
        "prompts/bad.j2",
    }

    (failure, success) = [message["content"] for message in requests[1]["messages"] if message["role"] == "tool"]
    assert leaked(failure, KEYS) == []
    assert leaked(success, KEYS) == ["output"], "a result is data, so the model sees it unmasked"
    assert KEYS["setting"] not in json.dumps(requests)


@pytest.mark.hostile(10)
@pytest.mark.parametrize(
    "arguments",
    [["check"], ["run", "-a", "one", "hi"], ["run", "--json", "-a", "gone", "hi"], ["tools", "list"]],
    ids=lambda arguments: arguments[0],
)
def test_llm02_the_command_line_shows_no_secret_of_broken_files(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("CANARY_KEY", KEYS["setting"])
    monkeypatch.setenv("CANARY_HEADER", KEYS["header"])
    monkeypatch.chdir(project(tmp_path, "http://127.0.0.1:9/v1"))
    with pytest.raises(SystemExit):
        agentsd(arguments)
    out, err = capfd.readouterr()
    assert out + err
    assert leaked(out + err, KEYS) == []
    if arguments[0] != "tools":
        assert MASK in out + err, "the mask shows that there is a secret"


@pytest.mark.hostile(10)
def test_llm02_headers_and_variables_of_a_source_are_never_shown() -> None:
    source = McpServer(url="http://h/mcp", headers={"x": KEYS["header"]})
    assert leaked(f"{source!r} {source} {source.model_dump_json()}", KEYS) == []


def test_arguments_of_a_tool_are_never_masked(tmp_path: Path) -> None:
    received: list[str] = []

    @tool(risk="low")
    async def login(password: str) -> str:
        """Log in."""
        received.append(password)
        return "in"

    async def main() -> None:
        root = write(tmp_path, {"agents.d/one.yaml": agent("one")})
        models = {"scripted": ScriptedModel(scripted_calls(("login", {"password": KEYS["argument"]})), "ok")}
        async with Runtime.open(root, tools=[login], models=models, watch=False) as runtime:
            async with runtime.stream("go") as stream:
                shown = [event.arguments async for event in stream if isinstance(event, events.ToolRequested)]
            result = await stream.result()
        assert shown == [{"password": MASK}] * 2, "pending, and running"
        assert received == [KEYS["argument"]]
        assert result.tool_calls[0].arguments == {"password": KEYS["argument"]}, "the result for the caller is unmasked"

    asyncio.run(main())


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_llm02_an_error_of_a_command_is_masked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.chdir(write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")}))
    with pytest.raises(SystemExit) as ended:
        agentsd(["run", *options, "-a", KEYS["argument"], "hi"])
    out, err = capfd.readouterr()
    assert ended.value.code == 2
    assert "no agent named '***'" in out + err
    assert leaked(out + err, KEYS) == []


def test_llm02_a_fault_of_a_command_is_shown_completely_but_masked(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: str) -> None:
        raise RuntimeError(f"{path}: {KEYS['argument']}")

    monkeypatch.setattr("framework.cli.check.locate", broken)
    with pytest.raises(SystemExit) as ended:
        agentsd(["check", "here"])
    err = capfd.readouterr().err
    assert ended.value.code == 1
    assert "Traceback" in err
    assert "RuntimeError: here: ***" in err
    assert leaked(err, KEYS) == []
