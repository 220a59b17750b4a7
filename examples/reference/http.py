"""Routes of the server, from its OpenAPI document."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastapi import FastAPI
from httpx2 import ASGITransport, AsyncClient

from examples.reference.markdown import code, prose, table
from framework import Runtime
from framework.server import router

Document = Mapping[str, Any]
Row = tuple[str, str, str]

_OPENING = """\
The routes below `/agent`, with their parameters and bodies. A running server describes itself at
`/agent/openapi.json`, with the schemas and an example of each body. [HTTP server](../serving.md)
explains how the routes are used, and describes `/v1`, `/mcp`, `/health`, `/ready` and `/metrics`;
errors are [listed apart](outcomes.md).
"""
_SHARED = """\
Some routes share parameters, which are only named below: the header `Idempotency-Key` (a repetition
within 24 hours returns the same run, or the same response); of lists, `cursor` (`next` of the page
before; default: the first page) and `limit` (the maximum number of entries).
"""
_SHARED_NAMES = ("Idempotency-Key", "cursor", "limit")
_MIN_SHARED_BODY = 5
"""From so many rows on, a route whose rows another one has, too, refers to that."""
PARAMETER_MEANINGS: Mapping[str, str] = {
    "agent": "Name of the agent, or `auto`.",
    "context": "Follows the agent's instructions, as the caller's words.",
    "conversation_id": "Id of the conversation.",
    "forwardedProps": "`inputs`, `locale`, `user` and `on_disconnect`; other keys are ignored.",
    "generation": "Number of the generation.",
    "messages": "Messages of the thread; only the last one is read.",
    "name": "Name of the agent.",
    "path": "Path of the file, from the project's folder.",
    "runId": "The client's id of the run.",
    "run_id": "Id of the run.",
    "text": "The new text of the file.",
}
"""Meanings of parameters that the document does not describe."""
_AGENT = """\
version: 1
name: one
description: Is served.
model: offline
instructions: Work.
skill_policy: {allow: []}
"""


def http_page() -> Iterator[str]:
    """Yield the lines of the page on runs, conversations and usage."""
    yield "# HTTP API\n"
    yield _OPENING
    yield _SHARED
    yield "Routes for agents, files and the configuration are on [another page](http-configuration.md).\n"
    yield from _routes(lambda tags: "runs" in tags)


def configuration_page() -> Iterator[str]:
    """Yield the lines of the page on the other routes."""
    yield "# HTTP API: agents, files and configuration\n"
    yield "The routes that are not on [the page on runs](http.md), which explains `cursor`, `limit` and"
    yield "`Idempotency-Key`.\n"
    yield from _routes(lambda tags: "runs" not in tags)


def _routes(is_wanted: Callable[[Sequence[str]], bool]) -> Iterator[str]:
    document = asyncio.run(_document())
    shown: dict[str, set[Row]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if is_wanted(operation["tags"]):
                yield from _route(f"{method.upper()} {path}", operation, document, shown)


async def _document() -> Document:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "one.yaml"
        file.write_text(_AGENT, "utf-8")
        async with Runtime.open(file, watch=False) as runtime:
            app = FastAPI(openapi_url=None)
            app.router.routes.extend(router(runtime, guarded=False).routes)
            async with AsyncClient(transport=ASGITransport(app), base_url="http://agentsd") as client:
                response = await client.get("/agent/openapi.json")
                found: Document = response.raise_for_status().json()
                return found


def _route(name: str, operation: Mapping[str, Any], document: Document, shown: dict[str, set[Row]]) -> Iterator[str]:
    yield f"## {name}\n"
    answers = [f"{status} {_name(answer)}" for status, answer in operation["responses"].items() if status < "300"]
    found = [one for one in operation.get("parameters", ()) if one["in"] != "path"]
    shared = [code(one["name"]) for one in found if one["name"] in _SHARED_NAMES]
    rows = [_parameter(one) for one in found if one["name"] not in _SHARED_NAMES]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body:
        rows += list(_fields(body, document))
    same = next((other for other, theirs in shown.items() if len(rows) >= _MIN_SHARED_BODY and theirs >= {*rows}), "")
    without = [row[0] for row in shown.get(same, ()) if row not in rows]
    text = f"{operation.get('description', '')} Answers {', '.join(answers)}."
    text += f" Takes {', '.join(shared)}." if shared else ""
    text += f" The parameters are those of `{same}` without {', '.join(sorted(without))}." if same else ""
    yield prose(text) + "\n"
    shown[name] = {*rows}
    if rows and not same:
        yield from table(("parameter", "value", "meaning"), rows)
        yield ""


def _parameter(found: Mapping[str, Any]) -> Row:
    required = ", required" if found.get("required") else ""
    text = found.get("description") or found["schema"].get("description") or PARAMETER_MEANINGS.get(found["name"], "")
    return code(found["name"]), f"{found['in']}, {_type(found['schema'])}{required}", text


def _fields(body: Mapping[str, Any], document: Document) -> Iterator[Row]:
    schema = _resolved(body, document)
    for name, found in schema.get("properties", {}).items():
        required = ", required" if name in schema.get("required", ()) else ""
        text = found.get("description") or PARAMETER_MEANINGS.get(name, "")
        yield code(name), f"{_type(found)}{required}", text


def _resolved(schema: Mapping[str, Any], document: Document) -> Mapping[str, Any]:
    name = schema.get("$ref", "").rsplit("/", 1)[-1]
    found: Mapping[str, Any] = document["components"]["schemas"][name] if name else schema
    return found


def _type(schema: Mapping[str, Any]) -> str:
    if reference := schema.get("$ref"):
        return str(reference.rsplit("/", 1)[-1])
    if branches := schema.get("anyOf") or schema.get("oneOf"):
        kinds = [_type(branch) for branch in branches if branch.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if choices := schema.get("enum"):
        return ", ".join(code(str(choice)) for choice in choices)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def _name(answer: Mapping[str, Any]) -> str:
    """Return what a response contains: the name of its schema, or its type."""
    content = answer.get("content", {})
    if not content:
        return "without a body"
    kind, found = next(iter(content.items()))
    schema = found.get("schema") or {}
    words = _type(schema) if schema else ""
    return code(words if words not in {"", "any", "object", "string"} else kind)
