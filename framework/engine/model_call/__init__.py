"""One model call: request, retries, fallbacks, reply.

In reading order; each module imports only from those below it:

    preparation  Before the first turn: read MCP resources and prompts, summarize a history that is too long.
    turn         One model turn: build the request, check that it fits, call the model, check the answer.
    retry        One attempt at a call, its files, retries and fallbacks: the only place that repeats a call.
    trace        Span and metrics of a model call and its attempts.
"""
