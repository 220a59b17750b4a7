"""How long a human may take to decide, and what happens after that."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from framework.engine.context.run_context import RunContext
from framework.types.state import Confirmation


def with_expiry(run: RunContext, asked: Confirmation) -> Confirmation:
    """A confirmation with the time its agent's file leaves for it, counted from when it was first asked.

    Where the file was edited since the run began, the shorter time counts.
    """
    versions = (run.services.generation.agents.get(asked.agent), run.services.current_agent(asked.agent))
    policies = [agent.spec.runtime_policy.confirm for agent in versions if agent is not None]
    timed = [(policy.expires, policy.on_expiry) for policy in policies if policy.expires is not None]
    if not timed:
        return asked
    patience, on_expiry = min(timed)
    root = run.services.root
    expires = root.expires.setdefault(asked.id, datetime.now(UTC) + timedelta(seconds=patience))
    return asked.model_copy(update={"expires_at": expires, "on_expiry": on_expiry})


def expired(asked: Iterable[Confirmation]) -> dict[str, Confirmation]:
    """Those that nobody can decide any more, by id."""
    now = datetime.now(UTC)
    return {one.id: one for one in asked if one.expires_at is not None and one.expires_at <= now}
