"""The offline model: a rule-based stand-in, to try and test agents without an API key.

In reading order; each module imports only from those below it:

    model      Matches clauses to tools, and composes the answer from their results.
    plan       Plans: one or more steps per clause, and corrected steps after an error.
    arguments  Fills a tool's arguments from a clause, by parameter name and JSON Schema type.
    words      Splits a request in English or Chinese into clauses, words and literals.
"""
