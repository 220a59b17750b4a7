"""The names that the package exports."""

from __future__ import annotations

import pytest

import framework


def test_the_public_names() -> None:
    assert sorted(framework.__all__) == framework.__all__
    assert set(framework.__all__) == {
        "AgentBroken", "AgentNotFound", "AgentsdError", "Approve", "ConfigError", "ConversationBusy",
        "ConversationNotFound", "DecisionRefused", "Edit",
        "File", "HttpClient", "IdempotencyConflict", "IdempotencyKey", "LimitExceeded", "ModelError", "PluginContext",
        "PolicyDenied", "QueueFull", "Refused", "Reject", "RequestError", "Respond", "Run", "RunBusy", "RunNotFound",
        "RunResult", "RunSuspended", "Runtime", "StoreError", "Submitted", "Tool", "ToolCall", "ToolContext",
        "ToolError", "ToolResult", "events", "executor", "filter_tools", "hook", "tool",
    }  # fmt: skip


def test_every_public_name_is_documented() -> None:
    for name in framework.__all__:
        assert getattr(framework, name).__doc__, name


def test_no_other_name_is_listed_or_resolved() -> None:
    assert dir(framework) == framework.__all__
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        framework.nothing  # noqa: B018 - looking it up is the test
