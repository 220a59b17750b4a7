"""An exception that no code expects while a file is read: a Problem of that file, so that the others can go live."""

from __future__ import annotations

import logging

from framework.telemetry.redact import places
from framework.types.problem import Problem
from framework.types.redact import redact

log = logging.getLogger(__name__)

_MAX_CHARS = 500


def problem_from_exception(path: str, error: BaseException) -> Problem:
    """The file's Problem; the log gets where it was raised."""
    log.error("%s: an unexpected error while it was read: %s", path, places(error))
    try:
        text = str(error)[:_MAX_CHARS]
    except BaseException:  # noqa: BLE001 - showing an exception of a plugin runs the plugin's code
        text = ""
    because = f": {redact(text)}" if text else ""
    message = f"cannot be used: {type(error).__name__}{because}".encode("utf-8", "backslashreplace").decode()
    return Problem(path=path, message=message)
