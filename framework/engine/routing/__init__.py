"""Chooses the agent for a message.

In reading order; each module imports only from those below it:

    by_model  Routing by a model: one call that chooses the agent, and how it works.
    rules     Routing without a model: by name, conversation, rules, or default.
"""
