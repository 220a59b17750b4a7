"""`agentsd templates` lists the templates of a project, and what each can use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from framework.config.templates.prompt_check import runtime_samples
from framework.config.templates.prompts import OWN_VARIABLE_TEXTS, RUN_VARIABLE_TEXTS, shipped_templates
from tests.support.commands import agentsd
from tests.support.projects import agent, write

PLANNER = "Plan {{ message }}.{% for one in findings %} {{ one }}{% endfor %} {{ feedback }} {{ progress }}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "agents.d/own.yaml": agent("own", model="offline", executor="plan", plan="{template: own/plan.j2}"),
        "agents.d/other.yaml": agent(
            "other", model="offline", executor="plan", instructions="{template: hello.j2, vars: {shop: tea}}"
        ),
        "prompts/own/plan.j2": PLANNER,
        "prompts/hello.j2": "Hello from {{ shop }}.",
    }
    return write(tmp_path, files)


def test_the_variables_of_each_template_of_agentsd_are_described() -> None:
    given: dict[str, set[str]] = {}
    for name, variables in runtime_samples({}):
        given.setdefault(name, set()).update(variables)
    assert {name: set(texts) for name, texts in OWN_VARIABLE_TEXTS.items()} == {
        name: variables for name, variables in given.items() if variables
    }


def test_templates_are_listed_with_their_agents(project: Path) -> None:
    listed = json.loads(agentsd("templates", "--json", cwd=project).stdout)
    found = {one["name"]: (one["origin"], one["agents"]) for one in listed}
    assert found["own/plan.j2"] == ("project", ["own"])
    assert found["hello.j2"] == ("project", ["other"])
    assert found["plan.j2"] == ("agentsd", ["other"])
    assert "hello.j2" in agentsd("templates", cwd=project).stdout


@pytest.mark.parametrize("name", ["plan.j2", "plan.zh.j2", "own/plan.j2"])
def test_the_variables_of_a_planner_are_listed(project: Path, name: str) -> None:
    listed = json.loads(agentsd("templates", name, "--json", cwd=project).stdout)
    texts = {one["name"]: one["description"] for one in listed}
    assert texts.items() >= OWN_VARIABLE_TEXTS["plan.j2"].items()
    assert texts.keys() >= RUN_VARIABLE_TEXTS.keys()


def test_a_template_can_be_printed_and_an_unknown_one_is_named(project: Path) -> None:
    assert agentsd("templates", "own/plan.j2", "--text", cwd=project).stdout == f"{PLANNER}\n"
    shipped = agentsd("templates", "plan.j2", "--text", "--shipped", cwd=project).stdout
    assert shipped == shipped_templates()["plan.j2"]
    shown = agentsd("templates", "hello.j2", cwd=project).stdout
    assert "shop" in shown
    assert "tea" in shown
    unknown = agentsd("templates", "helo.j2", cwd=project)
    assert "there is no template 'helo.j2'; did you mean hello.j2" in unknown.stderr


@pytest.mark.parametrize("executor", ["plan", "auto", "react"])
def test_check_warns_of_a_planner_that_cannot_say_what_is_wrong(tmp_path: Path, executor: str) -> None:
    own = agent("own", model="offline", executor=executor, plan="{template: mine.j2}")
    files = {"agents.d/own.yaml": own, "prompts/mine.j2": "Plan. {{ feedback }} {{ progress }}"}
    checked = agentsd("check", cwd=write(tmp_path, files))
    message = (
        "the planner template mine.j2 leaves out `findings`: the model does not learn why its last plan is invalid"
    )
    assert (message in checked.stderr) == (executor != "react")
    assert checked.returncode == 0


def test_a_planner_that_does_not_exist_is_an_error_at_its_line(tmp_path: Path) -> None:
    own = agent("own", model="offline", executor="plan", plan="{template: own/plan.j2}")
    checked = agentsd("check", cwd=write(tmp_path, {"agents.d/own.yaml": own}))
    assert checked.returncode == 78
    assert "agents.d/own.yaml:8:18: there is no template 'own/plan.j2'" in checked.stderr
