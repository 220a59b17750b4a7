"""The public API is exactly this."""

from __future__ import annotations

import framework


def test_the_public_names() -> None:
    assert sorted(framework.__all__) == framework.__all__
    assert set(framework.__all__) == {
        "AgentNotFound", "AgentsdError", "Approve", "ConfigError", "ConversationBusy", "Edit", "LimitExceeded",
        "ModelError", "PolicyDenied", "Reject", "RequestError", "Respond", "RunNotFound", "RunResult", "Runtime",
        "StoreError", "Tool", "ToolContext", "ToolError", "events", "filter_tools", "tool",
    }  # fmt: skip


def test_every_public_name_is_documented() -> None:
    for name in framework.__all__:
        assert getattr(framework, name).__doc__, name


def test_nothing_else_is_public() -> None:
    modules = {"config", "engine", "llm", "memory", "telemetry", "tools", "types", "cli", "testing"}
    public = {name for name in vars(framework) if not name.startswith("_")}
    assert public - modules == set(framework.__all__)
