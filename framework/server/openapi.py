"""`/openapi.json`, which describes the routes with an example for each body."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any
from weakref import ref

import yaml
from fastapi import APIRouter, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.routing import BaseRoute

from framework.config.api_keys import ROLES
from framework.config.schema import field_docs
from framework.server.errors import ErrorResponse
from framework.server.identity import requires
from framework.types.installation import installed_version

STREAM_RESPONSE: dict[str, Any] = {
    "content": {
        "text/event-stream": {
            "x-item-schema": {  # `itemSchema` of OpenAPI 3.2; in 3.1, a schema would describe the whole stream
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "event": {"type": "string"},
                    "data": {"type": "string", "contentMediaType": "application/json"},
                    "retry": {"type": "integer", "minimum": 0},
                },
            },
        }
    }
}
"""Description of a response of server-sent events."""
DEFAULT_RESPONSE: dict[int | str, dict[str, Any]] = {
    "default": {"model": ErrorResponse, "description": "Any other error"}
}
"""The `responses` of every router."""
_COMMON_ERRORS = (400, 401, 403, 429, 500)
"""HTTP statuses of errors that every route can have."""
_EXAMPLES = Path(__file__).with_name("examples.yaml")
_DESCRIPTION = (
    "Runs of agents that are defined in files. Errors have the same form on every route; `default` stands for statuses"
    " that are not listed."
)
_KEY = {"type": "http", "scheme": "bearer", "description": "A key of `server.api_keys`, if any are set."}
_TAGS = {
    "configuration": "The project's files, generations and agents, and the processes that serve them.",
    "protocols": "Protocols of other programs. Those with specifications of their own are not described: `/v1`"
    " (OpenAI's chat completions and Responses), `/mcp` (MCP) and `/a2a/{agent}` (A2A).",
    "runs": "Runs, their conversations, decisions and figures.",
}
_JSON, _STREAM = "application/json", "text/event-stream"


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route or router for errors with these HTTP statuses."""
    return {status: {"model": ErrorResponse, "description": HTTPStatus(status).phrase} for status in sorted(statuses)}


def add_openapi_route(router: APIRouter, routes: Sequence[BaseRoute]) -> None:
    """Add `/openapi.json`, which describes `routes`, and refers to them weakly: FastAPI caches functions of routes."""
    described = [ref(route) for route in routes]
    built = cache(lambda: build_document([route for weak in described if (route := weak()) is not None]))

    @router.get("/openapi.json", include_in_schema=False, dependencies=[requires(*ROLES)])
    async def openapi(request: Request) -> JSONResponse:
        """Return the OpenAPI document of the routes."""
        base = request.url.path.removesuffix("/agent/openapi.json")
        document = await asyncio.to_thread(built)  # the first time takes long
        return JSONResponse({**document, "servers": [{"url": base or "/"}]})


def build_document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """Return the OpenAPI document of routes, with the docstrings of fields as descriptions, and examples."""
    document = get_openapi(title="agentsd", version=installed_version(), description=_DESCRIPTION, routes=routes)
    document["info"] |= {"license": {"name": "MIT", "identifier": "MIT"}, "contact": {"name": "agentsd"}}
    document["tags"] = [{"name": tag, "description": text} for tag, text in _TAGS.items()]
    document["components"]["securitySchemes"] = {"key": _KEY}
    document["security"] = [{"key": []}, {}]
    schemas = document["components"]["schemas"]
    # Without it, the kind of a decision or of a part is unknown.
    for kind in ("Approve", "Edit", "Reject", "Respond", "TextPart", "MediaPart"):
        schemas[kind]["required"] = [*dict.fromkeys([*schemas[kind].get("required", ()), "type"])]
    _describe_fields(schemas)
    _remove_null_parameters(document["paths"])
    _add_common_errors(document["paths"])
    _add_examples(document["paths"])
    return document


def _describe_fields(schemas: dict[str, Any]) -> None:
    models = {model.__name__: model for model in _models(BaseModel)}
    for name, schema in schemas.items():
        model = models.get(name.removesuffix("-Input").removesuffix("-Output"))
        for field, text in field_docs(model).items() if model else ():
            if (node := schema.get("properties", {}).get(field)) is not None:
                node.setdefault("description", text)


def _models(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield the models of this package. Their names are unique."""
    for model in kind.__subclasses__():
        if model.__module__.partition(".")[0] == __name__.partition(".")[0]:
            yield model
        yield from _models(model)


def _remove_null_parameters(paths: dict[str, Any]) -> None:
    """Let no parameter be null: a query and a header have only texts, and one that is not set is left out."""
    for operation in (operation for operations in paths.values() for operation in operations.values()):
        for parameter in operation.get("parameters", ()):
            schema = parameter["schema"]
            kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
            if len(kinds) == 1:
                del schema["anyOf"]
                parameter["schema"] = {**kinds[0], **schema}


def _add_common_errors(paths: dict[str, Any]) -> None:
    """Add the errors of every route. As `responses` of the routers, they would take a third of the time to build."""
    for operation in (operation for operations in paths.values() for operation in operations.values()):
        responses = operation["responses"]
        for status in _COMMON_ERRORS:
            common = {**responses["default"], "description": HTTPStatus(status).phrase}
            responses.setdefault(str(status), common)


def _add_examples(paths: dict[str, Any]) -> None:
    examples = yaml.safe_load(_EXAMPLES.read_text("utf-8"))
    for path, operations in paths.items():
        for method, operation in operations.items():
            found = examples.get(f"{method.upper()} {path}", {})
            if "requests" in found:
                named = {name: {"value": value} for name, value in found["requests"].items()}
                operation["requestBody"]["content"][_JSON]["examples"] = named
            success = next(response for status, response in operation["responses"].items() if status.startswith("2"))
            for kind, media_type in (("response", _JSON), ("stream", _STREAM)):
                if kind in found:
                    success["content"][media_type]["example"] = found[kind]
