"""Numbers for dashboards, through the host's global MeterProvider; without one they cost next to nothing."""

from __future__ import annotations

import time

from opentelemetry import metrics

from framework.telemetry import names
from framework.types.messages import Usage

_DURATIONS = tuple(0.01 * 2**n for n in range(14))
"""Of the GenAI conventions: 10 ms to 82 s."""
_TOKENS = tuple(4**n for n in range(14))
_FEW = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55)
_WAITING = (1, 10, 60, 300, 1800, 3600, 14_400, 86_400, 604_800)
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


class RunMetrics:
    """What a process tells of its runs. Attributes are of low cardinality: never a run's or a conversation's id."""

    def __init__(self) -> None:
        meter = metrics.get_meter(names.TRACER)
        self._model_seconds = _seconds(meter, "gen_ai.client.operation.duration", "A model call with its attempts.")
        self._first_seconds = _seconds(
            meter, "gen_ai.client.operation.time_to_first_chunk", "Until the first piece of a streamed answer."
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Tokens of a model call.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._attempts = meter.create_counter("agentsd.model.attempts", description="Attempts of model calls.")
        self._cost = meter.create_counter("agentsd.cost", unit="USD", description="What model calls cost.")
        self._tool_seconds = _seconds(meter, "gen_ai.execute_tool.duration", "One tool call.")
        self._abandoned = meter.create_up_down_counter(
            "agentsd.tool.threads.abandoned", description="Threads still busy with tool calls that timed out."
        )
        self._denied = meter.create_counter("agentsd.tool.denied", description="Calls that the policy forbade.")
        self._confirm_seconds = meter.create_histogram(
            "agentsd.confirm.duration", unit="s", description="From a run's pause to a human's answer.",
            explicit_bucket_boundaries_advisory=_WAITING,
        )  # fmt: skip
        self._agent_seconds = _seconds(meter, "gen_ai.invoke_agent.duration", "An agent's work in a run.")
        self._agent_steps = _counts(meter, "gen_ai.invoke_agent.inference_calls", "Model turns of an agent's work.")
        self._agent_calls = _counts(meter, "gen_ai.invoke_agent.tool_calls", "Tool calls of an agent's work.")
        self._run_seconds = _seconds(meter, "gen_ai.invoke_workflow.duration", "A run, or a part of one up to a pause.")
        self._runs = meter.create_counter("agentsd.runs", description="Runs that ended or paused, by how.")
        self._active = meter.create_up_down_counter("agentsd.runs.active", description="Runs that go on now.")
        self._replans = meter.create_counter("agentsd.plan.replans", description="Plans made anew.")
        self._repairs = meter.create_counter("agentsd.llm.repairs", description="Calls whose arguments were put right.")

    def if_enabled(self) -> RunMetrics | None:
        """Itself, if there is a MeterProvider: those of the API package are stand-ins. One check a run."""
        stand_in = type(metrics.get_meter_provider()).__module__.startswith("opentelemetry.metrics")
        return None if stand_in else self

    def run_started(self) -> None:
        """A run begins or goes on."""
        self._active.add(1)

    def run_ended(self, agent: str, finish_reason: str, seconds: float, error_type: str | None) -> None:
        """It has ended, or waits for a human."""
        self._active.add(-1)
        self._runs.add(1, {"agent": agent, "finish_reason": finish_reason})
        self._run_seconds.record(seconds, _with_error({names.WORKFLOW: agent}, error_type))

    def record_corrections(self, agent: str, *, replans: int, repairs: int) -> None:
        """What a run that has ended had to do twice."""
        if replans:
            self._replans.add(replans, {"agent": agent})
        if repairs:
            self._repairs.add(repairs, {"agent": agent})

    def record_agent(self, name: str, seconds: float, error_type: str | None, *, steps: int, tool_calls: int) -> None:
        """One agent has done its work, as a root or for another one."""
        attributes = {names.AGENT: name}
        self._agent_seconds.record(seconds, _with_error(attributes, error_type))
        self._agent_steps.record(steps, attributes)
        self._agent_calls.record(tool_calls, attributes)

    def record_model_call(
        self,
        provider: str,
        model: str,
        seconds: float,
        first_seconds: float | None,
        error_type: str | None,
    ) -> None:
        """A model call has ended, with all its attempts; `model` is the one that was asked first."""
        attributes = _model(provider, model)
        self._model_seconds.record(seconds, _with_error(attributes, error_type))
        if first_seconds is not None:
            self._first_seconds.record(first_seconds, attributes)

    def record_model_attempt(self, provider: str, model: str, usage: Usage | None, error_type: str | None) -> None:
        """One attempt of a model call has ended; `usage` is what it consumed."""
        attributes = _model(provider, model)
        self._attempts.add(1, _with_error(attributes, error_type))
        if usage is None:
            return
        self._tokens.record(usage.prompt_tokens, {**attributes, names.TOKEN_TYPE: "input"})
        self._tokens.record(usage.completion_tokens, {**attributes, names.TOKEN_TYPE: "output"})
        if usage.cost_usd:
            self._cost.add(usage.cost_usd, {"model": f"{provider}/{model}"})

    def record_tool_call(self, name: str, source: str, seconds: float, error_type: str | None) -> None:
        """One tool call has its result."""
        attributes = {names.TOOL_NAME: name, names.TOOL_SOURCE: source}
        self._tool_seconds.record(seconds, _with_error(attributes, error_type))
        if error_type == "policy_denied":
            self._denied.add(1, {names.TOOL_NAME: name, "reason": error_type})

    def count_abandoned_threads(self, change: int) -> None:
        """A call that was given up keeps its thread (1), or has ended after all (-1)."""
        self._abandoned.add(change)

    def record_confirmation(self, decision: str, asked_at: float | None) -> None:
        """A human has answered; `asked_at` is Unix time."""
        if asked_at is not None:
            self._confirm_seconds.record(max(0.0, time.time() - asked_at), {"decision": decision})


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
