"""The context of a run: the state, policy, budget, journal and clients that all its parts use.

In reading order; each module imports only from those below it:

    run_context      One run as its parts see it: state, agent, model clients, files, services, time.
    grants           How an approval can be remembered, which calls it covers, and which one answers a question.
    events           The journal, which persists events, and the hub, which delivers them to readers.
    policy           Decides whether a tool call is allowed, and counts what a run uses of its limits.
"""
