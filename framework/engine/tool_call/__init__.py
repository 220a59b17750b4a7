"""One tool call, from the model's request to its recorded result.

In reading order; each module imports only from those below it:

    call       The lifecycle: reserve, pass the gate, hooks, approval and rate limit, execute, record.
    memory     The notes that a run starts with, and the tools that save, find and forget notes.
    run_tools  The tools that the engine executes: handoffs, scripts, `tool_search`, `result.read`, `result.search`.
    results    Results as recorded, as traced, and as the model sees them; plugin hooks.
"""
