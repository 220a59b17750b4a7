"""Text and JSON: text as people read it and as a store keeps it, JSON as strict readers see it, digests of values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from hashlib import blake2b
from math import ceil
from typing import Any

MAX_JSON_DEPTH = 100
"""Maximum nesting of a value; Pydantic rejects JSON from 255 on."""
MAX_OBJECT_CHARS = 1_500_000
"""Maximum length of an object: enough for a file of 1 MB as an argument, and parsed in well under 0.1 s."""
MAX_OBJECT_VALUES = 100_000
"""Maximum number of values in an object, nested ones included."""
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]\s*+[\]}]|["\[\]{},]', re.DOTALL)
"""A string, an empty container, the quote of a string without an end, or a character of structure."""
DATA_SUFFIX = ".jsonl"
"""Suffix of files with one JSON object per line, such as test cases."""
_WIDE = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]")
_CHARS_PER_TOKEN = 4.0
_TOKENS_PER_WIDE_CHAR = 0.75
_MAX_LISTED = 20
_BYTES, _KEY_BYTES = 32, 8
_CANONICAL = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=str)


# --- for people


def shorten(text: str, max_chars: int) -> str:
    """Return the text, cut to `max_chars` characters with `…` as the last one if it is longer."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def one_line(text: str, max_chars: int) -> str:
    """Return the text on one line, each run of white space as one space, cut to `max_chars` characters."""
    return shorten(" ".join(text.split()), max_chars)


def visible(text: str) -> str:
    """Escape every character that is invisible or moves the cursor, because people decide by this text."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def value_lines(name: str, value: Any) -> Iterator[str]:
    """Yield an argument as a person reads it: on one line as JSON, or a text of several lines with its line breaks.

    Lines of a text start with `|`, so that no text can look like another argument.
    """
    if isinstance(value, str) and "\n" in value:
        yield f"{visible(name)}:"
        yield from (f"  | {visible(line)}" for line in value.split("\n"))
    elif isinstance(value, (Mapping, list, tuple)) and "\\n" in json.dumps(value, ensure_ascii=False, default=str):
        yield f"{visible(name)}:"
        items = (
            value.items() if isinstance(value, Mapping) else ((f"[{index}]", one) for index, one in enumerate(value))
        )
        for key, inner in items:
            yield from (f"  {line}" for line in value_lines(str(key), inner))
    else:
        yield f"{visible(name)}: {visible(json.dumps(value, ensure_ascii=False))}"


def preview_lines(preview: str) -> list[str]:
    """Return what a call would change, as its tool describes it, for a person; empty if it says nothing."""
    return [f"  | {visible(line)}" for line in preview.split("\n")] if preview else []


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return the end of an error message about an unknown name: the most similar known names, or else all of them."""
    if not known:
        return "; there are none"
    if close := get_close_matches(name, known, n=3, cutoff=0.6):
        return f"; did you mean {', '.join(close)}?"
    more = f" and {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else ""
    return f"; there are: {', '.join(known[:_MAX_LISTED])}{more}"


class InputText(str):
    """The value of an input as a person typed it: text for an input of type `string`, else JSON."""

    __slots__ = ()

    def value(self, kind: str) -> Any:
        """Return the value for an input of this type. JSON text in quotation marks is text without them."""
        if kind == "string" and not self.startswith('"'):
            return str(self)
        try:
            return json.loads(self)
        except ValueError:
            return str(self)


# --- to be stored or sent


def fix_surrogates(text: str) -> str:
    r"""Return the text with split surrogate pairs joined and lone surrogates replaced by U+FFFD.

    JSON may contain a lone `\ud800`, but such a string cannot be encoded or stored.
    """
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def storable(value: str) -> str:
    """Replace characters that SQLite or PostgreSQL reject in text."""
    return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def to_sql_text(value: str | None) -> str | None:
    """Return the value of a column that may be null, without those characters."""
    return None if value is None else storable(value)


def estimate_tokens(text: str) -> int:
    """Return the estimated number of tokens."""
    if text.isascii():
        return ceil(len(text) / _CHARS_PER_TOKEN)
    wide = len(_WIDE.findall(text))
    return ceil((len(text) - wide) / _CHARS_PER_TOKEN + wide * _TOKENS_PER_WIDE_CHAR)


# --- JSON


def read_json(text: str, max_values: int = MAX_OBJECT_VALUES) -> Any:
    """Parse one JSON value with unique keys, finite numbers and valid Unicode, of a limited size and depth.

    Raises:
        ValueError: the text is not such a value; a JSONDecodeError if the error has a position.
    """
    check_json_size(text, max_values)
    value = _DECODER.decode(text)
    if "\\u" in text or not text.isascii():
        json.dumps(value, ensure_ascii=False).encode()  # raises for half a surrogate pair, which cannot be stored
    return value


def check_json_size(text: str, max_values: int = MAX_OBJECT_VALUES) -> None:
    """Raise ValueError if a JSON text has too many values, nested ones included, or more than 100 levels.

    The text is counted before anything is built, up to its first syntax error, which this does not report: parsing
    1.3 million empty lists takes 0.2 s, in which no other thread runs, and 100 MB.
    """
    opened = text.count("[") + text.count("{")
    if opened < MAX_JSON_DEPTH and opened + text.count(",") < max_values:  # also if none of them is in a string
        return
    values, depth, leaves = 1, 0, 0
    for token in _TOKEN.finditer(text):
        first, is_single = text[token.start()], token.end() == token.start() + 1
        if first == ",":
            values += 1
        elif first in "]}":
            depth -= 1
        elif first == '"' or not is_single:
            leaves += 1
        else:  # a container with values
            values, depth = values + 1, depth + 1
        if depth >= MAX_JSON_DEPTH:
            raise ValueError(f"it nests deeper than {MAX_JSON_DEPTH} levels")
        if values > max_values or leaves > 2 * max_values:  # a value has at most a key and a text
            raise ValueError(f"it has more than {max_values} values")
        if depth < 0 or (first == '"' and is_single):
            return  # the parser gets no further either


def read_object(text: str) -> dict[str, Any]:
    """Parse one JSON object like `read_json`; raise ValueError also if it is too large or not an object."""
    if len(text) > MAX_OBJECT_CHARS:
        raise ValueError(f"it has {len(text)} characters; at most {MAX_OBJECT_CHARS} are read")
    value = read_json(text)
    if not isinstance(value, dict):
        raise ValueError(f"it is {'null' if value is None else f'a {type(value).__name__}'}")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            raise ValueError(f"duplicate key {key!r}")
        value[key] = item
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def has_more_values(value: object, most: int) -> bool:
    """Return whether a value contains more than `most` values, itself included; counting stops there."""
    count, pending = 1, [value]
    while pending and count <= most:
        inner = list(_children(pending.pop()))
        count += len(inner)
        pending += inner
    return count > most


def nesting_depth(value: object) -> int:
    """Return the nesting depth of data; a plain value has depth 1."""
    level, depth = [value], 0
    while level:
        depth += 1
        level = [child for item in level for child in _children(item)]
    return depth


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=_finite)


# --- digests


def content_digest(text: str) -> str:
    """Return the digest of a text as 64 hexadecimal digits."""
    return _digest(text, _BYTES)


def bytes_digest(data: bytes) -> str:
    """Return the digest of a file's contents as 64 hexadecimal digits."""
    return blake2b(data, digest_size=_BYTES).hexdigest()


def source_digest(*parts: bytes | str) -> str:
    """Return a 64-bit digest of the parts, in hexadecimal."""
    digest = blake2b(digest_size=8)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def canonical_call(tool: str, arguments: dict[str, Any]) -> str:
    """Return a tool call as JSON with sorted keys, the text that its digest is computed from."""
    return _CANONICAL.encode([tool, arguments])


def call_digest(tool: str, arguments: dict[str, Any]) -> str:
    """Return the digest of a tool and its exact arguments. An approval applies to one digest."""
    return content_digest(canonical_call(tool, arguments))


def repetition_key(tool: str, arguments: dict[str, Any]) -> str:
    """Return the key that counts how often a run makes a call: 16 hexadecimal digits, equal for equal calls.

    Two calls that share a key are counted as one, which can only bring the limit of repetitions nearer.
    """
    return _digest(canonical_call(tool, arguments), _KEY_BYTES)


def _digest(text: str, size: int) -> str:
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=size).hexdigest()
