"""What a tool said of itself when it was first seen is remembered; what changed is found, until it is accepted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from framework.tools.contracts import Contracts
from framework.tools.source import outside_tool
from framework.tools.tool import Tool, ToolContext
from framework.types.errors import ConfigError


async def nothing(_: dict[str, object], __: ToolContext) -> None:
    """Does nothing."""


def made(name: str, description: str = "Does it.") -> Tool:
    return outside_tool(name, description, {}, nothing, source="mcp")


def test_the_first_sight_is_trusted_and_a_change_is_found_until_it_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / ".agentsd/contracts.json"
    a, b, other = made("mcp.x.a"), made("mcp.x.b"), made("mcp.x.a", "Does something else.")
    assert Contracts(path).changed([a, b]) == []
    contracts = Contracts(path)
    assert contracts.changed([other, b]) == [other]
    assert contracts.changed([other]) == [other], "looking does not accept"
    contracts.accept(["mcp.x.a"])
    assert contracts.changed([other, b]) == []
    assert Contracts(path).changed([a]) == [a], "what it was before is a change now"


def test_what_another_process_accepts_counts(tmp_path: Path) -> None:
    path = tmp_path / "contracts.json"
    server, command = Contracts(path), Contracts(path)
    server.changed([made("a"), made("b")])
    fresh = [made("a", "New."), made("b")]
    assert server.changed(fresh) == command.changed(fresh) == fresh[:1]
    command.accept(["a"])
    assert server.changed(fresh) == []


def test_a_tool_that_was_away_is_compared_with_what_it_was(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path / "contracts.json")
    contracts.changed([made("a")])
    assert contracts.changed([]) == []
    assert contracts.changed([made("a", "New.")]) != []


def test_only_what_was_seen_can_be_accepted(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path / "contracts.json")
    contracts.changed([made("mcp.x.search")])
    with pytest.raises(ConfigError, match=r"no tool 'mcp.x.serch' .*did you mean mcp.x.search\?"):
        contracts.accept(["mcp.x.serch"])


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"version": 2, "contracts": {}}', b'{"version": 1, "contracts": {"a": 1}}']
)
def test_a_file_that_cannot_be_read_is_a_warning_and_mended(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "contracts.json"
    path.write_bytes(content)
    assert Contracts(path).changed([made("a")]) == []
    assert "contracts.json cannot be read" in caplog.text
    assert json.loads(path.read_bytes()) == {"version": 1, "contracts": {"a": made("a").contract}}


def test_a_file_that_breaks_later_does_not_forget_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "contracts.json"
    contracts, fresh = Contracts(path), made("a", "New.")
    contracts.changed([made("a")])
    path.write_bytes(b"")
    assert contracts.changed([fresh]) == [fresh]


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    contracts, fresh = Contracts(tmp_path / "file/contracts.json"), made("a", "New.")
    assert contracts.changed([made("a")]) == []
    assert "cannot be written" in caplog.text
    assert contracts.changed([fresh]) == [fresh]


def test_nothing_but_the_file_is_left_in_the_folder(tmp_path: Path) -> None:
    Contracts(tmp_path / "contracts.json").changed([made("a")])
    assert [path.name for path in tmp_path.iterdir()] == ["contracts.json"]
