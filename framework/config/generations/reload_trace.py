"""The trace of a reload, from reading the files to publishing the generation.

A start without errors leaves no trace. Otherwise half of a trace list would be starts without any information.
"""

from __future__ import annotations

from framework.config.generations.candidate import Candidate, ReloadOutcome
from framework.config.generations.history import Trigger
from framework.telemetry import names
from framework.telemetry.spans import NOOP_SPAN, Spans, TraceSpan

_MAX_ERRORS = 32
"""Limit of errors that are recorded as span events."""


def open_reload_span(candidate: Candidate, trigger: Trigger) -> TraceSpan:
    """Open the root span, with the finished build as its child. Return a no-op span for a start without errors."""
    if trigger == "startup" and not (candidate.generation.errors or candidate.generation.rejection):
        return NOOP_SPAN
    return _open_span(candidate, trigger)


def record_reload(span: TraceSpan, candidate: Candidate, trigger: Trigger, outcome: ReloadOutcome) -> None:
    """Record the outcome, the number of changes, and file and line of each error, but not its text."""
    if trigger == "startup" and span is NOOP_SPAN and outcome != "applied":  # rejected by the gate or by strict mode
        with _open_span(candidate, trigger) as late_span:
            _record(late_span, candidate, outcome)
        return
    _record(span, candidate, outcome)


def _open_span(candidate: Candidate, trigger: Trigger) -> TraceSpan:
    spans = Spans({names.GENERATION: candidate.generation.number})
    attributes = {names.PREVIOUS_GENERATION: candidate.before.number, names.RELOAD_TRIGGER: trigger}
    began, built = candidate.built or (None, None)
    span = spans.span("config.reload", "CHAIN", attributes, root=True, started_ns=began)
    if built is not None:
        with span.activate():
            spans.span("config.build", "CHAIN", started_ns=began).end(built)
    return span


def _record(span: TraceSpan, candidate: Candidate, outcome: ReloadOutcome) -> None:
    if not span.is_recording():
        return
    generation, event = candidate.generation, candidate.event()
    agents = sum(len(getattr(event, which, ())) for which in ("added", "changed", "removed"))
    span.set_attributes(
        {
            names.RELOAD_OUTCOME: outcome,
            names.DIGEST: candidate.digest,
            names.GENERATION: candidate.before.number if outcome == "rejected" else generation.number,
            names.RELOAD_AGENTS: agents,
            names.RELOAD_CHANGES: len(candidate.changes),
            names.RELOAD_WIDENS: candidate.widens,
        }
    )
    for problem in (generation.rejection or generation.errors)[:_MAX_ERRORS]:
        span.add_event(names.RELOAD_ERROR, {names.CONFIG_PATH: problem.path, names.CONFIG_LINE: problem.line})
    if outcome == "rejected":
        span.fail("rejected")
