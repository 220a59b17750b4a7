"""All mistakes in a file are reported in one round, each once, with its line and column."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config.generations.catalog import Catalog
from framework.types.problem import Problem
from tests.support.cases import cases
from tests.support.projects import agent, write

MISTAKES: Mapping[str, tuple[str, str]] = {
    "max_stepz": ("1", "unknown key 'max_stepz'"),
    "model": ("fats", "unknown model 'fats'"),
    "executor": ("plam", "there is no executor 'plam'; did you mean plan?"),
    "skill_policy": ("{allow: [read_fiel], denny: []}", "there is no tool 'read_fiel'"),
    "runtime_policy": ("{max_steps: ten}", "must be a whole number"),
    "sub_agents": ("[other, othr]", "there is no usable agent 'othr'"),
    "handoffs": ("[other, thirdd]", "there is no usable agent 'thirdd'"),
    "mcp_policy": ("{tiem: {pin: block}}", "there is no MCP server 'tiem'"),
    "budgets": ("[team]", "there is no budget 'team'"),
    "hooks": ("{before_tool: [guard.none]}", "there is no hook 'guard.none'"),
    "inputs": ("{service: {type: strng}, order: text}", "did you mean 'string'?"),
    "output_schema": ("{type: objekt}", "its schema does not describe an object of named arguments"),
    "instructions": ("{template: x.j2, vars: {tone: short}}", "cannot render template x.j2"),
    "name": ("third", "the name 'third' is also used by agents.d/third.yaml"),
    "routing": ("{priority: 1}\nrouting: {priority: 2}", "duplicate key 'routing'"),
}
"""Keys of an agent file with a wrong value, and the finding. Some values contain a second mistake."""
OTHERS = {
    "agents.d/other.yaml": agent("other", model="offline"),
    "agents.d/third.yaml": agent("third", model="offline"),
    "prompts/x.j2": "{{ service }} {{ order }} {{ tone }} {{ nmae }}",
}


def problems(folder: Path, files: Mapping[str, str]) -> list[Problem]:
    """Return the problems of a project after its first load."""
    write(folder, files)
    catalog = Catalog(folder, tools=(), executors=["react", "plan"], models=["offline", "openai/"])
    asyncio.run(catalog.reload())
    return list(catalog.current.problems)


def found_in(folder: Path, **keys: str) -> list[Problem]:
    """Return the problems of one agent file with these keys, next to a valid one."""
    files = {**OTHERS, "agents.d/bad.yaml": agent(**{"name": "bad", "model": "offline", **keys})}
    return [problem for problem in problems(folder, files) if problem.path == "agents.d/bad.yaml"]


@given(st.sets(st.sampled_from(sorted(MISTAKES)), min_size=1))
@cases(25)
def test_any_mistakes_of_a_file_are_reported_together(keys: set[str]) -> None:
    with TemporaryDirectory() as folder:
        found = found_in(Path(folder), **{key: MISTAKES[key][0] for key in keys})
    for key in keys:
        assert sum(MISTAKES[key][1] in f"{problem.message} {problem.hint}" for problem in found) == 1, (key, found)
    places = [(problem.line, problem.column) for problem in found]
    assert len(places) == len(set(places)), found
    assert all(problem.line and problem.column for problem in found)
    own = {"inputs", "skill_policy"} & keys
    assert len(found) == len(keys) + len(own), found  # those two contain a second mistake


def test_fixing_one_mistake_leaves_the_findings_of_the_others(tmp_path: Path) -> None:
    wrong = {key: MISTAKES[key][0] for key in ("max_stepz", "executor", "inputs", "instructions")}
    first = {problem.message for problem in found_in(tmp_path, **wrong)}
    del wrong["max_stepz"]
    second = {problem.message for problem in found_in(tmp_path, **wrong)}
    assert first - second == {"unknown key 'max_stepz'"}
    assert second < first


def test_every_finding_of_a_template_is_reported_with_its_column(tmp_path: Path) -> None:
    template = "Dear {{ nmae }},\n{% include 'gone.j2' %}\n{{ order | uper }} {{ servic }}\n"
    keys = {"instructions": "{template: t.j2}", "inputs": "{order: {}, service: {}}", "executor": "plam"}
    files = {"agents.d/bad.yaml": agent("bad", model="offline", **keys), "prompts/t.j2": template}
    found = [problem for problem in problems(tmp_path, files) if problem.path == "prompts/t.j2"]
    assert [(problem.line, problem.column, problem.message.partition(";")[0]) for problem in found] == [
        (1, 9, "'nmae' is undefined"),
        (2, 13, "there is no template 'gone.j2'"),
        (3, 12, "there is no filter 'uper'"),
        (3, 23, "'servic' is undefined"),
    ]


@pytest.mark.parametrize(
    "wrong", ["{type: strng}", "text", "{required: maybe, default: 3}", "{tpye: string}", "{type: integer, default: x}"]
)
def test_an_invalid_input_is_no_undefined_variable(tmp_path: Path, wrong: str) -> None:
    keys = {"instructions": "{template: t.j2}", "inputs": f"{{order: {wrong}}}"}
    found = problems(
        tmp_path, {"agents.d/bad.yaml": agent("bad", model="offline", **keys), "prompts/t.j2": "{{ order.strip() }}"}
    )
    assert found
    assert {problem.line for problem in found} == {7}, found


def test_a_rejected_agent_is_an_error_in_its_own_file_only(tmp_path: Path) -> None:
    files = {
        "agents.d/parent.yaml": agent("parent", model="offline", sub_agents="[child]", max_stepz="1"),
        "agents.d/child.yaml": agent("child", model="fats"),
    }
    found = [(problem.path, problem.message.partition(";")[0]) for problem in problems(tmp_path, files)]
    assert found == [
        ("agents.d/child.yaml", "unknown model 'fats'"),
        ("agents.d/parent.yaml", "unknown key 'max_stepz'"),
    ]


def test_what_a_model_does_not_support_is_reported_with_the_other_mistakes(tmp_path: Path) -> None:
    keys = {"model": "openai/gpt-5.1", "model_settings": "{reasoning: xhigh}", "executor": "plam"}
    found = [problem.message for problem in found_in(tmp_path, **keys)]
    assert len(found) == 2
    assert any("does not support reasoning" in message for message in found)


def test_a_file_that_is_not_yaml_has_one_finding(tmp_path: Path) -> None:
    found = problems(tmp_path, {"agents.d/bad.yaml": "name: [\nexecutor: plam\nexecutor: react\n"})
    assert len(found) == 1
