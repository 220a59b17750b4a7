"""agentsd: agents are files.

The public API is `__all__` and the modules that docs/embedding.md lists; everything else may move. Names are imported
on first use, so that `agentsd --help` imports next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framework.engine.run import Run
    from framework.engine.runtime.queue import Submitted
    from framework.engine.runtime.runtime import Runtime
    from framework.tools.extension import executor, hook
    from framework.tools.http.client import HttpClient
    from framework.tools.plugins.lifecycle import PluginContext
    from framework.tools.tool import Tool, ToolContext, tool
    from framework.tools.toolset import filter_tools
    from framework.types import events
    from framework.types.errors import (
        AgentBroken,
        AgentNotFound,
        AgentsdError,
        ConfigError,
        ConversationBusy,
        ConversationNotFound,
        DecisionRefused,
        IdempotencyConflict,
        LimitExceeded,
        ModelError,
        PolicyDenied,
        QueueFull,
        Refused,
        RequestError,
        RunBusy,
        RunNotFound,
        RunSuspended,
        StoreError,
        ToolError,
    )
    from framework.types.file import File
    from framework.types.messages import ToolCall, ToolResult
    from framework.types.run_request import IdempotencyKey
    from framework.types.state import Approve, Edit, Reject, Respond, RunResult

__all__ = [
    "AgentBroken",
    "AgentNotFound",
    "AgentsdError",
    "Approve",
    "ConfigError",
    "ConversationBusy",
    "ConversationNotFound",
    "DecisionRefused",
    "Edit",
    "File",
    "HttpClient",
    "IdempotencyConflict",
    "IdempotencyKey",
    "LimitExceeded",
    "ModelError",
    "PluginContext",
    "PolicyDenied",
    "QueueFull",
    "Refused",
    "Reject",
    "RequestError",
    "Respond",
    "Run",
    "RunBusy",
    "RunNotFound",
    "RunResult",
    "RunSuspended",
    "Runtime",
    "StoreError",
    "Submitted",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "events",
    "executor",
    "filter_tools",
    "hook",
    "tool",
]

_MODULES = {
    "PluginContext": "framework.tools.plugins.lifecycle",
    "Run": "framework.engine.run",
    "Runtime": "framework.engine.runtime.runtime",
    "Submitted": "framework.engine.runtime.queue",
    "HttpClient": "framework.tools.http.client",
    "Tool": "framework.tools.tool",
    "ToolCall": "framework.types.messages",
    "ToolContext": "framework.tools.tool",
    "ToolResult": "framework.types.messages",
    "tool": "framework.tools.tool",
    "executor": "framework.tools.extension",
    "filter_tools": "framework.tools.toolset",
    "hook": "framework.tools.extension",
    "Approve": "framework.types.state",
    "Edit": "framework.types.state",
    "File": "framework.types.file",
    "IdempotencyKey": "framework.types.run_request",
    "Reject": "framework.types.state",
    "Respond": "framework.types.state",
    "RunResult": "framework.types.state",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'framework' has no attribute {name!r}")
    if name == "events":
        return import_module("framework.types.events")
    return getattr(import_module(_MODULES.get(name, "framework.types.errors")), name)


def __dir__() -> list[str]:
    return __all__
