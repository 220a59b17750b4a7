"""Clients for every server with OpenAI's chat completions API or its Responses API.

In reading order; each module imports only from those below it:

    responses     The Responses API: its client, and messages as its items.
    client        Chat completions, and what both APIs share: the exchange with the server, and its errors.
    connection    Sends requests through the openai SDK, and reads the events of streamed responses.
"""
