"""`/config`: the live configuration, its history, and rollbacks."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from framework.engine.runtime.runtime import Runtime
from framework.server.errors import NotUsable
from framework.server.files_api import GenerationDetail, generation_detail
from framework.server.identity import identity_of, requires
from framework.server.keyed_responses import IdempotencyHeader, KeyedResponses
from framework.server.openapi import error_responses
from framework.server.request_handling import Cursor, OptionalSize, json_response, page_of
from framework.server.schemas import ConfigHistory, LiveConfig, PastConfig, Rollback
from framework.types.errors import ConfigError

log = logging.getLogger(__name__)


def add_config_routes(routes: APIRouter, runtime: Runtime, keyed: KeyedResponses) -> None:
    """Add the `/config` routes of a runtime."""
    catalog = runtime.catalog

    @routes.get("/config", response_model=LiveConfig, dependencies=[requires("read", all_agents=True)])
    async def show_config() -> object:
        """Return the live generation and the problems of the files."""
        return json_response(LiveConfig.of(catalog))

    @routes.get("/config/history", response_model=ConfigHistory, dependencies=[requires("read", all_agents=True)])
    async def list_generations(cursor: Cursor = None, limit: OptionalSize = None) -> object:
        """List the generations in the history, the live one first."""
        live = catalog.current.number
        past = [PastConfig.of(entry, live) for entry in catalog.history][::-1]
        page, following = page_of(past, cursor, limit, lambda entry: str(entry.generation))
        return json_response(ConfigHistory(generations=tuple(page), next=following))

    @routes.get(
        "/config/history/{generation}",
        response_model=GenerationDetail,
        dependencies=[requires("read", all_agents=True)],
        responses=error_responses(404),
    )
    async def show_generation(generation: Annotated[int, Path(ge=1)]) -> object:
        """Return a generation of the history: its changes, its files, and what a rollback to it would change."""
        return await asyncio.to_thread(lambda: json_response(generation_detail(catalog, generation)))

    @routes.post(
        "/config/rollback",
        response_model=LiveConfig,
        dependencies=[requires("admin", all_agents=True)],
        responses=error_responses(404, 409, 413),
    )
    async def roll_back(rollback: Rollback, request: Request, idempotency_key: IdempotencyHeader = None) -> object:
        """Publish an earlier generation again. It stays live until the files change."""

        async def rolled_back() -> Response:
            try:
                await catalog.rollback(rollback.generation)
            except ConfigError as error:
                raise NotUsable(error.message, error.problems) from None
            client = request.client.host if request.client else "a socket"
            name = identity_of(request).name
            log.info("rolled back to generation %d, requested by %s from %s", rollback.generation, name, client)
            return json_response(LiveConfig.of(catalog))

        return await keyed.once(request, idempotency_key, rolled_back)
