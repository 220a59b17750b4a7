"""`GET /v1/models`: the agents, and `auto`, the router."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from framework.engine.runtime.runtime import Runtime
from framework.server.identity import ROUTER_NAME, Identity, identity_of
from framework.server.openai.run_answer import ModelNotFound
from framework.server.roles import requires
from framework.types.text import did_you_mean

_ROUTER = "Chooses an agent for each message."


def add_models_routes(routes: APIRouter, runtime: Runtime) -> None:
    """Add `/models` and `/models/{model}`."""
    created = int(time.time())

    def listed(identity: Identity) -> dict[str, dict[str, Any]]:
        agents = {name: agent.spec.description for name, agent in sorted(runtime.catalog.current.agents.items())}
        visible = {name: text for name, text in agents.items() if identity.may_use(name)}
        described = {**({ROUTER_NAME: _ROUTER} if identity.agents is None else {}), **visible}
        return {
            name: {"id": name, "object": "model", "created": created, "owned_by": "agentsd", "description": text}
            for name, text in described.items()
        }

    @routes.get("/models/", response_class=JSONResponse, dependencies=[requires("chat")])
    @routes.get("/models", response_class=JSONResponse, dependencies=[requires("chat")])
    async def models(request: Request) -> Response:
        """Return the agents that the key may use."""
        return JSONResponse({"object": "list", "data": [*listed(identity_of(request)).values()]})

    @routes.get("/models/{model}", response_class=JSONResponse, dependencies=[requires("chat")])
    async def model(request: Request, model: str) -> Response:
        """Return one agent."""
        found = listed(identity_of(request))
        if model not in found:
            raise ModelNotFound(f"no agent named {model!r}{did_you_mean(model, list(found))}", param="model")
        return JSONResponse(found[model])
