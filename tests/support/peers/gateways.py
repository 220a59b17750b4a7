"""DeepSeek, Groq, and Gemini behind chat completions: OpenAI's format with rules of their own."""

from __future__ import annotations

from base64 import b64encode
from functools import partial

from tests.support.peers import chat
from tests.support.peers.rule import Body, Peer, Refused, Sent, placed, turns

SIGNATURE = "c2lnbmVk"
PLAIN_STAND_IN = "skip_thought_signature_validator"
STAND_IN = b64encode(PLAIN_STAND_IN.encode()).decode()
_GROQ_KEYS = {"role", "content", "tool_calls", "tool_call_id", "reasoning", "function_call"}
_GROQ_OPTIONS = ("logprobs", "logit_bias", "top_logprobs")


# --- DeepSeek


def deepseek_error(refused: Refused) -> Body:
    """Return an error as in https://github.com/deepseek-ai/DeepSeek-V3/issues/1053."""
    said = {"message": refused.message, "type": "invalid_request_error", "param": None}
    return {"error": {**said, "code": "invalid_request_error"}}


def reasoning_comes_back(sent: Sent) -> None:
    """Refuse a turn with tool calls whose messages lack their reasoning, which may be empty.

    See https://api-docs.deepseek.com/guides/thinking_mode and https://github.com/openclaw/openclaw/issues/73417.
    """
    for turn in turns(sent.messages):
        if any(message.get("tool_calls") for _, message in turn):
            for place, message in turn:
                if message["role"] == "assistant" and not isinstance(message.get("reasoning_content"), str):
                    said = f"Missing `reasoning_content` field in the assistant message at message index {place}."
                    raise Refused(said)


def _with_thoughts(key: str, message: Body) -> Body:
    """Return a message with a text of reasoning."""
    return {**message, key: "I think."}


DEEPSEEK = Peer(
    "deepseek",
    "deepseek/deepseek-reasoner",
    (*chat.MESSAGES, *chat.TOOLS, reasoning_comes_back),
    deepseek_error,
    spoken=partial(_with_thoughts, "reasoning_content"),
)


# --- Groq


def groq_error(refused: Refused) -> Body:
    """Return an error as in https://github.com/karthink/gptel/issues/774."""
    return {"error": {"message": refused.message, "type": "invalid_request_error"}}


def groq_keys(sent: Sent) -> None:
    """Refuse `reasoning_content` and others in messages: https://github.com/janhq/jan/issues/8136."""
    for place, message in enumerate(sent.messages):
        for key in message.keys() - _GROQ_KEYS:
            role, at = message["role"], f"'messages.{place}'"
            said = f"{at} : for 'role:{role}' the following must be satisfied[({at} : property '{key}' is unsupported)]"
            raise Refused(said)


def groq_options(sent: Sent) -> None:
    """Refuse the options in https://console.groq.com/docs/openai."""
    for name in (name for name in _GROQ_OPTIONS if name in sent.body):
        raise Refused(f"property '{name}' is unsupported")
    if sent.body.get("n", 1) != 1:
        raise Refused("'n' : number must be at most 1")


GROQ = Peer(
    "groq",
    "groq/openai/gpt-oss-120b",
    (chat.known_options, groq_options, groq_keys, *chat.MESSAGES, *chat.TOOLS),
    groq_error,
    spoken=partial(_with_thoughts, "reasoning"),
)


# --- Gemini, behind Google's own endpoint and behind OpenRouter


def google_error(refused: Refused) -> list[Body]:
    """Return an error as in https://github.com/langroid/langroid/pull/969."""
    return [{"error": {"code": refused.status, "message": refused.message, "status": "INVALID_ARGUMENT"}}]


def openrouter_error(refused: Refused) -> Body:
    """Return an error of a provider behind OpenRouter, as in https://github.com/charmbracelet/crush/issues/279."""
    metadata = {"raw": refused.message, "provider_name": "Google"}
    return {"error": {"message": "Provider returned error", "code": refused.status, "metadata": metadata}}


def _with_signature(message: Body) -> Body:
    """Return a message whose first call is signed."""
    calls = list(message.get("tool_calls") or ())
    if not calls:
        return message
    signed = {**calls[0], "extra_content": {"google": {"thought_signature": SIGNATURE}}}
    return {**message, "tool_calls": [signed, *calls[1:]]}


def _with_details(message: Body) -> Body:
    """Return a message with signed reasoning details."""
    detail = {"type": "reasoning.encrypted", "data": SIGNATURE, "format": "google-gemini-v1", "index": 0}
    return {**message, "reasoning_details": [detail]}


def contents_are_given(sent: Sent) -> None:
    """Refuse a conversation without a user: https://ai.google.dev/gemini-api/docs/openai needs contents."""
    if not any(message["role"] in ("user", "tool") for _, message in placed(sent.messages, "messages")):
        raise Refused("* GenerateContentRequest.contents: contents is not specified")


def signatures(sent: Sent) -> None:
    """Refuse calls of the current turn without a signature in their message's first call.

    See https://ai.google.dev/gemini-api/docs/thought-signatures#openai. The stand-in for calls that Gemini did not make
    is that of the same page, encoded as a signature.
    """
    for place, message in turns(sent.messages)[-1]:
        if calls := message.get("tool_calls"):
            signature = ((calls[0].get("extra_content") or {}).get("google") or {}).get("thought_signature")
            _check_signature(signature, place, calls[0], (SIGNATURE, STAND_IN))


def reasoning_details(sent: Sent) -> None:
    """Refuse calls of the current turn in a message without signed details.

    See https://openrouter.ai/docs/guides/best-practices/reasoning-tokens#preserving-reasoning-blocks and, for the only
    form of the stand-in that is accepted, https://github.com/RooCodeInc/Roo-Code/pull/10640.
    """
    for place, message in turns(sent.messages)[-1]:
        if calls := message.get("tool_calls"):
            details = message.get("reasoning_details") or [{}]
            if details[0].get("data") == PLAIN_STAND_IN and (len(details), details[0].get("id")) != (1, calls[0]["id"]):
                raise Refused("Unable to submit request because Thought signature is not valid.")
            _check_signature(details[0].get("data"), place, calls[0], (SIGNATURE, PLAIN_STAND_IN))


def _check_signature(signature: object, place: int, call: Body, accepted: tuple[str, ...]) -> None:
    name = call["function"]["name"]
    if not signature:
        said = "Function call is missing a thought_signature in functionCall parts. This is required for tools to work"
        raise Refused(f"{said} correctly. Additional data, function call `default_api:{name}` , position {place}.")
    if signature not in accepted:
        raise Refused("Unable to submit request because Thought signature is not valid.")


GEMINI_CHAT = Peer(
    "gemini behind chat completions",
    "openai/gemini-3-pro-preview",
    (chat.known_options, *chat.MESSAGES, *chat.TOOLS, contents_are_given, signatures),
    google_error,
    spoken=_with_signature,
)
OPENROUTER = Peer(
    "openrouter",
    "openrouter/google/gemini-3-pro-preview",
    (*chat.MESSAGES, *chat.TOOLS, contents_are_given, reasoning_details),
    openrouter_error,
    spoken=_with_details,
    capabilities="call_signatures: reasoning_details",
)
