"""Writes log records as JSON, with the ids of the run that they belong to."""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from framework.telemetry.redact import safe_traceback
from framework.telemetry.spans import current_span
from framework.types.redact import redact

_run_id: ContextVar[str] = ContextVar("agentsd_run_id", default="")


def log_as_run(run_id: str) -> None:
    """Attach the id of a run to the log records of the current task and the tasks and threads that it starts."""
    _run_id.set(run_id)


class JsonFormatter(logging.Formatter):
    """Formats a record as one line: a JSON object with secrets masked.

    `time` (UTC), `level`, `logger` and `message` are always present; `run_id` and `trace_id` if the record belongs to a
    run; the fields of `record.agentsd`; and `exception`: the class and the traceback, but not the message, of one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        if run_id := _run_id.get():
            entry |= {"run_id": run_id, "trace_id": current_span().trace_id}
        for name, value in getattr(record, "agentsd", {}).items():
            entry[name] = redact(value) if isinstance(value, str) else value
        if record.exc_info and record.exc_info[1]:
            entry["exception"] = safe_traceback(record.exc_info[1])
        present = {name: value for name, value in entry.items() if value is not None}
        return json.dumps(present, ensure_ascii=False, default=str)
