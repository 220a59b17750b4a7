"""Tables in the documentation that state what the code does are equal to what the code does."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

import framework
from framework.config.api_keys import ROLES, ApiKey
from framework.config.yaml.agent_keys import LIMITS, WRITTEN
from framework.engine.runtime.request import RunOptions
from framework.types import errors
from framework.types.budget import CounterScope, ReachedBudget, SharedBudget
from framework.types.errors import OUTCOMES, AgentsdError, Limit
from framework.types.events import WIRE_NAMES, RunEvent
from framework.types.messages import Message, ToolCall, Usage
from framework.types.report import (
    WARNINGS,
    Action,
    CallSummary,
    ErrorInfo,
    IncompleteStep,
    LimitUse,
    RunWarning,
    ToolStat,
    TraceEntry,
)
from framework.types.spec import AgentSpec
from framework.types.state import Confirmation, MadeDecision, RunResult
from tests.support.paths import ROOT

DOCS = ROOT / "docs"


def section(page: str, title: str) -> str:
    """The text below a heading, up to the next heading of any level."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", (DOCS / page).read_text("utf-8"), re.M | re.S)
    assert found, f"docs/{page} has no heading {title!r}"
    return re.sub(r"^```.*?^```", "", found[1], flags=re.M | re.S)


def rows(page: str, title: str) -> Iterator[list[str]]:
    """The rows of all tables below a heading, cell by cell, without their heads."""
    lines = section(page, title).splitlines()
    for number, line in enumerate(lines):
        is_head = number + 1 < len(lines) and re.match(r"\|[-|]+\|$", lines[number + 1])
        if line.startswith("|") and not re.match(r"\|[-|]+\|$", line) and not is_head:
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize(
    "model",
    [RunResult, IncompleteStep, RunWarning, TraceEntry, Action, CallSummary, ToolStat, Usage, Message, ToolCall,
     Confirmation, MadeDecision, ErrorInfo, LimitUse, ReachedBudget],
    ids=lambda model: model.__name__,
)  # fmt: skip
def test_every_field_of_a_result_is_documented_in_order(model: type[BaseModel]) -> None:
    documented = [names(row[0])[0] for row in rows("results.md", model.__name__)]

    assert documented == list(model.model_fields)


def test_every_option_of_a_run_is_documented_in_order() -> None:
    assert [names(row[0])[0] for row in rows("embedding.md", "Options of a run")] == list(RunOptions.__annotations__)


def test_every_outcome_is_documented_with_its_finish_reasons_and_exit_code() -> None:
    table = {row[0]: row for row in rows("embedding.md", "Result")}

    assert names(table["`stopped`"][1]) == list(get_args(Limit))
    for reason, outcome in OUTCOMES.items():
        _, reasons, code, span = table[f"`{outcome.status}`"]
        assert reason in names(reasons)
        assert (code, span) == (str(outcome.exit_code), "unset" if outcome.span_error is None else "error")


def test_every_event_is_documented_with_its_payload() -> None:
    table = {row[0]: row for row in rows("embedding.md", "Events") if len(row) == 3}
    head = set(RunEvent.model_fields)

    for kind, name in WIRE_NAMES.items():
        if not name.startswith("config_"):
            _, classes, payload = table[f"`{name}`"]
            assert kind.__name__ in names(classes)
            assert set(kind.model_fields) - head == set(names(payload)), name


def test_every_error_is_documented() -> None:
    text = section("embedding.md", "Errors")
    public = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AgentsdError)]

    for kind in public:
        assert f"`{kind.__name__}`" in text, kind


def default_of(key: str) -> Any:
    """The default of a key of an agent file, such as `limits.steps`."""
    value: Any = AgentSpec.model_validate(
        {"version": 1, "name": "a", "description": "a", "instructions": "a", "skill_policy": {"allow": []}}
    )
    *above, last = key.split(".")
    fields = {".".join(map(str, keys)): path for path, keys in sorted(WRITTEN.items(), key=lambda one: len(one[0]))}
    confirm = {"approve_from.expires": "expires", "approve_from.on_expiry": "on_expiry"}
    path = ("runtime_policy", "confirm", confirm[key]) if key in confirm else fields.get(key, (*above, last))
    for part in map(str, path):
        value = getattr(value, "from_" if part == "from" else part)
    return value


def written(value: Any) -> str:
    """A default as the documentation writes it."""
    if isinstance(value, BaseModel):
        return value.model_dump_json(by_alias=True).replace('"', "").replace(":", ": ")
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    return str(int(value)) if isinstance(value, float) else str(value)


def test_every_documented_default_of_an_agent_file_is_the_codes() -> None:
    table = {names(row[0])[0]: names(row[1])[0] for row in rows("agents.md", "Defaults")}

    durations = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    for key, shown in table.items():
        number = re.fullmatch(r"(\d+)([smhd])", shown)
        assert (str(int(number[1]) * durations[number[2]]) if number else shown) == written(default_of(key)), key
    limits = {f"limits.{name}" for name in LIMITS if name != "budgets"} | {
        "max_risk",
        "approve_from",
        "strict_arguments",
    }
    plan = {f"plan.{name}" for name in type(default_of("plan")).model_fields} - {"plan.approval"} | {"plan.approve"}
    assert limits | plan <= table.keys()


def test_every_key_and_counter_of_a_budget_is_documented() -> None:
    documented = [names(row[0]) for row in rows("settings.md", "Budgets")]

    assert [cell[0] for cell in documented[:3]] == list(SharedBudget.model_fields)
    assert [name for cell in documented[3:] for name in cell] == list(get_args(CounterScope))


def test_every_key_and_role_of_a_server_key_is_documented_with_its_default() -> None:
    documented = {names(row[0])[0]: row[1] for row in rows("serving.md", "Keys")}

    assert list(documented) == [*ApiKey.model_fields, *ROLES]
    assert documented["roles"] == f"`[{', '.join(ApiKey.model_fields['roles'].default)}]`"


def test_every_warning_is_documented_with_its_meaning() -> None:
    table = {row[0]: row[1] for row in rows("embedding.md", "Events") if len(row) == 2}

    assert table == {code: meaning.replace("|", "\\|") for code, meaning in WARNINGS.items()}


def test_documentation_imports_only_public_names() -> None:
    public = set(framework.__all__)
    modules = {names(row[0])[0] for row in rows("embedding.md", "Public names")}

    for page in [DOCS.parent / "README.md", *DOCS.glob("*.md")]:
        for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            for module, imported in re.findall(r"^\s*from (framework\S*) import (.+)$", block, re.M):
                if module == "framework":
                    assert {name.strip() for name in imported.split(",")} <= public, page
                else:
                    assert module in modules, page


def test_every_extra_is_on_the_page_on_installation() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    documented = [names(row[0])[0] for row in rows("install.md", "Extras")]

    assert sorted(documented) == sorted(set(project["optional-dependencies"]) - {"test"})
