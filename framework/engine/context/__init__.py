"""The context of a run: the state, policy, budget, journal and clients that all its parts use.

In reading order; each module imports only from those below it:

    run_context      One run as its parts see it: state, agent, rules, events, time.
    services         What a run and its sub-runs share, and the rate limits of tools.
    policy           Decides whether a tool call is allowed, needs approval, or is denied.
    model_clients    The model clients of a process, and what an agent needs to call its models.
    media            The files of one run: saved before messages refer to them, loaded before model calls.
    budget           What a run has used of its limits.
    budget_ledger    Admits the model calls of a run under its shared budgets, and counts what they use.
    circuit_breaker  Suspends calls of a model that keeps failing.
    journal          Persists a run's state and events, and delivers events after they are persisted.
    stream           The events of a run as its caller reads them, with each text once.
    text_piece       Pieces of texts in progress, as processes send them to each other.
    event_hub        Delivers the events of a run to any number of readers, each at its own pace.
    concurrency      Runs tool calls or plan steps concurrently.
    tool_threads     Threads for tools and hooks that are not coroutines.
    trace            Span attributes of models, token usage and pending approvals.
"""
