"""The documentation is correct: its Python runs, its YAML is valid, and its links and file names resolve."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from framework.cli.init import copy_starter
from framework.config.overlay import SettingsSource
from framework.config.settings import Settings
from framework.config.yaml.parse import expand, parse, parse_agent
from framework.tools.plugins import PluginLoader
from framework.types.case import CaseFile
from framework.types.tool_servers import Sources
from tests.support.cases import each
from tests.support.pages import PAGES, code_blocks
from tests.support.paths import ROOT

DESIGN_PAGES = sorted([ROOT / "AGENTS.md", *(ROOT / "docs/design").glob("*.md")])


@each(("place", "text"), list(code_blocks("yaml")))
def test_every_yaml_block_is_valid(place: str, text: str) -> None:
    if "cases:" in text:
        parse(place, text.encode(), CaseFile)
    elif any(f"{key}:" in text for key in ("mcp_servers", "http_tools", "a2a_agents")):
        parse(place, text.encode(), Sources)
    elif "\ninstructions:" in text:
        parse_agent("agents.d/example.yaml", text.encode())
    else:
        document = SettingsSource(text.encode()).document()
        data, problems = expand(document, {})
        assert not problems
        is_source = data.keys() & {"skill_hosts", "mcp_servers"}
        Sources(**data) if is_source else Settings(**data)


@pytest.mark.parametrize(("place", "text"), list(code_blocks("python")))
def test_every_python_block_runs(place: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_starter(tmp_path)
    monkeypatch.chdir(tmp_path)
    if '"""plugins/' in text:
        plugin = PluginLoader().load("plugins/orders.py", text.encode())
        assert [tool.name for tool in plugin.tools] == ["orders.refund"]
        return
    names: dict[str, object] = {"__name__": place}
    exec(compile(text, place, "exec"), names)
    for name, value in names.items():
        if name.startswith("test_"):
            value()  # type: ignore[operator]  # a function of the block
        if name == "serve":
            asyncio.run(value())  # type: ignore[operator]  # a coroutine function of the block


@each("page", [*PAGES, ROOT / "CHANGELOG.md"])
def test_every_link_resolves_to_a_file(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


@each("page", DESIGN_PAGES)
def test_every_source_file_named_in_a_design_page_exists(page: Path) -> None:
    for path in re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text("utf-8")):
        assert (ROOT / path).exists() or (ROOT / "framework" / path).exists(), path


@each("page", PAGES)
def test_prose_wraps_at_100_columns(page: Path) -> None:
    """Tables, code and lines with links are excepted: they cannot be wrapped."""
    is_code, long = False, []
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        is_code ^= line.startswith("```")
        if len(line) > 100 and not (is_code or line.startswith(("|", "<", "    ")) or "](" in line or "http" in line):
            long.append(number)
    assert long == []


@each("page", PAGES)
def test_no_page_has_more_than_400_lines(page: Path) -> None:
    assert len(page.read_text("utf-8").splitlines()) <= 400
