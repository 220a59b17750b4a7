"""Anthropic's Messages API, also on Bedrock and Vertex AI."""

from __future__ import annotations

import re

from tests.support.peers.rule import Body, Peer, Refused, Sent
from tests.support.peers.schemas import refused_by_anthropic

_OPTIONS = {
    *("model", "messages", "max_tokens", "system", "tools", "tool_choice", "stop_sequences", "stream", "temperature"),
    *("top_p", "top_k", "thinking", "output_config", "metadata", "service_tier", "container", "context_management"),
    *("cache_control", "inference_geo", "mcp_servers", "anthropic_version", "anthropic_beta"),
}
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_MOST_MARKS = 4
_NO_TOOL_SEARCH = re.compile(r"claude-(3|[a-z]+-4-([01]|20))")
_THINKING = ("thinking", "redacted_thinking")


def error(refused: Refused) -> Body:
    """Return an error as in https://docs.claude.com/en/api/errors."""
    said = {"type": "invalid_request_error", "message": refused.message}
    return {"type": "error", "error": said, "request_id": "req_1"}


def _blocks(message: Body) -> list[Body]:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())


def options(sent: Sent) -> None:
    """Refuse unknown options and a missing limit: https://docs.claude.com/en/api/messages."""
    for name in sent.body:
        if name not in _OPTIONS:
            raise Refused(f"{name}: Extra inputs are not permitted")
    if not isinstance(sent.body.get("max_tokens"), int):
        raise Refused("max_tokens: Field required")


def roles(sent: Sent) -> None:
    """Refuse other roles than user and assistant: https://docs.claude.com/en/api/messages (messages)."""
    if not sent.messages:
        raise Refused("messages: at least one message is required")
    for message in sent.messages:
        if message["role"] not in ("user", "assistant"):
            said = f'messages: Unexpected role "{message["role"]}".'
            raise Refused(f'{said} The Messages API accepts a top-level `system` parameter, not "system" as a role.')
    if sent.messages[0]["role"] != "user":
        raise Refused('messages: first message must use the "user" role')


def texts_are_not_empty(sent: Sent) -> None:
    """Refuse empty texts: https://github.com/anthropics/claude-code/issues/59812."""
    for place, message in enumerate(sent.messages):
        if not _blocks(message):
            raise Refused(f"messages.{place}: all messages must have non-empty content")
        if any(block["type"] == "text" and not block["text"].strip() for block in _blocks(message)):
            raise Refused("messages: text content blocks must be non-empty")
    last = sent.messages[-1]
    if last["role"] == "assistant" and (text := _blocks(last)[-1].get("text", "")) != text.rstrip():
        raise Refused("messages: final assistant content cannot end with trailing whitespace")


def results_follow_calls(sent: Sent) -> None:
    """Refuse calls without results in the next message, before any text.

    Seen in https://github.com/anthropics/claude-code/issues/8210.
    """
    for place, message in enumerate(sent.messages):
        ids = [block["id"] for block in _blocks(message) if block["type"] == "tool_use"]
        following = _blocks(sent.messages[place + 1]) if place + 1 < len(sent.messages) else []
        found = {block.get("tool_use_id") for block in following[: len(ids)]}
        if missing := [id_ for id_ in ids if id_ not in found]:
            said = f"messages.{place}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            more = "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
            raise Refused(f"{said}{', '.join(missing)}. {more}")


def results_have_calls(sent: Sent) -> None:
    """Refuse results of calls that the message before does not have.

    Seen in https://github.com/anthropics/claude-code/issues/18947.
    """
    for place, message in enumerate(sent.messages):
        before = _blocks(sent.messages[place - 1]) if place else []
        ids = {block["id"] for block in before if block["type"] == "tool_use"}
        for at, block in enumerate(_blocks(message)):
            if block["type"] == "tool_result" and block["tool_use_id"] not in ids:
                said = f"messages.{place}.content.{at}: unexpected `tool_use_id` found in `tool_result` blocks: "
                more = "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
                raise Refused(f"{said}{block['tool_use_id']}. {more}")


def ids(sent: Sent) -> None:
    """Refuse ids of other characters, and ids used twice: https://docs.claude.com/en/api/messages (tool_use)."""
    seen: set[str] = set()
    for place, message in enumerate(sent.messages):
        for at, block in enumerate(_blocks(message)):
            if block["type"] != "tool_use":
                continue
            if not _ID.fullmatch(block["id"]):
                said = "String should match pattern '^[a-zA-Z0-9_-]+$'"
                raise Refused(f"messages.{place}.content.{at}.tool_use.id: {said}")
            if block["id"] in seen:
                raise Refused("messages: `tool_use` ids must be unique")
            if not isinstance(block["input"], dict):
                raise Refused(f"messages.{place}.content.{at}.tool_use.input: Input should be a valid dictionary")
            seen.add(block["id"])


def tools(sent: Sent) -> None:
    """Refuse invalid names.

    See https://docs.claude.com/en/docs/agents-and-tools/tool-use/implement-tool-use.
    """
    offered = sent.body.get("tools") or ()
    for place, tool in enumerate(offered):
        if not _NAME.fullmatch(tool["name"]):
            raise Refused(f"tools.{place}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
    if len({tool["name"] for tool in offered}) < len(offered):
        raise Refused("tools: Tool names must be unique.")
    if sent.body.get("tool_choice") and not offered:
        raise Refused("tool_choice: tool_choice may only be specified while providing tools")


def some_tool_is_not_deferred(sent: Sent) -> None:
    """Refuse a request whose tools are all deferred.

    See https://platform.claude.com/docs/en/agents-and-tools/tool-use/tool-search-tool.
    """
    offered = sent.body.get("tools")
    if offered and all(tool.get("defer_loading") for tool in offered):
        raise Refused("At least one tool must have defer_loading=false. All tools cannot be deferred.")


def deferred_tools_have_no_mark(sent: Sent) -> None:
    """Refuse a cache mark on a deferred tool: https://github.com/anthropics/claude-code/issues/86743."""
    for tool in sent.body.get("tools") or ():
        if tool.get("defer_loading") and "cache_control" in tool:
            said = f"Tool '{tool['name']}' cannot have both defer_loading=true and cache_control set."
            raise Refused(f"{said} Tools with defer_loading cannot use prompt caching.")


def older_models_defer_nothing(sent: Sent) -> None:
    """Refuse deferred tools of models before 4.5: https://github.com/anthropics/claude-code/issues/27065."""
    for place, tool in enumerate(sent.body.get("tools") or ()):
        if "defer_loading" in tool and _NO_TOOL_SEARCH.search(sent.model):
            raise Refused(f"tools.{place}.custom.defer_loading: Extra inputs are not permitted")


def references_have_tools(sent: Sent) -> None:
    """Refuse a reference to a tool that is not in the request.

    Seen in https://github.com/anthropics/claude-code/issues/25212.
    """
    offered = {tool["name"] for tool in sent.body.get("tools") or ()}
    results = [block.get("content") for message in sent.messages for block in _blocks(message)]
    for inner in (inner for content in results if isinstance(content, list) for inner in content):
        if inner["type"] == "tool_reference" and inner["tool_name"] not in offered:
            raise Refused(f"Tool reference '{inner['tool_name']}' not found in available tools")


def input_schemas(sent: Sent) -> None:
    """Refuse schemas outside of Anthropic's subset: https://github.com/dearlordylord/huly-mcp/issues/66."""
    for place, tool in enumerate(sent.body.get("tools") or ()):
        if why := refused_by_anthropic(tool["input_schema"]):
            raise Refused(f"tools.{place}.custom.input_schema{why}")


def cache_marks(sent: Sent) -> None:
    """Refuse more than four marks: https://docs.claude.com/en/docs/build-with-claude/prompt-caching."""
    system = sent.body.get("system")
    every = [*(system if isinstance(system, list) else ()), *(sent.body.get("tools") or ())]
    every += [block for message in sent.messages for block in _blocks(message)]
    marked = sum("cache_control" in block for block in every)
    if marked > _MOST_MARKS:
        raise Refused(f"A maximum of {_MOST_MARKS} blocks with cache_control may be provided. Found {marked}.")


def thinking(sent: Sent) -> None:
    """Refuse an open tool turn without its thinking, and a forced call.

    See https://docs.claude.com/en/docs/build-with-claude/extended-thinking#extended-thinking-with-tool-use.
    """
    if (sent.body.get("thinking") or {}).get("type") != "enabled":
        return
    if (sent.body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        raise Refused("Thinking may not be enabled when tool_choice forces tool use.")
    if any(sent.body.get(name) not in (None, 1) for name in ("temperature",)):
        raise Refused("`temperature` may only be set to 1 when thinking is enabled.")
    last = next((message for message in reversed(sent.messages) if message["role"] == "assistant"), None)
    is_open = any(block["type"] == "tool_result" for block in _blocks(sent.messages[-1]))
    if last and is_open and _blocks(last)[0]["type"] not in _THINKING:
        found = _blocks(last)[0]["type"]
        raise Refused(f"messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{found}`.")


ANTHROPIC = Peer(
    "anthropic",
    "anthropic/claude-sonnet-5",
    (
        options,
        roles,
        texts_are_not_empty,
        ids,
        results_follow_calls,
        results_have_calls,
        tools,
        some_tool_is_not_deferred,
        deferred_tools_have_no_mark,
        older_models_defer_nothing,
        references_have_tools,
        input_schemas,
        cache_marks,
        thinking,
    ),
    error,
    api="anthropic",
    capabilities="late_tools: true",
)
