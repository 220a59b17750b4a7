"""Takes secrets out of text that leaves the process's own memory: error messages, logs."""

from __future__ import annotations

import re

_SECRETS = re.compile(
    r"""
      \b(?:sk|pk|rk)-[A-Za-z0-9_-]{8,}                        # API keys
    | \bgh[pousr]_[A-Za-z0-9]{20,} | \bxox[baprs]-[\w-]{10,}  # GitHub, Slack
    | \bAKIA[0-9A-Z]{16}\b                                    # AWS
    | \beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*                     # JSON web tokens
    | (?<=://)[^/\s:@]+:[^/\s@]+(?=@)                         # user:password@ in a URL
    | (?i:(?<=bearer\s))[\w.~+/=-]{8,}
    | (?i:\b(?:api[_-]?key|token|secret|passw(?:or)?d|authorization)["']?\s*[:=]\s*["']?)(?!\*\*\*)[^\s"',;}]{3,}
    """,
    re.VERBOSE,
)


def redact(text: str) -> str:
    """Replace what looks like a secret by `***`."""
    return _SECRETS.sub("***", text)
