"""A real language server completes, describes and marks keys with a project's schemas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from framework import Runtime
from framework.cli.init import copy_starter
from framework.cli.project import refresh_schemas
from framework.config.yaml.parse import ParseError, parse_agent
from framework.types.text import source_digest
from tests.support.editor import SERVER, Editor, Mistake, editor, node
from tests.support.projects import write

if not SERVER.exists() or node() is None:
    pytest.skip("no yaml-language-server: `make test` fetches it where it finds npm", allow_module_level=True)

T = TypeVar("T")

STARTER = ("assistant", "basic", "code-diagnosis", "coder", "log-analyst", "planner", "repo-analysis", "web")
SETTINGS = "# yaml-language-server: $schema=.agentsd/settings.schema.json\n"
AGENT = "# yaml-language-server: $schema=../.agentsd/agent.schema.json\n"
START = AGENT + "version: 1\nname: new\ndescription: Does new things.\ninstructions: Do new things.\n"
"""Five lines; the text of a test starts on the sixth."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    copy_starter(folder)
    write(folder, {"agentsd.yaml": "models: {fast: {model: openai/gpt-5.4-mini}}\n"})

    async def main() -> None:
        async with Runtime.open(folder, watch=False) as runtime:
            assert not runtime.catalog.current.problems
            refresh_schemas(runtime)

    asyncio.run(main())
    return folder


class Desk:
    """The language server of all tests of this module, called from outside its event loop. `|` marks the cursor."""

    def __init__(self, root: Path, client: Editor, runner: asyncio.Runner) -> None:
        self._root, self._client, self._runner = root, client, runner

    def offered(self, text: str) -> dict[str, Any]:
        return self._ask(self._client.completions, text)

    def shown(self, text: str) -> str:
        return self._ask(self._client.hover, text)

    def marked(self, text: str) -> list[Mistake]:
        return self._ask(self._client.mistakes, text)

    def _ask(self, ask: Callable[[Path, str], Coroutine[Any, Any, T]], text: str) -> T:
        folder = self._root / "agents.d" if text.startswith(AGENT) else self._root
        return self._runner.run(ask(folder / f"{source_digest(ask.__name__, text)}.yaml", text))


@pytest.fixture(scope="module")
def desk(root: Path) -> Iterator[Desk]:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        yield Desk(root, runner.run(stack.enter_async_context(editor(root))), runner)
        runner.run(stack.aclose())


# --- completion


def test_missing_keys_are_suggested_with_descriptions(desk: Desk) -> None:
    keys = desk.offered(START + "|")
    assert {"model", "routing", "mode", "tools", "limits", "plan", "agents"} <= keys.keys()
    assert {"executor", "skill_policy", "runtime_policy", "sub_agents"}.isdisjoint(keys), "older spellings"
    assert "version" not in keys, "an existing key is not suggested"
    assert keys["examples"] == "Few-shot examples, inserted before the conversation."


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("runtime_policy:\n  risk_level: |\n", {"low", "medium", "high", "critical"}),
        ("runtime_policy: {confirm: {from: |}}\n", {"low", "medium", "high", "critical", "never"}),
        ("runtime_policy:\n  |\n", {"max_steps", "max_tool_calls", "timeout", "risk_level", "confirm"}),
        ("max_risk: |\n", {"low", "medium", "high", "critical"}),
        ("limits:\n  |\n", {"steps", "tool_calls", "timeout", "prices", "budgets"}),
        ("approve_from: |\n", {"low", "medium", "high", "critical", "never"}),
        ("mode: |\n", {"react", "plan", "auto"}),
        ("runtime_policy:\n  timeout: |\n", {"120s", "null"}),
        ("executor: |\n", {"react", "plan", "auto"}),
        ("model: |\n", {"fast", "offline", "openai/", "qwen/"}),
        ("sub_agents: [|]\n", {"assistant", "planner", "log-analyst"}),
        ("skill_policy:\n  allow: [|]\n", {"read_file", "calculator", "dates.now"}),
        ("skill_policy:\n  allow:\n    - |\n", {"read_file", "calculator", "dates.now"}),
        ("skill_policy:\n  deny:\n    - |\n", {"read_file", "agent.planner", "tool", "when", "reason"}),
        ("skill_policy:\n  ask: [{tool: |}]\n", {"read_file", "agent.planner"}),
        ("model_settings: {reasoning: |}\n", {"minimal", "low", "medium", "high"}),
    ],
)
def test_values_are_suggested(desk: Desk, text: str, names: set[str]) -> None:
    assert names <= desk.offered(START + text).keys()


def test_tools_are_suggested_with_descriptions(desk: Desk) -> None:
    assert "calculat" in str(desk.offered(START + "skill_policy:\n  allow: [|]\n")["calculator"]).lower()


def test_templates_are_suggested_by_name(desk: Desk) -> None:
    text = AGENT + "version: 1\nname: new\ndescription: x\ninstructions: {template: |}\n"
    assert "log-analyst/system.j2" in desk.offered(text)


def test_settings_are_suggested(desk: Desk) -> None:
    assert {"model", "models", "routing", "reload"} <= desk.offered(SETTINGS + "|").keys()
    assert {"assistant", "planner"} <= desk.offered(SETTINGS + "routing: {default_agent: |}\n").keys()
    assert {"tolerant", "strict"} <= desk.offered(SETTINGS + "reload:\n  mode: |\n").keys()


# --- hover


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("runtime_policy:\n  max_|steps: 3\n", "Maximum number of model turns."),
        ("runtime_policy:\n  time|out: 60s\n", "Time limit for the whole run, without the time it waits for a person."),
        ("runtime|_policy: {max_steps: 3}\n", "Limits, risk and confirmation."),
        (
            "mod|el: fast\n",
            "Model as `provider/model`, an alias from agentsd.yaml, or `offline`. Default: `model` in agentsd.yaml.",
        ),
        (
            "execu|tor: plan\n",
            "How the agent works: `react` calls tools turn by turn; "
            "`plan` writes a plan and executes its steps; `auto`",
        ),
    ],
)
def test_hover_shows_the_field_docstring(desk: Desk, text: str, shown: str) -> None:
    assert desk.shown(START + text).splitlines()[0] == shown, "no title before it, no debris of alternatives"


def test_hover_over_a_tool_shows_its_description(desk: Desk) -> None:
    assert "* `calculator`: " in desk.shown(START + "skill_policy: {allow: [calc|ulator]}\n")


# --- diagnostics


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("modle: offline\n", 6, 1, "Property modle is not allowed."),
        ("runtime_policy:\n  max_step: 3\n", 7, 3, "Property max_step is not allowed."),
        ("skill_policy: {allow: [], deny: [{tool: x, reson: y}]}\n", 6, 44, "Property reson is not allowed."),
        ("runtime_policy: {risk_level: extreme}\n", 6, 30, 'Valid values: "low", "medium", "high", "critical".'),
        ("executor: plann\n", 6, 11, 'Valid values: "auto", "code", "plan", "react".'),
        ("plan: {approval: sometimes}\n", 6, 18, 'Valid values: "never", "always".'),
        ("inputs: {a: {type: text}}\n", 6, 20, '"string", "integer", "number", "boolean", "array", "object".'),
        ("runtime_policy:\n  max_steps: many\n", 7, 14, "Incorrect type. Expected one of null, integer."),
        ("model: 7\n", 6, 8, "Incorrect type. Expected one of null, string."),
        ("skill_policy: {allow: [read_file, 5]}\n", 6, 35, 'Incorrect type. Expected "string".'),
        ("skill_policy: {allow: read_file}\n", 6, 23, 'Incorrect type. Expected "array".'),
        ("runtime_policy: {max_steps: 0}\n", 6, 29, "Value is below the exclusive minimum of 0."),
        ("runtime_policy: {timeout: -3}\n", 6, 27, "Value is below the exclusive minimum of 0."),
        ("runtime_policy: {timeout: soon}\n", 6, 27, "invalid duration: write it as 500ms, 90s, 15m, 24h or 30d"),
        ("runtime_policy: {timeout: 0s}\n", 6, 27, "invalid duration: write it as 500ms, 90s, 15m, 24h or 30d"),
        ("skill_policy: {deny: []}\n", 6, 1, 'Missing property "allow".'),
        ("sub_agents: [Billing]\n", 6, 14, "Value is not accepted."),
    ],
)
def test_an_error_is_marked_once_at_its_position(desk: Desk, text: str, line: int, column: int, message: str) -> None:
    ((at, from_, marked),) = desk.marked(START + text)
    assert (at, from_) == (line, column)
    assert message in marked


def test_the_editor_and_check_report_the_same_positions(desk: Desk) -> None:
    text = START + (
        "modle: x\n"
        "executor: react\n"
        "skill_policy:\n"
        "  allow: [read_file, 5]\n"
        "  deny: [{tool: x, reson: y}]\n"
        "runtime_policy:\n"
        "  max_steps: many\n"
        "  risk_level: extreme\n"
        "  tool_timeout: soon\n"
        "  confirm: {from: hihg}\n"
    )
    with pytest.raises(ParseError) as caught:
        parse_agent("agents.d/all.yaml", text.encode())
    places = [(problem.line, problem.column) for problem in caught.value.problems]
    assert [(line, column) for line, column, _ in desk.marked(text)] == places
    assert len(places) == 7


@pytest.mark.parametrize("name", STARTER)
def test_the_starter_has_no_marked_errors(desk: Desk, root: Path, name: str) -> None:
    text = (root / "agents.d" / f"{name}.yaml").read_text("utf-8")
    assert text.startswith(AGENT)
    assert desk.marked(text) == []


def test_unknown_names_are_not_marked(desk: Desk) -> None:
    text = START + (
        'skill_policy: {deny: ["x.*", {tool: read_file, when: {path: "*.env", n: 3}}], allow: ["*", not.there]}\n'
        "runtime_policy: {max_steps: null, timeout: 1.5m, tool_timeout: 3, confirm: {from: never}}\n"
        "model: openai/not-heard-of\n"
        "sub_agents: [not-written-yet]\n"
        "plan: {approval: {from: low}}\n"
    )
    assert desk.marked(text) == []


def test_settings_are_validated_and_may_contain_variables(desk: Desk) -> None:
    good = SETTINGS + (
        'models: {local: {model: openai/x, base_url: "${URL}", api_key: "${KEY:-none}"}}\n'
        'routing: {default_agent: "${AGENT}"}\n'
        'reload: {quiet: "${QUIET:-100ms}", mode: "${MODE:-strict}"}\n'
    )
    assert desk.marked(good) == []
    wrong = "modle: x\nreload:\n  quiet: soon\n  mode: lax\nrouting: {default_agent: 3}\n"
    assert [place for *place, _ in desk.marked(SETTINGS + wrong)] == [[2, 1], [4, 10], [5, 9], [6, 26]]
