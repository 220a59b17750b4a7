"""TO WRITE.

In reading order; each module imports only from those below it:

    arguments        What arguments a tool takes: checked against a function's signature, or against a schema from ...
    findings         What is wrong with a call's arguments, field by field, in a form that a template can put into ...
    repairs          Puts arguments right whose value is clear and only its form is wrong, by the tool's JSON Schema.
    validation_work  How much work it is to check a value against a JSON Schema, before it is checked.
    json_schema      Finds one's way in a JSON Schema: what may stand at a place, and how to say that in few words.
    returns          What a tool returns: checked against the annotation of its function, and described to the model.
"""
