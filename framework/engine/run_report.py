"""What a run reports: its spans and metrics, its closing events, one line in the log, and its result."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import groupby
from time import perf_counter
from types import TracebackType
from typing import Any, NoReturn, Self

from pydantic import BaseModel, SecretStr

from framework.config.generations.generation import Generation
from framework.config.settings import Settings
from framework.engine.context.events import next_event
from framework.engine.context.run_context import RunContext, model_attributes, usage_attributes
from framework.engine.routing import Route
from framework.store.types import ANSWERED_STATUSES
from framework.telemetry import names
from framework.telemetry.spans import (
    NOOP_SPAN,
    Content,
    OptionalAttributes,
    Spans,
    TraceSpan,
    content_mode,
    linked_caller,
    record_pending,
)
from framework.types.errors import AgentsdError, LimitExceeded, RunSuspended, outcome_for
from framework.types.events import ConfirmationRequested, Event, RunFailed, RunFinished, RunPaused
from framework.types.messages import HOST, Message
from framework.types.report import CallSummary, IncompleteStep, ToolStat, TraceEntry
from framework.types.spec import TemplateRef
from framework.types.state import Confirmation, RunResult, RunState

_MIN_SECRET_CHARS = 8
"""Shorter secrets are not redacted: replacing them would garble ordinary text."""
_CUT = ("length",)
"""Finish reasons of a run or an agent whose answer the output limit cut; others have them on their model calls only."""


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
        self._started = perf_counter()
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
        started = self._route.model_call.started_ns if self._route and self._route.model_call else None
        self.span = run.services.spans.span(f"invoke_workflow {agent}", "CHAIN", attributes, started_ns=started)
        self.span.__enter__()
        self.span.add_link(run.services.generation.traceparent, "config.reload")
        self.span.add_link(linked_caller(), "caller")
        if state.traceparent:
            self.span.add_link(state.traceparent, "resume")
            self.span.set_attribute(names.RESUMED, state.traceparent.split("-")[1])
        state.traceparent = self.span.traceparent
        if self.span.is_recording() and (content := run.content):
            self.span.set_attributes(content.input(state.messages[0].description))
        self._record_route()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.span.__exit__(kind, error, traceback)
        if self._meters:
            self._count(self._run.state, perf_counter() - self._started, error)

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
                names.RUN_COST: state.usage.cost_usd,
                names.FINISH_REASONS: _CUT if state.truncated else None,
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
        with spans.span("agent.route", "CHAIN", attributes, started_ns=call.started_ns if call else None):
            if call is None:
                return
            model: OptionalAttributes = {
                names.OPERATION: "chat",
                **model_attributes(call.info),
                **usage_attributes(call.usage),
            }
            name = f"chat {call.info.wire_name}"
            spans.span(name, "LLM", model, client=True, started_ns=call.started_ns).end(call.ended_ns)


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


class AgentTrace:
    """Context manager with the span and metrics of one agent, in a root run or a sub-run."""

    def __init__(self, run: RunContext) -> None:
        self._run, self._meters = run, run.services.meters
        self._span = NOOP_SPAN

    def __enter__(self) -> Self:
        run = self._run
        self._started, self._steps, self._calls = perf_counter(), run.state.steps, run.state.tool_calls
        self._usage = run.state.usage
        if run.services.spans.recording:
            self._span = run.span(f"invoke_agent {run.agent.name}", "AGENT", _agent_attributes(run))
            self._span.__enter__()
            if self._span.is_recording() and (content := run.content):
                self._span.set_attributes(content.input(run.state.messages[0].description))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        state = self._run.state
        error_type = outcome_for(state.finish_reason).span_error
        if self._meters:
            calls = {"steps": state.steps - self._steps, "tool_calls": state.tool_calls - self._calls}
            self._meters.record_agent(self._run.agent.name, perf_counter() - self._started, error_type, **calls)
        if self._span is not NOOP_SPAN:
            self._set_results(error_type)
            self._span.__exit__(kind, error, traceback)

    def set_pending(self, confirmations: Sequence[Confirmation], step: TraceSpan) -> None:
        """Record, on the agent and on its turn `step`, the confirmations that they wait for."""
        if confirmations:
            record_pending(step, confirmations)
            record_pending(self._span, confirmations)

    def _set_results(self, error_type: str | None) -> None:
        run, usage, before = self._run, self._run.state.usage, self._usage
        self._span.set_attributes(
            {
                names.TOTAL_INPUT_TOKENS: usage.prompt_tokens - before.prompt_tokens,
                names.TOTAL_OUTPUT_TOKENS: usage.completion_tokens - before.completion_tokens,
                names.TOKENS_LIMIT: run.budget.limits.max_total_tokens,
                names.TOKENS_USED: usage.total_tokens,
                names.FINISH_REASONS: _CUT if run.state.truncated else None,
                **_prompt_attributes(run),
            }
        )
        if self._span.is_recording() and run.state.output and (content := run.content):
            self._span.set_attributes(content.output(run.state.output))
        if error_type:
            self._span.fail(error_type)


def open_step_span(run: RunContext, index: int) -> TraceSpan:
    """Open the span of a model turn and of the calls it requests; it is closed when the next turn starts."""
    spans = run.services.spans
    if not spans.recording:
        return NOOP_SPAN
    return spans.span(f"agent.step {index}", "CHAIN", {names.AGENT: run.agent.name, names.STEP_INDEX: index})


def record_reply(run: RunContext, span: TraceSpan, reply: Message) -> None:
    """Record a reply on the span of its turn; call this before the reply is appended to the state."""
    span.set_attribute(names.STEP_KIND, "action" if reply.tool_calls else "final")
    if span.is_recording() and (content := run.content):
        first = run.state.replies[-1] + 1 if run.state.replies else 0
        span.set_attributes(content.turn(run.state.messages[first:], reply))


def _prompt_attributes(run: RunContext) -> dict[str, Any]:
    """Return the prompt template's name, and a digest of the rendered text: equal digests mean equal text."""
    if (prompt := run.system_prompt) is None:
        return {}
    source = run.agent.spec.instructions
    digest = blake2b(prompt.encode("utf-8", "replace"), digest_size=8).hexdigest()
    return {
        names.PROMPT_NAME: source.template if isinstance(source, TemplateRef) else None,
        names.PROMPT_DIGEST: digest,
    }


def _agent_attributes(run: RunContext) -> dict[str, Any]:
    spec = run.agent.spec
    attributes = {
        names.OPERATION: "invoke_agent",
        names.AGENT_DESCRIPTION: spec.description,
        names.AGENT_VERSION: run.agent.digest,
        names.AGENT_DIGEST: run.agent.digest,
        names.EXECUTOR: spec.executor,
        names.PROTOCOL: spec.protocol,
        names.RISK_CEILING: spec.runtime_policy.risk_level,
        names.TOOLS_AVAILABLE: len(run.tool_definitions()),
    }
    try:
        info = run.model_caller.primary().info
    except AgentsdError:  # the model call reports it
        return attributes
    return {**attributes, **model_attributes(info)}


log = logging.getLogger("agentsd.runs")

CLIENT_SECONDS = 24 * 3600.0
"""Time for which a run waits for the results of its client's tools, in seconds; then it is cancelled."""


async def finish_run(run: RunContext, pending: tuple[Confirmation, ...], trace: RunTrace) -> RunResult:
    """Save the final state, emit the closing events, and return the result; raises StoreError.

    Args:
        run: a root run whose executor has returned.
        pending: the decisions that the run waits for; empty if it has ended.
        trace: its open root span.
    """
    state = run.state
    state.pending = [_with_expiry(run, confirmation) for confirmation in pending]
    if state.status == "running":  # cancelled before its executor started
        state.status, state.finish_reason = "cancelled", "cancelled"
    journal = run.services.journal
    if journal.cancel_requested:
        _end_as_cancelled(state)
    state.paused_at = run.services.now() if pending else None
    trace.finish()
    closing = [*closing_events(state, run.output_message_id)]
    if not await journal.end(closing):  # a cancellation was accepted elsewhere before the end was saved
        _end_as_cancelled(state)
        state.seq = closing[0].seq - 1
        await journal.end([*closing_events(state, run.output_message_id)])
    result = build_result(state, run.typed_answer)
    _log_result(result)
    return result


def _end_as_cancelled(state: RunState) -> None:
    """Let a run with an answer end as cancelled: whoever cancelled it was told that it would be."""
    if state.status in ANSWERED_STATUSES:
        state.status, state.finish_reason, state.stopped_by = "cancelled", "cancelled", None


async def suspend_run(run: RunContext, trace: RunTrace) -> NoReturn:
    """Release a run that has not ended, so that it can be resumed later.

    Raises:
        RunSuspended: always, unless one of the errors below occurs.
        RunTaken: another process holds the run.
        StoreError: the store could not be written.
    """
    trace.finish()
    journal, run_id = run.services.journal, run.state.run_id
    await journal.release()
    reason = "its lease was lost" if journal.lease_lost else "the runtime was closed"
    if journal.is_scarce:
        reason = "this process has no open files or memory left"
    raise RunSuspended(f"run {run_id} was suspended because {reason}; resume it with: agentsd runs resume {run_id}")


def _with_expiry(run: RunContext, confirmation: Confirmation) -> Confirmation:
    """Return a confirmation with its deadline, counted from when it was first requested.

    If the agent's file was edited during the run, the shorter of the two timeouts applies.
    """
    names = {confirmation.agent: None, **dict.fromkeys(run.services.root.handled_by)}
    known, live = run.services.generation.agents, run.services.current_agent
    versions = [version for name in names for version in (known.get(name), live(name))]
    policies = [agent.spec.runtime_policy.confirm for agent in versions if agent is not None]
    timeouts = [(policy.expires, policy.on_expiry) for policy in policies if policy.expires is not None]
    if confirmation.kind == "client_tool":  # nobody is asked, and many clients never send a result
        timeouts = [(CLIENT_SECONDS, "cancel")]
    if not timeouts:
        return confirmation
    seconds, on_expiry = min(timeouts)
    root = run.services.root
    until = datetime.fromtimestamp(run.services.now(), UTC) + timedelta(seconds=seconds)
    expires_at = root.expires.setdefault(confirmation.id, until)
    return confirmation.model_copy(update={"expires_at": expires_at, "on_expiry": on_expiry})


def closing_events(state: RunState, message_id: str | None = None) -> Iterator[Event]:
    """Yield the last events of a root run: pending confirmations, the failure if any, and the end of the stream."""
    for confirmation in state.pending:
        yield next_event(state, ConfirmationRequested, **dict(confirmation))
    if state.error is not None:
        yield next_event(state, RunFailed, **state.error.model_dump())
    yield next_event(
        state,
        RunPaused if state.status == "paused" else RunFinished,
        status=state.status,
        finish_reason=state.finish_reason,
        output=state.output,
        truncated=state.truncated,
        incomplete=_incomplete_steps(state),
        message_id=message_id,
        tokens_used=state.usage.total_tokens,
        usage=state.usage,
        trace_id=state.trace_id,
        digest=state.digest,
    )


def build_result(state: RunState, answer: BaseModel | None = None) -> RunResult:
    """Build the result of a run from its state, and from its answer as an instance of the caller's type."""
    return RunResult(
        run_id=state.run_id,
        status=state.status,
        finish_reason=state.finish_reason,
        output=state.output,
        data=state.data,
        parsed=answer,
        plan=state.plan,
        messages=(*_summary_message(state), *state.history, *state.messages),
        steps=state.steps,
        tool_calls=tuple(_call_summaries(state)),
        tool_stats=_tool_stats(state),
        usage=state.usage,
        agent=state.answering,
        generation=state.generation,
        digest=state.digest,
        conversation_id=state.conversation_id,
        trace_id=state.trace_id,
        trace=tuple(_trace_entries(state)),
        pending=tuple(state.pending),
        error=state.error,
        stopped_by=state.stopped_by,
        truncated=state.truncated,
        incomplete=_incomplete_steps(state),
        warnings=tuple(state.warnings),
        elapsed_ms=state.elapsed_ms,
    )


def limit_error(result: RunResult) -> LimitExceeded:
    """Convert the result of a stopped run to a LimitExceeded error that carries it."""
    stop = result.stopped_by
    assert stop is not None
    error = LimitExceeded.of(stop)
    error.result = result
    return error


def _trace_entries(state: RunState) -> Iterator[TraceEntry]:
    """Yield a run's trace: steps in order, the calls of a step in the order the model made them.

    The entries of a sub-run precede the entry of the call it belongs to. A plan step belongs to no call: its entries
    precede the first entry with a later timestamp.
    """
    place = {call_id: index for index, call_id in enumerate(state.calls)}
    own: list[TraceEntry] = []
    for _, turns in groupby(state.trace, lambda entry: entry.call_id in place):  # an answer is in no place
        own += sorted(turns, key=lambda entry: place.get(entry.call_id, 0))
    before: dict[int, list[TraceEntry]] = {}
    for key, child in state.children.items():
        if inner := [*_trace_entries(child)]:
            end = inner[-1].timestamp
            follows = (
                i for i, entry in enumerate(own) if entry.call_id == key or (key not in place and entry.timestamp > end)
            )
            before.setdefault(next(follows, len(own)), []).extend(inner)
    for index, entry in enumerate(own):
        yield from before.get(index, ())
        yield entry
    yield from before.get(len(own), ())


def _summary_message(state: RunState) -> Iterator[Message]:
    """Yield the summary of a history that the caller gave. Of a conversation, the store keeps the whole messages."""
    if state.summary is not None and state.conversation_id is None:
        yield Message(role="user", content=state.summary.text)


def _incomplete_steps(state: RunState) -> tuple[IncompleteStep, ...]:
    """Return the steps of an ended run's plan that were not done; none while a new plan or a person can change that."""
    if state.plan is None or state.status in ("queued", "running", "paused"):
        return ()
    return tuple(
        IncompleteStep(
            id=step.id,
            description=step.description,
            status="failed" if step.status == "failed" else "skipped",
            reason=(step.result or "").strip(),
        )
        for step in state.plan.undone
    )


def _tool_stats(state: RunState) -> dict[str, ToolStat]:
    total: dict[str, ToolStat] = {}
    for run in state.with_sub_runs():
        for name, stat in run.tool_stats.items():
            before = total.get(name, ToolStat())
            total[name] = ToolStat(count=before.count + stat.count, total_ms=before.total_ms + stat.total_ms)
    return total


def _call_summaries(state: RunState) -> Iterator[CallSummary]:
    for run in state.with_sub_runs():
        for record in run.calls.values():
            if record.result is not None:
                result = record.result
                yield CallSummary(
                    id="/".join((*run.path, record.call.id)),
                    tool=record.call.tool,
                    arguments=record.call.arguments,
                    result=result.output if result.status == "success" else result.error,
                    status=result.status,
                    elapsed_ms=result.elapsed_ms,
                    host=result.metadata.get(HOST, {}),
                )


def _log_result(result: RunResult) -> None:
    """Log the run's single INFO record."""
    if not log.isEnabledFor(logging.INFO):
        return
    fields = {
        "agent": result.agent,
        "generation": result.generation,
        "finish_reason": result.finish_reason,
        "steps": result.steps,
        "tools": {name: stat.count for name, stat in result.tool_stats.items()},
        "tokens": result.usage.total_tokens,
        "cost_usd": result.usage.cost_usd,
        "ms": round(result.elapsed_ms),
        "trace_id": result.trace_id,
    }
    text = " ".join(f"{key}={value}" for key, value in fields.items())
    log.info("run %s %s", result.run_id, text, extra={"agentsd": fields})
