"""Warnings of a run appear in its events, result, store, log and terminal output."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import get_args

import pytest

from framework import Approve, RunResult, Runtime, tool
from framework.testing import ScriptedModel, calls
from framework.types.events import Event, Warned
from framework.types.messages import Message
from framework.types.report import MAX_WARNINGS_PER_CODE, WARNINGS, RunWarning, WarningCode
from framework.types.state import RunState
from tests.support.commands import agentsd_process
from tests.support.formats import Format, each_format, each_way, says
from tests.support.paths import ROOT
from tests.support.projects import agent, write
from tests.support.wire import says as openai_says
from tests.support.wire import wire_server

FAST = "model_calls: {backoff: 1ms, max_backoff: 1ms, max_retries: 20}\n"
SHORT_WINDOW = "{window: 2}"
ASKING = '{ask: [{tool: work, reason: be careful}], allow: ["*"]}'
TALK = [Message(role=role, content="secret words") for _ in range(3) for role in ("user", "assistant")]


@tool(risk="low")
async def work(n: int) -> str:
    """Do something."""
    return f"did {n}"


def project(root: Path, **keys: str) -> Path:
    return write(root, {"agents.d/one.yaml": agent("one", **keys), "agentsd.yaml": FAST})


def test_the_documented_table_of_warnings_matches_the_code() -> None:
    text = (ROOT / "docs" / "reference" / "outcomes.md").read_text("utf-8")
    _, table = text.split("| code | meaning |\n|---|---|\n")
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", table.split("\n\n")[0], re.MULTILINE)
    assert dict(rows) == WARNINGS
    assert set(get_args(WarningCode)) == WARNINGS.keys()


def test_warning_events_are_emitted_only_where_they_are_recorded() -> None:
    sources = (ROOT / "framework" / "engine").rglob("*.py")
    assert [path.name for path in sources if "emit(Warned" in path.read_text("utf-8")] == ["run_context.py"]


@each_format
@each_way
def test_a_text_truncated_by_max_tokens_is_reported_in_the_result(form: Format, stream: bool, tmp_path: Path) -> None:
    async def main() -> tuple[RunResult, list[Event]]:
        async with wire_server([says(form, "half an", end="length")]) as server:
            models = {"scripted": form.model(server.url)}
            root = project(tmp_path, model_settings="{max_tokens: 2}")
            async with Runtime.open(root, models=models, watch=False) as runtime:
                if not stream:
                    return await runtime.run("go"), []
                async with runtime.stream("go") as events:
                    received = [event async for event in events]
                    return await events.result(), received

    result, received = asyncio.run(main())
    assert (result.status, result.output, result.truncated) == ("completed", "half an", True)
    (warning,) = result.warnings
    assert warning.code == "truncated"
    assert warning.message.startswith("the answer was cut by max_tokens: raise model_settings.max_tokens (agents.d/one")
    assert [(event.code, event.message_id) for event in received if isinstance(event, Warned)] == [
        ("truncated", None)
    ] * stream


def test_an_answer_after_a_truncated_one_is_not_marked_truncated(tmp_path: Path) -> None:
    async def main() -> list[bool]:
        answers = [openai_says("half", finish="length"), openai_says("whole")]
        async with wire_server(answers) as server:
            write(tmp_path, {"agentsd.yaml": f"models: {{m: {{model: openai/m, base_url: '{server.url}'}}}}"})
            write(tmp_path, {"agents.d/one.yaml": agent("one", model="m")})
            async with Runtime.open(tmp_path, watch=False) as runtime:
                return [(await runtime.run("go", conversation="c")).truncated for _ in answers]

    assert asyncio.run(main()) == [True, False]


def test_a_truncated_answer_is_shown_on_the_terminal_in_json_and_in_the_record(tmp_path: Path) -> None:
    async def main() -> tuple[str, str, str]:
        async with wire_server([openai_says("half an", finish="length")] * 2) as server:
            yaml = f"models: {{m: {{model: openai/m, base_url: '{server.url}'}}}}"
            write(tmp_path, {"agentsd.yaml": yaml, "agents.d/one.yaml": agent("one", model="m")})
            plain = await asyncio.to_thread(agentsd_process, "run", "go", cwd=tmp_path)
            whole = await asyncio.to_thread(agentsd_process, "run", "--json", "go", cwd=tmp_path)
            shown = await asyncio.to_thread(agentsd_process, "runs", "show", "last", cwd=tmp_path)
            assert (plain.stdout, plain.returncode, whole.stderr) == ("half an\n", 0, "")
            return plain.stderr, whole.stdout, shown.stdout

    on_terminal, as_json, shown = asyncio.run(main())
    assert on_terminal.count("the answer was cut at the model's own output limit") == 1
    result = json.loads(as_json)
    assert result["truncated"] is True
    assert [warning["code"] for warning in result["warnings"]] == ["truncated"]
    assert "warning: the answer was cut at the model's own output limit" in shown


def test_a_window_that_hides_messages_is_in_the_result_and_in_the_log_without_content(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> RunResult:
        models = {"scripted": ScriptedModel("done")}
        async with Runtime.open(project(tmp_path, conversation=SHORT_WINDOW), models=models, watch=False) as runtime:
            return await runtime.run("go", history=TALK)

    with caplog.at_level(logging.WARNING, logger="agentsd.runs"):
        result = asyncio.run(main())
    assert [(warning.code, warning.path) for warning in result.warnings] == [("window", ())]
    assert "start a new conversation" in result.warnings[0].message
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"run {result.run_id} agent=one: window: {WARNINGS['window']}"


def test_a_sub_agents_warnings_appear_in_the_callers_result_with_their_path(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/helper.yaml": agent("helper", runtime_policy="{max_steps: 1}")})

    async def main() -> RunResult:
        model = ScriptedModel(calls(("agent.helper", {"message": "look"})), "looked", "done")
        root = project(tmp_path, sub_agents="[helper]")
        async with Runtime.open(root, models={"scripted": model}, watch=False) as runtime:
            return await runtime.run("go", agent="one")

    assert [(warning.code, warning.path) for warning in asyncio.run(main()).warnings] == [("max_steps", ("c1",))]


def test_warnings_survive_a_pause_and_a_second_process(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/state.db"

    async def main() -> tuple[RunResult, RunResult]:
        model = ScriptedModel(calls(("work", {"n": 1})), "done")
        root, models = project(tmp_path, conversation=SHORT_WINDOW, skill_policy=ASKING), {"scripted": model}
        async with Runtime.open(root, models=models, tools=[work], store=store, watch=False) as runtime:
            first = await runtime.run("go", history=TALK)
        async with Runtime.open(root, models=models, tools=[work], store=store, watch=False) as runtime:
            return first, await runtime.resume(
                first.run_id, {confirmation.id: Approve() for confirmation in first.pending}
            )

    first, last = asyncio.run(main())
    assert (first.status, last.status) == ("paused", "completed")
    assert [warning.code for warning in last.warnings] == ["window"]
    assert last.warnings == first.warnings


def test_many_warnings_of_one_code_are_limited_and_hide_no_other(tmp_path: Path) -> None:
    from framework.types.errors import ModelError

    async def main() -> RunResult:
        failures = [ModelError(f"down {n}", retryable=True) for n in range(19)]
        model = ScriptedModel(*failures, calls(("work", {"n": 1})), *failures, "done")
        keys = {"conversation": SHORT_WINDOW, "runtime_policy": "{max_steps: 2, confirm: {from: never}}"}
        rules = FAST.replace("}", ", cooldown_after: 1000}")
        root = write(project(tmp_path, **keys), {"agentsd.yaml": rules})
        async with Runtime.open(root, models={"scripted": model}, tools=[work], watch=False) as runtime:
            return await runtime.run("go", history=TALK)

    codes = [warning.code for warning in asyncio.run(main()).warnings]
    assert (codes.count("model_retry"), codes[0], codes[-1]) == (MAX_WARNINGS_PER_CODE, "window", "max_steps")


def test_a_state_written_before_warnings_existed_opens() -> None:
    old = RunState(agent="one").model_dump(mode="json", exclude={"warnings", "truncated"})
    state = RunState.model_validate(old)
    assert (state.warnings, state.truncated) == ([], False)
    state.warnings.append(RunWarning(code="window", message="m"))
    assert RunState.model_validate_json(state.model_dump_json(exclude_defaults=True)) == state
