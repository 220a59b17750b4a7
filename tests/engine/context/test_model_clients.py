"""`model=…` of a run, and `-m` of the command line: every model call of the run uses that model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from framework import Runtime
from framework.llm.client import ScriptedModel, calls
from framework.store.memory import MemoryStore
from framework.types.errors import RequestError
from framework.types.state import Approve
from tests.support.commands import agentsd
from tests.support.projects import agent, write

LEAD = {
    "agents.d/lead.yaml": agent(
        "lead", model="own", fallback_models="[other]", sub_agents="[helper]", skill_policy='{allow: ["agent.*"]}'
    ),
    "agents.d/helper.yaml": agent("helper", model="own", plan="{model: other}"),
}


def test_the_agent_and_its_sub_agents_use_the_model_of_the_run(tmp_path: Path) -> None:
    async def main() -> None:
        chosen = ScriptedModel(calls(("agent.helper", {"message": "help"})), "helped", "done")
        models = {"own": ScriptedModel(), "other": ScriptedModel(), "chosen": chosen}
        async with Runtime.open(write(tmp_path, LEAD), models=models, watch=False) as runtime:
            result = await runtime.run("go", agent="lead", model="chosen")
        assert (result.status, result.output) == ("completed", "done")

    asyncio.run(main())


def test_a_resumed_run_keeps_its_model(tmp_path: Path) -> None:
    async def main() -> None:
        files = {
            "agents.d/one.yaml": agent("one", model="own", skill_policy="{allow: [calculator], ask: [calculator]}")
        }
        store = MemoryStore()
        models = {"own": ScriptedModel(), "chosen": ScriptedModel(calls(("calculator", {"expression": "2+3"})), "5")}
        async with Runtime.open(write(tmp_path, files), models=models, store=store, watch=False) as runtime:
            paused = await runtime.run("go", agent="one", model="chosen")
            result = await runtime.resume(paused.run_id, {paused.pending[0].id: Approve()})
        assert (result.status, result.output) == ("completed", "5")

    asyncio.run(main())


@pytest.mark.parametrize(("name", "meant"), [("chosne", "did you mean chosen?"), ("opnai/x", "did you mean openai?")])
def test_an_unknown_model_is_rejected_before_the_run_begins(tmp_path: Path, name: str, meant: str) -> None:
    async def main() -> None:
        models = {"own": ScriptedModel(), "chosen": ScriptedModel()}
        async with Runtime.open(write(tmp_path, LEAD), models=models, watch=False) as runtime:
            with pytest.raises(RequestError, match=meant.replace("?", r"\?")):
                await runtime.run("go", agent="lead", model=name)
            assert not await runtime.store.runs()

    asyncio.run(main())


def test_the_command_line_overrides_the_model_that_the_file_names(tmp_path: Path) -> None:
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")})
    refused = agentsd("run", "-a", "one", "-m", "ofline", "hi", cwd=tmp_path)
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (
        2,
        "error: unknown model 'ofline'; did you mean offline?: write provider/model, or an alias from agentsd.yaml",
    )
    output = agentsd("run", "-a", "one", "-m", "openai/gpt-5.4-mini", "hi", cwd=tmp_path)
    assert (output.returncode, "openai/gpt-5.4-mini needs an API key" in output.stderr) == (1, True)
    chatted = agentsd("chat", "-a", "one", "-m", "openai/gpt-5.4-mini", cwd=tmp_path, stdin="hi\n\n")
    assert "openai/gpt-5.4-mini needs an API key" in chatted.stderr
