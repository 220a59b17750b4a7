"""Translates every failure of a provider to a ModelError: one line, retryable or not, without the API key."""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

from framework.llm.capabilities import OpenAIApi
from framework.llm.message_shape import OF_LATE_TOOLS
from framework.types.errors import ModelError, ModelRefused, is_scarcity
from framework.types.http import missing_certificates
from framework.types.redact import MASK, redact
from framework.types.text import fix_surrogates, shorten

T = TypeVar("T")
_MAX_QUOTED_CHARS = 300
"""Limit of the provider's message in an error."""
_MIN_KEY_CHARS = 8
"""A shorter API key, such as `none`, is a placeholder."""
_PROXY_SCHEMES = {"http", "https", "all"}
"""Schemes of the environment's proxies that apply to requests to a provider."""
_SHORTEN = "start a new conversation, or lower conversation.window or limits.observation_chars in the agent's file"
_TOOLS = r"(?:tools?|tool use|tool choice|tool[- ]calling|function[- ]calling|functions?)"
_NO_TOOLS = re.compile(
    rf"(?i)\b{_TOOLS}\b.{{0,120}}\b(?:not (?:yet )?(?:supported|enabled|available)|unsupported|requires)\b"
    rf"|(?:\bnot|n't|\bno endpoints found that) (?:yet )?support .{{0,80}}\b{_TOOLS}\b"
    rf"|\bunsupported .{{0,20}}\b{_TOOLS}\b"
)
"""Messages of servers whose model does not support function calls."""
_ADDRESS = re.compile(r"\b[a-zA-Z]{1,20}://\S+|\B/[\w.-]+/\S+")
"""URLs and paths, whose words say nothing about the error."""
_FILE_ERROR = re.compile(
    r"(?i)\bmime[ _-]?types?\b|\b(?:invalid|unsupported) (?:file|image)\b|\bfile (?:data|format|type)s?\b"
)
"""Messages about the contents or the type of a file."""
_NO_JINJA = re.compile(r"(?i)\brequires? --jinja\b")
"""llama.cpp, started without function calls. It sends this with status 500, which is retried otherwise."""
_BAD_CALL = re.compile(
    r"(?i)\btool_use_failed\b|\bfailed to call a function\b|\btool call validation failed\b"
    r"|\b(?:failed to|could not|cannot|unable to|error) pars(?:e|ing) (?:the )?(?:model'?s? )?"
    r"(?:tool|function)[ _-]?calls?\b"
    r"|\bvalidation errors? for \S*FunctionDefinition|\b(?:MALFORMED_FUNCTION_CALL|UNEXPECTED_TOOL_CALL)\b"
)
"""What providers report if they cannot read the model's function call: the answer is wrong, not the request."""
_NO_FILES_ADVICE = "use another model, or set it in the model's `capabilities`, such as `images: false`"
_FILE = r"(?:image|vision|multimodal|pdf|document|audio|file)s?"
_NO_FILES = re.compile(
    r"(?i)unknown variant\W{1,3}(?:image_url|file|input_audio)\b"
    rf"|\b{_FILE}\W{{0,3}}(?:inputs?|modality|understanding|_url|parts?)\b"
    r".{0,80}\b(?:not (?:supported|enabled|available|allowed)|only supported by)"
    rf"|\bnot support .{{0,40}}\b{_FILE} (?:inputs?|contents?)"
    rf"|\bsupport {_FILE} input"
    r"|\bnot a (?:vision|multimodal) model"
)
"""Messages of servers whose model does not accept a kind of file."""
_NOT_IMAGES = re.compile(r"(?i)(?P<audio>audio)|pdf|document|file")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{100,}={0,2}")
"""What may be a file in base64, or its start; some servers quote it in their errors."""
_MIN_BASE64_CHARS = 10
"""Different characters in a text that is base64 and not a repetition."""
_NEEDS_RESPONSES = re.compile(r"(?i)\bv1/responses\b|\bresponses (api|endpoint)\b")
"""Messages of chat completions about models, or combinations of settings, that only the Responses API supports."""
_REASONING = re.compile(r"(?i)reasoning")
_TOO_LONG = re.compile(
    r"(?i)\bcontext[ _-]?(?:length|window|size|limit)|\bcontext (?:is )?too long|\bcontext the overflows"
    r"|\b(?:prompt|input|conversation|messages)\b.{0,200}\b(?:too (?:long|large for model)|longer than the)"
    r"|\bexceed(?:s|ed)? (?:the |model )*(?:maximum number of tokens|token limit"
    r"|max(?:imum)? (?:message )?(?:length|tokens))"
    r"|\b(?:prompt|input) token(?:s| count)\b.{0,80}\bexceeds?|\bmaximum prompt length"
    r"|\btoo many (?:input|prompt) tokens|\btoo many tokens: total|\binput length should be"
    r"|\btokens \+ `?max_new_tokens|\binputs? must have less than \d+ tokens"
    r"|\breduce the length of the (?:messages|prompt|input)|\bmax_prompt_tokens_exceeded"
)
"""Messages of servers about a conversation that exceeds the context window, each in its provider's words."""
_WINDOW = re.compile(
    r"(?i)\bcontext limit: [\d +]+> (\d+)"
    r"|\bmax(?:imum)? (?:context|prompt|model) length(?: is| of|:)* *(\d+)|\b(\d+) maximum context length"
    r"|\bcontext (?:length|window|size|limit)(?: is| of| only|:| \()* *(\d+)"
    r"|> (\d+) maximum|\btokens allowed \((\d+)|\b(?:exceeds the|token) limit(?: of| is|:)* (\d+)|\blimit is (\d+)"
    r"|\binput length should be \[\d+ (\d+)|\b(?:cannot exceed|must be <=|must have less than) (\d+)"
)
"""The size of the window in these messages, in tokens."""
_MIN_WINDOW = 256
"""A smaller number in such a message is not a window."""
_BAD_KEY = re.compile(r"(?i)\bapi[ _-]?key (is )?(not valid|invalid|expired)|\binvalid (x-)?api[ _-]?key")
_NO_MONEY = re.compile(r"(?i)credit balance is too low|insufficient (account )?balance")
"""Messages about an API key or an account that some providers send with an unrelated status."""
_FILTERED = (
    *("content_filter", "content_policy_violation", "data_inspection_failed", "DataInspectionFailed"),
    *("bio_policy", "image_content_policy_violation"),
)
"""Error codes of content filters."""
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")
"""OpenSSL's reasons when the server does not use TLS."""
_INVISIBLE = re.compile(r"[^\S ]|[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""Control and formatting characters, which can manipulate a terminal or be rejected by a database."""
_RETRYABLE = (408, 409, 429)
"""Client errors that may succeed when retried."""
_STATUS_BY_CODE = {
    "invalid_api_key": 401,
    "insufficient_quota": 402,
    "model_not_found": 404,
    "context_length_exceeded": 400,
    "invalid_prompt": 400,
    "invalid_request_error": 400,
    "data_residency_mismatch": 400,
}
"""Error codes, or types, inside streams, mapped to the HTTP status of the same error outside a stream."""
_SUCCESS = (0, 200, "0", "200")
"""Codes of events that report no error."""


class ProviderErrors:
    """Creates the ModelErrors of one model.

    Args:
        name: the model's name.
        api_key: masked in every message.
        base_url: the server; None for the provider's default.
        usual_path: the path that most servers' `base_url` ends with.
        api: which of OpenAI's APIs is used; None for other providers.
        credential: what the provider authenticates, as errors call it.
        secrets: other texts that are masked in every message.
    """

    def __init__(
        self,
        name: str,
        api_key: str,
        base_url: str | None,
        *,
        usual_path: str = "",
        api: OpenAIApi | None = None,
        credential: str = "API key",
        secrets: Iterable[str] = (),
    ) -> None:
        url = urlsplit(base_url or "")
        self._name = name
        self._api = api
        self._credential = credential
        patterns = [_pattern_of(secret) for secret in (api_key, unquote(url.password or ""), *secrets) if secret]
        self._key = re.compile("|".join(patterns)) if patterns else None
        self._path_hint = f" (most end with {usual_path})" if base_url and usual_path not in url.path else ""
        # Without the user, the password and the query, which may contain a key.
        self._address = f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}" if base_url else name.split("/")[0]

    def create_client(self, create: Callable[[], T]) -> T:
        """Create an SDK's client; raise ModelError if a base URL, a proxy or a certificate file is invalid."""
        try:
            return create()
        except Exception as error:  # noqa: BLE001 - of any class: a missing package, a URL, a file, TLS
            cause, scarce = f"{type(error).__name__}: {error}", is_scarcity(error)
        if scarce:
            raise self.scarcity()
        problem = "the client cannot be created: check base_url, the proxy variables and SSL_CERT_FILE"
        raise self.error(problem, cause, permanent=True)

    async def guard(
        self,
        call: Awaitable[T],
        own: type[Exception] | tuple[type[Exception], ...],
        explain: Callable[[Any], ModelError | None],
    ) -> T:
        """Await a call of an SDK; raise ModelError for whatever it raises.

        `explain` translates errors of the SDK's `own` root classes; None if such an error wraps one of the transport.
        """
        try:
            return await call
        except Exception as error:  # noqa: BLE001 - SDKs raise errors of any class for a malformed response
            # Scarcity first: the others import modules, for which a process without open files has none either.
            failure = (
                self.scarcity()
                if is_scarcity(error)
                else (explain(error) if isinstance(error, own) else None) or self._transport_error(error)
            )
        raise failure  # outside the except block, so without context: the SDK's error contains the request and its key

    def from_status(
        self, status: int, message: str, *, code: str | None = None, wait: float | None = None
    ) -> ModelError:
        """Return the error for an HTTP status and the provider's error `code`; `wait` is `retry-after` in seconds."""
        if code in _FILTERED:
            return self.refusal("refused", message or "by the content filter")
        error = self._of_status(status, message, code, wait)
        return error if error.correction else error.of_type(str(status))

    def _of_status(self, status: int, message: str, code: str | None, wait: float | None) -> ModelError:
        if status not in _RETRYABLE and (kind := _rejected_files(message)):
            # llama.cpp sends it with status 500, which is retried otherwise.
            return self.error(f"the model does not accept {kind}: {_NO_FILES_ADVICE}", message, unavailable=True)
        if _NO_JINJA.search(message):
            advice = "start the server with --jinja, or set `protocol: json` in the agent's file"
            return self.error(f"the server has function calls disabled: {advice}", message, unavailable=True)
        if status not in (401, 402, 429) and _BAD_CALL.search(f"{code} {message}"):
            return self.bad_call(message)
        if status >= 500 and _TOO_LONG.search(message):
            return self._too_long(status, message)
        if status < 500 and status not in _RETRYABLE:
            return self._permanent_error(status, message, code)
        if status == 429 and code == "insufficient_quota":
            return self._permanent_error(402, message, code)
        if status == 429:
            hint = "" if wait is None else f", retry after {wait:g} s"
            return self.error(f"rate limited{hint}", message, retryable=True, retry_after=wait)
        return self.error(f"the provider failed ({status})", message, retryable=True, retry_after=wait)

    def _permanent_error(self, status: int, message: str, code: str | None) -> ModelError:
        """Return the error for a status that a retry would not change."""
        if status < 400:
            redirect = f"{self._address} redirects ({status})"
            return self.error(f"{redirect}: check base_url, or for a login page", message, permanent=True)
        if status == 401 or _BAD_KEY.search(
            message
        ):  # without the provider's message, which often quotes part of the key
            return self.error(f"the {self._credential} was rejected: set a valid one", permanent=True)
        if status == 402 or _NO_MONEY.search(message):
            return self.error("the account's quota is used up", message, permanent=True)
        if self._api == "chat" and _NEEDS_RESPONSES.search(message):
            return self._needs_responses(message)
        if code == "model_not_found":
            return self.error(f"no such model at {self._address}", message, permanent=True)
        if OF_LATE_TOOLS.search(message):
            advice = "set `capabilities: {late_tools: false}` at an alias of the model in agentsd.yaml"
            problem = f"the server does not accept found tools within the conversation: {advice}"
            return self.error(problem, message, unavailable=True)
        if _NO_TOOLS.search(_ADDRESS.sub("", message)) and not _FILE_ERROR.search(message):
            advice = "set `protocol: json` in the agent's file"
            return self.error(f"the model does not support function calls: {advice}", message, unavailable=True)
        if status in (404, 405):
            no_api = ", no Responses API there (then set `api: chat` at its alias)" if self._api == "responses" else ""
            problem = f"no such model at {self._address}{no_api}, or base_url is wrong{self._path_hint}"
            return self.error(problem, message, permanent=True)
        if status == 413 or code == "context_length_exceeded" or _TOO_LONG.search(message):
            return self._too_long(status, message)
        advice = f": check that the {self._credential} may use this model" if status == 403 else ""
        return self.error(f"the request was rejected ({status}){advice}", message)

    def _too_long(self, status: int, message: str) -> ModelError:
        """Return the error for a conversation that exceeds the context window."""
        problem = f"the conversation exceeds the model's context window ({status}): {_SHORTEN}"
        return self.error(problem, message, too_long=True, window=_stated_window(message))

    def bad_call(self, message: str, problem: str = "the model's function call could not be read") -> ModelError:
        """Return the error for an answer with a function call that the provider could not read."""
        correction = self._line("the function call in your last answer could not be read", message).partition(": ")[2]
        advice = "Call the function again, with arguments that fit its schema, or answer in text."
        return self.error(problem, message, retryable=True, correction=f"{correction}. {advice}").of_type("bad_call")

    def unexpected_finish(self, reported: str) -> ModelError:
        """Return the error for a finish reason of an answer that cannot be used."""
        problem = "unexpected finish_reason"
        if _BAD_CALL.search(reported):
            return self.bad_call(reported, problem)
        return self.error(problem, reported, retryable=True)

    def _needs_responses(self, message: str) -> ModelError:
        """Return the error for a request that only the Responses API accepts."""
        if _REASONING.search(message):
            problem = "the model supports tools with reasoning only through the Responses API"
            advice = "set `api: responses` at its alias in agentsd.yaml, or `reasoning: none` in model_settings"
            return self.error(f"{problem}: {advice}", message, unavailable=True)
        problem = "the model needs the Responses API: set `api: responses` at its alias in agentsd.yaml"
        return self.error(problem, message, permanent=True)

    def from_body(self, message: str, *, code: object = None) -> ModelError:
        """Return the error reported in the body of a response with status 200; permanent for client error codes."""
        if code in _FILTERED:
            return self.refusal("refused", message or "by the content filter")
        if _BAD_CALL.search(f"{code} {message}"):
            return self.bad_call(message)
        status = _STATUS_BY_CODE.get(code, 0) if isinstance(code, str) else code if isinstance(code, int) else 0
        if isinstance(code, str) and re.fullmatch(r"[45]\d\d", code):
            status = int(code)
        is_permanent = 400 <= status < 500 and status not in _RETRYABLE
        if code == "context_length_exceeded" or (status in (0, 400, 500) and _TOO_LONG.search(message)):
            return self._too_long(status or 400, message).of_type(str(status or 400))
        permanent = status in (401, 402, 404)
        error = self.error("the provider reported an error", message, retryable=not is_permanent, permanent=permanent)
        return error.of_type(str(status)) if status else error

    def web_page(self) -> ModelError:
        """Return the error for a web page in place of a completion."""
        problem = "the server returned a web page instead of a completion: check base_url"
        return self.error(problem, retryable=True).of_type("web_page")

    def scarcity(self) -> ModelError:
        """Return the error for a request that this process could not send."""
        problem = "this process has no open files or memory left (see ulimit -n)"
        return self.error(problem, retryable=True, scarce=True)

    def empty_answer(self) -> ModelError:
        """Return the error for a response without content."""
        return self.error("the answer is empty", retryable=True).of_type("empty_answer")

    def error(self, problem: str, quoted: str = "", **kind: Any) -> ModelError:
        """Return an error of one line: the model, the problem and the provider's message; `kind` as of ModelError."""
        return ModelError(self._line(problem, quoted), **kind)

    def refusal(self, problem: str, quoted: str = "") -> ModelRefused:
        """Return the error for a refusal, in the same form as `error`."""
        return ModelRefused(self._line(problem, quoted))

    def _line(self, problem: str, quoted: str) -> str:
        message = " ".join(_INVISIBLE.sub(" ", fix_surrogates(quoted)).split())
        message = _BASE64.sub(lambda found: found[0] if len(set(found[0])) < _MIN_BASE64_CHARS else "…", message)
        message = redact(self._key.sub(MASK, message) if self._key else message)
        quote = shorten(message, _MAX_QUOTED_CHARS)
        return f"{self._name}: {problem}: {quote}" if quote else f"{self._name}: {problem}"

    def _transport_error(self, error: Exception) -> ModelError:
        import httpx2

        root = error if isinstance(error, httpx2.HTTPError) else error.__cause__ or error
        kind = "timeout" if isinstance(root, httpx2.TimeoutException) else type(root).__name__
        return self._of_transport(error, root).of_type(kind)

    def _of_transport(self, error: Exception, root: BaseException) -> ModelError:
        """Return the error for an exception that has no status; `root` is its cause."""
        import httpx2

        from framework.types.http_transport import TooLarge

        if isinstance(root, TooLarge):
            return self.error(str(root), unavailable=True)
        if isinstance(root, httpx2.TimeoutException):
            return self.error(f"timeout while waiting for {self._address}", retryable=True)
        if isinstance(error, ValueError):
            return self.error("the server's answer is not JSON: check base_url", retryable=True)
        if (tls := _tls_error(error)) is not None:
            hint = "check base_url, or set SSL_CERT_FILE if the server uses a private certificate"
            if missing := missing_certificates():
                hint = f"SSL_CERT_FILE names a file that does not exist ({missing}): correct or unset it"
            if any(sign in tls for sign in _NOT_TLS):
                hint = "the port does not use TLS: write http:// in base_url"
            return self.error(f"the TLS connection to {self._address} failed: {hint}: {tls}", unavailable=True)
        if isinstance(root, httpx2.TooManyRedirects):
            return self.from_status(302, "too many redirects")
        name = type(root).__name__
        if isinstance(root, (httpx2.ConnectError, httpx2.UnsupportedProtocol)):
            proxy = ", the proxy in the environment" if getproxies().keys() & _PROXY_SCHEMES else ""
            hint = f"failed ({name}): check base_url{proxy} and that the server is running"
        elif isinstance(root, (httpx2.HTTPError, OSError)):
            hint = f"was lost before the answer was complete ({name})"
        else:
            problem = f"the server's answer is malformed ({name}): check base_url"
            return self.error(problem, retryable=True)
        return self.error(f"the connection to {self._address} {hint}", retryable=True)


def option_secrets(headers: Mapping[str, str], extra_body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts in an alias's options that may be secrets: headers, and long texts in the body."""
    for header in headers.values():
        yield header
        yield header.rpartition(" ")[2]  # without `Bearer`
    pending: list[Any] = [extra_body]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, str) and len(value) >= 2 * _MIN_KEY_CHARS:
            yield value


def _pattern_of(key: str) -> str:
    """Return a pattern that matches the key, whole or cut in half; a short one matches only as a separate word."""
    if len(key) < _MIN_KEY_CHARS:
        return rf"\b{re.escape(key)}\b"
    return rf"{re.escape(key)}|{re.escape(key[: len(key) // 2])}[^\s\"'),;]*"


def _rejected_files(message: str) -> str | None:
    """Return the kind of files that the model does not accept according to a message, in the plural."""
    found = _NO_FILES.search(message)
    if found is None:
        return None
    other = _NOT_IMAGES.search(found[0])
    return "images" if other is None else "audio" if other["audio"] else "PDFs"


def _stated_window(message: str) -> int | None:
    """Return the size of the context window that a message states, in tokens."""
    found = _WINDOW.search(message.replace(",", ""))
    size = int(next(filter(None, found.groups()))) if found else 0
    return size if size >= _MIN_WINDOW else None


def _tls_error(error: BaseException | None) -> str | None:
    """Return OpenSSL's reason if the error was caused by TLS, or None."""
    while error is not None:
        if isinstance(error, ssl.SSLError):  # aiohttp's own has no reason, but its cause has
            reason = getattr(error, "verify_message", None) or getattr(error, "reason", None)
            if reason:
                return str(reason)
        error = error.__cause__ or error.__context__
    return None


def message_in(body: object) -> str:
    """Return the message in an error's body, in any common structure; empty for a web page, as proxies send it.

    OpenRouter's "Provider returned error" is followed by the provider's own text.
    """
    for key in (0, "error", 0):
        body = _inner(body, key)
    if isinstance(body, Mapping) and not (body.get("message") or body.get("detail")):
        body = _inner(_inner(body, "errors"), 0)
    raw = _inner(_inner(body, "metadata"), "raw") if isinstance(body, Mapping) and "metadata" in body else None
    place = ""
    for key in ("message", "detail", 0, "msg"):
        place = _place_in(body) or place
        body = _inner(body, key)
    if isinstance(body, str) and isinstance(raw, str):
        return f"{body}: {raw}"
    if not isinstance(body, str) or body.lstrip().startswith("<"):
        return ""
    return f"{body} ({place})" if place and place not in body else body


def is_bare_error(body: Mapping[str, Any]) -> bool:
    """Return whether a body with status 200, or an event, is an error outside of an `error` object.

    vLLM, FastChat, DashScope and FastAPI send such errors.
    """
    if "choices" in body:
        return False
    if not body.get("message"):
        return body.keys() == {"detail"}
    kind = str(body.get("type") or "")
    return (
        body.get("object") == "error" or kind.endswith("_error") or (not kind and body.get("code", 0) not in _SUCCESS)
    )


def _place_in(body: object) -> str:
    """Return where an error is in the request, if it is in a tool: OpenAI's `param`, or the `loc` of a validation."""
    if not isinstance(body, Mapping):
        return ""
    loc = body.get("loc")
    place = ".".join(map(str, loc)) if isinstance(loc, list) else body.get("param")
    return place if isinstance(place, str) and re.search(r"\btools[.\[]\d", place[:_MAX_QUOTED_CHARS]) else ""


def _inner(body: object, key: object) -> object:
    """Return the value at `key` of a list or an object, or the body unchanged if it has none."""
    if isinstance(body, list) and key == 0:
        return body[0] if body else None
    if isinstance(body, Mapping) and isinstance(key, str):
        return body.get(key) or (body.get("detail") if key == "message" else None) or body
    return body


def parse_retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the wait that `retry-after-ms` or `retry-after` requests, in seconds, or None.

    Args:
        headers: response headers, with names in lower case or in a case-insensitive mapping.
        now: the time to compare a date in `retry-after` with; None for the current time.
    """
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "").strip()
    if (seconds := _number(value)) is not None:
        return seconds
    try:
        due = parsedate_to_datetime(value)
        # A date without a zone is in UTC.
        return max(0.0, (due.replace(tzinfo=due.tzinfo or UTC) - (now or datetime.now(UTC))).total_seconds())
    except (ValueError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if value >= 0 and isfinite(value) else None
