"""The definition of a tool is recorded when first seen; a changed one is reported until it is accepted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from framework.tools.tool import Tool, ToolContext
from framework.tools.tool_source import Contracts, external_tool
from framework.types.errors import ConfigError
from framework.types.spec import Risk


async def nothing(_: dict[str, object], __: ToolContext) -> None:
    """Does nothing."""


def made(name: str, description: str = "Does it.", risk: Risk = "medium", *, idempotent: bool = False) -> Tool:
    return external_tool(name, description, {}, nothing, source="mcp", risk=risk, idempotent=idempotent)


def changed(contracts: Contracts, tools: Iterable[Tool]) -> list[Tool]:
    return [tool for tool, change in contracts.compare(tools) if change]


def test_first_use_is_trusted_and_a_change_waits_for_acceptance(tmp_path: Path) -> None:
    path = tmp_path / ".agentsd/contracts.json"
    a, b, other = made("mcp.x.a"), made("mcp.x.b"), made("mcp.x.a", "Does something else.")
    assert changed(Contracts(path), [a, b]) == []
    contracts = Contracts(path)
    assert changed(contracts, [other, b]) == [other]
    assert changed(contracts, [other]) == [other], "looking does not accept"
    contracts.accept(["mcp.x.a"])
    assert changed(contracts, [other, b]) == []
    assert changed(Contracts(path), [a]) == [a], "what it was before is a change now"


def test_tools_accepted_by_another_process_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "contracts.json"
    server, command = Contracts(path), Contracts(path)
    changed(server, [made("a"), made("b")])
    fresh = [made("a", "New."), made("b")]
    assert changed(server, fresh) == changed(command, fresh) == fresh[:1]
    command.accept(["a"])
    assert changed(server, fresh) == []


def test_a_tool_that_returns_is_compared_with_its_accepted_definition(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path / "contracts.json")
    changed(contracts, [made("a")])
    assert changed(contracts, []) == []
    assert changed(contracts, [made("a", "New.")]) != []


def test_only_what_was_seen_can_be_accepted(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path / "contracts.json")
    changed(contracts, [made("mcp.x.search")])
    with pytest.raises(ConfigError, match=r"no server tool matches 'mcp.x.serch'; did you mean mcp.x.search\?"):
        contracts.accept(["mcp.x.serch"])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"version": 3, "contracts": {}}',
        b'{"version": 1, "contracts": {"a": 1}}',
        b'{"version": 2, "contracts": {"a": "b"}}',
    ],
)
def test_while_the_file_cannot_be_read_nothing_is_accepted_until_an_operator_does(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "contracts.json"
    path.write_bytes(content)
    contracts, tool = Contracts(path), made("a")
    assert changed(contracts, [tool]) == [tool]
    assert "contracts.json cannot be read" in caplog.text
    assert path.read_bytes() == content
    contracts.accept(["a"])
    assert changed(contracts, [tool]) == []
    entry = {"contract": made("a").contract, "risk": "medium", "idempotent": False}
    assert json.loads(path.read_bytes()) == {"version": 2, "contracts": {"a": entry}}


def test_accepted_tools_stay_accepted_when_the_file_becomes_invalid(tmp_path: Path) -> None:
    path = tmp_path / "contracts.json"
    contracts, fresh = Contracts(path), made("a", "New.")
    changed(contracts, [made("a")])
    path.write_bytes(b"")
    assert changed(contracts, [fresh]) == [fresh]


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    contracts, fresh = Contracts(tmp_path / "file/contracts.json"), made("a", "New.")
    assert changed(contracts, [made("a")]) == []
    assert "cannot be written" in caplog.text
    assert changed(contracts, [fresh]) == [fresh]


def test_no_temporary_file_remains_in_the_folder(tmp_path: Path) -> None:
    changed(Contracts(tmp_path / "contracts.json"), [made("a")])
    assert [path.name for path in tmp_path.iterdir()] == ["contracts.json"]


def test_a_higher_risk_applies_immediately_and_a_lower_one_once_accepted(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path / "contracts.json")
    contracts.compare([made("mcp.x.a", risk="medium")])

    assert contracts.compare([higher := made("mcp.x.a", risk="high")]) == [(higher, None)]
    ((held, change),) = contracts.compare([made("mcp.x.a", risk="low", idempotent=True)])
    assert (held.risk, held.idempotent, change) == ("medium", False, "lower risk")
    contracts.accept(["mcp.x.a"])
    ((taken, none),) = contracts.compare([made("mcp.x.a", risk="low", idempotent=True)])
    assert (taken.risk, taken.idempotent, none) == ("low", True, None)


def test_a_risk_set_by_the_project_is_not_a_claim_of_the_server(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path / "contracts.json")
    contracts.compare([made("mcp.x.a", risk="high")], ["mcp.x"])

    assert contracts.compare([lower := made("mcp.x.a", risk="low")], ["mcp.x"]) == [(lower, None)]


def test_a_tool_that_appears_later_waits_and_the_tools_of_a_new_server_do_not(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path / "contracts.json")
    first, later, other = made("mcp.x.a"), made("mcp.x.b"), made("mcp.y.a")
    contracts.compare([first])

    assert contracts.compare([first, later, other]) == [(first, None), (later, "new"), (other, None)]
    assert contracts.accept(["mcp.x.*"]) == ["mcp.x.a", "mcp.x.b"]
    assert contracts.compare([later]) == [(later, None)]
