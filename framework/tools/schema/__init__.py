"""Schemas of tools: checks and repairs of arguments, and checks of return values.

In reading order; each module imports only from those below it:

    arguments        Validates the arguments of a call, by a function's signature or by a JSON Schema.
    findings         Validation errors as data: field, problem, value given, value expected.
    repairs          Repairs arguments whose meaning is clear and only their form is wrong.
    validation_work  Estimates the work of a validation before it starts, so that none runs for hours.
    json_schema      Looks up, in a JSON Schema, what is allowed at a place in a value.
    return_type      Validates what a tool returns, by the annotation of its function.
"""
