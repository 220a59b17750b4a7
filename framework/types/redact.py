"""Masks secrets in text and data that people or other programs see: errors, logs, events, shown arguments.

A secret is recognised by its shape (`sk-…`, a JSON web token) or by the name before it (`api_key`, `password`). This is
a safety net, not a guarantee: a secret without a known shape or name is not recognised.

The text is untrusted, so each pattern runs in linear time: a repetition is bounded, nothing has to follow it, or no
other match can start inside it. As a fast path, a pattern is only tried if the text contains one of its hints.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framework.types.problem import Problem

MASK = "***"
_OWNERS = """api|access|account|private|priv|secret|signing|encryption|subscription|storage|master|auth|deploy|license
    |app|application|service|client|db|database"""
"""Words before `key`. The last ones, and several names below, are those of the keyword list of detect-secrets."""
_KEY = rf"(?:{_OWNERS})[_-]?(?:access[_-]?)?key(?:[_-]?id)?"
_NAME = rf"""(?:
    {_KEY} | [a-z0-9]{{0,24}}?passw(?:or)?d | passphrase | passcode | (?:mysql_)?pwd | (?<=[_-])pass | keypass
    | (?:auth|access|refresh|id|session|csrf|xsrf|bot)?token | secret(?:s|[_-]?key[_-]?base)? | credentials?
    | (?:x-(?:amz|goog)-)signature | sharedaccess(?:signature|key) | contrase(?:n|ñ)a | secreto
    | 密码 | 口令 | 密钥 | 令牌 | 私钥
)
(?:[_-](?:value|raw|hex|b64|base64|pem|prod|production|dev|test|staging|live|old|new|primary|secondary|[0-9]{{1,2}}))?"""
_PREFIXED = (
    ("sk- sk_ pk- pk_ rk- rk_", r"[A-Za-z0-9_-]{8,}"),  # OpenAI, Anthropic, Stripe and many others
    ("ghp_ gho_ ghu_ ghs_ ghr_ github_pat_", r"\w{20,}"),
    ("glpat- glptt- gldt- glrt- glcbt- glsoat- glft- glffct- glimt- glagent- gloas- GR1348941", r"[\w.-]{16,}"),
    ("xoxa- xoxb- xoxe- xoxe.xox xoxo- xoxp- xoxr- xoxs- xapp- xai-", r"[\w-]{10,}"),  # Slack, xAI
    (
        "hf_ api_org_ r8_ gsk_ npm_ ntn_ glsa_ lin_api_ lin_oauth_",
        r"[A-Za-z0-9_]{16,}",
    ),  # Hugging Face, Replicate, Groq
    ("tvly- pplx- nvapi- GOCSPX- PMAK- pypi- figd- figd_", r"[\w-]{8,}"),  # Tavily, Perplexity, Nvidia, Google, Postman
    ("whsec_ dckr_pat_ dckr_oat_ lsv2_", r"[\w+/=-]{12,}"),  # Stripe, Docker, LangSmith
    ("dop_v1_ doo_v1_ dor_v1_ shpat_ shpss_ shpca_ shppa_ shippo_", r"[A-Za-z0-9_]{12,}"),  # DigitalOcean, Shopify
    ("sq0atp- sq0csp- sq0idp-", r"[\w-]{16,}"),
    ("A3T AKIA ASIA ABIA ACCA", r"[0-9A-Z]{16,17}(?![0-9A-Za-z])"),  # AWS
    ("ABSK bedrock-api-key-", r"[A-Za-z0-9+/=]{20,}"),
    ("AIza", r"[\w-]{30,}"),  # Google
    ("ya29.", r"[\w-]{10,}"),
    ("1//0", r"[\w-]{20,}"),
    ("LTAI AKID", r"[A-Za-z0-9]{12,}"),  # Alibaba Cloud, Tencent Cloud
    ("SG.", r"[\w-]{16,}(?:\.[\w-]{16,})?"),  # SendGrid
    ("key- xkeysib-", r"[a-f0-9]{32,}(?:-[a-z0-9]{16})?"),  # Mailgun, Brevo
    ("SK", r"[A-Fa-f0-9]{32}"),  # Twilio
    ("hvs. hvb. hvr.", r"[\w-]{12,}"),  # Vault
    ("dapi", r"[A-Za-z0-9]{16,}(?:-[0-9])?"),  # Databricks
    ("ATATT3 ATCTT3", r"[\w=+/-]{16,}"),  # Atlassian
    ("agentsd_", r"[\w-]{40,}"),  # `agentsd keys new`
    ("AGE-SECRET-KEY-1", r"[0-9A-Z]{20,}"),
    ("ops_eyJ eyJrIjoi ZXlK", r"[\w+/=-]{40,}"),  # 1Password, Grafana, JSON web tokens in base64
    ("A3-", r"[A-Z0-9]{6}(?:-[A-Z0-9]{5,11}){3,5}"),  # 1Password
    ("p8e- ico- CLOJARS_ AKCp cmVmd 4b1d EZAK EZTK fo1_", r"[\w-]{32,}"),  # Adobe, Infracost, Artifactory, ClickHouse
    ("EAAA EAAC EAAM", r"[\w-]{40,}"),  # Square, Facebook
    ("duffel_test_ duffel_live_ fio-u- pscale_tkn_ pscale_oauth_ pscale_pw_ tk-us- rubygems_", r"[\w=.-]{32,}"),
    ("dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit.", r"[\w.-]{24,}"),  # Doppler
    ("dt0c01. dt0s01.", r"[A-Za-z0-9]{24}\.[A-Za-z0-9]{24,}"),  # Dynatrace
    ("FLWSECK_TEST- FLWSECK- FLWPUBK_TEST- HRKU-AA", r"[\w-]{12,}"),  # Flutterwave, Heroku
    ("fm1a_ fm1r_ fm2_ glc_ sntrys_ sntryu_", r"[A-Za-z0-9+/=_-]{32,}"),  # Fly.io, Grafana, Sentry
    ("API-", r"[A-Z0-9]{26}(?![A-Z0-9])"),  # Octopus
    ("pat. sat.", r"[\w-]{22}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}"),  # Harness
    ("sha256~", r"[\w-]{40,}"),  # OpenShift
    ("pnu_ pul- rdme_ sgp_", r"[A-Za-z0-9_]{32,}"),  # Prefect, Pulumi, ReadMe, Sourcegraph
    ("sm_aat_ sm_pat_ sm_sat_", r"[A-Za-z0-9]{16}"),  # SettleMint
)
"""Keys that start with these texts, and the rest of each form. Most are facts from the rules of gitleaks."""


def _prefixed() -> str:
    """Return the forms of `_PREFIXED` as one expression."""
    forms = ((map(re.escape, prefixes.split()), rest) for prefixes, rest in _PREFIXED)
    return "|".join(f"(?:{'|'.join(prefixes)}){rest}" for prefixes, rest in forms)


_SHAPES = re.compile(
    rf"""
    (?<![A-Za-z0-9])(?:
        {_prefixed()}
      | [A-Za-z0-9]{{14}}\.atlasv1\.[\w=-]{{40,}}               # Terraform
      | [A-Za-z0-9]{{6}}_[A-Za-z0-9]{{29}}_mmk                  # MaxMind
      | [\w~.]{{3}}[0-9]Q~[\w~.-]{{24,}}                       # Microsoft Entra
      | v1\.0-[a-f0-9]{{24}}-[a-f0-9]{{60,}}                   # Cloudflare
      | [0-9]{{8,10}}:AA[\w-]{{30,}}                           # Telegram
    )
    | (?<![\w-])(?:[\w-]{{0,64}}?(?<![A-Za-z0-9]))?eyJ[\w-]{{10,}}+\.[\w-]{{10,}}+(?:\.[\w-]*){{1,3}}  # JSON web tokens
    | (?<=hooks\.slack\.com/)(?:services|workflows|triggers)/[\w/]{{16,}}
    | (?<=webhook\.office\.com/webhookb2/)[\w@/-]{{16,}}
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY(?:\ BLOCK)?-----[\s\S]*?(?:-----END\ [A-Z ]*PRIVATE\ KEY(?:\ BLOCK)?-----|\Z)
    """,
    re.VERBOSE,
)
_USER_INFO = re.compile(
    r"""
      (?<=://)[^/\s@'"]+(?=@)                                  # user:password@ in a URL
    | (?<=:)[^\s:@/'"]{3,64}(?=@(?:tcp|unix)\()               # the same in a MySQL data source name
    """,
    re.VERBOSE,
)
_SHAPE_HINTS = (
    *(prefix for prefixes, _ in _PREFIXED for prefix in prefixes.split()),
    *(".atlasv1.", "_mmk", "Q~", "v1.0-", ":AA", "eyJ", "hooks.slack", "webhook.office", "PRIVATE KEY"),
)
"""Each match of `_SHAPES` contains one of these."""
_NOT_MASKED = r"(?!\*\*\*|\$\{)"
"""Excludes values that are masked already, and references to variables."""
_NO_VALUE = r"""(?:none|null|true|false|undefined|required|missing|field\ required|permission\ denied|no\ such\ file)
    (?![\w-])"""
"""Words of errors and of code in the place of a value."""
_NAMED = re.compile(
    rf"""
    (?P<kept>
        (?=[a-z0-9密口令私])(?:  # rejects most positions early
            (?:(?P<path>(?<=/))|(?<![A-Za-z0-9/])|(?-i:(?<=[a-z])(?=[A-Z])))
            (?:{_NAME}|authorization|(?<![a-z])sig)
            \\?["']?\s{{0,8}}(?(path)=|(?::=|=>|[:=：＝]))  # no secret follows "/etc/passwd:"
          | (?<![A-Za-z0-9/])(?:{_OWNERS})\ key\s{{0,8}}(?::=|=>|=)
        )
        \s{{0,8}}
        (?P<quote>\\?["'])?
    )
    {_NOT_MASKED}(?!{_NO_VALUE})
    (?(quote)[^"'\n\\]+|(?:(?:basic|bearer|digest|token)\s{{1,8}})?[^\s"',;}}&\\，。；、]{{3,}})
    """,
    re.VERBOSE | re.IGNORECASE,
)
_SPOKEN = re.compile(
    rf"""
    (?P<kept>
        (?<![A-Za-z0-9/])(?=[a-z])
        (?:
            (?:(?:{_OWNERS})[\ _-]?key|passw(?:or)?d|passphrase|passcode)\s{{0,4}}(?::|\s(?:is|was):?)?\s{{1,4}}
          | (?:token|secret)\s{{1,4}}(?:is|was):?\s{{1,4}}
          | (?<=[?&])key=
        )
        ["'`]?
    )
    {_NOT_MASKED}(?!(?:base|sha-?|utf-?|md|oauth|http|v)[0-9])
    (?=[\w+/=.-]{{0,40}}[0-9])(?=[\w+/=.-]{{0,40}}[a-z])[\w+/=-]{{6,}}(?![./]?[\w/])
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Secrets in sentences, and in the query of a URL: only values with letters and digits, so that words stay."""
_NAME_HINTS = (
    *("key", "token", "secret", "pass", "pwd", "credential", "authorization", "sig", "contrase"),
    *("密码", "口令", "密钥", "令牌", "私钥"),
)
_COOKIE = re.compile(
    rf"""(?P<kept>(?<![a-z0-9])(?:set-)?cookie\\?["']?\s{{0,8}}[:=]\s{{0,8}}+(?:\\?["'])?+){_NOT_MASKED}[^"'\r\n\\]+""",
    re.IGNORECASE,
)
_SCHEME = re.compile(
    rf"""
    (?P<kept>
        (?<![a-z0-9])bearer\s{{1,8}}
      | (?<![a-z0-9])basic\s{{1,8}}(?=[\w.~+/-]{{0,400}}?(?:[0-9=]|(?-i:[a-z][A-Z])))  # not "basic understanding"
      | \s(?:-u|--user)[ =][^\s:]{{1,64}}:
    ){_NOT_MASKED}[\w.~+/=-]{{8,}}
    """,
    re.IGNORECASE | re.VERBOSE,
)
_OPTION = re.compile(
    rf"""
    (?P<kept>
        (?<![\w-])--(?:[a-z0-9]{{1,16}}-)?(?:passw(?:or)?d|passphrase|token|secret|api-?key)\s{{1,8}}+["']?+
      | (?<![\w-])(?:mysql\w{{0,16}}|mariadb|mongo\w{{0,16}}|sshpass|htpasswd|(?:docker|podman|helm|az)\ login)
        (?:\ [\w.:/@=-]{{1,64}}){{0,6}}?\ -p\ ?["']?+
    )
    (?!-){_NOT_MASKED}[^\s"']{{3,}}
    """,
    re.IGNORECASE | re.VERBOSE,
)
_ELEMENT = re.compile(rf"(?P<kept><(?:{_NAME})>){_NOT_MASKED}[^<\s][^<]{{2,}}", re.VERBOSE | re.IGNORECASE)
_NAMED_PLACES = (
    (_COOKIE, ("cookie",)),
    (_NAMED, _NAME_HINTS),
    (_SPOKEN, ("key", "pass", "token", "secret")),
    (_SCHEME, ("bearer", "basic", "-u")),
    (_OPTION, ("--", " -p")),
    (_ELEMENT, ("</",)),
)
"""Patterns of a secret after its name, which is kept, with hints in lower case; each match contains a hint."""
_SECRET_NAME = re.compile(
    rf"(?:^|[_-])(?:{_NAME})$|authorization$|^(?:set-)?cookie$|^x-amz-credential$", re.IGNORECASE | re.VERBOSE
)
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def redact(text: str) -> str:
    """Replace text that looks like a secret with `***`."""
    lower = text.lower()
    for pattern, hints in _NAMED_PLACES:
        if any(hint in lower for hint in hints):
            text = pattern.sub(_keep_name, text)
    if any(hint in text for hint in _SHAPE_HINTS):
        text = _SHAPES.sub(MASK, text)
    return _USER_INFO.sub(MASK, text) if "@" in text else text


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
    return isinstance(name, str) and _SECRET_NAME.search(_WORDS.sub("_", name)) is not None


def _keep_name(match: re.Match[str]) -> str:
    return match["kept"] + MASK
