"""Regular expressions from configuration files, matched in linear time against the text of users and models."""

from __future__ import annotations

from pydantic_core import SchemaError, SchemaValidator, core_schema


class LinearPattern:
    """A pattern of Rust's regex engine, which Pydantic contains: no look-around and no back-references.

    Python's `re` tries all ways to match one after another: `(a+)+$` takes seconds for 26 letters and holds the loop.
    """

    def __init__(self, pattern: str) -> None:
        """Compile a pattern; raises ValueError if the engine cannot."""
        try:
            self._validator = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
        except SchemaError as error:
            raise ValueError(_reason(str(error))) from None

    def is_in(self, text: str) -> bool:
        """Whether the pattern matches anywhere in a text."""
        return self._validator.isinstance_python(text)


def _reason(error: str) -> str:
    """What is wrong with a pattern, out of an error that also draws it."""
    _, found, reason = error.rpartition("error: ")
    if not found:
        return error.strip().rpartition("\n")[2].strip().rstrip(".").lower()
    return " ".join(reason.split())
