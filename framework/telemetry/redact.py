"""Keeps content and secrets out of the log: formats exceptions without their text and masks records."""

from __future__ import annotations

import logging
from traceback import format_tb

from framework.types.redact import redact


class MaskingFormatter(logging.Formatter):
    """Masks secrets in complete log records, including tracebacks and records of other libraries."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the formatted record with secrets masked."""
        return redact(super().format(record))


def safe_traceback(error: BaseException) -> str:
    """Return an exception's class and traceback without its message, which may quote arguments or results."""
    return f"{type(error).__name__}\n{redact(''.join(format_tb(error.__traceback__)))}".rstrip()
