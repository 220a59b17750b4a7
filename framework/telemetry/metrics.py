"""Metrics of runs, tools, models, reloads and the server."""

from __future__ import annotations

import time
from collections.abc import Mapping

from opentelemetry import metrics

from framework.telemetry import names
from framework.types.messages import Usage
from framework.types.report import Status

_DURATIONS = tuple(0.01 * 2**n for n in range(14))
"""Bucket boundaries of the GenAI conventions: 10 ms to 82 s."""
_TOKENS = tuple(4**n for n in range(14))
_FEW = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55)
_WAITING = (1, 10, 60, 300, 1800, 3600, 14_400, 86_400, 604_800)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class ReloadMetrics:
    """Metrics of reloads: count, duration, whether the last one succeeded, and the published agents."""

    def __init__(self) -> None:
        meter = metrics.get_meter(names.TRACER)
        self._duration = meter.create_histogram(
            "agentsd.config.reload.duration",
            unit="s",
            description="Time to evaluate and publish a generation.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._generation = meter.create_gauge("agentsd.config.generation", description="The live generation.")
        self._success = meter.create_gauge(
            "agentsd.config.reload.last_success", description="1 if all files of the last reload were valid."
        )
        self._success_time = meter.create_gauge(
            "agentsd.config.reload.last_success_time", unit="s", description="Unix time of the last successful reload."
        )
        self._objects = meter.create_gauge(
            "agentsd.config.objects", description="Agents, by whether their current file is valid."
        )

    def record(self, *, trigger: str, outcome: str, seconds: float, generation: int, agents: int, stale: int) -> None:
        """Record one reload. `outcome` is `applied`, `partial` or `rejected`."""
        self._duration.record(seconds, {"trigger": trigger, "outcome": outcome})
        self._generation.set(generation)
        self._success.set(int(outcome == "applied"))
        if outcome == "applied":
            self._success_time.set(time.time())
        self._objects.set(agents - stale, {"kind": "agent", "state": "active"})
        self._objects.set(stale, {"kind": "agent", "state": "failed"})


class RunMetrics:
    """Metrics of runs. Attributes have low cardinality: they never contain ids of runs or conversations."""

    def __init__(self) -> None:
        meter = metrics.get_meter(names.TRACER)
        self._model_seconds = _seconds(
            meter, "gen_ai.client.operation.duration", "Duration of a model call, including all attempts."
        )
        self._first_seconds = _seconds(
            meter, "gen_ai.client.operation.time_to_first_chunk", "Time to the first chunk of a streamed answer."
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Tokens of a model call.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._attempts = meter.create_counter("agentsd.model.attempts", description="Attempts of model calls.")
        self._cost = meter.create_counter("agentsd.cost", unit="USD", description="Cost of model calls.")
        self._tool_seconds = _seconds(meter, "gen_ai.execute_tool.duration", "Duration of a tool call.")
        self._abandoned = meter.create_up_down_counter(
            "agentsd.tool.threads.abandoned", description="Threads still running tool calls that timed out."
        )
        self._denied = meter.create_counter("agentsd.tool.denied", description="Tool calls denied by the policy.")
        self._confirm_seconds = meter.create_histogram(
            "agentsd.confirm.duration", unit="s", description="Time from the pause of a run to the decision.",
            explicit_bucket_boundaries_advisory=_WAITING,
        )  # fmt: skip
        self._agent_seconds = _seconds(meter, "gen_ai.invoke_agent.duration", "Duration of an agent's work in a run.")
        self._agent_steps = _counts(meter, "gen_ai.invoke_agent.inference_calls", "Model turns of an agent's work.")
        self._agent_calls = _counts(meter, "gen_ai.invoke_agent.tool_calls", "Tool calls of an agent's work.")
        self._step_seconds = _seconds(
            meter, "agentsd.step.duration", "Duration of a model turn with its tool calls, or of a step of a plan."
        )
        self._run_seconds = _seconds(
            meter, "gen_ai.invoke_workflow.duration", "Duration of a run, or of its part up to a pause."
        )
        self._runs = meter.create_counter("agentsd.runs", description="Runs that ended or paused, by finish reason.")
        self._active = meter.create_up_down_counter("agentsd.runs.active", description="Runs in progress.")
        self._replans = meter.create_counter("agentsd.plan.replans", description="Plans that were revised.")
        self._repairs = meter.create_counter(
            "agentsd.llm.repairs", description="Tool calls whose arguments were repaired."
        )

    def if_enabled(self) -> RunMetrics | None:
        """Return these metrics if the host has set a MeterProvider, otherwise None. Called once per run."""
        is_placeholder = type(metrics.get_meter_provider()).__module__.startswith("opentelemetry.metrics")
        return None if is_placeholder else self

    def run_started(self) -> None:
        """Record that a run started or resumed."""
        self._active.add(1)

    def run_ended(self, agent: str, finish_reason: str, seconds: float, error_type: str | None) -> None:
        """Record that a run ended or paused."""
        self._active.add(-1)
        self._runs.add(1, {"agent": agent, "finish_reason": finish_reason})
        self._run_seconds.record(seconds, _with_error({names.WORKFLOW: agent}, error_type))

    def record_corrections(self, agent: str, *, replans: int, repairs: int) -> None:
        """Record the replans and argument repairs of a run that ended."""
        if replans:
            self._replans.add(replans, {"agent": agent})
        if repairs:
            self._repairs.add(repairs, {"agent": agent})

    def record_agent(self, name: str, seconds: float, error_type: str | None, *, steps: int, tool_calls: int) -> None:
        """Record the work of one agent, as the root of a run or as a sub-agent."""
        attributes = {names.AGENT: name}
        self._agent_seconds.record(seconds, _with_error(attributes, error_type))
        self._agent_steps.record(steps, attributes)
        self._agent_calls.record(tool_calls, attributes)

    def record_step(self, agent: str, kind: str, seconds: float) -> None:
        """Record one step of a run; `kind` is `turn` or `plan`."""
        self._step_seconds.record(seconds, {names.AGENT: agent, names.STEP_KIND: kind})

    def record_model_call(
        self,
        provider: str,
        model: str,
        seconds: float,
        first_seconds: float | None,
        error_type: str | None,
    ) -> None:
        """Record a model call with all its attempts; `model` is the first one that was called."""
        attributes = _model(provider, model)
        self._model_seconds.record(seconds, _with_error(attributes, error_type))
        if first_seconds is not None:
            self._first_seconds.record(first_seconds, attributes)

    def record_model_attempt(self, provider: str, model: str, usage: Usage | None, error_type: str | None) -> None:
        """Record one attempt of a model call; `usage` is None if it consumed nothing."""
        attributes = _model(provider, model)
        self._attempts.add(1, _with_error(attributes, error_type))
        if usage is None:
            return
        self._tokens.record(usage.prompt_tokens, {**attributes, names.TOKEN_TYPE: "input"})
        self._tokens.record(usage.completion_tokens, {**attributes, names.TOKEN_TYPE: "output"})
        if usage.cost_usd:
            self._cost.add(usage.cost_usd, {"model": f"{provider}/{model}"})

    def record_tool_call(self, name: str, source: str, seconds: float, error_type: str | None) -> None:
        """Record a completed tool call."""
        attributes = {names.TOOL_NAME: name, names.TOOL_SOURCE: source}
        self._tool_seconds.record(seconds, _with_error(attributes, error_type))
        if error_type == "policy_denied":
            self._denied.add(1, {names.TOOL_NAME: name, "reason": error_type})

    def count_abandoned_threads(self, change: int) -> None:
        """Count a thread that still runs a timed-out call (1), or one whose call has ended (-1)."""
        self._abandoned.add(change)

    def record_confirmation(self, decision: str, seconds: float) -> None:
        """Record a decision that was made this long after the request."""
        self._confirm_seconds.record(max(0.0, seconds), {"decision": decision})


def _seconds(meter: metrics.Meter, name: str, description: str) -> metrics.Histogram:
    return meter.create_histogram(
        name, unit="s", description=description, explicit_bucket_boundaries_advisory=_DURATIONS
    )


def _counts(meter: metrics.Meter, name: str, description: str) -> metrics.Histogram:
    return meter.create_histogram(name, description=description, explicit_bucket_boundaries_advisory=_FEW)


def _model(provider: str, model: str) -> dict[str, str]:
    return {
        names.OPERATION: "chat",
        names.PROVIDER: names.PROVIDER_NAMES.get(provider, provider),
        names.REQUEST_MODEL: model,
    }


def _with_error(attributes: dict[str, str], error_type: str | None) -> dict[str, str]:
    return {**attributes, names.ERROR_TYPE: error_type} if error_type else attributes


class ServerMetrics:
    """Metrics of one server. Attributes are route templates, error codes and statuses, never values of a request."""

    def __init__(self) -> None:
        meter = metrics.get_meter(names.TRACER)
        self._streams = meter.create_up_down_counter("agentsd.server.streams", description="Open event streams.")
        self._rejected = meter.create_counter(
            "agentsd.server.rejected", description="Rejected requests and connections, by reason."
        )
        self._store_errors = meter.create_counter(
            "agentsd.store.errors", description="Requests and periodic work that failed because of the store."
        )
        for work in ("request", "housekeeping"):
            self._store_errors.add(0, {"work": work})  # otherwise Prometheus would not see the first error as a rise
        self._waiting = meter.create_gauge(
            "agentsd.store.runs", description="Runs in the store, of all processes, that are queued or paused."
        )

    def count_streams(self, change: int, route: str) -> None:
        """Count an event stream that opened (1) or ended (-1). `route` is the template of its path."""
        self._streams.add(change, {names.ROUTE: route})

    def count_rejected(self, reason: str) -> None:
        """Count a rejected request or connection. `reason` is an error code."""
        self._rejected.add(1, {"reason": reason})

    def count_store_error(self, work: str) -> None:
        """Count work that failed because of the store: a `request`, or `housekeeping`."""
        self._store_errors.add(1, {"work": work})

    def set_waiting(self, counts: Mapping[Status, int]) -> None:
        """Set the number of runs in the store by status."""
        for status, count in counts.items():
            self._waiting.set(count, {"status": status})
