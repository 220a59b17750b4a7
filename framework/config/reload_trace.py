"""What a trace tells of a reload: a trace of its own, from the first look at the files until they are live."""

from __future__ import annotations

from framework.config.candidate import Candidate
from framework.config.history import Trigger
from framework.telemetry import names
from framework.telemetry.span import OpenSpan
from framework.telemetry.spans import Spans

MOST_ERRORS = 32
"""Told of one by one."""


def reload_span(candidate: Candidate, trigger: Trigger) -> OpenSpan:
    """The root span, and in it the build, which is over: whether it is for anything is known only afterwards."""
    spans = Spans({names.GENERATION: candidate.generation.number})
    attributes = {names.PREVIOUS_GENERATION: candidate.before.number, names.RELOAD_TRIGGER: trigger}
    began, built = candidate.built or (None, None)
    span = spans.span("config.reload", "CHAIN", attributes, root=True, started_ns=began)
    if built is not None:
        with span.inside():
            spans.span("config.build", "CHAIN", started_ns=began).end(built)
    return span


def tell(span: OpenSpan, candidate: Candidate, outcome: str) -> None:
    """What was built, what it changes, and which files could not be used: their places, not what they say."""
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
    for problem in (generation.refusal or generation.errors)[:MOST_ERRORS]:
        span.add_event(names.RELOAD_ERROR, {names.PATH: problem.path, names.LINE: problem.line})
    if outcome == "rejected":
        span.fail("rejected")
