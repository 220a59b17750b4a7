"""TO WRITE.

In reading order; each module imports only from those below it:

    client  Gemini, through Google's own SDK. Whatever goes wrong there leaves here as one ModelError.
    format  Our messages in the form of Gemini's `generateContent`, and back. Pure: no I/O, no SDK.
    schema  JSON Schema in the part of it that Gemini takes for a function's parameters. Pure.
"""
