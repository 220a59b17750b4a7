"""`agentsd init` creates a working project, and `agentsd new` adds an agent to one."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

import framework
from framework.cli.location import PROJECT_OPTION, project_path
from framework.cli.show import counted
from framework.config.overlay import SETTINGS_FILE
from framework.config.snapshot import AGENTS
from framework.types.errors import RequestError
from framework.types.spec import AGENT_NAME

FOLDERS = ("agents.d", "prompts", "plugins", "data")
_LISTED = 5
"""Number of files up to which each is listed; of more, each folder is listed with the number of its files."""


@click.command("init")
@project_path
@click.option("--example", is_flag=True, help="Create the example: an agent for each feature, with tools and prompts.")
@click.option("--minimal", is_flag=True, help="Create one agent, one tool and one test case: the default.")
def command(path: str, example: bool, minimal: bool) -> int:
    """Create a project in the folder PATH (default: this folder). Existing files are not changed.

    It has one agent, one tool and one test case; with --example, an agent for each feature.
    """
    if example and minimal:
        raise click.UsageError("use --example or --minimal, not both")
    target = Path(path)
    _require_new(target, path)
    written, kept = copy_starter(target) if example else write_files(target, _encoded(new_project()))
    for line in _listed(written):
        click.echo(f"  {line}")
    if kept:
        click.echo(f"kept unchanged: {', '.join(kept)}")
    where = "" if path == "." else f"cd {shlex.quote(path)} && "
    message = "analyse data/logs/app.log" if example else "count the words in 'agents are files'"
    click.echo("Try it, no key needed:")
    click.secho(f'  {where}agentsd run "{message}"', bold=True)
    click.echo(f"  {where}agentsd chat   # edit agents.d/assistant.yaml meanwhile")
    return 0


def _require_new(target: Path, path: str) -> None:
    """Raise RequestError if the path is a file, or a folder that has a project."""
    if target.exists() and not target.is_dir():
        raise RequestError(f"{path} is a file")
    if found := next((name for name in (SETTINGS_FILE, AGENTS) if (target / name).exists()), None):
        where = "" if path == "." else f" -C {shlex.quote(path)}"
        raise RequestError(
            f"{target / found} exists: the folder has a project already. Add an agent to it with"
            f" `agentsd new agent{where} NAME`, or create a project in another folder: `agentsd init FOLDER`"
        )


def _listed(written: Sequence[str]) -> list[str]:
    """Return a line for each file, or for each folder if there are many files."""
    if len(written) <= _LISTED:
        return [*written]
    folders = Counter(name.partition("/")[0] for name in written if "/" in name)
    counts = [f"{folder + '/':<11} {counted(count, 'file')}" for folder, count in folders.items()]
    return [*counts, ", ".join(name for name in written if "/" not in name)]


def copy_starter(target: Path) -> tuple[list[str], list[str]]:
    """Copy the starter into a folder.

    Returns:
        The files written, and the existing ones that were kept.
    """
    starter = {name: source.read_bytes() for source, name in _starter_files()}
    return write_files(target, {**starter, **_encoded(SETTINGS_FILES)})


def write_files(target: Path, files: Mapping[str, bytes]) -> tuple[list[str], list[str]]:
    """Write files into a folder; return the paths written, and the existing ones that were kept."""
    written, kept = [], []
    for name, content in files.items():
        path = target / name
        if path.exists():
            kept.append(name)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        written.append(name)
    return written, kept


def _encoded(texts: Mapping[str, str]) -> dict[str, bytes]:
    return {name: text.encode() for name, text in texts.items()}


def _starter_files() -> Iterator[tuple[Path, str]]:
    """Yield the starter's files, from the installed package or from this repository's own folders."""
    package = Path(framework.__file__).parent
    packed = package / "starter"
    root = packed if packed.is_dir() else package.parent
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            hidden = any(part.startswith((".", "__")) for part in path.relative_to(root).parts)
            if path.is_file() and not hidden:
                yield path, path.relative_to(root).as_posix()


@click.group("new")
def new_command() -> None:
    """Add an agent to a project."""


@new_command.command("agent")
@click.argument("name")
@PROJECT_OPTION
def new_agent(name: str, project: str) -> int:
    """Write agents.d/NAME.yaml, an agent that works with any model, and a test case for it."""
    if not re.fullmatch(AGENT_NAME, name):
        raise RequestError(f"not a name for an agent: {name!r}; it must match {AGENT_NAME}, such as support")
    folder = Path(project)
    if not folder.is_dir():
        raise RequestError(f"no such folder: {project}; create a project with `agentsd init`")
    files = {path: text.encode() for path, text in agent_files(name).items()}
    if existing := [path for path in files if (folder / path).exists()]:
        raise RequestError(f"{existing[0]} already exists; choose another name, or edit the file")
    written, _ = write_files(folder, files)
    for path in written:
        click.echo(f"  {path}")
    where = "" if project == "." else f" -C {shlex.quote(project)}"
    click.echo("\nTry it, no key needed:")
    click.secho(f'  agentsd run{where} -a {name} "calculate 2 + 3"', bold=True)
    return 0


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
    text = _AGENT.format(description="Calculates, and finds and reads files.", tools="calculator, list_dir, read_file")
    return {
        f"agents.d/{name}.yaml": text,
        f"agents.d/{name}.test.yaml": f"# yaml-language-server: $schema=../.agentsd/cases.schema.json\n{EXAMPLE_CASES}",
    }


def new_project() -> Mapping[str, str]:
    """Return a new project with one agent, one tool and one test case: texts by path relative to the project."""
    text = _AGENT.format(
        description="Counts words, calculates, and reads files.", tools='calculator, list_dir, read_file, "text.*"'
    )
    return {
        "agents.d/assistant.yaml": text,
        "agents.d/assistant.test.yaml": _OWN_CASES,
        "plugins/text.py": _OWN_TOOL,
        **SETTINGS_FILES,
    }
