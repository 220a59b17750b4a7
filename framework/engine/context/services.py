"""What all parts of one run share: the pinned generation, and the objects the gateway calls."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from framework.config.agents.compile import Agent
from framework.config.generations.generation import Generation
from framework.config.settings import ToolSettings
from framework.engine.context.concurrency import RateLimiter
from framework.engine.context.journal import Journal
from framework.engine.context.model_clients import ModelClients
from framework.engine.context.stream import Channel
from framework.engine.context.tool_threads import ToolThreads
from framework.telemetry.content import Content
from framework.telemetry.metrics import RunMetrics
from framework.telemetry.spans import Spans
from framework.types.state import RunState


@dataclass(frozen=True, slots=True)
class Services:
    """Made once for a run; its sub-runs use the same."""

    root: RunState
    """The root run's state: it holds the decisions, counts the events and is what the store keeps."""
    generation: Generation
    current_agent: Callable[[str], Agent | None]
    """The agent of that name that is live now."""
    clients: ModelClients
    journal: Journal
    channel: Channel
    """For what is told without being on record: pieces of an answer."""
    spans: Spans
    threads: ToolThreads
    """Where tools that are not coroutines run."""
    rate_limiter: RateLimiter
    base_path: Path
    reserved_files: tuple[Path, ...]
    """The store's files: no tool reads or writes them."""
    tools: Callable[[], ToolSettings]
    """Ceilings for tools: what was permitted when the run began and still is."""
    deps: Any
    listening: bool
    """Somebody reads content deltas: ask the provider to stream."""
    content: Content
    """What of prompts, arguments and results the operator lets stand in traces."""
    meters: RunMetrics | None
    """Counts and times, where somebody reads them."""
    output_type: type[BaseModel] | None = None
    """What the caller wants the answer's data to be."""
    decided: Collection[str] = ()
    """What a human has just answered: ids of confirmations."""
