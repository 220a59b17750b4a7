"""Before a run's first turn: probe a local server, read the agent's MCP context, and summarize a long history.

A conversation that turns out not to fit the model's context window is summarized later, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from framework.config.templates.prompts import PromptError
from framework.conversation import extend_summary, summarized_count
from framework.engine.context.run_context import RunContext
from framework.engine.model_call.turn import call_model, render, render_preamble, render_summary, warn_truncated
from framework.llm.client import ModelRequest
from framework.llm.json_protocol import request_valid_reply
from framework.llm.message_shape import message_tokens
from framework.tools.mcp.source import McpSource
from framework.types.errors import ConfigError, LimitExceeded, ModelError, ToolError
from framework.types.messages import Message
from framework.types.spec import McpPolicy, PromptRef
from framework.types.text import shorten

_MAX_MCP_CHARS = 64 * 1024
"""Characters of all MCP texts together."""
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


async def prepare_run(run: RunContext) -> None:
    """Ask a local server what its model can do, report missing tools, read the MCP context and compact the history.

    None of them fails the run: problems become warnings.
    """
    await run.model_caller.probe()
    await _warn_of_missing_tools(run)
    await _load_mcp_context(run)
    await _fit_history(run)


async def _warn_of_missing_tools(run: RunContext) -> None:
    """Warn, once a run, of unavailable tool servers that the agent's policy names, and of packages that tools need."""
    if run.state.background is not None:  # not before a resumed turn
        return
    external = run.agent.context.toolbox.external
    if external.unavailable:
        for reason in external.missing_for(run.agent.spec.skill_policy.allow):
            await run.warn("tool_server", f"the agent runs without the tools of a server: {reason}")
    for tool in run.agent.toolset.offered.values():
        if tool.needs and (missing := tool.missing_packages):
            await run.warn("missing_package", missing)


# --- MCP context


async def _load_mcp_context(run: RunContext) -> None:
    """Read the resources and prompts that the agent's `mcp_policy` names; skip those that fail, with a warning."""
    if run.state.background is not None:
        return
    texts: list[str] = []
    remaining = _MAX_MCP_CHARS
    for server, policy in run.agent.spec.mcp_policy.items():
        for title, item in _mcp_items(policy):
            try:
                text = await _read_mcp_item(run, server, item)
            except ToolError as error:
                await run.warn("background", f"{title} of {server}: {error.message}")
                continue
            texts.append(f"[{title}, from {server}]\n{text[:remaining]}")
            remaining = max(0, remaining - len(text))
    run.state.background = texts


def _mcp_items(policy: McpPolicy) -> Iterator[tuple[str, str | PromptRef]]:
    yield from ((uri, uri) for uri in policy.resources)
    yield from ((prompt.name, prompt) for prompt in policy.prompts)


async def _read_mcp_item(run: RunContext, server: str, item: str | PromptRef) -> str:
    opened = run.services.generation.external.sources.get(f"mcp.{server}")
    if opened is None or not isinstance(opened.source, McpSource):
        raise ToolError("the MCP server is not connected in this process")
    if isinstance(item, str):
        return await opened.source.resource(item)
    return await opened.source.prompt(item.name, item.arguments)


# --- compaction


async def _fit_history(run: RunContext) -> None:
    """Replace the beginning of a long conversation by a summary; warn about messages that the model does not see.

    If the summary fails, the run continues with the messages that fit its window.
    """
    state, settings = run.state, run.agent.spec.conversation
    if run.parent is not None or state.steps or not state.history:
        return
    allowed = _allowed_tokens(run)
    if allowed is not None and _size(state.history) > allowed:
        await _summarize(run, int(allowed * _KEPT_SHARE))
    if (length := len(state.history)) > settings.window:
        advice = f"begin a new conversation, or raise conversation.window ({run.agent.place('conversation')})"
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


async def warn_if_full(run: RunContext, limit: LimitExceeded) -> None:
    """Warn with advice if the limit is the model's context window."""
    if limit.limit == "context_full":
        reason = f"the request does not fit into {limit.place}"
        if limit.__cause__ is not None:
            reason = str(limit.__cause__).partition(": start a new conversation")[0]
        await run.warn("context_full", ": ".join((reason, *limit.__notes__)))


async def shorten_conversation(run: RunContext) -> bool:
    """Summarize the history, and cut long tool results of the run if they use much of the window.

    Return whether the next request is shorter.
    """
    window, state = _window(run), run.state
    room = int(_WINDOW_SHARE * (window or _size((*state.history, *state.messages))))
    is_shorter = bool(state.history) and await _summarize(run, int(room * _KEPT_SHARE), must=True)
    results = [len(message.content) for message in state.messages if message.role == "tool"]
    if results and _size(state.messages) > room:
        texts = _size([message for message in state.messages if message.role != "tool"])
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
    state.summary = extend_summary(state.summary, replaced, text)
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
    primary = run.model_caller.primary(model)
    reply = await request_valid_reply(partial(call_model, run, primary=primary), request)
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
