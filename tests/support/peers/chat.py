"""Rules of chat completions that several providers share. Each is a rule of OpenAI's own server."""

from __future__ import annotations

import re

from openai.types.chat.completion_create_params import CompletionCreateParamsBase

from tests.support.peers.rule import Body, Peer, Refused, Sent, nested_schemas, placed
from tests.support.peers.schemas import refused_by_openai

_OPTIONS = {*CompletionCreateParamsBase.__annotations__, "stream"}
_OF_OTHERS = ("enable_thinking", "thinking_budget", "thinking")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MOST_ID_CHARS = 40
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def error(refused: Refused) -> Body:
    """Return OpenAI's error body: https://platform.openai.com/docs/guides/error-codes."""
    said = {"message": refused.message, "type": "invalid_request_error", "param": refused.param, "code": refused.code}
    return {"error": said}


def known_options(sent: Sent) -> None:
    """Refuse an unknown option: https://platform.openai.com/docs/api-reference/chat/create lists them."""
    for name in sent.body:
        if name not in _OPTIONS:
            raise Refused(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")


def documented_options(sent: Sent) -> None:
    """Refuse an option that neither OpenAI nor a provider with an API like OpenAI's documents.

    The others are in https://help.aliyun.com/zh/model-studio/deep-thinking and
    https://api-docs.deepseek.com/guides/thinking_mode.
    """
    known_options(Sent(sent.path, {name: value for name, value in sent.body.items() if name not in _OF_OTHERS}))


def options_that_need_another(sent: Sent) -> None:
    """Refuse an option without the one it depends on: https://platform.openai.com/docs/api-reference/chat/create."""
    body = sent.body
    if body.get("stream_options") and not body.get("stream"):
        raise Refused(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options"
        )
    if body.get("tools") == []:
        raise Refused("Invalid 'tools': empty array. Expected an array with minimum length 1.", code="empty_array")
    for name in ("tool_choice", "parallel_tool_calls"):
        if body.get(name) is not None and not body.get("tools"):
            message = f"Invalid value for '{name}': '{name}' is only allowed when 'tools' are specified."
            raise Refused(message, param=name)


def chosen_tools_exist(sent: Sent) -> None:
    """Refuse a choice of a tool that is not offered: https://platform.openai.com/docs/api-reference/chat/create."""
    choice = sent.body.get("tool_choice")
    offered = [tool.get("function", tool).get("name") for tool in sent.body.get("tools") or ()]
    if isinstance(choice, dict) and choice.get("function", choice).get("name") not in offered:
        raise Refused("Invalid value for 'tool_choice': no such function in 'tools'.", param="tool_choice")


def roles_and_texts(sent: Sent) -> None:
    """Refuse no messages, unknown roles and missing texts: https://platform.openai.com/docs/api-reference/chat/create.

    Only an assistant's message with calls may have no text.
    """
    if not sent.messages:
        raise Refused("Invalid 'messages': empty array. Expected an array with minimum length 1.", code="empty_array")
    for place, message in placed(sent.messages, "messages"):
        if message.get("role") not in _ROLES:
            raise Refused(f"Invalid value: '{message.get('role')}' in {place}.role.", code="invalid_value")
        if message.get("content") is None and not message.get("tool_calls"):
            raise Refused(f"Invalid value for 'content': expected a string, got null. ({place})")
        if message.get("tool_calls") == []:
            raise Refused(f"Invalid '{place}.tool_calls': empty array.", code="empty_array")


def files_are_in_user_messages(sent: Sent) -> None:
    """Refuse files beside texts of others: https://platform.openai.com/docs/api-reference/chat/create (content)."""
    for place, message in placed(sent.messages, "messages"):
        if message["role"] != "user" and isinstance(message.get("content"), list):
            for part in message["content"]:
                if part.get("type") not in ("text", "refusal"):
                    role = message["role"]
                    raise Refused(f"Invalid '{place}'. Image URLs are only allowed for messages with role 'user', "
                                  f"but this message with role '{role}' contains an image URL.")  # fmt: skip


def results_follow_calls(sent: Sent) -> None:
    """Refuse calls without results, and results without calls.

    Seen in https://github.com/agno-agi/agno/issues/4345 and
    https://github.com/FoundationAgents/OpenManus/issues/744.
    """
    waiting: list[str] = []
    for place, message in placed(sent.messages, "messages"):
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                said = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                raise Refused(f"Invalid parameter: {said}", param=f"{place}.role")
            waiting.remove(message["tool_call_id"])
            continue
        _refuse_unanswered(waiting, place)
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
    _refuse_unanswered(waiting, "messages")


def _refuse_unanswered(ids: list[str], place: str) -> None:
    if ids:
        said = "An assistant message with 'tool_calls' must be followed by tool messages responding to each"
        missing = f"The following tool_call_ids did not have response messages: {', '.join(ids)}"
        raise Refused(f"{said} 'tool_call_id'. {missing}", param=f"{place}.role")


def calls_are_complete(sent: Sent) -> None:
    """Refuse calls with long ids, no type or arguments that are not a text.

    Seen in https://github.com/pydantic/pydantic-ai/issues/4389.
    """
    for place, message in placed(sent.messages, "messages"):
        for at, call in placed(message.get("tool_calls"), f"{place}.tool_calls"):
            if len(call["id"]) > _MOST_ID_CHARS:
                said = f"Invalid '{at}.id': string too long. Expected a string with maximum length {_MOST_ID_CHARS}"
                raise Refused(f"{said}, but got a string with length {len(call['id'])} instead.", param=f"{at}.id")
            if call.get("type") != "function":
                raise Refused(f"Missing required parameter: '{at}.type'.", param=f"{at}.type")
            if not isinstance(call["function"].get("arguments"), str):
                raise Refused(f"Invalid type for '{at}.function.arguments': expected a string.", code="invalid_type")
            _check_name(call["function"].get("name"), f"{at}.function.name")


def tool_names(sent: Sent) -> None:
    """Refuse names of other characters or more than 64: https://platform.openai.com/docs/api-reference/chat/create."""
    for place, tool in placed(sent.body.get("tools"), "tools"):
        _check_name(tool["function"].get("name"), f"{place}.function.name")


def _check_name(name: object, place: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        said = f"Invalid '{place}': string does not match pattern. Expected a string that matches the pattern"
        raise Refused(f"{said} '^[a-zA-Z0-9_-]+$'.", param=place, code="invalid_value")


def function_schemas(sent: Sent) -> None:
    """Refuse parameters outside of OpenAI's subset: https://github.com/nspady/google-calendar-mcp/issues/39."""
    for place, tool in placed(sent.body.get("tools"), "tools"):
        check_function(tool["function"], f"{place}.function.parameters")


def check_function(function: Body, place: str) -> None:
    """Raise Refused if the parameters of a function are outside of the subset, or of the one for strict functions."""
    schema = function.get("parameters")
    if schema is not None and (why := refused_by_openai(schema)):
        said = f"Invalid schema for function '{function['name']}': {why}"
        raise Refused(said, param=place, code="invalid_function_parameters")
    if function.get("strict"):
        check_strict(schema, function["name"])


def strict_schemas(sent: Sent) -> None:
    """Refuse a strict schema that leaves a property optional, or is open.

    Seen in https://github.com/kevinwatt/mysql-mcp/issues/5; the subset is that of
    https://platform.openai.com/docs/guides/structured-outputs#supported-schemas.
    """
    form = (sent.body.get("response_format") or {}).get("json_schema") or {}
    if form.get("strict"):
        check_strict(form.get("schema"), form["name"])


def check_strict(schema: Body | None, name: str) -> None:
    """Raise Refused if a schema is outside the strict subset."""
    for at, inner in nested_schemas(schema):
        properties = inner.get("properties")
        if inner.get("type") == "object" and inner.get("additionalProperties") is not False:
            said = f"In context={at}, 'additionalProperties' is required to be supplied and to be false."
            raise Refused(f"Invalid schema for response_format '{name}': {said}", param="response_format")
        if properties and sorted(inner.get("required") or ()) != sorted(properties):
            said = f"In context={at}, 'required' is required to be supplied and to be an array including every key"
            raise Refused(f"Invalid schema for response_format '{name}': {said}", param="response_format")


MESSAGES = (roles_and_texts, files_are_in_user_messages, calls_are_complete, results_follow_calls)
TOOLS = (options_that_need_another, tool_names, chosen_tools_exist, function_schemas, strict_schemas)
CHAT = Peer("chat", "openai/unknown-model", (documented_options, *MESSAGES, *TOOLS), error)
"""What no server refuses less than: for tests that do not choose a provider."""
OPENAI_CHAT = Peer("openai chat", "openai/gpt-5.4-mini", (known_options, *MESSAGES, *TOOLS), error)
