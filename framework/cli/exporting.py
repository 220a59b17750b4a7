"""Where a command sends its traces."""

from __future__ import annotations

from contextlib import AbstractContextManager

from framework.config.settings import Settings
from framework.telemetry import setup


def exporting(settings: Settings, otlp: str | None = None) -> AbstractContextManager[None]:
    """Send traces while the context is open: to `--otlp`, else where the settings say, else where OTEL_* variables say.

    Raises:
        ConfigError: the address is none, or the exporter's package is missing.
    """
    told = settings.telemetry
    headers = {name: value.get_secret_value() for name, value in told.otlp_headers.items()}
    return setup.export_traces(otlp or told.otlp_endpoint, headers, told.service_name)
