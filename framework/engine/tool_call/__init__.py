"""One tool call, from the model's request to its recorded result.

In reading order; each module imports only from those below it:

    call       The lifecycle: reserve, pass the gate, hooks, approval and rate limit, execute, record.
    gate       Repairs arguments and evaluates the policy: allowed, refused, or a question for a person.
    hooks      Hooks of plugins, and the context object that hooks and tools receive.
    run_tools  The tools that the engine executes on the run itself: `result.read`, `result.search`.
    results    Results as recorded, as traced, and as the model sees them.
"""
