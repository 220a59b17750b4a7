"""The context of a run: the state, policy, budget, journal and clients that all its parts use.

In reading order; each module imports only from those below it:

    run_context      One run as its parts see it: state, agent, rules, events, files, services, time.
    policy           Decides whether a tool call is allowed, needs approval, or is denied.
    model_clients    The model clients of a process, with a circuit breaker for each model.
    budget           What a run has used of its limits and of shared budgets.
    journal          Persists a run's state and events, and delivers events after they are persisted.
    event_hub        Delivers the events of a run to any number of readers; live text from other processes.
    concurrency      Runs tool calls or plan steps concurrently, and blocking tools in threads.
"""
