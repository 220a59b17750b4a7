"""Builds the context that tools and hooks receive: facts about the run, progress, spans, and questions to a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import count
from typing import Any

from framework.engine.context.run_context import RunContext
from framework.telemetry import names, plugin_span
from framework.telemetry.plugin_span import PluginSpan
from framework.tools.builtin.questions import ASK_USER
from framework.tools.tool import Session, ToolContext, ToolSpan, idempotency_key
from framework.types.errors import Paused, ToolError
from framework.types.events import ToolStarted
from framework.types.messages import ToolCall
from framework.types.redact import redact_data
from framework.types.state import Approve, Confirmation, Edit, Reject, Respond
from framework.types.strict_json import call_digest


def build_tool_context(run: RunContext, call: ToolCall) -> ToolContext:
    """Return the context object for one call; hooks receive the same."""

    async def progress(fraction: float, message: str) -> None:
        head = {"id": call.id, "tool": call.tool, "arguments": redact_data(call.arguments)}
        await run.emit(ToolStarted, **head, progress=fraction, message=message)

    question_numbers = count(1)

    async def ask_human(question: str, choices: Sequence[str] = ()) -> str:
        return _human_answer(run, _question(run, call, question, choices, next(question_numbers)))

    def span(
        name: str, attributes: Mapping[str, Any] | None = None, *, client: bool = False
    ) -> AbstractContextManager[ToolSpan]:
        extra_attributes = plugin_span.attributes(attributes or {})
        return PluginSpan(run.span(name, "CHAIN", {names.TOOL_NAME: call.tool, **extra_attributes}, client=client))

    tools = run.services.tools()
    return ToolContext(
        run_id=run.state.run_id,
        call_id="/".join((*run.state.path, call.id)),
        agent=run.agent.name,
        base_path=run.services.base_path,
        unprotected=tools.unprotected,
        write_below=tools.write_below,
        denied_files=run.policy.denied_files(),
        reserved_files=run.services.reserved_files,
        deps=run.services.deps,
        http=tools.http,
        locale=run.state.locale,
        user=run.state.user,
        tenant=run.state.tenant,
        metadata=run.services.root.metadata,
        progress=progress,
        session=Session(run.services.root.session),
        ask_human=ask_human,
        span=span,
    )


def _question(run: RunContext, call: ToolCall, question: str, choices: Sequence[str], number: int) -> Confirmation:
    call_id = "/".join((*run.state.path, call.id))
    return Confirmation(
        id=f"{call_id}?{number}",
        call_id=call_id,
        idempotency_key=idempotency_key(run.state.run_id, call_id),
        kind="ask_user" if call.tool == ASK_USER else "question",
        agent=run.agent.name,
        tool=call.tool,
        arguments=call.arguments,
        hash=call_digest(call.tool, {"question": question, **({"choices": list(choices)} if choices else {})}),
        reason=question,
        rule="the model asks" if call.tool == ASK_USER else "the tool asks",
        choices=tuple(choices),
    )


def _human_answer(run: RunContext, question: Confirmation) -> str:
    """Return a person's answer; raise Paused until they answer, ToolError if they declined."""
    match run.decision(question.id):
        case None:
            raise Paused([question])
        case Respond(text=text):
            return text
        case Approve():
            return "yes"
        case Reject(reason=reason):
            raise ToolError(f"a human did not answer the question{': ' + reason if reason else ''}")
        case Edit():
            raise ToolError("a human edited the call instead of answering the question")
