"""Traces, metrics and logs.

In reading order; each module imports only from those below it:

    setup           Configures the OpenTelemetry SDK to export traces and metrics over OTLP.
    spans           Spans of one run: recorded, stored, linked to callers, set by plugins, as OTLP JSON; logs as JSON.
    content         Converts prompts, arguments and results to span attributes, as far as settings allow.
    metrics         Metrics of runs and reloads, reported to the host's MeterProvider.
    names           Names of spans and attributes.
    redact          Keeps content and secrets out of the log.
"""
