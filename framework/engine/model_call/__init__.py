"""One model call: request, retries, fallbacks, reply.

In reading order; each module imports only from those below it:

    preparation        Before the first turn: read MCP resources and prompts, summarize a history that is too long.
    turn               One model turn: build the request, check that it fits, call the model, emit the reply.
    structured_output  Answers that fit a schema or a type.
    truncation         Answers that the output limit cut: continued, or reported.
    retry              Retries and fallbacks: the only place that repeats a model call.
    files              The files of a request: loaded before the call, or replaced by descriptions.
    attempt            One attempt: timeouts, usage, and the text shown while the answer arrives.
    trace              Span and metrics of a model call and its attempts.
"""
