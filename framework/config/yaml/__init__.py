"""Parses YAML, validates it against a model, and reports problems with their positions.

In reading order; each module imports only from those below it:

    text_edits   Edits agent files as text: newer spellings, other rules.
    parse        Validates a document against a pydantic model; `${VAR}`; what is valid in an invalid file.
    agent_keys   Reads the keys of agent files: each has one field in `AgentSpec`; older spellings remain valid.
    document     Parses YAML 1.2 with the position of every key and value, and edits text at them.
"""
