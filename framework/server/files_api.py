"""`/config/files` and `/config/check`: the project's files, a check of edits, and edits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from framework.config.generations.catalog import Catalog
from framework.config.project_names import SCHEMAS, SchemaKind, names_of
from framework.engine.runtime.runtime import Runtime
from framework.server.errors import FileNotFound
from framework.server.file_edits import FileEdits, encode_texts, expected_digest
from framework.server.file_schemas import (
    AppliedEdit,
    CandidateFiles,
    FileContent,
    FileList,
    NewText,
    file_content,
    file_list,
)
from framework.server.identity import identity_of
from framework.server.openapi import error_responses
from framework.server.paging import Cursor, OptionalSize
from framework.server.request_handling import json_response
from framework.server.roles import requires
from framework.server.schemas import CheckedConfig, redacted_json
from framework.types.redact import redact

log = logging.getLogger(__name__)

_MATCH = "ETag of the version that the edit replaces."
_NONE_MATCH = "`*` creates the file."


def add_file_routes(routes: APIRouter, runtime: Runtime) -> None:
    """Add `/config/files`, `/config/schema` and `/config/check` of a runtime."""
    catalog = runtime.catalog
    _add_edit_routes(routes, catalog, FileEdits(catalog, watched=runtime.watcher is not None))

    @routes.get("/config/files", response_model=FileList, dependencies=[requires("read", all_agents=True)])
    async def list_files(cursor: Cursor = None, limit: OptionalSize = None) -> object:
        """List the files of the project, with their state and the agents that use them."""
        return await _in_thread(file_list, catalog, cursor, limit)

    @routes.get(
        "/config/files/{path:path}",
        response_model=FileContent,
        dependencies=[requires("read", all_agents=True)],
        responses=error_responses(404),
    )
    async def read_file(path: str) -> object:
        """Return a file with its text, in which secrets are masked. The `ETag` is its digest."""
        found = await asyncio.to_thread(file_content, catalog, path)
        if found is None:
            raise FileNotFound("the project has no such file; the files are in GET /agent/config/files", param="path")
        return _tagged(found, found.digest)

    @routes.get("/config/schema", dependencies=[requires("read", all_agents=True)])
    async def show_schema(kind: Annotated[SchemaKind, Query(description="Which files.")] = "agent") -> dict[str, Any]:
        """Return the JSON Schema of a kind of YAML files, with the names of the project as suggestions."""
        return await asyncio.to_thread(lambda: _redact_texts(SCHEMAS[kind](names_of(catalog))))


def _redact_texts(schema: Any) -> Any:
    """Redact secrets in the texts of a schema, such as descriptions of agents, but not properties by their names."""
    if isinstance(schema, str):
        return redact(schema)
    if isinstance(schema, list):
        return [_redact_texts(item) for item in schema]
    if isinstance(schema, dict):
        return {key: _redact_texts(item) for key, item in schema.items()}
    return schema


def _add_edit_routes(routes: APIRouter, catalog: Catalog, edits: FileEdits) -> None:
    @routes.put(
        "/config/files/{path:path}",
        response_model=AppliedEdit,
        dependencies=[requires("admin", all_agents=True)],
        responses=error_responses(409, 412, 413, 428),
    )
    async def write_file(
        path: str,
        body: NewText,
        request: Request,
        if_match: Annotated[str | None, Header(description=_MATCH)] = None,
        if_none_match: Annotated[str | None, Header(description=_NONE_MATCH)] = None,
    ) -> object:
        """Write an agent file or template, if it is still the version of `If-Match`, and wait until it is live."""
        applied = await edits.apply(path, body.text, expected_digest(if_match, if_none_match))
        client = request.client.host if request.client else "a socket"
        log.info("%s was edited by %s from %s: %s", path, identity_of(request).name, client, applied.outcome)
        return _tagged(applied, applied.digest)

    @routes.post(
        "/config/check",
        response_model=CheckedConfig,
        dependencies=[requires("admin", all_agents=True)],
        responses=error_responses(413),
    )
    async def check_config(candidate: CandidateFiles | None = None) -> object:
        """Return what the files, or these texts in their place, would change. Nothing is written or published."""
        preview = await catalog.preview(encode_texts(catalog, candidate.files if candidate else {}))
        return await _in_thread(CheckedConfig.of, preview)


async def _in_thread(make: Any, *arguments: object) -> object:
    """Build and serialize a response in a thread: both take long for many files."""
    return await asyncio.to_thread(lambda: json_response(make(*arguments)))


def _tagged(body: BaseModel, digest: str | None) -> JSONResponse:
    headers: Mapping[str, str] = {"etag": f'"{digest}"'} if digest else {}
    return JSONResponse(redacted_json(body), headers=headers)
