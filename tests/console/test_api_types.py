"""The types of the API's JSON that the console is checked with, against the OpenAPI document of the server."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from framework.llm.client import ScriptedModel
from tests.support.node_modules import CONSOLE
from tests.support.runs_http import client_of

_INTERFACE = re.compile(r"^export interface (\w+)(?: extends ([\w, ]+))? \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_PROPERTY = re.compile(r"^  (\w+)\??:", re.MULTILINE)
"""A property of an interface. Those of nested objects are indented deeper."""


def interfaces() -> dict[str, set[str]]:
    """Return the names of the properties of each interface in types.d.ts, by the interface's name."""
    found: dict[str, set[str]] = {}
    for name, bases, body in _INTERFACE.findall((CONSOLE / "types.d.ts").read_text("utf-8")):
        inherited = [found[base.strip()] for base in bases.split(",") if base.strip()]
        found[name] = {*_PROPERTY.findall(body)}.union(*inherited)
    return found


async def schemas(root: Path) -> dict[str, Any]:
    """Return the schemas of the responses by name."""
    async with client_of(root, ScriptedModel()) as client:
        found: dict[str, Any] = (await client.get("openapi.json"))["components"]["schemas"]
        return {name.removesuffix("-Output"): schema for name, schema in found.items() if not name.endswith("-Input")}


def test_interfaces_have_the_properties_of_the_schemas_with_their_names(tmp_path: Path) -> None:
    described, declared = asyncio.run(schemas(tmp_path)), interfaces()
    shared = sorted(declared.keys() & described.keys())
    assert {"Problem", "LiveConfig", "AgentDetail", "Me"} <= {*shared}
    differing: dict[str, Any] = {}
    for name in shared:
        properties = {*described[name].get("properties", {})}
        if properties != declared[name]:
            differing[name] = {"unknown": declared[name] - properties, "missing": properties - declared[name]}
    assert differing == {}
