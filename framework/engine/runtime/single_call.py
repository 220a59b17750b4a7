"""Calls one tool under an agent's policy, outside any run and without a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from framework.config.generations.catalog import Catalog
from framework.engine.runtime.launcher import Launcher
from framework.engine.runtime.request import RunOptions, initial_state
from framework.engine.runtime.start import select_agent
from framework.types.errors import ApprovalRequired
from framework.types.messages import Message, ToolCall, ToolResult


async def call_one_tool(
    catalog: Catalog,
    launcher: Launcher,
    agent: str,
    name: str,
    arguments: Mapping[str, Any],
    inputs: Mapping[str, Any],
) -> ToolResult:
    """Call a tool; see `Runtime.call_tool`."""
    call = ToolCall(id=f"call_{uuid4().hex}", tool=name, arguments=dict(arguments))
    with catalog.lease() as generation:
        route = select_agent("", generation, explicit=agent)
        message = Message(role="user", content=f"call {name}")
        state = initial_state(message, route.agent, generation, RunOptions(inputs=inputs))
        run = launcher.ephemeral(state, route.agent, generation)
        confirmations = await run.call_tool(call)
    if confirmations:
        raise ApprovalRequired(f"{name} needs approval: {confirmations[0].reason or confirmations[0].rule}")
    result = state.calls[call.id].result
    assert result is not None
    return result
