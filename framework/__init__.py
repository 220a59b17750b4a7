"""agentsd: agents are files. These names are the public API; everything else may move."""

from framework.engine.runtime import Runtime
from framework.tools.tool import Tool, ToolContext, tool
from framework.tools.toolset import filter_tools
from framework.types import events
from framework.types.errors import (
    AgentNotFound,
    AgentsdError,
    ConfigError,
    ConversationBusy,
    LimitExceeded,
    ModelError,
    PolicyDenied,
    RequestError,
    RunNotFound,
    StoreError,
    ToolError,
)
from framework.types.state import Approve, Edit, Reject, Respond, RunResult

__all__ = [
    "AgentNotFound",
    "AgentsdError",
    "Approve",
    "ConfigError",
    "ConversationBusy",
    "Edit",
    "LimitExceeded",
    "ModelError",
    "PolicyDenied",
    "Reject",
    "RequestError",
    "Respond",
    "RunNotFound",
    "RunResult",
    "Runtime",
    "StoreError",
    "Tool",
    "ToolContext",
    "ToolError",
    "events",
    "filter_tools",
    "tool",
]
