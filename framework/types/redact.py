"""Masks secrets in text and data that people or other programs see: errors, logs, events, shown arguments.

A secret is recognised by its shape (`sk-…`, a JSON web token) or by the name before it (`api_key`, `password`). This is
a safety net, not a guarantee: a secret without a known shape or name is not recognised.

The text is untrusted, so each pattern runs in linear time: a repetition is bounded, nothing has to follow it, or no
other match can begin inside it. As a fast path, a pattern is only tried if the text contains one of its hints.
"""

from __future__ import annotations

import re
from typing import Any

from framework.types.lazy_pattern import LazyPattern
from framework.types.problem import Problem

MASK = "***"
_KEY = r"""(?:api|access|account|private|secret|signing|encryption|subscription|storage|master|auth|deploy|license)
    [_-]?(?:access[_-]?)?key"""
_NAME = rf"""(?:
    {_KEY} | [a-z0-9]{{0,24}}?passw(?:or)?d | passphrase | passcode | (?:mysql_)?pwd | (?<=[_-])pass
    | (?:auth|access|refresh|id|session|csrf|xsrf|bot)?token | secrets? | credentials?
    | (?:x-(?:amz|goog)-)signature | sharedaccess(?:signature|key)
    | 密码 | 口令 | 密钥 | 令牌 | 私钥
)"""
_SHAPES = LazyPattern(
    r"""
    (?<![A-Za-z0-9])(?:
        (?:sk|pk|rk)[-_][A-Za-z0-9_-]{8,}                      # OpenAI, Anthropic, Stripe and many others
      | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_\w{20,}        # GitHub
      | gl(?:pat|ptt|dt|rt|cbt|soat|ft)-[\w-]{16,}             # GitLab
      | (?:xox[abeprs]|xapp)-[\w-]{10,} | xai-[\w-]{16,}       # Slack, xAI
      | (?:hf|r8|gsk|npm|ntn|glsa|lin_api)_[A-Za-z0-9_]{16,}   # Hugging Face, Replicate, Groq, npm, Notion
      | (?:tvly|pplx|nvapi|GOCSPX|PMAK|pypi|figd)-[\w-]{8,}    # Tavily, Perplexity, Nvidia, Google, Postman, PyPI
      | (?:whsec|figd|dckr_pat)_[\w+/=-]{12,} | lsv2_[\w]{16,} # Stripe, Figma, Docker, LangSmith
      | do[opr]_v1_[a-f0-9]{32,} | shp(?:at|ss|ca|pa)_[A-Fa-f0-9]{24,} | sq0[ac]tp-[\w-]{16,}  # DigitalOcean
      | A(?:KI|SI)A[0-9A-Z]{16}(?![0-9A-Za-z]) | ABSK[A-Za-z0-9+/=]{20,}  # AWS
      | AIza[\w-]{30,} | ya29\.[\w-]{10,} | 1//0[\w-]{20,}     # Google
      | (?:LTAI|AKID)[A-Za-z0-9]{12,}                          # Alibaba Cloud, Tencent Cloud
      | SG\.[\w-]{16,}(?:\.[\w-]{16,})? | key-[a-f0-9]{32} | SK[a-f0-9]{32}  # SendGrid, Mailgun, Twilio
      | hv[sbr]\.[\w-]{12,} | dapi[a-f0-9]{32} | AT(?:ATT|CTT)3[\w=+/-]{16,}  # Vault, Databricks, Atlassian
      | agentsd_[\w-]{40,}                                    # keys of `agentsd keys new`
      | [0-9]{8,10}:AA[\w-]{30,} | AGE-SECRET-KEY-1[0-9A-Z]{20,}  # Telegram, age
    )
    | (?<![\w-])(?:[\w-]{0,64}?(?<![A-Za-z0-9]))?eyJ[\w-]{10,}+\.[\w-]{10,}+(?:\.[\w-]*){1,3}  # JSON web tokens
    | (?<=hooks\.slack\.com/services/)[\w/]{16,}
    | (?<=://)[^/\s@'"]+(?=@)                                  # user:password@ in a URL
    | (?<=:)[^\s:@/'"]{3,64}(?=@(?:tcp|unix)\()                # the same in a MySQL data source name
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY(?:\ BLOCK)?-----[\s\S]*?(?:-----END\ [A-Z ]*PRIVATE\ KEY(?:\ BLOCK)?-----|\Z)
    """,
    re.VERBOSE,
)
_SHAPE_HINTS = (
    *("sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    *("glpat-", "glptt-", "gldt-", "glrt-", "glcbt-", "glsoat-", "glft-"),
    *("xox", "xapp-", "xai-", "hf_", "r8_", "npm_", "ntn_", "glsa_", "lin_api_", "tvly-", "pplx-", "nvapi-", "GOCSPX-"),
    *("PMAK-", "pypi-", "figd", "whsec_", "dckr_pat_", "lsv2_", "_v1_", "shpat_", "shpss_", "shpca_", "shppa_", "sq0"),
    *("AKIA", "ASIA", "ABSK", "AIza", "ya29.", "1//0", "LTAI", "AKID", "SG.", "key-", "SK", "hvs.", "hvb.", "hvr."),
    *("agentsd_", "dapi", "ATATT3", "ATCTT3", ":AA", "eyJ", "hooks.slack", "@", "PRIVATE KEY", "AGE-SECRET-KEY-1"),
)
"""Each match of `_SHAPES` contains one of these."""
_NOT_MASKED = r"(?!\*\*\*|\$\{)"
"""Excludes values that are masked already, and references to variables."""
_NAMED = LazyPattern(
    rf"""
    (?P<kept>
        (?:(?<![A-Za-z0-9])|(?-i:(?<=[a-z])(?=[A-Z])))
        (?:{_NAME}|authorization|(?<![a-z])sig)
        \\?["']?\s{{0,8}}(?::=|=>|[:=：＝])\s{{0,8}}
        (?P<quote>\\?["'])?
    )
    {_NOT_MASKED}
    (?(quote)[^"'\n\\]+|(?:(?:basic|bearer|digest|token)\s{{1,8}})?[^\s"',;}}&\\，。；、]{{3,}})
    """,
    re.VERBOSE | re.IGNORECASE,
)
_NAME_HINTS = (
    *("key", "token", "secret", "pass", "pwd", "credential", "authorization", "sig"),
    *("密码", "口令", "密钥", "令牌", "私钥"),
)
_COOKIE = LazyPattern(
    rf"""(?P<kept>(?<![a-z0-9])(?:set-)?cookie\\?["']?\s{{0,8}}[:=]\s{{0,8}}+(?:\\?["'])?+){_NOT_MASKED}[^"'\r\n\\]+""",
    re.IGNORECASE,
)
_SCHEME = LazyPattern(
    rf"""
    (?P<kept>
        (?<![a-z0-9])bearer\s{{1,8}}
      | (?<![a-z0-9])basic\s{{1,8}}(?=[\w.~+/-]{{0,400}}?(?:[0-9=]|(?-i:[a-z][A-Z])))  # not "basic understanding"
      | \s(?:-u|--user)[ =][^\s:]{{1,64}}:
    ){_NOT_MASKED}[\w.~+/=-]{{8,}}
    """,
    re.IGNORECASE | re.VERBOSE,
)
_OPTION = LazyPattern(
    rf"""
    (?P<kept>(?<![\w-])--(?:[a-z0-9]{{1,16}}-)?(?:passw(?:or)?d|passphrase|token|secret|api-?key)\s{{1,8}}+["']?+)
    (?!-){_NOT_MASKED}[^\s"']{{3,}}
    """,
    re.IGNORECASE | re.VERBOSE,
)
_ELEMENT = LazyPattern(rf"(?P<kept><(?:{_NAME})>){_NOT_MASKED}[^<\s][^<]{{2,}}", re.VERBOSE | re.IGNORECASE)
_NAMED_PLACES = (
    (_COOKIE, ("cookie",)),
    (_NAMED, _NAME_HINTS),
    (_SCHEME, ("bearer", "basic", "-u")),
    (_OPTION, ("--",)),
    (_ELEMENT, ("</",)),
)
"""Patterns of a secret after its name, which is kept, with hints in lower case; each match contains a hint."""
_SECRET_NAME = LazyPattern(
    rf"(?:^|[_-])(?:{_NAME})$|authorization$|^(?:set-)?cookie$|^x-amz-credential$", re.IGNORECASE | re.VERBOSE
)
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def redact(text: str) -> str:
    """Replace text that looks like a secret with `***`."""
    lower = text.lower()
    for pattern, hints in _NAMED_PLACES:
        if any(hint in lower for hint in hints):
            text = pattern.compiled.sub(_keep_name, text)
    return _SHAPES.compiled.sub(MASK, text) if any(hint in text for hint in _SHAPE_HINTS) else text


def redact_data(value: Any) -> Any:
    """Replace secrets in JSON data with `***`: text that looks like one, and every value with a secret's name."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [redact_data(item) for item in value]
    if isinstance(value, dict):
        return {key: MASK if _is_secret(key) and item else redact_data(item) for key, item in value.items()}
    return value


def redact_problem(problem: Problem) -> Problem:
    """Mask secrets in a problem, whose message, hint and excerpt may quote files and exceptions."""
    masked = {name: text and redact(text) for name, text in problem if name in ("message", "hint", "excerpt")}
    return problem.model_copy(update=masked)


def _is_secret(name: object) -> bool:
    return isinstance(name, str) and _SECRET_NAME.compiled.search(_WORDS.sub("_", name)) is not None


def _keep_name(match: re.Match[str]) -> str:
    return match["kept"] + MASK
