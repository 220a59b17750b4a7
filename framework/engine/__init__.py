"""The engine: runs agents, from a message to a persisted result.

In reading order; each module imports only from those below it:

    triggers       Starts runs at the times of cron expressions, and for deliveries of webhooks.
    procrastinate  Delivers runs to several processes through Procrastinate, in PostgreSQL.
    runtime        The embeddable runtime: starts, resumes, cancels and persists runs.
    plan           The plan executor: plan, get approval, execute the steps, answer from their results.
    run            One run in progress: the methods that executors call, and how an executor is driven.
    run_report     What a run reports: spans, metrics, closing events, its result.
    routing        Chooses the agent for a message: by rules, or by asking a model.
    model_call     One model call: request, retries, fallbacks, reply.
    tool_call      One tool call: limits, policy, approval, execution, result.
    context        The state, policy, budget and journal that every part of a run uses.
"""
