"""Parses YAML, validates it against a model, and reports problems with their positions.

In reading order; each module imports only from those below it:

    rewriting    Rewrites the older spellings of agent files.
    parse        Validates a document against a pydantic model and converts errors to Problems.
    environment  Substitutes `${VARIABLE}` references in parsed documents.
    agent_keys   Reads the keys of agent files: each has one field in `AgentSpec`; older spellings remain valid.
    fixes        Detects typos with exactly one plausible correction, and applies the corrections.
    partial      Merges the valid parts of an otherwise invalid document into a valid one.
    document     Parses YAML 1.2 into plain data, with the line and column of every key and value.
    syntax       Says what is wrong with text that is not YAML, and what to do.
"""
