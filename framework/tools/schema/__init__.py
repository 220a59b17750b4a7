"""Schemas of tools: checks and repairs of arguments, and checks of return values.

In reading order; each module imports only from those below it:

    arguments        Validates the arguments of a call, by a function's signature or by a JSON Schema.
    json_schema      Looks up, in a JSON Schema, what is allowed at a place in a value.
"""
