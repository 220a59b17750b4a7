"""Tables in the documentation that state what the code does are equal to what the code does."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import get_args

import framework
from framework.config.api_keys import ROLES
from framework.engine.runtime.request import RunOptions
from framework.types.budget import CounterScope, SharedBudget
from framework.types.state import RunResult
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


def test_every_option_of_a_run_is_documented_in_order() -> None:
    assert [names(row[0])[0] for row in rows("embedding.md", "Options of a run")] == list(RunOptions.__annotations__)


def test_every_key_and_counter_of_a_budget_is_documented() -> None:
    documented = [names(row[0]) for row in rows("settings.md", "Budgets")]

    assert [cell[0] for cell in documented[:3]] == list(SharedBudget.model_fields)
    assert [name for cell in documented[3:] for name in cell] == list(get_args(CounterScope))


def test_every_role_of_a_server_key_is_documented() -> None:
    assert [names(row[0])[0] for row in rows("serving.md", "Keys")] == list(ROLES)


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


def test_every_field_of_a_result_has_a_meaning() -> None:
    """The page is generated; `--json` prints these fields, so each is explained."""
    text = (DOCS / "reference/python-results.md").read_text("utf-8")
    found = set(re.findall(r"^\| `(\w+)` \|", text, re.M))

    assert "|  |\n" not in text
    assert found >= set(RunResult.model_fields)
