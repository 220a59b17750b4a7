"""The names that the package exports."""

from __future__ import annotations

import re
import typing
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

import pytest

import framework
from framework import AgentsdError, RunResult, Runtime
from framework.engine.runtime.request import CommonOptions
from framework.types import errors

DOCS = Path(__file__).parent.parent / "docs"
MODULES = ("types.events", "llm.client", "config.settings", "store.memory", "testing", "server")
"""Public modules, below `framework`."""


def public_types() -> set[int]:
    """Return the ids of all classes and aliases that a program can import from a public place."""
    found = [getattr(framework, name) for name in framework.__all__]
    found += [value for module in MODULES for value in vars(import_module(f"framework.{module}")).values()]
    return {id(value) for value in found}


def named_types(annotation: Any) -> list[type]:
    """Return the classes of this package that an annotation names."""
    if get_origin(annotation) is not None:
        return [found for part in get_args(annotation) for found in named_types(part)]
    is_own = isinstance(annotation, type) and annotation.__module__.startswith("framework")
    return [annotation] if is_own and not annotation.__name__.startswith("_") else []


def test_the_public_names() -> None:
    assert sorted(framework.__all__) == framework.__all__
    assert set(framework.__all__) == {
        "Action", "AgentBroken", "AgentNotFound", "AgentsdError", "ApprovalRequired", "Approve", "BudgetStatus",
        "CallSummary", "ClockRefused", "Confirmation", "ConfigError", "ConversationBusy", "ConversationNotFound",
        "Decision", "DecisionRefused",
        "Edit", "ErrorInfo", "File", "Generation", "GenerationNotFound", "GrantUsage",
        "HttpClient", "IdempotencyConflict",
        "IdempotencyKey", "IncompleteStep", "LimitExceeded", "LimitUse", "MadeDecision", "MediaPart", "Message",
        "ModelError",
        "ModelRefused", "Plan", "PlanStep", "PluginContext", "PolicyDenied", "Preflight", "Prices", "Problem",
        "QueueFull", "ReachedBudget", "Refused", "Reject", "Remember", "RememberOffer", "RequestError",
        "Respond", "Run", "RunBlocked", "RunBusy",
        "RunInfo", "RunNotFound", "RunOptions", "RunResult", "RunStream", "RunSuspended", "RunTaken", "RunWarning",
        "Runtime", "StepFailed", "Store", "StoreError", "StoreLost", "StoreTooNew", "Submitted", "TodoItem", "Tool",
        "ToolCall", "ToolContext", "ToolError", "ToolResult", "ToolStat", "TraceEntry",
            "TriggerBusy", "TriggerNotFound", "TriggerPaused", "Usage", "WorkSource", "events",
        "embedder", "executor", "filter_tools", "hook", "tool",
    }  # fmt: skip


def test_every_error_is_exported() -> None:
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, AgentsdError)}

    assert kinds <= set(framework.__all__)


def test_every_class_that_the_pages_on_results_and_errors_name_can_be_imported() -> None:
    public = public_types()
    rows = re.findall(r"^\|(.+)\|$", (DOCS / "reference/python-results.md").read_text("utf-8"), re.M)
    named = {name for row in rows for name in re.findall(r"\b[A-Z]\w+[a-z]\b", row.split("|")[1])}
    known = {kind.__name__: kind for field in RunResult.model_fields.values() for kind in named_types(field.annotation)}

    assert known.keys() >= {"Confirmation", "TraceEntry", "ErrorInfo"}
    assert [name for name in known if id(known[name]) not in public] == []
    assert [name for name in named if name in known and not hasattr(framework, name)] == []


def test_every_type_of_the_runtime_s_methods_and_of_its_results_can_be_imported() -> None:
    public, missing, seen = public_types(), set[str](), set[type]()
    methods = [method for name, method in vars(Runtime).items() if not name.startswith("_")]
    functions = [getattr(method, "__func__", method) for method in methods]
    waiting = [kind for one in functions if callable(one) for kind in _types_of(getattr(one, "__wrapped__", one))]
    while waiting:
        kind = waiting.pop()
        if kind in seen or kind in (NoneType, CommonOptions):  # CommonOptions is a part of RunOptions
            continue
        seen.add(kind)
        if id(kind) not in public:
            missing.add(kind.__qualname__)
        elif issubclass(kind, RunResult | framework.Confirmation):
            waiting += [name for field in kind.model_fields.values() for name in named_types(field.annotation)]

    assert len(seen) > 20
    assert missing == set()


def _types_of(function: Any) -> list[type]:
    public = {name: getattr(framework, name) for name in framework.__all__}  # some are imported for type checkers only
    names = public | vars(import_module(function.__module__))
    hints = typing.get_type_hints(function, names, include_extras=False)
    return [kind for hint in hints.values() for kind in named_types(hint)]


def test_every_public_name_is_documented() -> None:
    for name in framework.__all__:
        assert getattr(framework, name).__doc__, name


def test_no_other_name_is_listed_or_resolved() -> None:
    assert dir(framework) == framework.__all__
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        framework.nothing  # noqa: B018 - looking it up is the test


def test_an_error_and_a_warning_of_a_result_read_as_their_messages() -> None:
    error = framework.ErrorInfo(code="model_error", message="the key is wrong", retryable=False)
    warning = framework.RunWarning(code="window", message="older messages were left out")

    assert (str(error), f"{warning}") == ("the key is wrong", "older messages were left out")
