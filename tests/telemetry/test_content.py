"""Canaries in all content of users, models, tools and servers appear in traces only if enabled."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from framework import Approve, Edit, ModelError, Reject, Respond, Runtime, ToolContext, ToolError, tool
from framework.cli.init import copy_starter
from framework.store.memory import MemoryStore
from framework.telemetry.spans import ATTRIBUTE_CHARS, PART_CHARS, Content
from framework.testing import ScriptedModel, calls
from framework.types.messages import Message, ToolCall
from framework.types.state import Decision
from tests.support.paths import SUPPORT
from tests.support.plans import draft, step
from tests.support.projects import agent, write

CANARY = "canary-4711"


@tool(risk="low")
async def work(n: str) -> str:
    """Works."""
    if n.startswith("fail"):
        raise ValueError(CANARY)
    return f"did {n} {CANARY}"


@tool(risk="low")
async def refuse(n: str) -> str:
    """Always fails."""
    raise ToolError(f"not with {n}")


@tool(risk="high")
async def erase(n: str) -> str:
    """Erases."""
    return f"erased {n}"


@tool(risk="low")
async def question(context: ToolContext) -> str:
    """Asks a human."""
    return await context.ask_human(f"what of {CANARY}?")


@tool(risk="low")
def keyed(n: str) -> dict[str, Any]:
    """Has a secret."""
    return {"api_key": f"sk-{CANARY}", "note": n}


TOOLS = [work, refuse, erase, question, keyed]
ONE = {"agents.d/one.yaml": agent("one", runtime_policy="{risk_level: high}")}
HOOKS = """
from framework import Refused, hook

@hook
async def guard(context, call):
    \"\"\"Looks at calls.\"\"\"
    raise RuntimeError(str(call.arguments))
"""
MCP = f"""
version: 1
mcp_servers:
  raw: {{command: ["{sys.executable}", "{SUPPORT / "mcp_raw.py"}", "{{config_file}}"]}}
"""


@dataclass(frozen=True)
class Fixture:
    """A project, its model, and the decisions on its questions."""

    model: Callable[[], ScriptedModel]
    files: dict[str, str] = field(default_factory=lambda: dict(ONE))
    decision: Decision | None = None
    spans: str = "chat scripted"
    """Name of a span that shows that the run got far enough."""


def says(*turns: Any) -> Callable[[], ScriptedModel]:
    return lambda: ScriptedModel(*turns)


FIXTURES = {
    "react": Fixture(says(calls(("work", {"n": CANARY})), f"the answer {CANARY}"), spans="execute_tool work"),
    "tool raises": Fixture(says(calls(("work", {"n": f"fail {CANARY}"})), "ok"), spans="execute_tool work"),
    "tool refuses": Fixture(says(calls(("refuse", {"n": CANARY})), "ok"), spans="execute_tool refuse"),
    "secret": Fixture(says(calls(("keyed", {"n": CANARY})), "ok"), spans="execute_tool keyed"),
    "no such tool": Fixture(says(calls((f"tool-{CANARY}", {"n": "1"})), "ok"), spans="execute_tool unknown"),
    "wrong arguments": Fixture(says(calls(("work", {CANARY: 1})), "ok"), spans="execute_tool work"),
    "unreadable arguments": Fixture(
        says((ToolCall(id="c", tool="work", invalid=f"bad {CANARY}"),), "ok"), spans="execute_tool work"
    ),
    "model fails": Fixture(says(ModelError(CANARY))),
    "reasoning": Fixture(says(Message(role="assistant", content=f"thought {CANARY}"))),
    "denied": Fixture(
        says(calls(("erase", {"n": CANARY})), "ok"),
        {"agents.d/one.yaml": agent("one", skill_policy="{deny: [{tool: erase, reason: never}], allow: [work]}")},
        spans="execute_tool erase",
    ),
    "approved": Fixture(says(calls(("erase", {"n": CANARY})), "ok"), decision=Approve(), spans="execute_tool erase"),
    "edited": Fixture(
        says(calls(("erase", {"n": CANARY})), "ok"),
        decision=Edit(arguments={"n": f"new {CANARY}"}),
        spans="execute_tool erase",
    ),
    "rejected": Fixture(
        says(calls(("erase", {"n": CANARY})), "ok"), decision=Reject(reason=CANARY), spans="execute_tool erase"
    ),
    "answered": Fixture(
        says(calls(("question", {})), "ok"), decision=Respond(text=CANARY), spans="execute_tool question"
    ),
    "plan": Fixture(
        says(draft(step("a"), {"id": "b", "description": f"think of {CANARY}"}), f"thought {CANARY}", CANARY),
        {"agents.d/one.yaml": agent("one", executor="plan")},
        spans="plan.step b",
    ),
    "sub-agent": Fixture(
        says(calls(("agent.two", {"message": CANARY})), calls(("work", {"n": CANARY})), CANARY, CANARY),
        {"agents.d/one.yaml": agent("one", sub_agents="[two]"), "agents.d/two.yaml": agent("two")},
        spans="invoke_agent two",
    ),
    "hook": Fixture(
        says(calls(("work", {"n": CANARY})), "ok"),
        {"agents.d/one.yaml": agent("one", hooks="{before_tool: [look.guard]}"), "plugins/look.py": HOOKS},
        spans="execute_tool work",
    ),
    "text protocol": Fixture(
        says(f"{CANARY} is no JSON", json.dumps({"thought": CANARY, "final": CANARY})),
        {"agents.d/one.yaml": agent("one", protocol="json")},
    ),
    "mcp": Fixture(
        says(calls(("mcp.raw.echo", {"n": CANARY}), ("mcp.raw.fail", {"n": CANARY})), "ok"),
        {**ONE, "plugins/servers.yaml": MCP},
        spans="MCP send tools/call fail",
    ),
    "repeated": Fixture(says(*[calls(("work", {"n": CANARY}), prefix=f"p{n}") for n in range(5)])),
}
"""Runs of every kind."""


def play(tmp_path: Path, fixture: Fixture, content: str | None, **settings: str) -> MemoryStore:
    """Run the project and answer its questions."""
    config_file = write(tmp_path, {"config.json": "{}\n"}) / "config.json"
    files = {name: text.replace("{config_file}", str(config_file)) for name, text in fixture.files.items()}
    if content is not None:
        files["agentsd.yaml"] = f"telemetry: {{content: {content}}}\nmodel_calls: {{max_retries: 0}}\n"
    store = MemoryStore(keep_spans=True)

    async def main() -> None:
        options: dict[str, Any] = {"models": {"scripted": fixture.model()}, "store": store, "watch": False}
        async with Runtime.open(write(tmp_path, files), tools=TOOLS, **options) as runtime:
            result = await runtime.run(f"hello {CANARY}", agent="one", conversation="c1")
            if result.status == "paused":
                assert fixture.decision
                await runtime.resume(result.run_id, {question.id: fixture.decision for question in result.pending})

    asyncio.run(main())
    return store


def stored(store: MemoryStore) -> str:
    """Return all stored traces."""
    infos = asyncio.run(store.runs())
    return "".join(repr(span) for info in infos for span in asyncio.run(store.spans(info.run_id)))


@pytest.mark.parametrize("name", FIXTURES)
def test_spans_metrics_and_logs_contain_no_content_by_default(
    name: str,
    tmp_path: Path,
    spans: InMemorySpanExporter,
    reader: InMemoryMetricReader,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fixture = FIXTURES[name]
    with caplog.at_level(logging.INFO):
        store = play(tmp_path, fixture, None)
    finished = spans.get_finished_spans()
    assert fixture.spans in {span.name for span in finished}
    for span in finished:
        assert CANARY not in span.to_json()
    assert CANARY not in stored(store)
    numbers = reader.get_metrics_data()
    assert numbers
    assert "gen_ai.client.operation.duration" in numbers.to_json()
    assert CANARY not in numbers.to_json()
    assert "agentsd.runs" in {record.name for record in caplog.records}
    assert CANARY not in caplog.text
    assert not [record for record in caplog.records if CANARY in repr(record.__dict__)]


@pytest.mark.parametrize("name", FIXTURES)
def test_content_is_recorded_if_enabled(name: str, tmp_path: Path, spans: InMemorySpanExporter) -> None:
    store = play(tmp_path, FIXTURES[name], "full")
    roots = [span for span in spans.get_finished_spans() if span.name == "invoke_workflow one"]
    assert (roots[0].attributes or {})["input.value"] == f"hello {CANARY}"
    chats = [span for span in spans.get_finished_spans() if span.name == "chat scripted"]
    for chat in chats:
        messages = json.loads(str((chat.attributes or {})["gen_ai.input.messages"]))
        assert CANARY in json.dumps(messages)
    assert CANARY in stored(store)


def test_an_agent_restricts_content_for_itself_and_its_sub_agents(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    calling = says(calls(("agent.two", {"message": CANARY})), calls(("work", {"n": CANARY})), CANARY, CANARY)
    one, two = agent("one", sub_agents="[two]"), agent("two", telemetry="{content: full}")
    quiet = {"agents.d/one.yaml": one + "telemetry: {content: none}\n", "agents.d/two.yaml": two}
    play(tmp_path / "a", Fixture(calling, quiet), "full")
    assert not spans_containing(spans)
    spans.clear()
    caller = {"agents.d/one.yaml": one, "agents.d/two.yaml": two.replace("full", "none")}
    play(tmp_path / "b", Fixture(calling, caller), "full")
    by_agent = {(span.attributes or {}).get("gen_ai.agent.name") for span in spans_containing(spans)}
    assert by_agent == {"one"}


def test_an_agent_cannot_extend_the_operators_content_mode(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    loud = {"agents.d/one.yaml": agent("one", telemetry="{content: full}")}
    play(tmp_path, Fixture(FIXTURES["react"].model, loud), "none")
    assert not spans_containing(spans)


@pytest.mark.parametrize("value", ["true", "SPAN_ONLY"])
def test_opentelemetrys_variable_applies_without_a_setting(
    value: str, tmp_path: Path, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", value)
    play(tmp_path / "a", FIXTURES["react"], None)
    assert spans_containing(spans)
    spans.clear()
    play(tmp_path / "b", FIXTURES["react"], "none")
    assert not spans_containing(spans)


def test_redacted_content_has_no_secrets(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    play(tmp_path / "a", FIXTURES["secret"], "redacted")
    text = "".join(span.to_json() for span in spans.get_finished_spans())
    assert f"hello {CANARY}" in text
    assert f"sk-{CANARY}" not in text
    spans.clear()
    play(tmp_path / "b", FIXTURES["secret"], "full")
    assert f"sk-{CANARY}" in "".join(span.to_json() for span in spans.get_finished_spans())


def test_the_operators_secrets_are_masked_in_every_mode(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    secret = 'quo"te-47110815'
    write(tmp_path, ONE)
    settings = f"telemetry: {{content: full}}\nmodels: {{m: {{model: openai/x, api_key: '{secret}'}}}}\n"
    write(tmp_path, {"agentsd.yaml": settings})

    async def main() -> None:
        models = {"scripted": ScriptedModel(calls(("work", {"n": secret})), f"it is {secret}")}
        async with Runtime.open(tmp_path, tools=TOOLS, models=models, watch=False) as runtime:
            await runtime.run(f"my key is {secret}", agent="one")

    asyncio.run(main())
    assert len(spans_containing(spans, "my key is ***")) >= 3
    for span in spans.get_finished_spans():
        for value in (span.attributes or {}).values():
            assert secret not in str(value)
            assert json.dumps(secret)[1:-1] not in str(value)


def test_the_starters_agents_record_no_content(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    copy_starter(tmp_path)

    async def main() -> None:
        async with Runtime.open(tmp_path, watch=False) as runtime:
            for name in runtime.catalog.current.agents:
                result = await runtime.run(f"search for '{CANARY}', then calculate 1 + 1", agent=name)
                if result.pending:
                    await runtime.resume(result.run_id, {a.id: Reject(reason=CANARY) for a in result.pending})

    asyncio.run(main())
    assert len({(span.attributes or {}).get("gen_ai.agent.name") for span in spans.get_finished_spans()}) > 2
    assert not spans_containing(spans)


def spans_containing(spans: InMemorySpanExporter, word: str = CANARY) -> list[Any]:
    """Return the finished spans that contain a word."""
    return [span for span in spans.get_finished_spans() if word in span.to_json()]


# --- truncation


def test_long_content_is_shortened_to_valid_json() -> None:
    content = Content("full")
    messages = [Message(role="user", content=f"{n} " + "x" * 10_000) for n in range(40)]
    recorded = content.request(messages, ())
    text = str(recorded["gen_ai.input.messages"])
    messages = json.loads(text)
    assert len(text) <= ATTRIBUTE_CHARS
    assert recorded["agentsd.content.truncated"] is True
    assert messages[0]["parts"][0]["content"].startswith("0 ")
    assert messages[-1]["parts"][0]["content"].startswith("39 ")
    assert all(len(message["parts"][0]["content"]) == PART_CHARS for message in messages)


def test_the_calls_that_fit_are_recorded() -> None:
    content = Content("full")
    requested = [ToolCall(id=f"c{n}", tool="work", arguments={"n": "x" * 5000}) for n in range(100)]
    turn = Message(role="assistant", content="all at once", tool_calls=tuple(requested))
    history = [Message(role="system", content="be good"), Message(role="user", content="go"), turn]
    for recorded, name in ((content.reply(turn, "tool_calls"), "output"), (content.request(history, ()), "input")):
        text = str(recorded[f"gen_ai.{name}.messages"])
        message = json.loads(text)[-1]
        assert len(text) <= ATTRIBUTE_CHARS
        assert recorded["agentsd.content.truncated"] is True
        assert [part.get("id", part["type"]) for part in message["parts"][:3]] == ["text", "c0", "c1"]
    assert (
        json.loads(str(content.reply(turn, "tool_calls")["gen_ai.output.messages"]))[0]["finish_reason"] == "tool_calls"
    )


def test_content_that_fits_is_recorded_completely() -> None:
    content = Content("full")
    call = ToolCall(id="c1", tool="work", arguments={"n": "é\ud83d"})
    messages = [
        Message(role="system", content="be good"),
        Message(role="assistant", content="hm", tool_calls=(call,)),
        Message(role="tool", tool_call_id="c1", content="did it"),
    ]
    recorded = content.request(messages, (work.definition,))
    assert json.loads(str(recorded["gen_ai.input.messages"])) == [
        {"role": "system", "parts": [{"type": "text", "content": "be good"}]},
        {
            "role": "assistant",
            "parts": [
                {"type": "text", "content": "hm"},
                {"type": "tool_call", "id": "c1", "name": "work", "arguments": {"n": "é?"}},
            ],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "did it"}]},
    ]
    assert "agentsd.content.truncated" not in recorded
    assert json.loads(str(recorded["gen_ai.tool.definitions"]))[0]["name"] == "work"


def test_an_answer_has_its_finish_reason() -> None:
    """Phoenix drops answers without one."""
    recorded = Content("full").reply(Message(role="assistant", content="hi"), "stop")
    (message,) = json.loads(str(recorded["gen_ai.output.messages"]))
    assert (message["finish_reason"], message["parts"]) == ("stop", [{"type": "text", "content": "hi"}])


def test_a_secret_is_not_cut_in_two() -> None:
    text = "x" * (PART_CHARS - 4) + " sk-abcdefghijklmnop"
    shown = str(Content("redacted").input(text)["input.value"])
    assert (len(shown), "sk-" in shown) == (PART_CHARS, False)
