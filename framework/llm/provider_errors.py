"""Everything that goes wrong at a provider, as one ModelError: one line, retryable or not, without a key in it."""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any, TypedDict, TypeVar, Unpack
from urllib.parse import urlsplit
from urllib.request import getproxies

from framework.types.errors import ModelError, ModelRefused
from framework.types.redact import MASK, redact
from framework.types.text import fix_surrogates, shorten

T = TypeVar("T")
_MAX_QUOTED_CHARS = 300
"""How much of a provider's own words an error repeats."""
_MAX_PLACEHOLDER_CHARS = 8
_PROXY_SCHEMES = {"http", "https", "all"}
"""What proxies of the environment are for."""
_SHORTEN = (
    "begin a new conversation, or lower conversation.window or runtime_policy.max_observation_chars in the agent's file"
)
_NO_TOOLS = re.compile(
    r"(?i)\b(tools?|tool use|tool choice|functions?)\b.{0,200}\b(support|requires)"
    r"|support.{0,200}\b(tools?|functions?)\b"
)
"""How servers say that a model has no function calls."""
_TOO_LONG = re.compile(
    r"(?i)context.(length|window|size)|(prompt|input|conversation)\b.{0,200}\btoo long"
    r"|exceeds? the maximum number of tokens"
)
"""How they say that a conversation is longer than the model reads."""
_BAD_KEY = re.compile(r"(?i)\bapi[ _-]?key (is )?(not valid|invalid|expired)|\binvalid (x-)?api[ _-]?key")
_NO_MONEY = re.compile(r"(?i)credit balance is too low|insufficient (account )?balance")
"""What some providers say of a key or of an account under a status that means something else."""
_FILTERED = ("content_filter", "content_policy_violation", "data_inspection_failed", "DataInspectionFailed")
"""Codes of those that look at contents."""
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")
"""What OpenSSL says of a server that speaks no TLS."""
_UNSEEN = re.compile(r"[^\S ]|[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""Characters that move the cursor or the writing, and those that no database takes."""
_WAIT = (408, 409, 429)
"""Refusals that may be none at the next try."""
_STATUS_OF = {
    "invalid_api_key": 401,
    "insufficient_quota": 402,
    "model_not_found": 404,
    "context_length_exceeded": 400,
}
"""Codes in words, as they stand in streams, by the status they would have had outside."""


class _ErrorTraits(TypedDict, total=False):
    """What can be done about an error: see ModelError."""

    retryable: bool
    retry_after: float | None
    unavailable: bool


class ProviderErrors:
    """Words what went wrong with one model.

    Args:
        name: the model's.
        api_key: never repeated.
        base_url: of the server; None: the provider's own.
        usual_end: what most servers' `base_url` ends with.
    """

    def __init__(self, name: str, api_key: str, base_url: str | None, *, usual_end: str = "") -> None:
        url = urlsplit(base_url or "")
        self._name = name
        self._key = _pattern_of(api_key) if api_key else None
        self._end_hint = f" (most end with {usual_end})" if base_url and usual_end not in url.path else ""
        # Neither a user's password nor a key in the query belongs into an error.
        self._address = f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}" if base_url else name.split("/")[0]

    def set_up(self, make: Callable[[], T]) -> T:
        """Make an SDK's client; raises ModelError where an address, a proxy or a certificate file cannot be used."""
        try:
            return make()
        except Exception as error:  # noqa: BLE001 - of any class: a missing package, an address, a file, TLS
            why = f"{type(error).__name__}: {error}"
        problem = "no connection can be made: are base_url, the variables of proxies, and SSL_CERT_FILE right?"
        raise self.error(problem, why, unavailable=True)

    async def guard(self, call: Awaitable[T], own: type[Exception], explain: Callable[[Any], ModelError | None]) -> T:
        """Await an SDK. Not all it raises is its own: over bad connections, bad JSON and odd answers it stumbles.

        Args:
            call: what to await.
            own: the SDK's root of errors.
            explain: words one of them; None: it only wraps a transport error.

        Raises:
            ModelError: for all of them.
        """
        try:
            return await call
        except Exception as error:  # noqa: BLE001 - SDKs stumble in many ways over an answer of another form
            failure = (explain(error) if isinstance(error, own) else None) or self._broken(error)
        raise failure  # out here it has no context: the SDK's error holds the request, and with it the key

    def status(self, status: int, words: str, *, code: str | None = None, wait: float | None = None) -> ModelError:
        """Explain a refusal by its HTTP status, and the provider's `code` for it; `wait` is in seconds."""
        if code in _FILTERED:
            return self.refusal("refused", words or "by the content filter")
        if status < 500 and status not in _WAIT:
            return self._final(status, words, code)
        if status == 429 and code == "insufficient_quota":
            return self._final(402, words, code)
        if status == 429:
            hint = "" if wait is None else f", retry after {wait:g} s"
            return self.error(f"rate limited{hint}", words, retryable=True, retry_after=wait)
        return self.error(f"the provider failed ({status})", words, retryable=True, retry_after=wait)

    def _final(self, status: int, words: str, code: str | None) -> ModelError:
        """A refusal that will be the same the next time."""
        if status < 400:
            where = f"{self._address} sends elsewhere ({status})"
            return self.error(f"{where}: is base_url right, is there a login in between?", words, unavailable=True)
        if status == 401 or _BAD_KEY.search(words):  # which often repeat a part of the key
            return self.error("the key was refused: set a valid one", unavailable=True)
        if status == 402 or _NO_MONEY.search(words):
            return self.error("the account's quota is used up", words, unavailable=True)
        if code == "model_not_found":
            return self.error(f"no such model at {self._address}", words, unavailable=True)
        if _NO_TOOLS.search(words):
            advice = "set `protocol: json` in the agent's file"
            return self.error(f"the model has no function calls: {advice}", words, unavailable=True)
        if status in (404, 405):
            wrong = f"no such model at {self._address}, or base_url is wrong{self._end_hint}"
            return self.error(wrong, words, unavailable=True)
        if status == 413 or code == "context_length_exceeded" or _TOO_LONG.search(words):
            return self.error(f"the conversation is too long for it ({status}): {_SHORTEN}", words)
        advice = ": may this key use the model?" if status == 403 else ""
        return self.error(f"the request was refused ({status}){advice}", words)

    def reported(self, words: str, *, code: object = None) -> ModelError:
        """Explain an error told inside an answer of status 200; a `code` of a client's mistake makes it final."""
        if code in _FILTERED:
            return self.refusal("refused", words or "by the content filter")
        status = _STATUS_OF.get(code, 0) if isinstance(code, str) else code if isinstance(code, int) else 0
        final = 400 <= status < 500 and status not in _WAIT
        gone = not final or status in (401, 402, 404)
        return self.error("the provider reported an error", words, retryable=not final, unavailable=gone)

    def page(self) -> ModelError:
        """A web page came instead of an answer."""
        return self.error("the server answered with a page, not a completion: is base_url right?", retryable=True)

    def empty(self) -> ModelError:
        """An answer came without anything in it."""
        return self.error("the answer is empty", retryable=True)

    def error(self, problem: str, quoted: str = "", **kind: Unpack[_ErrorTraits]) -> ModelError:
        """One line: the model, the problem in our words, and what the provider says of it."""
        return ModelError(self._line(problem, quoted), **kind)

    def refusal(self, problem: str, quoted: str = "") -> ModelRefused:
        """As `error`, of an answer that will not be given."""
        return ModelRefused(self._line(problem, quoted))

    def _line(self, problem: str, quoted: str) -> str:
        words = " ".join(_UNSEEN.sub(" ", fix_surrogates(quoted)).split())
        words = redact(self._key.sub(MASK, words) if self._key else words)
        cut = shorten(words, _MAX_QUOTED_CHARS)
        before = " " if problem.endswith("?") else ": "
        return f"{self._name}: {problem}{before}{cut}" if cut else f"{self._name}: {problem}"

    def _broken(self, error: Exception) -> ModelError:
        import httpx2

        from framework.types.bounded_body import TooLarge

        root = error if isinstance(error, httpx2.HTTPError) else error.__cause__ or error
        if isinstance(root, TooLarge):
            return self.error(str(root), unavailable=True)
        if isinstance(root, httpx2.TimeoutException):
            return self.error(f"no answer in time from {self._address}", retryable=True)
        if isinstance(error, ValueError):
            return self.error("the server's answer is not JSON: is base_url right?", retryable=True)
        if (tls := _tls_error(error)) is not None:
            hint = "is it to be trusted, is base_url right? Set SSL_CERT_FILE for certificates of your own"
            if any(sign in tls for sign in _NOT_TLS):
                hint = "it does not speak TLS at this port: write http:// in base_url"
            return self.error(f"the encrypted connection to {self._address} failed: {hint}: {tls}", unavailable=True)
        if isinstance(root, httpx2.TooManyRedirects):
            return self.status(302, "too many redirects")
        name = type(root).__name__
        if isinstance(root, (httpx2.ConnectError, httpx2.UnsupportedProtocol)):
            proxy = ", and the proxy that the environment names" if getproxies().keys() & _PROXY_SCHEMES else ""
            hint = f"failed: is the server up{proxy}, is base_url right? ({name})"
        elif isinstance(root, (httpx2.HTTPError, OSError)):
            hint = f"broke before the answer was whole ({name})"
        else:
            form = f"the server's answer is not of the form that was asked for ({name}): is base_url right?"
            return self.error(form, retryable=True)
        return self.error(f"the connection to {self._address} {hint}", retryable=True)


def _pattern_of(key: str) -> re.Pattern[str]:
    """A key where it is quoted, also in part; a short one, such as `none`, is a placeholder, and stays within words."""
    if len(key) < _MAX_PLACEHOLDER_CHARS:
        return re.compile(rf"\b{re.escape(key)}\b")
    return re.compile(rf"{re.escape(key)}|{re.escape(key[: len(key) // 2])}[^\s\"'),;]*")


def _tls_error(error: BaseException | None) -> str | None:
    """Why TLS failed, if an error comes of that."""
    while error is not None:
        if isinstance(error, ssl.SSLError):  # aiohttp's own has no reason, but a cause that has
            reason = getattr(error, "verify_message", None) or getattr(error, "reason", None)
            if reason:
                return str(reason)
        error = error.__cause__ or error.__context__
    return None


def message_in(body: object) -> str:
    """What a provider says in an error's body, in any of the forms that are in use; a proxy's page says nothing."""
    for key in (0, "error", 0, "message", 0, "msg"):
        body = _inner(body, key)
    return body if isinstance(body, str) and not body.lstrip().startswith("<") else ""


def _inner(body: object, key: object) -> object:
    """What an error is wrapped in is taken off; what is not wrapped so stays as it is."""
    if isinstance(body, list) and key == 0:
        return body[0] if body else None
    if isinstance(body, Mapping) and isinstance(key, str):
        return body.get(key) or (body.get("detail") if key == "message" else None) or body
    return body


def parse_retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """The seconds to wait that `retry-after-ms` or `retry-after` asks for, the latter as a number or as a date.

    Args:
        headers: of the answer; names in lower case, or a mapping that takes any case.
        now: what a date is compared with; None is the present.
    """
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    written = headers.get("retry-after", "").strip()
    if (seconds := _number(written)) is not None:
        return seconds
    try:
        due = parsedate_to_datetime(written)
        # A date without a zone is meant in UTC.
        return max(0.0, (due.replace(tzinfo=due.tzinfo or UTC) - (now or datetime.now(UTC))).total_seconds())
    except (ValueError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if value >= 0 and isfinite(value) else None
