"""One model turn: what is asked, how the answer comes in, and how it is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from framework.config.templates.variables import HTTP_TOOL, RunVariables
from framework.conversation.window import last_messages
from framework.engine.context.run_context import RunContext
from framework.engine.model_call import retry as asking
from framework.engine.model_call.context_window import ensure_fits
from framework.engine.model_call.plan_reminder import plan_reminder
from framework.engine.model_call.structured_output import answer_instruction, answer_schema
from framework.engine.tool_call.results import record_final_answer
from framework.llm.client import ModelReply, ModelRequest
from framework.types.events import ContentReceived, Thought
from framework.types.messages import Message, ToolDefinition

_ACTIONABLE_LIMITS = ("max_steps", "max_tool_calls", "max_total_tokens", "max_cost_usd", "context")
"""Limits that a model can do something about."""


def render_preamble(run: RunContext) -> tuple[Message, ...]:
    """Instructions, guidance and examples; raises PromptError."""
    spec, state = run.agent.spec, run.state
    variables = _variables(run)
    instructions = run.agent.instructions(state.locale, state.inputs, state.user, variables)
    guidance = run.agent.guidance(state.locale, run.budget.limits, variables)
    parts = (instructions, guidance, *answer_instruction(run), *(state.background or ()))
    system = Message(role="system", content="\n\n".join(parts))
    turns = [(("user", example.user), ("assistant", example.assistant)) for example in spec.examples]
    return system, *(Message(role=role, content=text) for turn in turns for role, text in turn)


def preamble_messages(run: RunContext) -> tuple[Message, ...]:
    """Return the preamble that all requests of this run share; raises PromptError."""
    return run.render_once("preamble", partial(render_preamble, run))


def render_summary(run: RunContext) -> tuple[Message, ...]:
    """What stands for the beginning of a long conversation, as the user's words: it may hold those of anybody."""
    summary = run.state.summary
    if summary is None:
        return ()
    text = render(run, "earlier.j2", summary=summary.model_dump())
    return (Message(role="user", content=text.strip()),)


def render(run: RunContext, template: str, **variables: Any) -> str:
    """Render one of the runtime's own templates for a run; raises PromptError."""
    return run.agent.render(template, run.state.locale, **_variables(run).data(), **variables)


def _variables(run: RunContext) -> RunVariables:
    history = last_messages(run.state.history, run.agent.spec.conversation.window)
    http = run.services.tools().http if HTTP_TOOL in run.agent.toolset.offered else None
    return RunVariables(run.state.messages[0].content, history, http)


def build_request(run: RunContext, instructions: Sequence[Message], **options: Any) -> ModelRequest:
    """The whole conversation as a request, with instructions that are never stored at its end."""
    history = last_messages(run.state.history, run.agent.spec.conversation.window)
    summary = run.render_once("earlier", partial(render_summary, run))
    known = (*preamble_messages(run), *summary, *history, *run.state.messages)
    messages = (*known, *plan_reminder(run), *instructions, *_limit_notice(run))
    return ModelRequest(messages, settings=run.state.model_settings, scratch=run.scratch, **options)


def build_turn_request(
    run: RunContext, instructions: Sequence[Message], tools: tuple[ToolDefinition, ...]
) -> ModelRequest:
    """One turn of the conversation as a request: with tools, or with the final answer in the form that is wanted."""
    stream = run.services.listening and not run.is_guarded
    return build_request(run, instructions, tools=tools, stream=stream, json=answer_schema(run), json_by_tool=True)


def _limit_notice(run: RunContext) -> Iterator[Message]:
    """One line to the model once the run has used most of what it may: never stored."""
    near = [name for name in run.state.warned if name in _ACTIONABLE_LIMITS]
    if near:
        text = f"You have used most of what this run may use ({', '.join(near)}). Finish now, with what you have."
        yield Message(role="system", content=text)


def _truncated(run: RunContext) -> str:
    """What to do about an answer that the output limit has cut."""
    if run.state.model_settings.max_tokens is None:
        return "the answer was cut at the model's own output limit: raise it with model_settings.max_tokens"
    place = run.agent.place("model_settings", "max_tokens")
    return f"the answer was cut by max_tokens: raise model_settings.max_tokens ({place})"


async def call_model(run: RunContext, request: ModelRequest, *, model: str | None = None) -> ModelReply:
    """Every model call of a run goes through here, re-asks for a typed answer included: one step, whatever it takes.

    Args:
        run: who asks.
        request: what is asked.
        model: whom, instead of the agent's own model.

    Raises:
        LimitExceeded: before the call, if a limit is used up, or between two attempts.
        ModelError: no model answered.
    """
    run.keep_time()
    run.services.journal.check()
    run.budget.check_steps()
    await ensure_fits(run, request, asking.primary_client(run, model).info)
    run.budget.spend_step()
    reply = await asking.complete_with_retries(run, request, model)
    for code, message in run.budget.new_warnings():
        await run.warn(code, message)
    if reply.finish_reason == "length" and reply.unusable is None:
        await run.warn("truncated", _truncated(run))
    return reply


async def emit_reply(run: RunContext, message: Message, message_id: str) -> None:
    """Emit a reply as events: reasoning where it led to tool calls, content where it is the final answer."""
    reasoning = message.reasoning.text if message.reasoning else ""
    if not message.tool_calls and run.is_guarded:
        reasoning = ""  # it may have the answer in it, which nobody has looked at
    if thought := "\n".join(part for part in (reasoning, message.content if message.tool_calls else "") if part):
        await run.emit(Thought, message_id=message_id, text=thought)
    if message.content and not message.tool_calls and not (run.services.listening or run.is_guarded):
        await run.emit(ContentReceived, message_id=message_id, text=message.content)
    if not message.tool_calls:
        record_final_answer(run, message)
