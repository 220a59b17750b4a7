"""Every command in the README and the docs exists with its options, and those in code blocks are executed."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

from framework.cli.completion import find_entry, read_index
from framework.cli.init import agent_files, copy_starter
from tests.support.commands import ENVIRONMENT, agentsd, agentsd_process
from tests.support.forks import Fork
from tests.support.media import pdf, png
from tests.support.paths import ROOT
from tests.support.projects import agent, write
from tests.support.stored_runs import list_runs

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"```(?:sh|console)\n(.*?)```", re.DOTALL)
INLINE = re.compile(r"`((?:[A-Z_]+=\S+ )?agentsd [^`]+)`")
SERVERS = ("serve", "worker")
"""Commands that run until a signal."""
ALONE = {"chat", "mcp", "--otlp"}
"""Words of commands that change their process: they get one of their own."""
EXIT_CODES = {
    "check": {0, 78},  # the README checks a file with a mistake
    "run": {0, 3},
    "runs decide": {0, 2, 3},  # 2: the stored run asks something else than the example's
    "runs replay": {0, 1},
    "runs resume": {3},
    "runs tail": {3},
    "config history": {1},  # no server
    "config rollback": {1},
    "explain": {0, 1, 3},
    "test": {0, 78},  # 78: the model has no key
    "chat": {0, 3},
    "tools call": {0},
}
"""Exit codes of the commands in the project of these tests. Default: 0."""


def in_blocks(page: Path) -> Iterator[str]:
    for block in BLOCK.findall(page.read_text("utf-8")):
        for line in block.splitlines():
            text = line.removeprefix("$ ").partition("  #")[0].partition(" | ")[0].partition(" > ")[0].strip()
            if re.match(r"(?:[A-Z_]+=\S+ )*agentsd ", text):
                yield text


def inline(page: Path) -> Iterator[str]:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    yield from (" ".join(found.split()).partition(" && ")[0] for found in INLINE.findall(text))


EXECUTED = sorted({line for page in PAGES for line in in_blocks(page)})
NAMED = sorted({line for page in PAGES for line in inline(page)} | {*EXECUTED})


@pytest.mark.parametrize("line", NAMED)
def test_a_documented_command_exists_with_its_options(line: str) -> None:
    words = shlex.split(line.partition(" | ")[0])
    words = words[words.index("agentsd") + 1 :]
    if words == ["--version"]:
        return
    if words[0] in ("COMMAND", "signals"):
        pytest.skip("a placeholder, or the subject of a sentence")
    words = words[1:] if words[0] == "-v" else words
    path, entry = find_entry(read_index(), words)
    assert path, "no such command"
    flags = {flag for text, _ in entry["options"] for flag in re.findall(r"(?<!\S)--?[\w-]+", text)}
    given = {word.partition("=")[0] for word in words[len(path) :] if re.match(r"--?[a-z]", word)}
    assert given <= flags
    if entry["commands"]:
        assert not words[len(path) :], f"{words[len(path)]} is no command of {path}"


# --- execution


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a project with the agents, files and conversations that the docs name, and the id of its last run."""
    root = tmp_path_factory.mktemp("docs")
    copy_starter(root)
    for cases in (root / "agents.d").glob("*.test.yaml"):
        cases.unlink()  # tests/cli/test_test.py runs them
    policy = "{allow: [calculator, 'orders.*'], ask: [echo]}"
    own = {"model": "offline", "skill_policy": policy}
    files = {f"agents.d/{name}.yaml": agent(name, **own) for name in ("support", "billing")}
    files["agents.d/reader.yaml"] = agent("reader", model="offline", skill_policy="{allow: [read_file, calculator]}")
    files["agents.d/support.test.yaml"] = (
        "cases:\n  - {name: a refund, message: calculate 2 + 3, expect: {output: '5'}}\n"
    )
    files["plugins/orders.py"] = (
        "from framework import tool\n\n\n@tool\ndef order_status(order_id: str) -> str:\n"
        '    """Return the status of an order."""\n    return f"{order_id} is paid"\n'
    )
    write(root, files)
    (root / "chart.png").write_bytes(png())
    (root / "report.pdf").write_bytes(pdf())
    for arguments in (("-c", "c1", "-a", "support", "calculate 1 + 1"), ("-a", "support", "echo hello")):
        assert agentsd("run", *arguments, cwd=root).returncode in (0, 3)
    exported = agentsd("conversations", "export", "c1", "--format", "anthropic", cwd=root).stdout
    write(root, {"imported.json": exported})
    write(root / "hello", agent_files("support"))
    return root, str(list_runs(root)[0]["run_id"])


def arguments_of(line: str, root: Path, run_id: str) -> list[str]:
    """Return the arguments of a documented command, with real names for placeholders."""
    words = shlex.split(line)
    words = words[words.index("agentsd") + 1 :]
    real = {"RUN": run_id, "run_4f0c…": run_id, "PATH": str(root), "HEAD~1": str(root)}
    if words[:2] == ["conversations", "import"]:
        real["c1.json"] = "imported.json"
    return [real.get(word, word) for word in words]


@pytest.mark.parametrize("line", EXECUTED)
def test_a_documented_command_is_executed(line: str, template: tuple[Path, str], tmp_path: Path) -> None:
    folder, run_id = template
    root = shutil.copytree(folder, tmp_path / "project")
    arguments = arguments_of(line, root, run_id)
    if arguments[0] in ("new", "init"):
        shutil.rmtree(root / "hello/agents.d")
    if arguments[0] in SERVERS:
        serve(arguments, root)
        return
    if arguments[0] == "conversations" and {"--tenant", "--user"}.intersection(arguments):
        pytest.skip("needs two tenants or users with the same conversation: tests/cli/test_tenants.py")
    act = agentsd_process if ALONE.intersection(arguments) else agentsd
    done = act(*arguments, cwd=root)
    path, _ = find_entry(read_index(), arguments)
    assert done.returncode in EXIT_CODES.get(" ".join(path), {0}), done.stderr
    assert not done.stderr.startswith("Usage:"), done.stderr
    assert "Traceback" not in done.stderr


def serve(arguments: list[str], root: Path) -> None:
    """Start a server, wait until it is ready, and end it."""
    port = ["--port", "0", "--host", "127.0.0.1"] if arguments[0] == "serve" else []
    environment = {**ENVIRONMENT, "AGENTSD_SERVER__API_KEYS": '["secret-key-of-the-test"]'}
    with Fork([*arguments, *port], cwd=root, env=environment, stdout=PIPE, stderr=STDOUT, text=True) as process:
        assert process.stdout
        while "(generation 1; Ctrl-C ends it)" not in (shown := process.stdout.readline()):
            assert shown, "the process ended early"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
