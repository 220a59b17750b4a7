"""Numbers for dashboards, through the host's global MeterProvider; without one they cost next to nothing."""

from __future__ import annotations

import time

from opentelemetry import metrics

from framework.telemetry import names

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class ReloadMetrics:
    """What a process tells of its reloads: how many, how long, whether the last one could be used, what is live."""

    def __init__(self) -> None:
        meter = metrics.get_meter(names.TRACER)
        self._duration = meter.create_histogram(
            "agentsd.config.reload.duration",
            unit="s",
            description="Time to decide over and publish a generation.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._generation = meter.create_gauge("agentsd.config.generation", description="The live generation.")
        self._success = meter.create_gauge(
            "agentsd.config.reload.last_success", description="1 if the files as last read could all be used."
        )
        self._success_time = meter.create_gauge(
            "agentsd.config.reload.last_success_time", unit="s", description="Unix time of the last such reload."
        )
        self._objects = meter.create_gauge("agentsd.config.objects", description="Agents, by whether they are stale.")

    def record(self, *, trigger: str, outcome: str, seconds: float, generation: int, agents: int, stale: int) -> None:
        """Note one reload. `outcome` is applied, partial or rejected."""
        self._duration.record(seconds, {"trigger": trigger, "outcome": outcome})
        self._generation.set(generation)
        self._success.set(int(outcome == "applied"))
        if outcome == "applied":
            self._success_time.set(time.time())
        self._objects.set(agents - stale, {"kind": "agent", "state": "active"})
        self._objects.set(stale, {"kind": "agent", "state": "failed"})
