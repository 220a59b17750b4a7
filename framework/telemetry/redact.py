"""Keeps content and secrets out of the log: where an exception was raised, not what it said; masked records."""

from __future__ import annotations

import logging
from traceback import format_tb

from framework.types.redact import redact


class MaskingFormatter(logging.Formatter):
    """Masks what looks like a secret in whole records, exceptions and those of other libraries included."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text, masked."""
        return redact(super().format(record))


def places(error: BaseException) -> str:
    """An exception's class and where it comes from. Its text is left out: it may quote arguments or results."""
    return f"{type(error).__name__}\n{redact(''.join(format_tb(error.__traceback__)))}".rstrip()
