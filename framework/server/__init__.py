"""agentsd over HTTP: `router(runtime)` mounts into any FastAPI app, and `agentsd serve` is such an app.

FastAPI and uvicorn are an extra, `agentsd[serve]`: they are loaded when `router` is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framework.server.routes import router

__all__ = ["router"]


def __getattr__(name: str) -> Any:
    if name != "router":
        raise AttributeError(f"module 'framework.server' has no attribute {name!r}")
    return import_module("framework.server.routes").router
