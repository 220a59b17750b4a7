"""One model call: request, retries, fallbacks, reply.

In reading order; each module imports only from those below it:

    compaction   Shortens long conversations: summaries of their start, results that are cut.
    turn         One model turn: prepare the run, build a request that fits, call the model, emit the reply.
    retry        One attempt at a call, its files, retries and fallbacks: the only place that repeats a call.
"""
