"""TO WRITE.

In reading order; each module imports only from those below it:

    client       Claude, through Anthropic's own SDK. Whatever goes wrong there leaves here as one ModelError.
    format       Our messages in the form of Anthropic's Messages API, and back. Pure: no I/O, no SDK.
"""
