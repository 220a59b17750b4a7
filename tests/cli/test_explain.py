"""`agentsd explain`, `agents` and `tools`: effective settings, the lines that decide, and direct tool calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.commands import agentsd
from tests.support.projects import agent, write

POLICY = """{
  deny: [{tool: json_transform, reason: not here}, {tool: read_file, when: {path: "*.env"}, reason: secrets}],
  ask: [{tool: list_dir, reason: who knows}, {tool: echo, when: {text: "!=hi"}}],
  allow: [echo, read_file, "p.*"]}"""
RISKY = '''
from framework import tool

@tool(risk="high")
def wipe(path: str) -> str:
    """Wipe a folder."""
    return path
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    text = agent(
        "a", model="offline", instructions="{template: a.j2}", inputs="{who: {type: string}}", skill_policy=POLICY
    )
    files = {"agents.d/a.yaml": text, "plugins/p.py": RISKY, "prompts/a.j2": "You help {{ who }}."}
    return write(tmp_path, files)


def explained(project: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    done = agentsd("explain", "a", "--json", *arguments, cwd=project)
    assert done.returncode == 0, done.stderr
    return {tool["tool"]: tool for tool in json.loads(done.stdout)["tools"]}


def test_every_tool_is_listed_with_its_verdict_and_the_deciding_line(project: Path) -> None:
    tools = explained(project)
    verdicts = {name: (tool["offered"], tool["verdict"], tool["rule"]) for name, tool in tools.items()}
    assert verdicts["echo"] == (True, "allow", "allow echo")
    assert verdicts["read_file"] == (True, "allow", "allow read_file")
    assert verdicts["list_dir"] == (True, "ask", "ask list_dir")
    assert verdicts["json_transform"] == (False, "deny", "deny json_transform")
    assert verdicts["p.wipe"] == (False, "deny", "max_risk medium")
    assert verdicts["calculator"] == (False, "deny", "not in tools.allow")
    assert tools["p.wipe"]["place"] == "default"
    assert all(t["place"].startswith("agents.d/a.yaml:") for t in tools.values() if t["rule"] != "max_risk medium")
    (condition,) = tools["read_file"]["conditions"]
    assert condition["verdict"] == "deny"
    assert "when path *.env" in condition["when"]


def test_the_text_output_names_lines_prompt_and_token_counts(project: Path) -> None:
    done = agentsd("explain", "a", "-i", "who=Ann", cwd=project)
    assert done.returncode == 0
    for line in (
        "denied   when path *.env (agents.d/a.yaml:7): secrets",
        "asks     ask list_dir (agents.d/a.yaml:8): who knows",
        "denied   deny json_transform (agents.d/a.yaml:7): not here",
        "denied   max_risk medium",
        "  You help Ann.",
    ):
        assert line in done.stdout, line
    assert "You help <who>." in agentsd("explain", "a", cwd=project).stdout


@pytest.mark.parametrize(
    ("tool", "arguments", "code", "text"),
    [
        ("echo", None, 0, "allowed"),
        ("echo", '{"text": "hi"}', 0, "allowed"),
        ("echo", '{"text": "ho"}', 3, "asks"),
        ("read_file", '{"path": "x/.env"}', 1, "denied"),
        (
            "read_file",
            '{"path": 7}',
            0,
            "its arguments are invalid: path: it has the wrong type (given: 7); give: string",
        ),
        ("calculator", None, 1, "not in tools.allow"),
        ("ecco", None, 2, "there is no tool 'ecco'; did you mean echo"),
        ("echo", "[]", 2, "not a JSON object"),
        ("echo", "{", 2, "not JSON"),
    ],
)
def test_a_tool_and_a_call_get_the_same_verdict_as_in_a_run(
    project: Path, tool: str, arguments: str | None, code: int, text: str
) -> None:
    done = agentsd("explain", "a", tool, *([arguments] if arguments else []), cwd=project)
    assert done.returncode == code
    assert text in done.stdout + done.stderr


def test_agents_are_listed_and_shown_with_effective_settings(project: Path) -> None:
    assert agentsd("agents", "list", cwd=project).stdout.startswith("a  react  offline  3  The agent a.")
    (row,) = json.loads(agentsd("agents", "list", "--json", cwd=project).stdout)
    assert (row["name"], row["path"], row["stale"]) == ("a", "agents.d/a.yaml", False)
    spec = yaml.safe_load(agentsd("agents", "show", "a", cwd=project).stdout)
    assert spec["limits"]["steps"] == 10
    assert spec["approve_from"] == {"risk": "high", "expires": None, "on_expiry": "reject"}
    missing = agentsd("agents", "show", "b", cwd=project)
    assert (missing.returncode, "no agent named 'b'" in missing.stderr) == (2, True)


def test_tools_are_listed_and_called_under_an_agents_policy(project: Path) -> None:
    listed = agentsd("tools", "list", cwd=project).stdout
    assert "p.wipe" in listed
    rows = json.loads(agentsd("tools", "list", "--json", cwd=project).stdout)
    assert next(row for row in rows if row["name"] == "p.wipe")["risk"] == "high"
    allowed = agentsd("tools", "call", "echo", '{"text": "hi"}', "-a", "a", cwd=project)
    assert (allowed.returncode, allowed.stdout) == (0, "hi\n")
    denied = agentsd("tools", "call", "p.wipe", '{"path": "x"}', "-a", "a", cwd=project)
    assert denied.returncode == 1
    assert "max_risk medium (default): its risk is high" in denied.stderr
    paused = agentsd("tools", "call", "list_dir", "-a", "a", cwd=project)
    assert (paused.returncode, "list_dir needs approval: who knows" in paused.stderr) == (3, True)


def test_the_tools_of_an_agent_alone_are_called_like_others(project: Path) -> None:
    text = (project / "agents.d/a.yaml").read_text()
    skill = "---\nname: tone\ndescription: How to write.\n---\nBe kind.\n"
    write(project, {"agents.d/a.yaml": f"{text}skills: [tone]\n", "skills/tone/SKILL.md": skill})
    called = agentsd("tools", "call", "skill.load", '{"name": "tone"}', "-a", "a", cwd=project)
    assert (called.returncode, "Be kind." in called.stdout) == (0, True), called.stderr
