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

from framework.llm.chat import repair
from framework.types.errors import ModelError, ModelRefused
from framework.types.redact import redact

T = TypeVar("T")
QUOTED_CHARS = 300
"""How much of a provider's own words an error repeats."""
_NO_TOOLS = re.compile(
    r"(?i)\b(tools?|tool use|tool choice|functions?)\b.*\b(support|requires)|support.*\b(tools?|functions?)\b"
)
"""How servers say that a model has no function calls."""
_WAIT = (408, 409, 429)
"""Refusals that may be none at the next try."""
_STATUS_OF = {
    "invalid_api_key": 401,
    "insufficient_quota": 402,
    "model_not_found": 404,
    "context_length_exceeded": 400,
}
"""Codes in words, as they stand in streams, by the status they would have had outside."""


class Kind(TypedDict, total=False):
    """What can be done about an error: see ModelError."""

    retryable: bool
    retry_after: float | None
    unavailable: bool


class Failures:
    """Words what went wrong with one model.

    Args:
        name: the model's.
        api_key: never repeated.
        base_url: of the server; None: the provider's own.
    """

    def __init__(self, name: str, api_key: str, base_url: str | None) -> None:
        url = urlsplit(base_url or "")
        self._name = name
        self._api_key = api_key
        # Neither a user's password nor a key in the query belongs into an error.
        self._address = f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}" if base_url else name.split("/")[0]

    async def guard(self, call: Awaitable[T], own: type[Exception], explain: Callable[[Any], ModelError | None]) -> T:
        """Await an SDK. Not all it raises is its own: raw transport errors and bad JSON come through as they are.

        Args:
            call: what to await.
            own: the SDK's root of errors.
            explain: words one of them; None: it only wraps a transport error.

        Raises:
            ModelError: for all of them.
        """
        import httpx2

        try:
            return await call
        except (own, httpx2.HTTPError, ValueError) as error:
            failure = (explain(error) if isinstance(error, own) else None) or self._broken(error)
        raise failure  # out here it has no context: the SDK's error holds the request, and with it the key

    def status(self, status: int, words: str, *, code: str | None = None, wait: float | None = None) -> ModelError:
        """Explain a refusal by its HTTP status, and the provider's `code` for it; `wait` is in seconds."""
        if code == "content_filter":
            return self.refusal("refused", words or "by the content filter")
        if status == 401:  # its words often repeat a part of the key
            return self.error("the key was refused: set a valid one", unavailable=True)
        if (status == 404 and not _NO_TOOLS.search(words)) or code == "model_not_found":
            return self.error(f"no such model at {self._address}, or base_url is wrong", words, unavailable=True)
        if status == 402 or (status == 429 and code == "insufficient_quota"):
            return self.error("the account's quota is used up", words, unavailable=True)
        if status == 429:
            hint = "" if wait is None else f", retry after {wait:g} s"
            return self.error(f"rate limited{hint}", words, retryable=True, retry_after=wait)
        if status >= 500 or status in _WAIT:
            return self.error(f"the provider failed ({status})", words, retryable=True, retry_after=wait)
        if _NO_TOOLS.search(words):
            advice = "set `protocol: json` in the agent's file"
            return self.error(f"the model has no function calls: {advice}", words, unavailable=True)
        return self.error(f"the request was refused ({status})", words)

    def reported(self, words: str, *, code: object = None) -> ModelError:
        """Explain an error told inside an answer of status 200; a `code` of a client's mistake makes it final."""
        if code == "content_filter":
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

    def error(self, problem: str, quoted: str = "", **kind: Unpack[Kind]) -> ModelError:
        """One line: the model, the problem in our words, and what the provider says of it."""
        return ModelError(self._line(problem, quoted), **kind)

    def refusal(self, problem: str, quoted: str = "") -> ModelRefused:
        """As `error`, of an answer that will not be given."""
        return ModelRefused(self._line(problem, quoted))

    def _line(self, problem: str, quoted: str) -> str:
        words = redact(repair(" ".join(quoted.split())))
        words = words.replace(self._api_key, "***") if self._api_key else words
        cut = words if len(words) <= QUOTED_CHARS else words[: QUOTED_CHARS - 1] + "…"
        return f"{self._name}: {problem}: {cut}" if cut else f"{self._name}: {problem}"

    def _broken(self, error: Exception) -> ModelError:
        import httpx2

        root = error if isinstance(error, httpx2.HTTPError) else error.__cause__ or error
        if isinstance(root, httpx2.TimeoutException):
            return self.error(f"no answer in time from {self._address}", retryable=True)
        if isinstance(error, ValueError):
            return self.error("the server's answer is not JSON: is base_url right?", retryable=True)
        if (tls := _tls_error(error)) is not None:
            hint = (
                f"failed: is it to be trusted, is base_url right? Set SSL_CERT_FILE for certificates of your own: {tls}"
            )
            return self.error(f"the encrypted connection to {self._address} {hint}", unavailable=True)
        unreached = isinstance(root, (httpx2.ConnectError, httpx2.UnsupportedProtocol))
        hint = "failed: is the server up, is base_url right?" if unreached else "broke before the answer was whole"
        return self.error(f"the connection to {self._address} {hint} ({type(root).__name__})", retryable=True)


def _tls_error(error: BaseException | None) -> str | None:
    """Why TLS failed, if an error comes of that."""
    while error is not None:
        if isinstance(error, ssl.SSLError):  # aiohttp's own has no reason, but a cause that has
            reason = getattr(error, "verify_message", None) or getattr(error, "reason", None)
            if reason:
                return str(reason)
        error = error.__cause__ or error.__context__
    return None


def words_of(body: object) -> str:
    """What a provider says in an error's body; a proxy's HTML page says nothing."""
    if isinstance(body, Mapping):
        body = body.get("message") or body.get("detail")
    return body if isinstance(body, str) and not body.lstrip().startswith("<") else ""


def wait_of(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
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
    except ValueError:
        return None
    # A date without a zone is meant in UTC.
    return max(0.0, (due.replace(tzinfo=due.tzinfo or UTC) - (now or datetime.now(UTC))).total_seconds())


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if value >= 0 and isfinite(value) else None
