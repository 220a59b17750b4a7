"""Services: what a run shares with its sub-runs, and the rate limits of tools, which all runs share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiolimiter import AsyncLimiter
from pydantic import BaseModel

from framework.config.agents.compile import Agent
from framework.config.generations.generation import Generation
from framework.config.settings import ToolSettings
from framework.engine.context.budget_ledger import BudgetLedger
from framework.engine.context.event_hub import EventHub
from framework.engine.context.journal import Journal
from framework.engine.context.media import RunMedia
from framework.engine.context.model_clients import ModelClients
from framework.engine.context.tool_threads import ToolThreads
from framework.telemetry.content import Content
from framework.telemetry.metrics import RunMetrics
from framework.telemetry.spans import Spans
from framework.tools.declaration import RateLimit
from framework.types.state import RunState


@dataclass(frozen=True, slots=True)
class Services:
    """The services of one root run and its sub-runs."""

    root: RunState
    """State of the root run: contains all sub-runs, decisions and the event counter; the store persists it."""
    generation: Generation
    current_agent: Callable[[str], Agent | None]
    """Returns the live version of an agent, or None if it was deleted."""
    clients: ModelClients
    journal: Journal
    media: RunMedia
    """Files in messages of the run."""
    hub: EventHub
    """Delivers the run's events, and text while it arrives."""
    spans: Spans
    threads: ToolThreads
    """Run tools that are not coroutines."""
    rate_limiter: RateLimiter
    now: Callable[[], float]
    """Returns the time of the store, as Unix time."""
    ledger: BudgetLedger
    """Counts the use of shared budgets."""
    base_path: Path
    reserved_files: tuple[Path, ...]
    """Files of the store, which no tool may read or write."""
    tools: Callable[[], ToolSettings]
    """Returns limits for tools: the stricter of those when the run began and the live ones."""
    deps: Any
    content: Content
    """How much of prompts, arguments and results the operator allows in traces."""
    meters: RunMetrics | None
    """Metrics; None if they are not exported."""
    output_type: type[BaseModel] | None = None
    """Type of the answer's data, if the caller requires one."""
    decided: Collection[str] = ()
    """Ids of the confirmations that a person has just decided."""
    failed_models: set[str] = field(default_factory=set)
    """Models whose last error was permanent: a rejected key, or an unknown model."""


class RateLimiter:
    """Keeps the calls of each tool below the rate it declares, over all runs of the process."""

    def __init__(self) -> None:
        self._limiters: dict[tuple[str, float, float], AsyncLimiter] = {}

    async def wait(self, tool: str, rate: RateLimit) -> bool:
        """Wait until the tool may be called; return whether the call had to wait."""
        calls, seconds = rate  # a tool whose rate has changed gets a new limiter
        limiter = self._limiters.setdefault((tool, calls, seconds), AsyncLimiter(calls, seconds))
        has_capacity = limiter.has_capacity()
        await limiter.acquire()
        return not has_capacity
