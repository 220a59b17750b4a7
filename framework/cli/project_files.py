"""Texts of the files that `agentsd init` and `agentsd new` write besides the starter's own."""

from __future__ import annotations

from collections.abc import Mapping

GITIGNORE = """\
# Stored runs, accepted tool definitions and schemas for editors.
.agentsd/
# API keys and other variables, which commands read; never for the repository.
.env
__pycache__/
"""

STARTER_SETTINGS = """\
# yaml-language-server: $schema=.agentsd/settings.schema.json
# Settings of this project; every key is optional. docs/settings.md lists all of them.
version: 1

# Model of agents that do not set one. `offline` needs no key.
# model: openai/gpt-5.4-mini

# Your own names for models, for use in agent files and with `agentsd run --model`.
# models:
#   fast: {model: openai/gpt-5.4-mini}
#   local: {model: openai/qwen3, base_url: "http://127.0.0.1:8080/v1", api_key: none}

# The agent for messages that no rule matches.
# routing: {default_agent: assistant}

# Hosts that tools may access; none by default.
# tools: {http: {domains: [api.example.com]}}

# Limits that runs share; an agent file names them in its limits, such as `limits: {budgets: team}`.
# budgets: {team: {max_cost_usd: 5, per: day}}

# How long ended runs are kept; by default 30 days. `agentsd runs prune` deletes them.
# store: {retention: 30d}
"""

SETTINGS_FILES = {"agentsd.yaml": STARTER_SETTINGS, ".gitignore": GITIGNORE}

_AGENT = """\
# yaml-language-server: $schema=../.agentsd/agent.schema.json
description: {description}
instructions: |
  You are a helpful assistant. Answer in a few sentences.
  Use your tools for numbers and files; never guess what a file says.
tools: [{tools}]   # `agentsd tools list` shows all tools
limits: {{steps: 10, timeout: 60s}}
"""

_OWN_TOOL = '''\
"""Tools of this project. A saved edit takes effect without a restart; agents name them as `text.FUNCTION`."""

from agentsd import tool


@tool(risk="low", idempotent=True)
def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())
'''

_OWN_CASES = """\
# yaml-language-server: $schema=../.agentsd/cases.schema.json
# Run by `agentsd test`. Without a script of its answers, the rule-based model `offline` plays the model.
cases:
  - name: words are counted by the tool
    message: count the words in "agents are files"
    expect: {called: [text.count_words], output: "3"}
"""

EXAMPLE_CASES = """\
cases:
  - name: it calculates
    message: calculate 2 + 3
    model:                        # what the model answers; without it: `offline`
      - {call: calculator, arguments: {expression: 2 + 3}}
      - {say: It is 5.}
    expect: {called: [calculator], output: "5"}
"""


def agent_files(name: str) -> Mapping[str, str]:
    """Return a new agent with a test case: texts by path relative to the project."""
    text = _AGENT.format(
        description="Calculates, and finds and reads files.",
        tools="calculator, list_dir, read_file",
    )
    return {
        f"agents.d/{name}.yaml": text,
        f"agents.d/{name}.test.yaml": f"# yaml-language-server: $schema=../.agentsd/cases.schema.json\n{EXAMPLE_CASES}",
    }


def new_project() -> Mapping[str, str]:
    """Return a new project with one agent, one tool and one test case: texts by path relative to the project."""
    text = _AGENT.format(
        description="Counts words, calculates, and reads files.",
        tools='calculator, list_dir, read_file, "text.*"',
    )
    return {
        "agents.d/assistant.yaml": text,
        "agents.d/assistant.test.yaml": _OWN_CASES,
        "plugins/text.py": _OWN_TOOL,
        **SETTINGS_FILES,
    }
