"""TO WRITE.

In reading order; each module imports only from those below it:

    client       Claude, through Anthropic's own SDK. Whatever goes wrong there leaves here as one ModelError.
    answer_tool  A typed answer as the arguments of a tool, for providers that hold a model to a tool's schema only.
    format       Our messages in the form of Anthropic's Messages API, and back. Pure: no I/O, no SDK.
"""
