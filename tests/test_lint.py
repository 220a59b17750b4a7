"""What is odd about an agent is told, and keeps nothing from running."""

from __future__ import annotations

import asyncio
from pathlib import Path

from framework import Runtime
from framework.types.problem import Problem
from tests.projects import agent, write


def warnings(root: Path, files: dict[str, str]) -> list[tuple[str, str]]:
    async def main() -> tuple[Problem, ...]:
        async with Runtime.open(write(root, files), watch=False) as runtime:
            assert "a" in runtime.catalog.current.agents
            return runtime.catalog.current.problems

    found = asyncio.run(main())
    assert {problem.severity for problem in found} <= {"warning"}
    return [(problem.place, problem.message) for problem in found]


def test_variables_that_no_language_of_the_template_uses_are_told_at_their_line(tmp_path: Path) -> None:
    text = """version: 1
name: a
description: d
model: offline
instructions: {template: a.j2, vars: {tone: kind, colour: red}}
inputs:
  who: {type: string}
  where: {type: string}
  when: {type: string}
"""
    files = {
        "agents.d/a.yaml": text,
        "prompts/a.j2": "{{ tone }}{% include 'b.j2' %}",
        "prompts/a.zh.j2": "{{ where }}",
        "prompts/b.j2": "{{ who }}",
    }
    assert warnings(tmp_path, files) == [
        ("agents.d/a.yaml:5:51", "no template uses the variable 'colour'"),
        ("agents.d/a.yaml:9:3", "no template uses the input 'when': the model never sees it"),
    ]


def test_an_input_that_a_plain_text_cannot_mention_is_told(tmp_path: Path) -> None:
    files = {"agents.d/a.yaml": agent("a", model="offline", inputs="{who: {type: string}}")}
    ((_, message),) = warnings(tmp_path, files)
    assert message == "the model never sees the input 'who': the instructions are plain text"


def test_a_rule_that_no_tool_matches_is_told(tmp_path: Path) -> None:
    files = {"agents.d/a.yaml": agent("a", model="offline", skill_policy='{deny: [{tool: "orders.*"}], allow: [echo]}')}
    ((_, message),) = warnings(tmp_path, files)
    assert message == "the deny rule 'orders.*' matches no tool there is"
