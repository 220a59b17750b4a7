"""DeepSeek, Groq, and Gemini behind chat completions: OpenAI's format with rules of their own."""

from __future__ import annotations

from functools import partial

from tests.support.peers import chat
from tests.support.peers.rule import Body, Peer, Refused, Sent, placed

SIGNATURE = "c2lnbmVk"
_GROQ_KEYS = {"role", "content", "tool_calls", "tool_call_id", "reasoning", "function_call"}
_GROQ_OPTIONS = ("logprobs", "logit_bias", "top_logprobs")


# --- DeepSeek


def deepseek_error(refused: Refused) -> Body:
    """Return an error as in https://github.com/deepseek-ai/DeepSeek-V3/issues/1053."""
    said = {"message": refused.message, "type": "invalid_request_error", "param": None}
    return {"error": {**said, "code": "invalid_request_error"}}


def _with_thoughts(key: str, message: Body) -> Body:
    """Return a message with a text of reasoning."""
    return {**message, key: "I think."}


DEEPSEEK = Peer(
    "deepseek",
    "deepseek/deepseek-reasoner",
    (*chat.MESSAGES, *chat.TOOLS),
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


GEMINI_CHAT = Peer(
    "gemini behind chat completions",
    "openai/gemini-3-pro-preview",
    (chat.known_options, *chat.MESSAGES, *chat.TOOLS, contents_are_given),
    google_error,
    spoken=_with_signature,
)
OPENROUTER = Peer(
    "openrouter",
    "openrouter/google/gemini-3-pro-preview",
    (*chat.MESSAGES, *chat.TOOLS, contents_are_given),
    openrouter_error,
    spoken=_with_details,
)
