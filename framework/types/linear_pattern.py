"""Regular expressions from configuration files, matched in linear time against text of users and models."""

from __future__ import annotations

from pydantic_core import SchemaError, SchemaValidator, core_schema


class LinearPattern:
    """A pattern for Rust's regex engine, which is part of Pydantic: no look-around and no back-references.

    Python's `re` backtracks: `(a+)+$` takes seconds for 26 letters and blocks the event loop.
    """

    def __init__(self, pattern: str) -> None:
        """Compile a pattern; raise ValueError if it is invalid."""
        try:
            self._validator = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
        except SchemaError as error:
            raise ValueError(_reason(str(error))) from None

    def is_in(self, text: str) -> bool:
        """Return whether the pattern matches anywhere in a text."""
        return self._validator.isinstance_python(text)


def _reason(error: str) -> str:
    """Extract the reason from an error message that also quotes the pattern."""
    _, found, reason = error.rpartition("error: ")
    if not found:
        return error.strip().rpartition("\n")[2].strip().rstrip(".").lower()
    return " ".join(reason.split())
