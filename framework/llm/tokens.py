"""How many tokens a text is, about, without asking anybody.

Letters and digits of alphabets come to about four a token, Chinese, Japanese and Korean characters to about one and a
half tokens for two of them. Measured against real tokenizers this is within a third for prose and code.
"""

from __future__ import annotations

import re
from math import ceil

_WIDE = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]")
_CHARS_PER_TOKEN = 4.0
_TOKENS_PER_WIDE_CHAR = 0.75


def estimate_tokens(text: str) -> int:
    """About how many tokens."""
    if text.isascii():
        return ceil(len(text) / _CHARS_PER_TOKEN)
    wide = len(_WIDE.findall(text))
    return ceil((len(text) - wide) / _CHARS_PER_TOKEN + wide * _TOKENS_PER_WIDE_CHAR)
