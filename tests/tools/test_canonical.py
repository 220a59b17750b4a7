"""Rules see what the tool sees: all spellings of a path or URL get one verdict, and the tool gets one value."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, AliasChoices, BaseModel, Field, RootModel, StringConstraints

from framework import Approve, RunResult, Runtime, ToolResult, tool
from framework.testing import JsonStore, ScriptedModel, calls
from framework.tools.builtin import BUILTIN_TOOLS
from framework.tools.conditions import rule_matches
from framework.tools.files import BaseFolder
from framework.tools.tool import Tool
from framework.types.errors import ConfigError
from framework.types.plan import PlanDraft
from framework.types.spec import Rule
from tests.support.cases import cases
from tests.support.file_tool_calls import FILE_TOOL_CALLS, path_spellings
from tests.support.projects import agent, write

FILES = {
    "private/key.json": "{}\n",
    "private/deep/log.json": "{}\n",
    "public/notes.json": "{}\n",
    "plain.json": "{}\n",
}
RULES = ("private/*", "./private/*", "private//*", "*/key.json", "private/key.json", "!= public/*", "public/", "*.json")


def project(root: Path, policy: str, **keys: str) -> Path:
    settings = {"runtime_policy": "{risk_level: critical, confirm: {from: never}}"} | keys
    return write(root, {"agents.d/one.yaml": agent("one", skill_policy=policy, **settings), **FILES})


async def called(root: Path, name: str, arguments: dict[str, Any], *tools: Tool) -> ToolResult:
    async with Runtime.open(root, tools=tools, models={"scripted": ScriptedModel()}, watch=False) as runtime:
        return await runtime.call_tool("one", name, arguments)


def test_every_built_in_tool_with_a_path_or_url_declares_it() -> None:
    declared = {one.name: (*one.paths, *one.urls) for one in BUILTIN_TOOLS if one.paths or one.urls}

    assert declared == {name: (argument,) for name, (argument, _) in FILE_TOOL_CALLS.items()} | {
        "http_request": ("url",)
    }


@cases(12)
@given(
    rule=st.sampled_from(RULES),
    path=st.sampled_from([*FILES, "private", "public/new.json"]),
    name=st.sampled_from(sorted(FILE_TOOL_CALLS)),
)
def test_all_spellings_of_one_file_have_one_verdict(rule: str, path: str, name: str) -> None:
    argument, others = FILE_TOOL_CALLS[name]

    async def statuses(root: Path) -> set[bool]:
        policy = f'{{deny: [{{tool: {name}, when: {{{argument}: "{rule}"}}}}], allow: ["*"]}}'
        models = {"scripted": ScriptedModel()}
        async with Runtime.open(project(root, policy), models=models, watch=False) as runtime:
            written = [path, *path_spellings(root, path)]
            made = [await runtime.call_tool("one", name, {**others, argument: text}) for text in written]
        return {result.status == "denied" for result in made}

    with TemporaryDirectory() as folder:
        assert len(asyncio.run(statuses(Path(folder).resolve()))) == 1


@pytest.mark.parametrize("path", [".github/w.yml", "./.github/w.yml", ".//.github/w.yml", ".github/./w.yml"])
def test_the_documented_deny_rule_cannot_be_bypassed(tmp_path: Path, path: str) -> None:
    root = project(tmp_path, '{deny: [{tool: write_file, when: {path: ".github/*"}}], allow: ["*"]}')
    write(root, {"agentsd.yaml": 'tools: {unprotected: [".github/**"]}\n'})

    result = asyncio.run(called(root, "write_file", {"path": path, "content": "x"}))

    assert result.metadata["rule"] == "deny write_file"
    assert not (root / ".github").exists()


def test_human_hash_and_tool_get_the_same_canonical_value(tmp_path: Path) -> None:
    root = project(tmp_path, '{ask: [{tool: write_file, when: {path: "out/*"}}], allow: ["*"]}')
    model = ScriptedModel(calls(("write_file", {"path": ".//out/./a.txt", "content": "x"})), "done")

    async def run() -> tuple[RunResult, RunResult]:
        async with Runtime.open(root, models={"scripted": model}, store=JsonStore(), watch=False) as runtime:
            paused = await runtime.run("go", agent="one")
            return paused, await runtime.resume(paused.run_id, {paused.pending[0].id: Approve()})

    paused, done = asyncio.run(run())

    assert paused.pending[0].arguments == {"path": "out/a.txt", "content": "x"}
    assert done.trace[0].action.args == {"path": "out/a.txt", "content": "x"}
    assert done.trace[0].repairs == ("path: path written in its canonical form",)
    assert (root / "out/a.txt").read_text("utf-8") == "x"


def test_a_plan_step_cannot_bypass_a_rule(tmp_path: Path) -> None:
    policy = '{deny: [{tool: write_file, when: {path: "private/*"}}], allow: ["*"]}'
    root = project(tmp_path, policy, executor="plan", plan="{approval: never, on_failure: skip}")
    given = {"path": "./private/new.txt", "content": "x"}
    step = {"id": "a", "description": "write", "tool": "write_file", "parameters": given}
    plan = PlanDraft.model_validate({"goal": "g", "steps": [step]})

    async def run() -> None:
        models = {"scripted": ScriptedModel(script=lambda request: plan if request.output is not None else "done")}
        async with Runtime.open(root, models=models, watch=False) as runtime:
            await runtime.run("go", agent="one")

    asyncio.run(run())

    assert not (root / "private/new.txt").exists()


@pytest.mark.parametrize("path", ["../x", "a/../../x", "~/x", "a\\b", "/etc/passwd", "linked/key.json"])
def test_a_path_without_a_canonical_form_is_rejected_before_approval(tmp_path: Path, path: str) -> None:
    @tool(risk="low", confirm=True, paths="file")
    def take(file: str) -> str:
        """Accept a file name."""
        return file

    root = project(tmp_path, '{allow: ["*"]}')
    (root / "linked").symlink_to(root / "private")

    result = asyncio.run(called(root, "take", {"file": path}, take))

    assert result.status == "error"
    assert "path" in str(result.error) or "link" in str(result.error) or "folder" in str(result.error)


@pytest.mark.parametrize("ignores_case", [True, False])
def test_a_file_system_that_ignores_case_has_one_verdict_for_all_cases(tmp_path: Path, ignores_case: bool) -> None:
    (read,) = (one for one in BUILTIN_TOOLS if one.name == "read_file")
    base = BaseFolder(tmp_path, ignores_case=ignores_case)
    denied, allowed = Rule(tool="read_file", when={"path": "private/*"}), Rule(tool="*", when={"path": "!= public/*"})

    assert rule_matches(denied, {"path": "PRIVATE/key.txt"}, read, base) is ignores_case
    assert rule_matches(allowed, {"path": "Public/key.txt"}, read, base) is not ignores_case


class Filter(BaseModel):
    """Part of an argument."""

    amount: int
    folder: str = "."


def test_conditions_apply_inside_lists_and_objects(tmp_path: Path) -> None:
    @tool(risk="low", paths=["files", "filter.folder"])
    def act(to: list[str], filter: Filter, files: list[str], note: dict[str, str] | str | None = None) -> str:
        """Act."""
        return f"{to} {filter} {files} {note}"

    root = project(
        tmp_path,
        """
        {deny: [
          {tool: act, when: {to: "*@rival.com"}},
          {tool: act, when: {filter.amount: "> 50"}},
          {tool: act, when: {filter.folder: "private"}},
          {tool: act, when: {files: "private/*"}},
          {tool: act, when: {note.text: "x"}, reason: cannot be evaluated}],
        allow: ["*"]}
        """.replace("\n", " "),
    )
    fine: dict[str, Any] = {"to": [], "filter": {"amount": 5}, "files": ["public/a"]}

    def denied(**changed: Any) -> bool:
        return asyncio.run(called(root, "act", fine | changed, act)).status == "denied"

    assert not denied()
    assert denied(to=["ann@ours.com", "ceo@rival.com"])
    assert denied(filter={"amount": 51})
    assert denied(filter={"amount": 5, "folder": "./private/"})
    assert denied(files=["public/a", "./private/key.json"])
    assert denied(note="hello")  # a string has no part `text`: a condition that cannot be evaluated counts as met


def test_values_are_evaluated_before_and_after_the_tools_own_conversion(tmp_path: Path) -> None:
    @tool(risk="low", paths="path")
    def convert(
        path: Annotated[str, Field(validation_alias=AliasChoices("path", "p"))] = "plain.json",
        kind: Annotated[str, StringConstraints(to_lower=True, strip_whitespace=True)] = "",
        amount: Decimal = Decimal(0),
        host: Annotated[str, AfterValidator(lambda text: text.removesuffix("."))] = "",
    ) -> str:
        """Convert."""
        return f"{path} {kind} {amount} {host}"

    rules = {"path": "private/*", "kind": "delete", "amount": "100", "host": "internal"}
    listed = ", ".join(f'{{tool: convert, when: {{{name}: "{value}"}}}}' for name, value in rules.items())
    root = project(tmp_path, f'{{deny: [{listed}], allow: ["*"]}}')

    def denied(**given: Any) -> bool:
        return asyncio.run(called(root, "convert", given, convert)).status == "denied"

    assert not denied(p="public/notes.json", kind="read", amount="1e1", host="public")
    assert denied(p="./private/key.json")
    assert denied(kind=" DELETE ")
    assert denied(amount="1e2")
    assert denied(host="internal.")


@pytest.mark.parametrize(
    ("pattern", "url", "met"),
    [
        ("!= *://api.example.com/*", "https://api.example.com/x", False),
        ("!= *://api.example.com/*", "https://evil.example/://api.example.com/x", True),
        ("!= https://*.example.com/*", "https://a.example.com/x", False),
        ("!= https://*.example.com/*", "https://evil.example/a.example.com/x", True),
        ("!= https://api.example.com*", "https://api.example.com.evil.example/", True),
        ("!= https://*", "https://a.example.com/x", False),
        ("!= https://*", "http://a.example.com/x", True),
        ("!= *://*/docs/*", "https://a.example.com/v1/docs/x", False),
        ("*://api.example.com/*", "https://evil.example/://api.example.com/x", True),
        ("https://*.example.com/*", "https://a.example.com/x", True),
        ("https://*.example.com/*", "https://evil.example/x", False),
    ],
)
def test_a_wildcard_of_a_host_does_not_reach_into_the_path(pattern: str, url: str, met: bool) -> None:
    @tool(urls="link")
    def fetch(link: str) -> str:
        """Fetch."""
        return link

    assert rule_matches(Rule(tool="fetch", when={"link": pattern}), {"link": url}, fetch) is met


class Order(BaseModel):
    """An argument with two names for its amount."""

    amount: float = Field(5, validation_alias=AliasChoices("amt", "sum"))


class Count(RootModel[int]):
    """A number as a model."""


@pytest.mark.parametrize(
    ("rule", "given"),
    [
        ("order.amt: '> 50'", {"order": {"sum": 60}}),
        ("order.amount: '> 50'", {"order": {"sum": 60}}),
        ("at: '2026-01-01T*'", {"at": "2026-01-01 10:00:00"}),
        ("at: '2026-01-01 *'", {"at": "2026-01-01T10:00:00"}),
        ("at: '2026-01-01T*'", {"at": "1767261600"}),
        ("wait: PT2H", {"wait": "PT120M"}),
        ("price: '> 50'", {"price": "50.00000000000000000001"}),
        ("id: '> 9007199254740992'", {"id": 9007199254740993}),
        ("count: '> 50'", {"count": 60}),
        ("days.2026-01-01: '> 50'", {"days": {"1767225600": 60}}),
    ],
)
def test_another_name_or_form_of_a_value_does_not_bypass_a_rule(
    tmp_path: Path, rule: str, given: dict[str, Any]
) -> None:
    @tool(risk="low")
    def act(
        order: Order = Order(),  # noqa: B008 - a tool's default, which nobody changes
        at: datetime = datetime(2025, 1, 1),
        wait: timedelta = timedelta(0),
        price: Decimal = Decimal(0),
        id: int = 0,
        count: Count = Count(5),  # noqa: B008
        days: dict[date, int] = {},  # noqa: B006
    ) -> str:
        """Act."""
        return f"{order} {at} {wait} {price} {id} {count} {days}"

    root = project(tmp_path, f'{{deny: [{{tool: act, when: {{{rule}}}}}], allow: ["*"]}}')
    assert asyncio.run(called(root, "act", {}, act)).status == "success"
    assert asyncio.run(called(root, "act", given, act)).status == "denied"


def test_the_policy_does_not_use_up_an_iterator_of_the_tool(tmp_path: Path) -> None:
    @tool(risk="low")
    def total(amounts: Iterable[int]) -> int:
        """Add."""
        return sum(amounts)

    result = asyncio.run(called(project(tmp_path, '{allow: ["*"]}'), "total", {"amounts": [2, 3]}, total))
    assert (result.status, result.output) == ("success", 5)


def test_a_declaration_that_names_no_parameter_is_rejected() -> None:
    with pytest.raises(ConfigError, match="paths contains 'pth', which is not a parameter"):

        @tool(paths="pth")
        def read(path: str) -> str:
            """Read."""
            return path


@pytest.mark.parametrize(
    "url", ["https://api.example.com", "https://api.example.com/#x", "https://api.example.com:443/", "HTTPS://x.org/"]
)
def test_urls_have_one_verdict_or_are_rejected(tmp_path: Path, url: str) -> None:
    root = project(tmp_path, '{deny: [{tool: http_request, when: {url: "https://api.example.com/*"}}], allow: ["*"]}')

    result = asyncio.run(called(root, "http_request", {"url": url}))

    assert result.status == "denied" or result.metadata["error_type"] == "url_refused"
