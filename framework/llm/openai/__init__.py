"""Client for every server with OpenAI's chat completions API.

In reading order; each module imports only from those below it:

    client      Builds a request and turns the response into a reply.
    connection  Sends requests that are already encoded through the openai SDK.
    transport   Sends the SDK's requests through aiohttp.
"""
