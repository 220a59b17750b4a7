"""Ends a root run: saves the final state, emits the closing events, logs one line, and builds the result."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from pydantic import BaseModel

from framework.engine.context.journal import next_event
from framework.engine.context.run_context import RunContext
from framework.engine.run import Run
from framework.engine.run_trace import RunTrace
from framework.store.protocol import ANSWERED_STATUSES
from framework.types.errors import LimitExceeded, RunSuspended
from framework.types.events import ConfirmationRequested, Event, RunFailed, RunFinished, RunPaused
from framework.types.messages import HOST, Message
from framework.types.report import CallSummary, IncompleteStep, ToolStat, TraceEntry
from framework.types.state import Confirmation, RunResult, RunState

log = logging.getLogger("agentsd.runs")

_CONFIRMATION_FIELDS = tuple(Confirmation.model_fields)


async def finish_run(run: Run, pending: tuple[Confirmation, ...], trace: RunTrace) -> RunResult:
    """Save the final state, emit the closing events, and return the result; raises StoreError.

    Args:
        run: a root run whose executor has returned.
        pending: the decisions that the run waits for; empty if it has ended.
        trace: its open root span.
    """
    state = run.state
    state.pending = [_with_expiry(run, confirmation) for confirmation in pending]
    if state.status == "running":  # cancelled before its executor began
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


async def suspend_run(run: Run, trace: RunTrace) -> NoReturn:
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
    name = confirmation.agent
    versions = (run.services.generation.agents.get(name), run.services.current_agent(name))
    policies = [agent.spec.runtime_policy.confirm for agent in versions if agent is not None]
    timeouts = [(policy.expires, policy.on_expiry) for policy in policies if policy.expires is not None]
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
        yield next_event(
            state, ConfirmationRequested, **{name: getattr(confirmation, name) for name in _CONFIRMATION_FIELDS}
        )
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
        agent=state.agent,
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
    own = sorted(state.trace, key=lambda entry: (entry.step, place.get(entry.call_id, len(place))))
    before: dict[int, list[TraceEntry]] = {}
    for key, child in state.children.items():
        if entries := [*_trace_entries(child)]:
            end = entries[-1].timestamp
            follows = (
                i for i, entry in enumerate(own) if entry.call_id == key or (key not in place and entry.timestamp > end)
            )
            before.setdefault(next(follows, len(own)), []).extend(entries)
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
