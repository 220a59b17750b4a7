"""Long conversations: the start is summarized, and long results are cut, so that requests fit the context window.

A long history is summarized before the first turn, and a conversation that turns out not to fit later, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from framework.config.templates.prompts import PromptError
from framework.engine.context.run_context import RunContext
from framework.engine.model_call.turn import call_model, render, render_preamble, render_summary, warn_truncated
from framework.llm.client import ModelRequest
from framework.llm.message_shape import message_tokens
from framework.tools.skills import skill_calls
from framework.types.errors import ConfigError, LimitExceeded, ModelError
from framework.types.messages import Message, Summary, ToolCall
from framework.types.text import one_line, shorten

_KEPT_SHARE = 0.5
"""Share of the allowed history that stays verbatim: its end."""
_WINDOW_SHARE = 0.5
"""Share of the context window available to history. Caps the agent's own setting."""
_STEPS_NEEDED = 2
"""One step for the summary, and one for the answer."""
_CHARS_PER_TOKEN = 3
"""Few, so that what is cut to a number of tokens fits."""
_MIN_RESULT_CHARS = 200
"""A tool result is not cut to fewer characters."""
_NO_SUMMARY = "The beginning of the conversation is not available: it does not fit into the model's context window."
_REQUEST_CHARS = 200
"""Characters of each earlier user message that the summary prompt quotes."""
_MAX_EVENT_CHARS = 300
"""Limit of a failure or a denial, and of the arguments of its call."""
_MAX_MESSAGE_CHARS = 2000
"""Characters of a user's message that are searched for facts; longer ones are usually pasted text."""
_MAX_FACT_CHARS = 80
_EDGES = ".,;:!?()[]{}<>\"'`“”‘’「」『』，。；：！？（）、"
_IDENTIFIER = re.compile(r"\d|[^\s/\\]+[/\\][^\s]|[^\s@]@[^\s@]|\w\.\w|\w_\w")
"""A number or date, a path, an e-mail address, a file name or host, or a name with underscores."""
_WIDE = re.compile(r"([\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]+)")


async def fit_history(run: RunContext) -> None:
    """Replace the start of a long conversation by a summary; warn about messages that the model does not see.

    If the summary fails, the run continues with the messages that fit its window.
    """
    state, settings = run.state, run.agent.spec.conversation
    allowed = _allowed_tokens(run)
    if allowed is not None and _size(state.history) > allowed:
        await _summarize(run, int(allowed * _KEPT_SHARE))
    if (length := len(state.history)) > settings.window:
        advice = f"start a new conversation, or raise conversation.window ({run.agent.place('conversation')})"
        await run.warn("window", f"the model sees only the last {settings.window} of {length} messages; {advice}")


def _allowed_tokens(run: RunContext) -> int | None:
    """Return how many tokens the history may have; None if it is not limited."""
    allowed = run.agent.spec.conversation.compress_at_tokens
    window = _window(run)
    if allowed is None or window is None:
        return allowed
    return min(allowed, int(_WINDOW_SHARE * window))


def _window(run: RunContext, model: str | None = None) -> int | None:
    """Return the context window of a model, by default the agent's own, in tokens."""
    return run.services.clients.window(run.model_caller.primary(model).info)


def _size(messages: Sequence[Message]) -> int:
    return sum(map(message_tokens, messages))


async def shorten_conversation(run: RunContext) -> bool:
    """Summarize the history, and cut long tool results of the run if they use much of the window.

    Return whether the next request is shorter.
    """
    window, state = _window(run), run.state
    room = int(_WINDOW_SHARE * (window or _size((*state.history, *state.messages))))
    is_shorter = bool(state.history) and await _summarize(run, int(room * _KEPT_SHARE), must=True)
    skills = skill_calls(state.messages)
    cuttable = [one for one in state.messages if one.role == "tool" and one.tool_call_id not in skills]
    results = [len(message.content) for message in cuttable]
    if results and _size(state.messages) > room:
        texts = _size(state.messages) - _size(cuttable)
        chars = max(_MIN_RESULT_CHARS, (room - texts) * _CHARS_PER_TOKEN // len(results))
        if max(results) > chars and run.cut_results(chars):
            is_shorter = True
            place = run.agent.place("runtime_policy", "max_observation_chars")
            advice = f"have tools return less, or lower limits.observation_chars ({place})"
            await run.warn("compressed", f"results of tools are cut to {chars} characters in requests: {advice}")
    state.counted = (0, 0)  # of the longer conversation
    return is_shorter


async def _summarize(run: RunContext, keep: int, *, must: bool = False) -> bool:
    """Summarize the history except its last `keep` tokens; return whether that succeeded.

    Args:
        run: the run with the history.
        keep: tokens that remain.
        must: the history does not fit. If the model cannot summarize it, only its facts and events remain.
    """
    state = run.state
    count = summarized_count(state.history, keep, message_tokens)
    max_steps = run.budget.limits.max_steps
    if count == 0 or (max_steps is not None and max_steps < _STEPS_NEEDED and not must):
        return False
    replaced = state.history[:count]
    try:
        with run.span("conversation.compress", "CHAIN", {}):
            text = await _summary_text(run, replaced)
    except (ModelError, ConfigError, LimitExceeded, PromptError) as error:
        await run.warn("compression", f"the conversation could not be summarized: {error}")
        if not must or getattr(error, "retryable", False):
            return False
        text = _NO_SUMMARY
    loaded = dict.fromkeys((*(state.summary.skills if state.summary else ()), *skill_calls(replaced).values()))
    state.summary = extend_summary(state.summary, replaced, text).model_copy(update={"skills": tuple(loaded)})
    state.history = state.history[count:]
    run.rendered.pop("summary", None)
    await run.save()
    kept = "the store keeps them" if state.conversation_id else "the result has the summary in their place"
    await run.warn("compressed", f"{count} messages of the conversation were summarized; {kept}")
    return True


async def _summary_text(run: RunContext, replaced: Sequence[Message]) -> str:
    """Call `compress_model`, or the agent's model: the messages it has seen before are in its prompt cache."""
    lines = run.state.summary.text.splitlines() if run.state.summary else ()
    texts = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    texts += [" ".join(message.description.split()) for message in replaced if message.role == "user"]
    prompt = render(run, "compress.j2", requests=[shorten(text, _REQUEST_CHARS) for text in texts])
    model = run.agent.spec.conversation.compress_model
    await run.model_caller.probe(model)
    texts_only = _fitting_texts([message.as_text for message in replaced], _window(run, model))
    messages = (*render_preamble(run), *render_summary(run), *texts_only, Message(role="user", content=prompt))
    settings = run.state.model_settings.model_copy(update={"tool_choice": None})
    request = ModelRequest(messages, settings=settings, scratch=run.request_cache)
    reply = await call_model(run, request, primary=run.model_caller.primary(model))
    if reply.finish_reason == "length":
        await warn_truncated(run)
    return reply.message.content


def _fitting_texts(messages: Sequence[Message], window: int | None) -> Sequence[Message]:
    """Return the last of the messages that fit into half of the window, each cut to a share of it."""
    if window is None:
        return messages
    room = int(_WINDOW_SHARE * window)
    if _size(messages) <= room:
        return messages
    most = room * _CHARS_PER_TOKEN // 4
    cut = [message.model_copy(update={"content": shorten(message.content, most)}) for message in messages]
    return cut[summarized_count(cut, room, message_tokens) :]


# --- what a summary keeps


def summarized_count(messages: Sequence[Message], keep: int, size: Callable[[Message], int]) -> int:
    """Return how many messages, from the first on, to replace with a summary.

    The messages after them start with a user's message.

    Args:
        messages: the turns of a conversation.
        keep: maximum total size of the messages that remain.
        size: returns the size of a message, such as its tokens.
    """
    remaining, start = keep, len(messages)
    for position in range(len(messages) - 1, -1, -1):
        remaining -= size(messages[position])
        if remaining < 0:
            break
        if messages[position].role == "user":
            start = position
    return start


def extend_summary(previous: Summary | None, messages: Sequence[Message], text: str) -> Summary:
    """Return the summary of everything in a previous summary and of the messages after it.

    Args:
        previous: the summary so far.
        messages: complete turns that follow it.
        text: the model's summary of both.
    """
    events = (*(previous.events if previous else ()), *events_of(messages))
    facts = [*(previous.facts if previous else ()), *_facts(previous.text if previous else ""), *facts_of(messages)]
    mentioned = {*_facts(text)}
    return Summary(
        upto=(previous.upto if previous else 0) + len(messages),
        text=text,
        events=tuple(dict.fromkeys(events)),
        facts=tuple(fact for fact in dict.fromkeys(facts) if fact not in mentioned),
    )


def events_of(messages: Iterable[Message]) -> Iterator[str]:
    """Yield one line for each failure, denial and decision, in order."""
    calls: dict[str, ToolCall] = {}
    for message in messages:
        calls |= {call.id: call for call in message.tool_calls}
        if message.role == "tool" and (message.decision or message.status not in (None, "success")):
            yield _event(calls.get(message.tool_call_id or ""), message)


def facts_of(messages: Iterable[Message]) -> Iterator[str]:
    """Yield the identifiers in users' messages: numbers, dates, paths, addresses, names with underscores, files."""
    for message in messages:
        if message.role == "user":
            yield from _facts(message.content[:_MAX_MESSAGE_CHARS])
            yield from (part.description for part in message.media)


def _facts(text: str) -> Iterator[str]:
    for word in _WIDE.sub(" ", text).split():
        fact = word.strip(_EDGES)[:_MAX_FACT_CHARS]
        if _IDENTIFIER.search(fact):
            yield fact


def _event(call: ToolCall | None, message: Message) -> str:
    request = "a call"
    if call:
        request = f"{call.tool} {one_line(json.dumps(call.arguments, ensure_ascii=False), _MAX_EVENT_CHARS)}"
    decision = f"; a human said {one_line(message.decision, _MAX_EVENT_CHARS)}" if message.decision else ""
    return f"{request}: {message.status or 'answered'}: {one_line(message.content, _MAX_EVENT_CHARS)}{decision}"
