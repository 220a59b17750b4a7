"""TO WRITE.

In reading order; each module imports only from those below it:

    model_clients     The model clients of a process: one for each name that agents use, made when it is first asked.
    trace             What all traces of a run share: its content mode, and the attributes of models, tokens and ...
    run_context       The lower face of a run: its state, agent, limits and journal, as every part of the engine ...
    services          What all parts of one run share: the pinned generation, and the objects the gateway calls.
    journal           What a root run puts on record, and tells whoever listens: nothing is told before it is on ...
    budget            What a run has used of its limits. A sub-run spends its own budget and its callers' too.
    circuit_breaker   Which models can be asked just now: one that fails again and again is left alone for a while.
    concurrency       Jobs side by side: one that pauses or meets a limit makes itself felt only when all have ...
    policy            What policy says of a tool call: one verdict, and the rule it comes from.
    stream            The one channel a run's events go through, and what the caller holds while it runs.
    tool_threads      Threads for blocking tools and hooks: those that are not coroutines.
"""
