"""Paths and URLs in the arguments of servers' tools, declared by their schema or in the project's file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from framework import Runtime, ToolResult
from framework.testing import ScriptedModel
from framework.tools.conditions import declared_in_schema
from tests.support.mcp_definitions import open_tool_definition, server_file
from tests.support.mcp_worlds import configure
from tests.support.projects import agent, write

HINTED = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "format": "path"},
        "links": {"type": "array", "items": {"type": "string", "format": "uri"}},
        "note": {"type": "string"},
    },
}
PLAIN = {"type": "object", "properties": {"path": {"type": "string"}, "links": {"type": "array"}}}
RULES = (
    '{deny: [{tool: mcp.docs.echo, when: {path: "private/*"}}, '
    '{tool: mcp.docs.echo, when: {links: "https://example.com/admin*"}}], '
    'files: {deny: ["*secret*"]}, allow: ["mcp.docs.*"]}'
)
DECLARED = {"paths": '{"e*": [path]}', "urls": "{echo: [links]}"}


def project(root: Path, schema: dict[str, Any], **server: str) -> Path:
    configure(root, {"tools": [open_tool_definition("echo", schema=schema)]})
    return write(
        root, {"agents.d/a.yaml": agent("a", skill_policy=RULES), "plugins/s.yaml": server_file(root, **server)}
    )


def made(root: Path, *given: dict[str, Any]) -> list[ToolResult]:
    async def main() -> list[ToolResult]:
        async with Runtime.open(root, models={"scripted": ScriptedModel()}, watch=False) as runtime:
            return [await runtime.call_tool("a", "mcp.docs.echo", arguments) for arguments in given]

    return asyncio.run(main())


@pytest.mark.parametrize(("schema", "server"), [(HINTED, {}), (PLAIN, DECLARED)], ids=["schema", "file"])
def test_rules_see_one_spelling_of_a_servers_paths_and_urls(
    tmp_path: Path, schema: dict[str, Any], server: dict[str, str]
) -> None:
    root = project(tmp_path, schema, **server)
    paths = ("private/a", "./private/a", "private//./a/", f"{root}/private/a", "x/secret.txt", "a/../private/a")
    linked = {"links": ["https://example.com/x", "https://example.com/admin#x"]}
    denied = made(root, *({"path": path} for path in paths), linked)
    (taken,) = made(root, {"path": ".//public/a/", "links": ["https://example.com", "s3://bucket/key"]})

    assert [result.status for result in denied] == ["denied"] * 7
    assert '"path": "public/a"' in str(taken.output)
    assert '"https://example.com/", "s3://bucket/key"' in str(taken.output)


def test_a_servers_absolute_path_stays_absolute(tmp_path: Path) -> None:
    (taken,) = made(project(tmp_path, HINTED), {"path": "//srv//files/./a"})

    assert '"path": "/srv/files/a"' in str(taken.output)


@pytest.mark.parametrize("form", ["file://{root}/{path}", "FILE://localhost{root}/a/../{path}#x", "file:{path}"])
def test_a_file_url_reaches_no_denied_file(tmp_path: Path, form: str) -> None:
    links = {"type": "array", "items": {"type": "string", "format": "uri"}}
    root = project(tmp_path, {"type": "object", "properties": {"path": {"type": "string"}, "links": links}})
    denied, taken = made(root, *({"links": [form.format(root=root, path=p)]} for p in ("my%73ecrets/a", "public/a")))

    assert (denied.status, denied.metadata["rule"]) == ("denied", "files.deny *secret*")
    assert taken.status == "success"


@pytest.mark.parametrize(
    ("reference", "names"),
    [
        ("#/$defs/a%20path", ["p"]),
        ("#/$defs/a~1path", ["p"]),
        ("#/oneOf/0", ["p"]),
        ("#a", []),
        ("#/oneOf/" + "9" * 5000, []),
        ("other#/$defs/x", []),
    ],
)
def test_references_of_a_schema_are_resolved_with_their_escapes(reference: str, names: list[str]) -> None:
    hint = {"type": "string", "format": "path"}
    schema = {
        "type": "object",
        "properties": {"p": {"$ref": reference}},
        "$defs": {"a path": hint, "a/path": hint},
        "oneOf": [hint],
    }
    assert [name for name, _ in declared_in_schema(schema)] == names


def test_locations_inside_composed_arguments_are_declared() -> None:
    at = {"properties": {"at": {"type": "string", "format": "path"}}}
    for inner in ({"type": "object", "anyOf": [at, {}]}, {"allOf": [at, {"required": ["at"]}]}, {"$ref": "#/$defs/at"}):
        schema = {"type": "object", "properties": {"from": inner}, "$defs": {"at": {"type": "object", "allOf": [at]}}}
        assert list(declared_in_schema(schema)) == [("from.at", "path")]
