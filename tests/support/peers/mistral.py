"""Mistral's chat completions."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from tests.support.peers import chat
from tests.support.peers.rule import Body, Peer, Refused, Sent, placed
from tests.support.peers.schemas import refused_by_mistral

_OPTIONS = {
    *("model", "messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "stream", "stop"),
    *("temperature", "top_p", "max_tokens", "random_seed", "presence_penalty", "frequency_penalty", "n", "metadata"),
    *("prediction", "prompt_mode", "safe_prompt", "guardrails", "reasoning_effort", "stream_options"),
}
_MESSAGE_KEYS = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls", "prefix"},
    "tool": {"role", "content", "tool_call_id", "name"},
}
_ID = re.compile(r"[a-zA-Z0-9]{9}")
_FOLLOWING = {
    "system": ("system", "user", "assistant"),
    "user": ("system", "user", "assistant"),
    "assistant": ("user", "assistant", "tool"),
    "tool": ("assistant", "tool"),
}


def error(refused: Refused) -> Body:
    """Return an error as in https://github.com/nearai/ironclaw/issues/1241."""
    if refused.status == 422:
        detail = [{"type": "extra_forbidden", "loc": (refused.param or "").split("."), "msg": refused.message}]
        message: Any = {"detail": detail}
    else:
        message = refused.message
    kind = refused.param if refused.code else "invalid_request_error"
    return {"object": "error", "message": message, "type": kind, "param": None, "code": refused.code}


def known_options(sent: Sent) -> None:
    """Refuse what only OpenAI knows: https://github.com/mistralai/platform-docs-public/issues/7.

    The options are those of https://docs.mistral.ai/api.
    """
    for name in sent.body:
        if name not in _OPTIONS:
            raise Refused("Extra inputs are not permitted", status=422, param=f"body.{name}")


def known_keys(sent: Sent) -> None:
    """Refuse `reasoning_content` and others in messages: https://github.com/charmbracelet/crush/issues/1590."""
    for place, message in enumerate(sent.messages):
        role = message["role"]
        for key in message.keys() - _MESSAGE_KEYS.get(role, {"role"}):
            said = "Extra inputs are not permitted"
            raise Refused(said, status=422, param=f"body.messages.{place}.{role}.{key}")


def order_of_roles(sent: Sent) -> None:
    """Refuse a user or system message after a result: https://github.com/avante-corp/avante.nvim/pull/2695.

    The whole order is that of https://github.com/mistralai/mistral-common (`protocol/instruct/validator.py`).
    """
    roles = [message["role"] for message in sent.messages]
    for before, role in pairwise(roles):
        if role not in _FOLLOWING.get(before, ()):
            _refuse_order(f"Unexpected role '{role}' after role '{before}'")
    if roles and roles[-1] not in ("user", "tool") and not sent.messages[-1].get("prefix"):
        last = "Expected last role User or Tool (or Assistant with prefix True) for serving but got"
        _refuse_order(f"{last} {roles[-1]}")


def as_many_results_as_calls(sent: Sent) -> None:
    """Refuse calls without results: https://github.com/mistralai/mistral-common (`protocol/instruct/validator.py`)."""
    waiting: list[str] = []
    for message in [*sent.messages, {"role": "end"}]:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                _refuse_order(f"Unexpected tool call id {message.get('tool_call_id')} in tool results")
            waiting.remove(message["tool_call_id"])
        elif waiting:
            _refuse_order("Not the same number of function calls and responses")
        else:
            waiting = [call["id"] for call in message.get("tool_calls") or ()]


def _refuse_order(message: str) -> None:
    raise Refused(message, param="invalid_request_message_order", code="3230")


def short_ids(sent: Sent) -> None:
    """Refuse ids of another form than nine letters and digits: https://github.com/anomalyco/opencode/issues/1680."""
    for message in sent.messages:
        ids = [call["id"] for call in message.get("tool_calls") or ()]
        for given in [*ids, *([message["tool_call_id"]] if message["role"] == "tool" else [])]:
            if not _ID.fullmatch(given):
                said = f"Tool call id was {given} but must be a-z, A-Z, 0-9, with a length of 9."
                raise Refused(said, param="invalid_function_call", code="3280")


def spoken(message: Body) -> Body:
    """Return a message whose calls have ids of Mistral's form."""
    calls = [{**call, "id": f"Mis{number:06}"} for number, call in enumerate(message.get("tool_calls") or (), 1)]
    return {**message, **({"tool_calls": calls} if calls else {})}


def tool_shapes(sent: Sent) -> None:
    """Refuse a tool that is not a function with an object: https://docs.mistral.ai/capabilities/function_calling."""
    for place, tool in placed(sent.body.get("tools"), "tools"):
        if tool.get("type") != "function" or "parameters" not in tool.get("function", {}):
            raise Refused("Field required", status=422, param=f"body.{place}.function.parameters")


def tool_schemas(sent: Sent) -> None:
    """Refuse schemas that are not valid, or cannot be compiled: https://github.com/BerriAI/litellm/pull/13389."""
    for _, tool in placed(sent.body.get("tools"), "tools"):
        if why := refused_by_mistral(tool["function"]["parameters"]):
            raise Refused(why)


MISTRAL = Peer(
    "mistral",
    "mistral/mistral-large-latest",
    (
        *(known_options, known_keys, chat.roles_and_texts, order_of_roles, short_ids, as_many_results_as_calls),
        *(chat.files_are_in_user_messages, chat.tool_names, tool_shapes, tool_schemas),
    ),
    error,
    spoken=spoken,
)
