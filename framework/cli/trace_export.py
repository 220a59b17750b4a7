"""Sends the traces of a command to a backend."""

from __future__ import annotations

from contextlib import AbstractContextManager

from framework.config.settings import Settings
from framework.telemetry import setup

SERVER_EXIT_SECONDS = 5.0
"""Time for the last export at the end of a server: it has more to send, and is killed after 30 seconds."""


def trace_export(
    settings: Settings, otlp: str | None = None, exit_seconds: float = setup.EXIT_SECONDS
) -> AbstractContextManager[None]:
    """Send traces while the context is open: to `--otlp`, else to the settings' endpoint, else to that of OTEL_*.

    At the end, a backend that does not answer is waited for at most `exit_seconds`.

    Raises:
        ConfigError: the URL is invalid, the exporter's package is missing, or OTEL_* ask for another protocol.
    """
    telemetry = settings.telemetry
    headers = {name: value.get_secret_value() for name, value in telemetry.otlp_headers.items()}
    return setup.export_traces(otlp or telemetry.otlp_endpoint, headers, telemetry.service_name, exit_seconds)
