"""Keeping a conversation short enough: before a run's first turn, its beginning becomes a summary if it is too long."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from framework.config.templates.prompts import PromptError
from framework.conversation.compaction import extend_summary, summarized_count
from framework.engine.context.run_context import RunContext
from framework.engine.model_call import retry as asking
from framework.engine.model_call import turn as turns
from framework.engine.model_call.context_window import message_tokens
from framework.llm.client import ModelRequest
from framework.llm.json_protocol.client import request_valid_reply
from framework.types.errors import LimitExceeded, ModelError
from framework.types.messages import Message
from framework.types.text import shorten

_KEPT_SHARE = 0.5
"""Of what a history may come to: so much of its end stays word for word."""
_WINDOW_SHARE = 0.5
"""Of a model's context window: what a history may take of it, whatever the agent's file says."""
_STEPS_NEEDED = 2
"""The summary is a step, and the answer is another one."""
_REQUEST_CHARS = 200


async def fit_history(run: RunContext) -> None:
    """Sum the conversation's beginning up if it is too long; warn of what the model will not see.

    A summary that cannot be had does not end the run: it goes on with the messages that its window holds.
    """
    state, settings = run.state, run.agent.spec.conversation
    if run.parent is not None or state.steps or not state.history:
        return
    allowed = _allowed(run) if state.conversation_id else None
    if allowed is not None and sum(map(message_tokens, state.history)) > allowed:
        await _compress(run, int(allowed * _KEPT_SHARE))
    if (length := len(state.history)) > settings.window:
        advice = f"begin a new conversation, or raise conversation.window ({run.agent.place('conversation')})"
        text = f"of {length} messages of the conversation, the model sees the last {settings.window}; {advice}"
        await run.warn("window", text)


def _allowed(run: RunContext) -> int | None:
    """How many tokens a history may come to; none: as many as there are."""
    allowed = run.agent.spec.conversation.compress_at_tokens
    window = asking.primary_client(run).info.capabilities.context_window
    if allowed is None or window is None:
        return allowed
    return min(allowed, int(_WINDOW_SHARE * window))


async def _compress(run: RunContext, keep: int) -> None:
    state = run.state
    count = summarized_count(state.history, keep, message_tokens)
    steps = run.budget.limits.max_steps
    if steps is not None and steps < _STEPS_NEEDED:
        return
    gone = state.history[:count]
    try:
        with run.span("conversation.compress", "CHAIN", {}):
            text = await _summary_text(run, gone)
    except (ModelError, LimitExceeded, PromptError) as error:
        await run.warn("compression", f"the conversation could not be summed up: {error}")
        return
    state.summary = extend_summary(state.summary, gone, text)
    state.history = state.history[count:]
    await run.save()
    told = f"{count} messages of the conversation were summed up; they stay in the store"
    await run.warn("compressed", told)


async def _summary_text(run: RunContext, gone: Sequence[Message]) -> str:
    """Ask the agent's model, behind the messages as it knows them: most of that it has in its cache."""
    before = run.state.summary.text.splitlines() if run.state.summary else ()
    said = [line.removeprefix("- ") for line in before if line.startswith("- ")]
    said += [" ".join(message.content.split()) for message in gone if message.role == "user"]
    requests = [shorten(text, _REQUEST_CHARS) for text in said]
    text = turns.render(run, "compress.j2", requests=requests)
    messages = (*turns.render_preamble(run), *turns.render_summary(run), *gone, Message(role="user", content=text))
    settings = run.state.model_settings.model_copy(update={"tool_choice": None})
    request = ModelRequest(messages, settings=settings, scratch=run.scratch)
    reply = await request_valid_reply(partial(turns.call_model, run), request)
    return reply.message.content
