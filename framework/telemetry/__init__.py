"""Traces, metrics and logs.

In reading order; each module imports only from those below it:

    setup           Configures the OpenTelemetry SDK to export traces and metrics over OTLP.
    spans           Spans of one run and their content: recorded, stored, linked to callers, as OTLP JSON; logs as JSON.
    metrics         Metrics of runs and reloads, reported to the host's MeterProvider.
    names           Names of spans and attributes.
    redact          Keeps content and secrets out of the log.
"""
