"""Messages of commands about tool servers that are unavailable or were not contacted."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from framework.llm import providers
from tests.support.commands import agentsd, install_command_in
from tests.support.mcp_definitions import server_file, tool_definition
from tests.support.mcp_worlds import configure, raw
from tests.support.projects import agent, write

POLICY = '{allow: ["mcp.docs.*"]}'


def project(root: Path, *command: str) -> Path:
    servers = {"version": 1, "mcp_servers": {"docs": {"command": command}}}
    files = {
        "agents.d/one.yaml": agent("one", model="offline", skill_policy=POLICY),
        "plugins/servers.yaml": json.dumps(servers, indent=1),
    }
    return write(root, files)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return project(tmp_path, sys.executable, "-m", "no_such_server")


@pytest.mark.parametrize(
    "words", [("run", "-a", "one", "hi"), ("chat", "-a", "one"), ("check", "--connect")], ids=["run", "chat", "check"]
)
def test_an_unavailable_server_is_a_warning_with_line_and_reason(broken: Path, words: tuple[str, ...]) -> None:
    done = agentsd(*words, cwd=broken)
    assert done.returncode == 0
    warning = "plugins/servers.yaml:4:3: warning: mcp.docs is not connected: it ended with exit code 1: "
    assert done.stderr.count("mcp.docs is not connected") == done.stderr.count(warning) == 1
    assert "No module named no_such_server" in done.stderr


def test_a_chat_warns_of_a_server_once(broken: Path) -> None:
    done = agentsd("chat", "-a", "one", cwd=broken, stdin="hi\nhi again\n")
    assert (done.stderr.count("mcp.docs is not connected"), done.stderr.count("● one")) == (1, 2)


def test_a_run_without_the_tools_of_a_server_has_a_warning(broken: Path) -> None:
    result = json.loads(agentsd("run", "--json", "-a", "one", "hi", cwd=broken).stdout)
    assert [warning["code"] for warning in result["warnings"]] == ["tool_server"]
    message = result["warnings"][0]["message"]
    assert message.startswith("the agent runs without the tools of a server: mcp.docs is not connected: it ended with")
    assert message.endswith("(plugins/servers.yaml:4)")
    shown = agentsd("runs", "show", "last", cwd=broken)
    assert "warning: the agent runs without the tools of a server: mcp.docs" in shown.stdout
    write(broken, {"agents.d/two.yaml": agent("two", model="offline", skill_policy="{allow: [echo]}")})
    assert json.loads(agentsd("run", "--json", "-a", "two", "hi", cwd=broken).stdout)["warnings"] == []


@pytest.mark.parametrize("words", [("check",), ("explain", "one")])
def test_servers_that_were_not_contacted_are_named(broken: Path, words: tuple[str, ...]) -> None:
    done = agentsd(*words, cwd=broken)
    assert (done.returncode, "1 server not contacted" in done.stdout, "--connect" in done.stdout) == (0, True, True)
    assert json.loads(agentsd(*words, "--json", cwd=broken).stdout)["not_contacted"] == ["mcp.docs"]


@pytest.mark.parametrize("words", [("run", "-a", "one", "hi"), ("check", "--connect"), ("explain", "one", "--connect")])
def test_a_healthy_server_is_not_mentioned(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = agentsd(*words, cwd=project(tmp_path, *raw(tmp_path).command))
    assert done.returncode == 0
    assert not any(word in done.stderr + done.stdout for word in ("warning", "WARNING", "waiting", "not contacted"))


@pytest.mark.parametrize("words", [["check"], ["run", "-a", "one", "hi"]])
def test_without_the_extra_check_and_run_name_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("mcp.", "framework.tools.mcp.client"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)
    done = agentsd(*words, cwd=project(tmp_path, "never-started"))
    assert done.returncode == 0
    assert "plugins/servers.yaml:4:3: warning: mcp.docs needs the MCP SDK" in done.stderr
    assert install_command_in(tmp_path, "agentsd[mcp]") in done.stderr


@pytest.mark.parametrize("words", [["check"], ["run", "-a", "one", "hi"], ["chat", "-a", "one"]])
def test_a_missing_package_of_a_tool_is_named_with_the_command_to_install_it(tmp_path: Path, words: list[str]) -> None:
    plugin = "from framework import tool\n\n\n@tool(risk='low', needs={'no_such_module': 'some-package'})\n"
    files = {
        "plugins/pay.py": f"{plugin}def pay() -> str:\n    'Pay.'\n    return 'paid'\n",
        "agents.d/one.yaml": agent("one", model="offline", skill_policy="{allow: [pay.pay]}"),
    }
    done = agentsd(*words, cwd=write(tmp_path, files), stdin="hi\n")
    assert done.returncode == 0
    assert done.stderr.count(f"pay.pay needs no_such_module: {install_command_in(tmp_path, 'some-package')}") == 1
    assert words != ["check"] or "plugins/pay.py:4: warning: pay.pay needs" in done.stderr


@pytest.mark.parametrize("words", [["check"], ["run", "-a", "two", "hi"]])
def test_without_the_sdk_of_a_model_check_and_run_name_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr(providers, "find_spec", lambda name: None if name == "anthropic" else find_spec(name))
    files = {
        "agentsd.yaml": "model: anthropic/claude-haiku-4-5\n",
        "agents.d/one.yaml": agent("one", model="anthropic/claude-haiku-4-5"),
        "agents.d/two.yaml": agent("two", model="offline"),
    }
    done = agentsd(*words, cwd=write(tmp_path, files))
    assert done.returncode == 0
    how = install_command_in(tmp_path, "agentsd[anthropic]")
    needed = f"warning: anthropic/claude-haiku-4-5 needs the SDK of anthropic: {how}"
    assert f"agents.d/one.yaml:4:8: {needed}" in done.stderr
    assert f"agentsd.yaml:1:8: {needed}" in done.stderr


def test_explain_shows_what_a_provider_gets_of_a_tools_schema(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"$filter": {"type": "string"}}, "anyOf": [{"required": ["$filter"]}]}
    configure(tmp_path, {"tools": [tool_definition("find", schema)]})
    write(
        tmp_path,
        {
            "agents.d/a.yaml": agent("a", model="claude", skill_policy=POLICY, mcp_policy="{docs: {pin: warn}}"),
            "agentsd.yaml": "models: {claude: {model: anthropic/claude-sonnet-4-5, api_key: none}}\n",
            "plugins/docs.yaml": server_file(tmp_path),
        },
    )
    done = agentsd("explain", "a", "mcp.docs.find", "--connect", cwd=tmp_path)
    assert "the schema of its arguments, as anthropic/claude-sonnet-4-5 gets it: " in " ".join(done.stdout.split())
    assert "properties._filter: added" in " ".join(done.stdout.split())
    data = json.loads(agentsd("explain", "a", "mcp.docs.find", "--connect", "--json", cwd=tmp_path).stdout)
    assert {"anyOf: removed", "properties.$filter: removed"} <= set(data["schema_changes"])
