"""Client for Gemini, through Google's SDK.

In reading order; each module imports only from those below it:

    client  Sends a request and assembles the response.
    format  Converts messages to and from the format of `generateContent`.
"""
