"""The plan executor: plan, get approval, execute the steps, answer from their results.

In reading order; each module imports only from those below it:

    executor      The plan executor's main loop, from the first plan to the answer; the executor `auto`.
    step          Executes one step: a tool call, or a sub-run for a goal.
    planner       Requests plans from the model until one passes preflight, and adopts it; spans of plans.
"""
