"""Replies of a routing model."""

from __future__ import annotations

import json


def routing_reply(name: str, executor: str = "react", confidence: float = 0.9, reason: str = "it fits") -> str:
    """Return the JSON with which a routing model chooses an agent."""
    return json.dumps({"agent": name, "executor": executor, "confidence": confidence, "reason": reason})
