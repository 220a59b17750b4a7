"""OpenAI's Responses API."""

from __future__ import annotations

from openai.types.responses.response_create_params import ResponseCreateParamsBase

from tests.support.peers.chat import check_function, check_strict, chosen_tools_exist, error
from tests.support.peers.rule import Body, Peer, Refused, Sent, placed

_OPTIONS = {*ResponseCreateParamsBase.__annotations__, "stream"}
_PREFIXES = {"function_call": "fc", "reasoning": "rs", "message": "msg"}


def _items(sent: Sent) -> list[Body]:
    given = sent.body.get("input")
    return list(given) if isinstance(given, list) else []


def known_options(sent: Sent) -> None:
    """Refuse an unknown option: https://platform.openai.com/docs/api-reference/responses/create lists them."""
    for name in sent.body:
        if name not in _OPTIONS:
            raise Refused(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")


def _tools(sent: Sent) -> list[tuple[str, Body]]:
    """Return the tools of the request and those in the conversation, each with its place."""
    added = [(place, item) for place, item in placed(_items(sent), "input") if item.get("type") == "additional_tools"]
    later = (found for place, item in added for found in placed(item["tools"], f"{place}.tools"))
    return [*placed(sent.body.get("tools"), "tools"), *later]


def added_tools_are_of_developers(sent: Sent) -> None:
    """Refuse tools in the conversation of another role.

    See https://github.com/openai/openai-python/blob/v3.3.0/src/openai/types/responses/response_input_item_param.py.
    """
    for place, item in placed(_items(sent), "input"):
        if item.get("type") == "additional_tools" and item.get("role") != "developer":
            said = f"Invalid value: '{item.get('role')}'. Supported values are: 'developer'."
            raise Refused(said, param=f"{place}.role", code="invalid_value")


def outputs_follow_calls(sent: Sent) -> None:
    """Refuse a call without its output, and an output without its call.

    Seen in https://github.com/tjardoo/openai-client/pull/124.
    """
    calls = [item["call_id"] for item in _items(sent) if item.get("type") == "function_call"]
    outputs = [item["call_id"] for item in _items(sent) if item.get("type") == "function_call_output"]
    for missing in (call for call in calls if call not in outputs):
        raise Refused(f"No tool output found for function call {missing}.", param="input")
    for extra in (output for output in outputs if output not in calls):
        raise Refused(f"No tool call found for function call output with call_id {extra}.", param="input")


def ids_have_their_prefix(sent: Sent) -> None:
    """Refuse the id of a call in place of the id of its item: https://github.com/oracle/wayflow/pull/100."""
    for place, item in placed(_items(sent), "input"):
        prefix = _PREFIXES.get(item.get("type", ""))
        if prefix and "id" in item and not str(item["id"]).startswith(prefix):
            said = f"Invalid '{place}.id': '{item['id']}'. Expected an ID that begins with '{prefix}'."
            raise Refused(said, param=f"{place}.id", code="invalid_value")


def reasoning_precedes_its_item(sent: Sent) -> None:
    """Refuse reasoning without the item that followed it: https://github.com/vercel/ai/issues/8379."""
    items = _items(sent)
    for place, item in enumerate(items):
        following = items[place + 1] if place + 1 < len(items) else {}
        follows = following.get("type") in ("reasoning", "function_call") or following.get("role") == "assistant"
        if item.get("type") == "reasoning" and not follows:
            said = f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."
            raise Refused(said, param="input")


def reasoning_is_encrypted(sent: Sent) -> None:
    """Refuse reasoning that nobody has stored.

    See https://platform.openai.com/docs/guides/reasoning#encrypted-reasoning-items.
    """
    for item in _items(sent):
        if item.get("type") == "reasoning" and not item.get("encrypted_content") and sent.body.get("store") is False:
            said = "Items are not persisted when `store` is set to false."
            raise Refused(f"Item with id '{item.get('id')}' not found. {said}", status=404, param="input")


def functions_are_flat(sent: Sent) -> None:
    """Refuse tools of chat completions: https://platform.openai.com/docs/guides/migrate-to-responses."""
    for place, tool in _tools(sent):
        if "name" not in tool:
            raise Refused(f"Missing required parameter: '{place}.name'.", code="missing_required_parameter")


def function_schemas(sent: Sent) -> None:
    """Refuse parameters outside of OpenAI's subset: https://github.com/nspady/google-calendar-mcp/issues/39."""
    for place, tool in _tools(sent):
        check_function(tool, f"{place}.parameters")


def strict_formats(sent: Sent) -> None:
    """Refuse a strict schema outside of https://platform.openai.com/docs/guides/structured-outputs."""
    form = (sent.body.get("text") or {}).get("format") or {}
    if form.get("strict"):
        check_strict(form.get("schema"), form["name"])


RESPONSES = Peer(
    "openai responses",
    "openai/gpt-5.4-mini",
    (
        *(known_options, functions_are_flat, chosen_tools_exist, outputs_follow_calls, ids_have_their_prefix),
        *(added_tools_are_of_developers, reasoning_precedes_its_item, reasoning_is_encrypted),
        *(function_schemas, strict_formats),
    ),
    error,
    api="responses",
    capabilities="late_tools: true",
)
