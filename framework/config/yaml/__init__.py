"""Parses YAML, validates it against a model, and reports problems with their positions.

In reading order; each module imports only from those below it:

    rewriting    Rewrites the older spellings of agent files.
    parse        Validates a document against a pydantic model and converts errors to Problems.
    agent_keys   Reads the keys of agent files: each has one field in `AgentSpec`; older spellings remain valid.
    document     Parses YAML 1.2 into plain data, with the line and column of every key and value.
"""
