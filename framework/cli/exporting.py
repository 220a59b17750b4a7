"""Sends the traces of a command to a backend."""

from __future__ import annotations

from contextlib import AbstractContextManager

from framework.config.settings import Settings
from framework.telemetry import setup


def exporting(settings: Settings, otlp: str | None = None) -> AbstractContextManager[None]:
    """Send traces while the context is open: to `--otlp`, else to the settings' endpoint, else to that of OTEL_*.

    Raises:
        ConfigError: the URL is invalid, or the exporter's package is missing.
    """
    telemetry = settings.telemetry
    headers = {name: value.get_secret_value() for name, value in telemetry.otlp_headers.items()}
    return setup.export_traces(otlp or telemetry.otlp_endpoint, headers, telemetry.service_name)
