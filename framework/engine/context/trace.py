"""Span attributes that several traces share: of models, token usage and pending approvals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from framework.llm.client import ModelInfo
from framework.telemetry import names
from framework.telemetry.content import TEXT
from framework.telemetry.spans import TraceSpan
from framework.types.messages import Usage
from framework.types.state import CONFIRMATION_KINDS, Confirmation


def model_attributes(info: ModelInfo) -> dict[str, Any]:
    """Return the attributes of a model: its provider, as the GenAI conventions name it, and its server."""
    return {
        names.PROVIDER: names.PROVIDER_NAMES.get(info.provider, info.provider),
        names.REQUEST_MODEL: info.wire_name,
        names.SERVER_ADDRESS: info.server_address,
        names.SERVER_PORT: info.server_port,
    }


def usage_attributes(usage: Usage | None) -> dict[str, Any]:
    """Return tokens and cost of a model call. Only `chat` spans carry them, so that no backend counts them twice."""
    if usage is None:
        return {}
    return {
        names.INPUT_TOKENS: usage.prompt_tokens,
        names.OUTPUT_TOKENS: usage.completion_tokens,
        names.CACHED_TOKENS: usage.cached_tokens or None,
        names.CACHE_WRITE_TOKENS: usage.cache_write_tokens or None,
        names.CALL_COST: usage.cost_usd,
        names.MLFLOW_COST: json.dumps({"total_cost": usage.cost_usd}) if usage.cost_usd is not None else None,
    }


def record_pending(span: TraceSpan, confirmations: Sequence[Confirmation]) -> None:
    """Record on a span which tools wait for a person. Names are not content, so every content mode records them."""
    if not confirmations or not span.is_recording():
        return
    waiting: dict[str, list[str]] = {}
    for confirmation in confirmations:
        same_kind = waiting.setdefault(f"waits for {CONFIRMATION_KINDS[confirmation.kind].awaits}", [])
        if (tool := confirmation.tool or "plan") not in same_kind:
            same_kind.append(tool)
    text = "; ".join(f"{what}: {', '.join(tools)}" for what, tools in waiting.items())
    tools = tuple(dict.fromkeys(tool for same_kind in waiting.values() for tool in same_kind))
    span.set_attributes({names.WAITING_FOR: tools, names.OUTPUT: text, names.OUTPUT_MIME: TEXT})
