"""Estimates the number of tokens of texts, messages and tool definitions without calling a provider.

Text in alphabets averages about four characters per token; Chinese, Japanese and Korean text about four characters per
three tokens. Measured against real tokenizers, the estimate is within a third for prose and code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import ceil

from framework.llm.request_cache import encode_json
from framework.types.messages import Message, ToolDefinition

_WIDE = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]")
_CHARS_PER_TOKEN = 4.0
_TOKENS_PER_WIDE_CHAR = 0.75
_MESSAGE_OVERHEAD = 4
"""Tokens per message in addition to its text."""
_TOKENS_PER_FILE = 1600
"""Tokens of a file whose own estimate is unknown: those of a large image."""


def estimate_tokens(text: str) -> int:
    """Return the estimated number of tokens."""
    if text.isascii():
        return ceil(len(text) / _CHARS_PER_TOKEN)
    wide = len(_WIDE.findall(text))
    return ceil((len(text) - wide) / _CHARS_PER_TOKEN + wide * _TOKENS_PER_WIDE_CHAR)


def message_tokens(message: Message) -> int:
    """Return the estimated number of tokens of a message, with its tool calls and files.

    For the formulas of files see `framework.types.media`.
    """
    calls = [[call.tool, call.arguments] for call in message.tool_calls]
    text = message.content + (encode_json(calls).decode() if calls else "")
    files = sum(part.tokens or _TOKENS_PER_FILE for part in message.media) if message.parts else 0
    return _MESSAGE_OVERHEAD + estimate_tokens(text) + files


def tool_tokens(tools: Iterable[ToolDefinition]) -> int:
    """Return the estimated number of tokens of the definitions of tools."""
    return estimate_tokens("".join(tool.canonical_json for tool in tools))
