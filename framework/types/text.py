"""Text helpers: shorten, put on one line, make characters visible, replace lone surrogates, suggest similar names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

_MAX_LISTED = 20


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
