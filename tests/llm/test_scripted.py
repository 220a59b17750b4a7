"""Mistakes in the script of a `ScriptedModel` are the failure message of the test."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from framework import RunResult, Runtime
from framework.testing import ScriptedModel, calls
from framework.types.messages import Message
from tests.support.projects import agent, write


class Invoice(BaseModel):
    total: float


def run(root: Path, model: ScriptedModel, **options: Any) -> RunResult:
    write(root, {"agents.d/a.yaml": agent("a")})

    async def main() -> RunResult:
        async with Runtime.open(root, models={"scripted": model}, watch=False) as runtime:
            return await runtime.run("hi", agent="a", **options)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ((), "the script has 0 turns, and the model received request 1"),
        ((calls(("echo", {"text": "x"})),), "the script has 1 turn, and the model received request 2"),
        ((5,), "turn 1 of the script is no turn: 5; write a text, calls((TOOL, ARGUMENTS))"),
        (({"call": "echo"},), "turn 1 of the script is no turn: {'call': 'echo'}"),
        ((("echo", {"text": "x"}),), "turn 1 of the script is no turn: ('echo', {'text': 'x'})"),
        ((calls(("echo", {"text": "x"})), None), "turn 2 of the script is no turn: None"),
    ],
)
def test_a_mistake_in_the_script_is_the_error_of_the_run(tmp_path: Path, turns: tuple[Any, ...], message: str) -> None:
    model = ScriptedModel(*turns)
    result = run(tmp_path, model)
    assert result.error
    assert result.error.message.startswith(message)
    assert model.mistakes == [result.error.message]


def test_every_kind_of_turn_is_accepted(tmp_path: Path) -> None:
    echo = calls(("echo", {"text": "x"}))
    for turns in (("done",), (echo, "done"), (Message(role="assistant", content="done"),)):
        assert run(tmp_path, ScriptedModel(*turns)).output == "done"
    assert run(tmp_path, ScriptedModel(Invoice(total=2)), output_type=Invoice).data == {"total": 2}
    assert run(tmp_path, ScriptedModel(script=lambda request: f"{len(request.messages)}")).status == "completed"
