"""Spans and metrics of a root run and of its routing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel, SecretStr

from framework.config.generations.generation import Generation
from framework.config.settings import Settings
from framework.engine.context.run_context import RunContext
from framework.engine.context.trace import model_attributes, record_pending, usage_attributes
from framework.engine.routing.rules import Route
from framework.telemetry import inbound, names
from framework.telemetry.content import Content, content_mode
from framework.telemetry.span import NOOP_SPAN, OptionalAttributes
from framework.telemetry.spans import Spans
from framework.types.errors import AgentsdError, RunSuspended
from framework.types.outcome import outcome_for
from framework.types.state import RunState

_MIN_SECRET_CHARS = 8
"""Shorter secrets are not redacted: replacing them would garble ordinary text."""


def run_spans(state: RunState, generation: Generation, *, keep: bool) -> Spans:
    """Return the spans of a root run. Without a conversation, the run id is the session id, which groups its parts."""
    return Spans(
        {
            names.RUN_ID: state.run_id,
            names.GENERATION: generation.number,
            names.CONVERSATION_ID: state.conversation_id,
            names.SESSION_ID: state.conversation_id or state.run_id,
            names.USER_ID: state.user,
        },
        keep=keep,
    )


def configured_content(settings: Settings) -> Content:
    """Return how much content the settings allow in traces, and the secrets to redact from it."""
    mode = content_mode(settings.telemetry.content, os.environ)
    if mode == "none":
        return Content()
    secrets = sorted(
        {secret for secret in _secrets(settings) if len(secret) >= _MIN_SECRET_CHARS}, key=len, reverse=True
    )
    return Content(mode, tuple(secrets))


class RunTrace:
    """Root span of a run, or of one part of it: from its start or a resume until it ends or pauses."""

    def __init__(self, run: RunContext, route: Route | None) -> None:
        self._run, self._route = run, route
        self.span = NOOP_SPAN
        self._meters = run.services.meters

    def __enter__(self) -> Self:
        run, state = self._run, self._run.state
        self._began = perf_counter()
        if self._meters:
            self._meters.run_started()
        if not run.services.spans.recording:
            return self
        agent = run.agent.name
        attributes = {
            names.OPERATION: "invoke_workflow",
            names.WORKFLOW: agent,
            names.AGENT: agent,
            names.DIGEST: state.digest,
        }
        began = self._route.model_call.began_ns if self._route and self._route.model_call else None
        self.span = run.services.spans.span(f"invoke_workflow {agent}", "CHAIN", attributes, started_ns=began)
        self.span.__enter__()
        self.span.add_link(run.services.generation.traceparent, "config.reload")
        self.span.add_link(inbound.linked_caller(), "caller")
        if state.traceparent:
            self.span.add_link(state.traceparent, "resume")
            self.span.set_attribute(names.RESUMED, state.traceparent.split("-")[1])
        state.traceparent = self.span.traceparent
        if self.span.is_recording() and (content := run.content):
            self.span.set_attributes(content.input(state.messages[0].content))
        self._record_route()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.span.__exit__(kind, error, traceback)
        if self._meters:
            self._count(self._run.state, perf_counter() - self._began, error)

    def _count(self, state: RunState, seconds: float, error: BaseException | None) -> None:
        assert self._meters
        reason, error_type = state.finish_reason, outcome_for(state.finish_reason).span_error
        if isinstance(error, AgentsdError):  # not ended: it was suspended, or could not be saved
            reason, error_type = error.code, None if isinstance(error, RunSuspended) else error.code
        self._meters.run_ended(state.agent, reason, seconds, error_type)
        if error is None and state.status != "paused":
            repairs = sum(1 for call in state.calls.values() if call.repairs)
            self._meters.record_corrections(
                state.agent, replans=max(0, state.plan.revision - 1) if state.plan else 0, repairs=repairs
            )

    def finish(self) -> None:
        """Set the outcome from the state and end the span before the last write, so that the write includes it."""
        span, state, run = self.span, self._run.state, self._run
        if span is NOOP_SPAN:
            return
        outcomes = {"paused": "waiting_confirmation", "running": "suspended"}
        span.set_attributes(
            {
                names.RUN_OUTCOME: outcomes.get(state.status, state.finish_reason),
                names.RUN_STEPS: state.steps,
                names.RUN_COST: state.usage.cost_usd or None,
            }
        )
        if span.is_recording() and state.output and (content := run.content):
            span.set_attributes(content.output(state.output))
        record_pending(span, state.pending)
        if state.status != "running" and (error_type := outcome_for(state.finish_reason).span_error):
            span.fail(error_type)
        span.end()

    def _record_route(self) -> None:
        route = self._route
        if route is None:
            return
        attributes = {
            names.ROUTE_MODE: route.mode,
            names.ROUTE_AGENT: route.agent.name,
            names.ROUTE_RULE: route.reason if route.mode == "rule" else None,
            names.ROUTE_CANDIDATES: len(self._run.services.generation.agents),
            names.ROUTE_SCORE: route.confidence,
        }
        call, spans = route.model_call, self._run.services.spans
        with spans.span("agent.route", "CHAIN", attributes, started_ns=call.began_ns if call else None):
            if call is None:
                return
            model: OptionalAttributes = {
                names.OPERATION: "chat",
                **model_attributes(call.info),
                **usage_attributes(call.usage),
            }
            name = f"chat {call.info.wire_name}"
            spans.span(name, "LLM", model, client=True, started_ns=call.began_ns).end(call.ended_ns)


def _secrets(settings: BaseModel) -> Iterator[str]:
    """Yield every secret in the settings, also in its JSON form."""
    for name in type(settings).model_fields:
        yield from _secrets_in(getattr(settings, name))


def _secrets_in(value: Any) -> Iterator[str]:
    match value:
        case SecretStr():
            plain = value.get_secret_value()
            yield from {plain, plain.encode("unicode_escape").decode(), plain.replace('"', '\\"')}
        case BaseModel():
            yield from _secrets(value)
        case dict():
            for inner in value.values():
                yield from _secrets_in(inner)
