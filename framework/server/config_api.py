"""`/config`: what is live, what was, what the files would do now, and the way back."""

from __future__ import annotations

import logging

from fastapi import APIRouter, Request

from framework.engine.runtime.runtime import Runtime
from framework.server.errors import NotUsable
from framework.server.request_handling import json_response
from framework.server.schemas import CheckedConfig, ConfigHistory, LiveConfig, Rollback
from framework.types.errors import ConfigError

log = logging.getLogger(__name__)


def add_config_routes(routes: APIRouter, runtime: Runtime) -> None:
    """Add them, for a runtime."""
    catalog = runtime.catalog

    @routes.get("/config", response_model=LiveConfig)
    async def live_config() -> object:
        """What is live, and what is wrong with the files."""
        return json_response(LiveConfig.of(catalog))

    @routes.get("/config/history", response_model=ConfigHistory)
    async def config_history() -> object:
        """The generations that are kept, the live one first."""
        return json_response(ConfigHistory.of(catalog))

    @routes.post("/config/check", response_model=CheckedConfig)
    async def check_config() -> object:
        """Read the files, and say what they would do; nothing goes live."""
        return json_response(CheckedConfig.of(await catalog.preview()))

    @routes.post("/config/rollback", response_model=LiveConfig)
    async def roll_back(wanted: Rollback, request: Request) -> object:
        """Make an earlier generation live again; it stays until the files change once more."""
        try:
            await catalog.rollback(wanted.generation)
        except ConfigError as error:
            raise NotUsable(error.message, error.problems) from None
        client = request.client.host if request.client else "a socket"
        log.info("rolled back to generation %d, as %s asked", wanted.generation, client)
        return json_response(LiveConfig.of(catalog))
