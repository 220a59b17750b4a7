"""Converts an unexpected exception to a `Problem` of the file that caused it, so that other files still load."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from framework.telemetry.redact import places
from framework.types.problem import Problem
from framework.types.redact import redact

log = logging.getLogger(__name__)

_MAX_CHARS = 500


def find_problems(path: str, find: Callable[[], Iterable[Problem]]) -> list[Problem]:
    """Return the problems that a check of the file at `path` finds, or the exception that it raises as a problem."""
    try:
        return list(find())
    except Exception as error:  # noqa: BLE001 - one file must not keep the others from going live
        return [problem_from_exception(path, error)]


def problem_from_exception(path: str, error: BaseException) -> Problem:
    """Return the problem of the file at `path`, and log where the exception was raised."""
    log.error("%s: unexpected error while reading the file: %s", path, places(error))
    try:
        text = str(error)[:_MAX_CHARS]
    except BaseException:  # noqa: BLE001 - str() of a plugin's exception runs the plugin's code
        text = ""
    detail = f": {redact(text)}" if text else ""
    message = f"unexpected error: {type(error).__name__}{detail}".encode("utf-8", "backslashreplace").decode()
    return Problem(path=path, message=message)
