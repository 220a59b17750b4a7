"""Takes secrets out of text and data that people or other programs get to see: errors, logs, what is shown of calls.

A secret is known by its shape (`sk-…`, a JSON web token) or by the name it stands under (`api_key`, `password`).
"""

from __future__ import annotations

import re
from typing import Any

from framework.types.problem import Problem

MASK = "***"
_NAME = r"(?:api|access|private|secret|signing|encryption)[_-]?key|token|secrets?|passw(?:or)?d|passphrase|credentials?"
_SHAPES = re.compile(
    r"""
      \b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{8,}                     # API keys
    | \bgh[pousr]_[A-Za-z0-9]{20,} | \bgithub_pat_\w{20,}     # GitHub
    | \bglpat-[\w-]{16,} | \bxox[abeprs]-[\w-]{10,} | \bhf_[A-Za-z0-9]{20,}  # GitLab, Slack, Hugging Face
    | \bA(?:KI|SI)A[0-9A-Z]{16}\b | \bAIza[\w-]{30,}          # AWS, Google
    | \beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*                     # JSON web tokens
    | (?<=://)[^/\s@'"]+(?=@)                                 # user:password@ in a URL
    | (?i:(?<=\bbearer\s)|(?<=\bbasic\s))[\w.~+/=-]{8,}
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----[\s\S]*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
    """,
    re.VERBOSE,
)
_NAMED = re.compile(
    rf"""
    (?P<name>
        (?:(?<![A-Za-z0-9])|(?-i:(?<=[a-z])(?=[A-Z])))
        (?:{_NAME}|authorization)
        \\?["']?\s{{0,8}}[:=]\s{{0,8}}
        (?P<quote>\\?["'])?
    )
    (?!\*\*\*|\$\{{)                                             # masked already, or only a variable's name
    (?(quote)[^"'\n\\]+|(?:(?:basic|bearer|digest|token)\s+)?[^\s"',;}}&\\]{{3,}})
    """,
    re.VERBOSE | re.IGNORECASE,
)
_SECRET_NAME = re.compile(rf"(?:^|[_-])(?:{_NAME})$|authorization$|^(?:set-)?cookie$", re.IGNORECASE)
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def redact(text: str) -> str:
    """Replace what looks like a secret by `***`."""
    return _SHAPES.sub(MASK, _NAMED.sub(_keep_name, text))


def redact_data(value: Any) -> Any:
    """JSON data with secrets replaced by `***`: what looks like one, and whatever stands under a secret's name."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [redact_data(item) for item in value]
    if isinstance(value, dict):
        return {key: MASK if _is_secret(key) and item else redact_data(item) for key, item in value.items()}
    return value


def redact_problem(problem: Problem) -> Problem:
    """A finding without secrets: its message and excerpt may quote what somebody wrote or raised."""
    told = {name: text and redact(text) for name, text in problem if name in ("message", "hint", "excerpt")}
    return problem.model_copy(update=told)


def _is_secret(name: object) -> bool:
    return isinstance(name, str) and _SECRET_NAME.search(_WORDS.sub("_", name)) is not None


def _keep_name(match: re.Match[str]) -> str:
    return match["name"] + MASK
