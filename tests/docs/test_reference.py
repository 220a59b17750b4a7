"""The reference is what its generator writes, and lists every name, key, option, event, route and error code."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import framework
from examples.reference.__main__ import FOLDER, PAGES, written
from examples.reference.policy import merged_rows
from framework import AgentsdError, Runtime
from framework.cli.main import agentsd
from framework.config.settings import Settings
from framework.config.templates.prompts import RUN_VARIABLE_TEXTS
from framework.server import router
from framework.telemetry import names as telemetry_names
from framework.types.errors import EXIT_CODES, Limit
from framework.types.events import WIRE_NAMES
from framework.types.spec import AgentSpec
from tests.support.cases import cases
from tests.support.paths import ROOT
from tests.support.projects import agent, write
from tests.support.server_routes import server_routes


def text(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text("utf-8")


def missing(names: Iterator[str] | list[str], *pages: str) -> list[str]:
    """The names that none of the pages has in the font of code."""
    listed = set(re.findall(r"`([^`]+)`", "".join(text(page) for page in pages)))
    words = {word for one in listed for word in re.split(r"[ ,]", one)}
    return sorted(name for name in set(names) if name not in listed | words)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    assert text(name) == written(name), f"docs/reference/{name}.md is out of date: run `make docs`"


def test_every_page_is_in_the_index_and_there_is_no_other() -> None:
    linked = set(re.findall(r"\]\(([\w-]+)\.md\)", text("index")))
    assert linked == set(PAGES) == {path.stem for path in FOLDER.glob("*.md")} - {"index"}


def keys(model: type[BaseModel]) -> Iterator[str]:
    """The keys of a model and of those in its fields."""
    for name, field in model.model_fields.items():
        yield field.alias or name
        for kind in models_in(field.annotation):
            yield from keys(kind)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


def test_every_key_of_the_files_is_listed() -> None:
    assert missing(keys(AgentSpec), "agent-file", "agent-file-older") == []
    assert missing(keys(Settings), "settings-file") == []


def commands(group: click.Group, words: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{words}{name} ")
        else:
            yield f"{words}{name}", command


def test_every_command_and_option_is_listed() -> None:
    names = ("commands", "commands-groups", "commands-runs")
    pages = "".join(map(text, names))
    shared = {"`--project", "`--env"}  # of nearly every command: the pages say it once, above their first command
    assert all(option in text(name).partition("\n## ")[0] for name in names for option in shared)
    for words, command in commands(agentsd):
        section = re.search(rf"^## agentsd {words}\n(.*?)(?=^## |\Z)", pages, re.M | re.S)
        assert section, f"agentsd {words}"
        options = [one for one in command.params if isinstance(one, click.Option)]
        for option in options:
            listed = f"`{max(option.opts, key=len)}"
            assert listed in shared or listed in section[1], f"agentsd {words} {option.opts}"


def test_every_event_and_error_code_is_listed() -> None:
    headings = re.findall(r"^## (\w+)$", text("events"), re.M)
    assert set(WIRE_NAMES.values()) <= set(headings)
    sources = [path.read_text("utf-8") for path in (ROOT / "framework").rglob("*.py")]
    codes = {found for source in sources for found in re.findall(r'^    code(?:: \w+)? = "(\w+)"$', source, re.M)}
    assert len(codes) > 30
    assert missing([*codes, *get_args(Limit), *(str(code) for code in EXIT_CODES)], "outcomes") == []


def test_every_public_name_is_listed() -> None:
    assert missing(list(RUN_VARIABLE_TEXTS), "templates") == []
    pages = "".join(text(name) for name in PAGES if name.startswith(("python", "outcomes")))
    for name in framework.__all__:
        kind = getattr(framework, name)
        is_error = isinstance(kind, type) and issubclass(kind, AgentsdError)
        assert name in {"Runtime", "events"} or (f"`{name}`" if is_error else f"## agentsd.{name}\n") in pages, name
    for name, found in vars(Runtime).items():
        if not name.startswith("_") and callable(getattr(found, "__func__", found)):
            assert f"### Runtime.{name}\n" in pages, name


def test_every_route_is_listed(tmp_path: Path) -> None:
    async def routes_of(root: Path) -> list[str]:
        async with Runtime.open(root, watch=False) as runtime:
            app = FastAPI(openapi_url=None)
            app.router.routes.extend(router(runtime).routes)
            return [str(route).replace(":path}", "}") for route in server_routes(app.routes)]

    routes = asyncio.run(routes_of(write(tmp_path, {"agents.d/one.yaml": agent("one", model="offline")})))
    described = set(re.findall(r"^## (\w+ /\S+)$", text("http") + text("http-configuration"), re.M))
    elsewhere = (ROOT / "docs/serving.md").read_text("utf-8")
    for route in routes:
        assert route in described or route.split("{")[0].split()[1].rstrip("/") in elsewhere, route


NAMES = [value for name, value in vars(telemetry_names).items() if name.isupper() and isinstance(value, str)]


@pytest.mark.parametrize("folder", ["explanation", "how-to", "tutorial"])
def test_a_page_names_only_attributes_that_exist(folder: str) -> None:
    for page in (ROOT / "docs" / folder).glob("*.md"):
        named = re.findall(r"`(agentsd\.(?!yaml)[\w.]+)`", page.read_text("utf-8"))
        assert set(named) <= {*NAMES, "agentsd.runs"}, page.name


def test_every_metric_and_attribute_is_listed() -> None:
    attributes = [value for value in NAMES if "." in value]
    metrics = [
        node.args[0].value
        for path in (ROOT / "framework").rglob("*.py")
        if "create_" in (text := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if re.fullmatch(r"create_(observable_)?(counter|gauge|histogram|up_down_counter)", node.func.attr)
        if node.args and isinstance(node.args[0], ast.Constant)
    ]
    assert len(metrics) > 20
    assert missing([*attributes, *map(str, metrics)], "telemetry") == []


@cases(100)
@given(verdicts=st.lists(st.sampled_from(["allowed", "asks", "denied"]), min_size=18, max_size=18))
def test_the_rows_of_the_truth_table_have_the_verdict_of_every_combination(verdicts: list[str]) -> None:
    columns = (("yes", "not met", "no"), ("low", "medium"), ("yes", "not met", "no"))
    table: dict[tuple[str, ...], str] = dict(zip(product(*columns), verdicts, strict=True))
    rows = list(merged_rows(table))

    def fits(cell: str, value: str, column: int) -> bool:
        named = {row[column] for row in rows}
        return cell in ("any", value) or (value == "not met" and cell == "no" and "not met" not in named)

    for combination, verdict in table.items():
        found = [row[-1] for row in rows if all(map(fits, row, combination, range(len(columns))))]
        assert not found or found == [verdict]
        if not any("not met" in row for row in rows):
            assert found == [verdict]


def test_every_key_parameter_and_field_has_a_meaning() -> None:
    pages = sorted((ROOT / "docs/reference").glob("*.md"))
    assert {page.stem: empty for page in pages if (empty := re.findall(r"^\|.*\| *\|$", text(page.stem), re.M))} == {}
