"""`/a2a`: agents as tasks for other agents, by the protocol A2A 1.0.

In reading order; each module imports only from those below it:

    endpoint  The routes, and the cards that describe the agents.
    tasks     Runs as tasks: messages, states, artifacts, updates, decisions.
"""
