"""What all traces of a run share: its content mode, and the attributes of models, tokens and pending approvals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from framework.llm.client import ModelInfo
from framework.telemetry import names
from framework.telemetry.content import TEXT
from framework.telemetry.span import TraceSpan
from framework.types.confirmation_kinds import CONFIRMATION_KINDS
from framework.types.messages import Usage
from framework.types.state import Confirmation


def model_attributes(info: ModelInfo) -> dict[str, Any]:
    """Attributes of a model: its provider as the conventions name it, and where it is."""
    return {
        names.PROVIDER: names.PROVIDER_NAMES.get(info.provider, info.provider),
        names.REQUEST_MODEL: info.wire_name,
        names.SERVER_ADDRESS: info.server_address,
        names.SERVER_PORT: info.server_port,
    }


def usage_attributes(usage: Usage | None) -> dict[str, Any]:
    """Tokens and cost of a model call; only `chat` spans have them, so that no backend counts them twice."""
    if usage is None:
        return {}
    return {
        names.INPUT_TOKENS: usage.prompt_tokens,
        names.OUTPUT_TOKENS: usage.completion_tokens,
        names.CACHED_TOKENS: usage.cached_tokens or None,
        names.CACHE_WRITE_TOKENS: usage.cache_write_tokens or None,
        names.CALL_COST: usage.cost_usd or None,
        names.MLFLOW_COST: json.dumps({"total_cost": usage.cost_usd}) if usage.cost_usd else None,
    }


def record_pending(span: TraceSpan, asked: Sequence[Confirmation]) -> None:
    """Say on a span which tools wait for a human. These are names, no content, so every mode records them."""
    if not asked or not span.is_recording():
        return
    waiting: dict[str, list[str]] = {}
    for question in asked:
        named = waiting.setdefault(f"waits for {CONFIRMATION_KINDS[question.kind].awaits}", [])
        if (tool := question.tool or "plan") not in named:
            named.append(tool)
    text = "; ".join(f"{what}: {', '.join(tools)}" for what, tools in waiting.items())
    tools = tuple(dict.fromkeys(tool for named in waiting.values() for tool in named))
    span.set_attributes({names.WAITING_FOR: tools, names.OUTPUT: text, names.OUTPUT_MIME: TEXT})
