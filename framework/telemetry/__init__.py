"""Traces, metrics and log redaction.

In reading order; each module imports only from those below it:

    setup           Configures the OpenTelemetry SDK to export traces and metrics over OTLP.
    inbound         Applies the trace context of an incoming HTTP request to the runs it starts.
    plugin_span     The span that plugins use; its attributes are validated.
    json_log        Writes log records as JSON, with the ids of the run that they belong to.
    spans           Spans of one run, recorded by the host, in the stored trace, or in both.
    content         Converts prompts, arguments and results to span attributes, as far as settings allow.
    metrics         Metrics of runs and reloads, reported to the host's MeterProvider.
    otlp_json       Converts a stored trace to OTLP JSON.
    names           Names of spans and attributes.
    redact          Masks secrets in log records.
"""
