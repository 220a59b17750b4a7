"""agentsd: agents are files.

The public API is `__all__` and the modules that docs/embedding.md lists; everything else may move. Names are imported
on first use, so that `agentsd --help` imports next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framework.config.generations.generation import Generation
    from framework.engine.context.events import RunStream
    from framework.engine.run import Run
    from framework.engine.runtime.background import WorkSource
    from framework.engine.runtime.queue import Submitted
    from framework.engine.runtime.request import RunOptions
    from framework.engine.runtime.runtime import Runtime
    from framework.llm.capabilities import Prices
    from framework.store.store import Store
    from framework.store.types import RunInfo
    from framework.tools.declaration import embedder, executor, hook
    from framework.tools.http import HttpClient
    from framework.tools.plugins import PluginContext
    from framework.tools.tool import Tool, ToolContext, tool
    from framework.tools.toolset import filter_tools
    from framework.types import events
    from framework.types.budget import BudgetStatus, ReachedBudget
    from framework.types.errors import (
        AgentBroken,
        AgentNotFound,
        AgentsdError,
        ApprovalRequired,
        ClockRefused,
        ConfigError,
        ConversationBusy,
        ConversationNotFound,
        DecisionRefused,
        GenerationNotFound,
        IdempotencyConflict,
        LimitExceeded,
        ModelError,
        ModelRefused,
        PolicyDenied,
        QueueFull,
        Refused,
        RequestError,
        RunBlocked,
        RunBusy,
        RunNotFound,
        RunSuspended,
        RunTaken,
        StepFailed,
        StoreError,
        StoreLost,
        StoreTooNew,
        ToolError,
        TriggerBusy,
        TriggerNotFound,
        TriggerPaused,
    )
    from framework.types.file import File
    from framework.types.grant import GrantUsage, Remember, RememberOffer
    from framework.types.media import MediaPart
    from framework.types.messages import Message, ToolCall, ToolResult, Usage
    from framework.types.plan import Plan, PlanStep, Preflight, TodoItem
    from framework.types.problem import Problem
    from framework.types.report import (
        Action,
        CallSummary,
        ErrorInfo,
        IncompleteStep,
        LimitUse,
        RunWarning,
        ToolStat,
        TraceEntry,
    )
    from framework.types.state import (
        Approve,
        Confirmation,
        Decision,
        Edit,
        IdempotencyKey,
        MadeDecision,
        Reject,
        Respond,
        RunResult,
    )

__all__ = [
    "Action",
    "AgentBroken",
    "AgentNotFound",
    "AgentsdError",
    "ApprovalRequired",
    "Approve",
    "BudgetStatus",
    "CallSummary",
    "ClockRefused",
    "ConfigError",
    "Confirmation",
    "ConversationBusy",
    "ConversationNotFound",
    "Decision",
    "DecisionRefused",
    "Edit",
    "ErrorInfo",
    "File",
    "Generation",
    "GenerationNotFound",
    "GrantUsage",
    "HttpClient",
    "IdempotencyConflict",
    "IdempotencyKey",
    "IncompleteStep",
    "LimitExceeded",
    "LimitUse",
    "MadeDecision",
    "MediaPart",
    "Message",
    "ModelError",
    "ModelRefused",
    "Plan",
    "PlanStep",
    "PluginContext",
    "PolicyDenied",
    "Preflight",
    "Prices",
    "Problem",
    "QueueFull",
    "ReachedBudget",
    "Refused",
    "Reject",
    "Remember",
    "RememberOffer",
    "RequestError",
    "Respond",
    "Run",
    "RunBlocked",
    "RunBusy",
    "RunInfo",
    "RunNotFound",
    "RunOptions",
    "RunResult",
    "RunStream",
    "RunSuspended",
    "RunTaken",
    "RunWarning",
    "Runtime",
    "StepFailed",
    "Store",
    "StoreError",
    "StoreLost",
    "StoreTooNew",
    "Submitted",
    "TodoItem",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "ToolStat",
    "TraceEntry",
    "TriggerBusy",
    "TriggerNotFound",
    "TriggerPaused",
    "Usage",
    "WorkSource",
    "embedder",
    "events",
    "executor",
    "filter_tools",
    "hook",
    "tool",
]

_MODULES = {
    "Action": "framework.types.report",
    "Approve": "framework.types.state",
    "BudgetStatus": "framework.types.budget",
    "CallSummary": "framework.types.report",
    "Confirmation": "framework.types.state",
    "Decision": "framework.types.state",
    "Edit": "framework.types.state",
    "ErrorInfo": "framework.types.report",
    "File": "framework.types.file",
    "Generation": "framework.config.generations.generation",
    "HttpClient": "framework.tools.http",
    "GrantUsage": "framework.types.grant",
    "IdempotencyKey": "framework.types.state",
    "IncompleteStep": "framework.types.report",
    "LimitUse": "framework.types.report",
    "MadeDecision": "framework.types.state",
    "MediaPart": "framework.types.media",
    "Message": "framework.types.messages",
    "Plan": "framework.types.plan",
    "PlanStep": "framework.types.plan",
    "PluginContext": "framework.tools.plugins",
    "Preflight": "framework.types.plan",
    "Prices": "framework.llm.capabilities",
    "Problem": "framework.types.problem",
    "ReachedBudget": "framework.types.budget",
    "Reject": "framework.types.state",
    "Remember": "framework.types.grant",
    "RememberOffer": "framework.types.grant",
    "Respond": "framework.types.state",
    "Run": "framework.engine.run",
    "RunInfo": "framework.store.types",
    "RunOptions": "framework.engine.runtime.request",
    "RunResult": "framework.types.state",
    "RunStream": "framework.engine.context.events",
    "RunWarning": "framework.types.report",
    "Runtime": "framework.engine.runtime.runtime",
    "Store": "framework.store.store",
    "Submitted": "framework.engine.runtime.queue",
    "TodoItem": "framework.types.plan",
    "Tool": "framework.tools.tool",
    "ToolCall": "framework.types.messages",
    "ToolContext": "framework.tools.tool",
    "ToolResult": "framework.types.messages",
    "ToolStat": "framework.types.report",
    "TraceEntry": "framework.types.report",
    "Usage": "framework.types.messages",
    "WorkSource": "framework.engine.runtime.background",
    "embedder": "framework.tools.declaration",
    "executor": "framework.tools.declaration",
    "filter_tools": "framework.tools.toolset",
    "hook": "framework.tools.declaration",
    "tool": "framework.tools.tool",
}
"""Modules of the names that are not errors."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'framework' has no attribute {name!r}")
    if name == "events":
        return import_module("framework.types.events")
    return getattr(import_module(_MODULES.get(name, "framework.types.errors")), name)


def __dir__() -> list[str]:
    return __all__
