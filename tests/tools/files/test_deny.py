"""Denied files: no tool of the agent reads, lists, searches or writes them, in any spelling."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from framework import RunResult, Runtime, ToolContext, ToolResult, tool
from framework.config.agents.diff import diff_agent
from framework.config.yaml.parse import ParseError, parse_agent
from framework.testing import ScriptedModel, Turn, calls
from framework.tools.files import BaseFolder, open_file
from framework.tools.tool import Tool
from framework.types.errors import ToolError
from tests.support.file_tool_calls import FILE_TOOL_CALLS, path_spellings
from tests.support.projects import agent, write

SECRET = "hunter2"
FILES = {
    "data/secret.json": f'{{"password": "{SECRET}"}}\n',
    "data/open.json": '{"password": "known to all"}\n',
    "private/deep/key.json": f'{{"password": "{SECRET}"}}\n',
}
POLICY = '{files: {deny: ["./data/*secret*", private/]}, allow: ["*"]}'
FREE = {"runtime_policy": "{risk_level: critical, confirm: {from: never}}"}


def project(root: Path, policy: str = POLICY, **keys: str) -> Path:
    return write(root, {"agents.d/one.yaml": agent("one", skill_policy=policy, **FREE, **keys), **FILES})


async def called(root: Path, name: str, arguments: dict[str, Any], *tools: Tool) -> ToolResult:
    async with Runtime.open(root, tools=tools, models={"scripted": ScriptedModel()}, watch=False) as runtime:
        return await runtime.call_tool("one", name, arguments)


@pytest.mark.parametrize("name", sorted(FILE_TOOL_CALLS))
def test_no_built_in_tool_touches_a_denied_file(tmp_path: Path, name: str) -> None:
    root, (argument, others) = project(tmp_path), FILE_TOOL_CALLS[name]
    before = {path: (root / path).read_bytes() for path in FILES}

    for path in ("data/secret.json", "private/deep/key.json", "private"):
        for written in [path, *path_spellings(root, path)]:
            result = asyncio.run(called(root, name, {**others, argument: written}))
            assert (result.status, result.metadata["rule"][:10]) == ("denied", "files.deny")

    assert {path: (root / path).read_bytes() for path in FILES} == before


@pytest.mark.parametrize(
    ("name", "arguments", "seen"),
    [
        ("search_files", {"query": "password"}, "data/open.json"),
        ("search_files", {"query": "hunter"}, "No files match"),
        ("search_files", {"query": "*.json"}, "data/open.json"),
        ("list_dir", {"path": "data"}, "open.json"),
        ("list_dir", {"path": "."}, "data/"),
        ("read_file", {"path": "data/secrets.json"}, ""),
        ("read_file", {"path": "data/opn.json"}, "open.json"),
    ],
)
def test_searches_listings_and_suggestions_omit_denied_files(
    tmp_path: Path, name: str, arguments: dict[str, Any], seen: str
) -> None:
    result = asyncio.run(called(project(tmp_path), name, arguments))
    shown = f"{result.output or ''}{result.error or ''}"

    assert seen in shown
    assert SECRET not in shown
    assert "secret.json" not in shown
    assert "private" not in shown


@pytest.mark.parametrize(
    ("pattern", "path", "is_denied"),
    [
        ("**/*.key", "id.key", True),
        ("**/*.key", "a/b/id.key", True),
        ("a/**/id.key", "a/id.key", True),
        ("a/**/id.key", "a/b/c/id.key", True),
        ("a/**/id.key", "b/id.key", False),
        ("a**/id.key", "id.key", False),
        ("secrets/**", "secrets/id.key", True),
        ("secrets/**", "id.key", False),
    ],
)
def test_two_stars_match_any_number_of_folders(pattern: str, path: str, is_denied: bool) -> None:
    assert (BaseFolder(Path("/base"), (pattern,)).denying_pattern(path.split("/")) is not None) == is_denied


@pytest.mark.parametrize("pattern", ["../secret", "data/../secret", "data\\\\secret", "~/.ssh/*"])
def test_a_pattern_that_matches_no_file_is_an_error(pattern: str) -> None:
    text = agent("a", skill_policy=f'{{files: {{deny: ["{pattern}"]}}, allow: []}}')
    with pytest.raises(ParseError, match=r"the pattern matches no file: write it relative to tools\.base_path"):
        parse_agent("agents.d/a.yaml", text.encode())


def test_denied_files_apply_to_plugins_that_open_files_the_same_way(tmp_path: Path) -> None:
    @tool(risk="low")
    def peek(name: str, context: ToolContext) -> str:
        """Read a file that is not a declared argument."""
        with open_file(context.files, ("data", name)) as file:
            return file.read().decode()

    result = asyncio.run(called(project(tmp_path), "peek", {"name": "secret.json"}, peek))

    assert result.error == "'data/secret.json' is denied by tools.files.deny: ./data/*secret*"


def test_declared_paths_of_a_plugin_are_denied_before_the_call(tmp_path: Path) -> None:
    taken: list[str] = []

    @tool(risk="low", paths="files")
    def take(files: list[str]) -> str:
        """Accept file names."""
        taken.extend(files)
        return "taken"

    result = asyncio.run(called(project(tmp_path), "take", {"files": ["data/open.json", "./private/x"]}, take))

    assert (result.status, taken) == ("denied", [])


def test_a_sub_agent_inherits_the_denied_files_of_its_caller(tmp_path: Path) -> None:
    root = project(tmp_path, sub_agents="[helper]")
    write(root, {"agents.d/helper.yaml": agent("helper", **FREE)})
    looked = calls(("search_files", {"query": "password"}), ("read_file", {"path": "data/secret.json"}))
    answers: dict[str, list[Turn]] = {
        "one": [calls(("agent.helper", {"message": "look"})), "done"],
        "helper": [looked, "found"],
    }
    model = ScriptedModel(script=lambda request: answers[request.messages[0].content.split()[2].rstrip(".")].pop(0))

    async def run() -> RunResult:
        async with Runtime.open(root, models={"scripted": model}, watch=False) as runtime:
            return await runtime.run("go", agent="one")

    result = asyncio.run(run())

    observed = "".join(message.content for request in model.requests for message in request.messages)
    assert result.status == "completed"
    assert "data/open.json" in observed
    assert SECRET not in observed


def test_an_added_pattern_applies_to_a_run_in_progress(tmp_path: Path) -> None:
    root = project(tmp_path, '{allow: ["*"]}')

    async def run() -> RunResult:
        async with Runtime.open(root, models={"scripted": model}, watch=False, tools=[tighten]) as runtime:
            opened.append(runtime)
            return await runtime.run("go", agent="one")

    opened: list[Runtime] = []

    @tool(risk="low")
    async def tighten() -> str:
        """Add the pattern."""
        project(tmp_path)
        await opened[0].reload()
        return "done"

    model = ScriptedModel(calls(("tighten", {})), calls(("search_files", {"query": SECRET})), "done")
    result = asyncio.run(run())

    assert result.trace[1].tool_output == f"No files match '{SECRET}'."


def test_a_pattern_in_a_file_that_is_broken_elsewhere_applies(tmp_path: Path) -> None:
    async def run() -> ToolResult:
        models = {"scripted": ScriptedModel()}
        root = project(tmp_path, '{allow: ["*"]}')
        async with Runtime.open(root, models=models, watch=False) as runtime:
            project(tmp_path, POLICY, routng="{}")
            await runtime.reload()
            return await runtime.call_tool("one", "search_files", {"query": SECRET})

    assert asyncio.run(run()).output == f"No files match '{SECRET}'."


def test_adding_a_pattern_tightens_and_removing_one_widens() -> None:
    more, less = (
        parse_agent("a.yaml", agent("a", skill_policy=text).encode())[0] for text in (POLICY, "{allow: ['*']}")
    )

    assert {change.effect for change in diff_agent(less, more)} == {"tightens"}
    assert {change.effect for change in diff_agent(more, less)} == {"widens"}


@pytest.mark.parametrize("ignores_case", [True, False])
def test_case_matters_only_if_the_file_system_is_case_sensitive(tmp_path: Path, ignores_case: bool) -> None:
    base = BaseFolder(write(tmp_path, {"DATA/Secret.txt": "x"}), ("data/*secret*",), ignores_case=ignores_case)

    if not ignores_case:
        open_file(base, ("DATA", "Secret.txt")).close()
        return
    with pytest.raises(ToolError, match=r"is denied by tools.files.deny"):
        open_file(base, ("DATA", "Secret.txt"))


def test_check_warns_about_a_rule_that_does_not_cover_other_file_tools(tmp_path: Path) -> None:
    def warnings(policy: str) -> list[str]:
        async def found() -> list[str]:
            async with Runtime.open(
                project(tmp_path, policy), models={"scripted": ScriptedModel()}, watch=False
            ) as one:
                return [problem.message for problem in one.catalog.current.problems]

        return asyncio.run(found())

    rule = '{tool: read_file, when: {path: "*secret*"}}'
    (warning,) = warnings(f"{{deny: [{rule}], allow: [read_file, search_files, write_file]}}")
    assert warning == (
        "the deny rule 'read_file' leaves the same files accessible to search_files; "
        "deny the files for all tools: files: {deny: ['*secret*']}"
    )
    absolute = '{tool: read_file, when: {path: "/srv/secret*"}}'
    (_, warning) = warnings(f"{{deny: [{absolute}], allow: [read_file, search_files]}}")
    assert warning.endswith("search_files; add the same condition for them")
    assert warnings(f"{{deny: [{rule}], allow: [read_file, write_file, list_dir]}}") == []
    assert warnings(f'{{deny: [{rule}], files: {{deny: ["*secret*"]}}, allow: [read_file, search_files]}}') == []
