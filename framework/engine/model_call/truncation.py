"""A text answer that the output limit cut: continue it, stop the run, or warn, as the agent's `on_truncation` says.

Only text is continued. A model that is asked to continue JSON begins a new object, so an answer that is requested as
JSON is treated as under `warn`: it is requested again as a whole if it does not fit its schema.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from framework.engine.context.run_context import RunContext
from framework.llm.client import ModelReply, ModelRequest
from framework.llm.request_cache import estimate_tokens
from framework.types.errors import AgentsdError, LimitExceeded, ModelError
from framework.types.events import ContentReceived
from framework.types.messages import Message

MAX_CONTINUATIONS = 5
"""Maximum number of requests that continue one answer; each is a step of the run."""
_CONTINUE = Message(
    role="user",
    content="Your answer was cut at the output limit. Continue it exactly where it ends: the next character that you "
    "write is appended to it. Repeat nothing, and add no remark about the interruption.",
)


async def complete_reply(
    run: RunContext, send: Callable[[ModelRequest], Awaitable[ModelReply]], request: ModelRequest, cut: ModelReply
) -> ModelReply:
    """Return a cut reply, continued if the agent asks for it; warn if it is still incomplete.

    The parts are one message with one id: listeners receive the deltas of a continuation as further text of it.

    Args:
        run: the run that receives the answer.
        send: calls the model; each call is a step.
        request: the request that the reply answers.
        cut: the reply, whose finish reason is `length`.

    Raises:
        ModelError, LimitExceeded: a continuation failed. The text so far becomes the run's output.
    """
    continuations = 0
    if run.agent.spec.on_truncation == "continue" and request.json is None:
        try:
            while cut.finish_reason == "length" and continuations < MAX_CONTINUATIONS:
                continuations += 1
                messages = (*request.messages, cut.message, _CONTINUE)
                part = await send(replace(request, messages=messages, continued=cut))
                has_progress = part.message.content.strip() and part.message.content not in cut.message.content
                cut = _joined(cut, part)
                if not has_progress:
                    break
        except BaseException as error:  # a timeout or a cancellation, too
            await _record_unfinished(run, cut, error)
            raise
    if cut.finish_reason == "length":
        await warn_truncated(run, continuations)
    return cut


async def warn_truncated(run: RunContext, continuations: int = 0) -> None:
    """Warn that the output limit cut an answer, and name the setting that raises the limit."""
    again = f", and still incomplete after {continuations} continuations" if continuations else ""
    if run.state.model_settings.max_tokens is None:
        where = "at the model's own output limit"
        advice = "raise it with model_settings.max_tokens"
    else:
        place = run.agent.place("model_settings", "max_tokens")
        where, advice = "by max_tokens", f"raise model_settings.max_tokens ({place})"
    await run.warn("truncated", f"the answer was cut {where}{again}: {advice}")


def stop_if_truncated(run: RunContext, output: str) -> None:
    """Raise LimitExceeded if the answer is incomplete and the agent's `on_truncation` is `stop`."""
    if run.agent.spec.on_truncation == "stop":
        written = run.state.model_settings.max_tokens or estimate_tokens(output)
        place = run.agent.place("on_truncation")
        raise LimitExceeded("length", used=written, allowed=written, place=place)


def _joined(cut: ModelReply, part: ModelReply) -> ModelReply:
    """Return the reply with the part appended; its reasoning is that of the calls, if it ends with calls."""
    reasoning = part.message.reasoning
    if reasoning is None and not part.message.tool_calls:
        reasoning = cut.message.reasoning
    text = cut.message.content + part.message.content
    return replace(part, message=part.message.model_copy(update={"content": text, "reasoning": reasoning}))


async def _record_unfinished(run: RunContext, cut: ModelReply, error: BaseException) -> None:
    """Append the text so far to the conversation of a run that ends here; a suspended run repeats the turn instead."""
    if run.services.journal.is_suspended:
        return
    run.state.truncated = True
    run.state.replies.append(len(run.state.messages))
    run.state.messages.append(cut.message)
    if isinstance(error, AgentsdError) and not run.is_guarded:
        message_id = error.message_id if isinstance(error, ModelError) else None
        await run.emit(ContentReceived, message_id=message_id or cut.message_id, text=cut.message.content)
