"""Spans and metrics of one agent in a run, and of its turns."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from framework.engine.context.run_context import RunContext
from framework.engine.context.trace import model_attributes, record_pending
from framework.telemetry import names
from framework.telemetry.span import NOOP_SPAN, TraceSpan
from framework.types.errors import AgentsdError
from framework.types.messages import Message
from framework.types.outcome import outcome_for
from framework.types.spec import TemplateRef
from framework.types.state import Confirmation


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
                self._span.set_attributes(content.input(run.state.messages[0].content))
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
                **_prompt_attributes(run),
            }
        )
        if self._span.is_recording() and run.state.output and (content := run.content):
            self._span.set_attributes(content.output(run.state.output))
        if error_type:
            self._span.fail(error_type)


def open_step_span(run: RunContext, index: int) -> TraceSpan:
    """Open the span of a model turn and of the calls it requests; it is closed when the next turn begins."""
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
        names.TOOLS_AVAILABLE: len(run.agent.toolset.offered),
    }
    try:
        info = run.model_caller.primary().info
    except AgentsdError:  # the model call reports it
        return attributes
    return {**attributes, **model_attributes(info)}
